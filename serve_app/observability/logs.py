"""The service's log: one line a record, with what it is about, and without secrets.

Where it goes: into one file of ``VAS_LOG_DIR`` that all processes of a machine share,
or, without such a folder, to each process's standard error, which Ray keeps in its
session's ``logs`` folder.

Traces by OpenTelemetry: a span a request, and a span a stage of the job that it created.

A job keeps its request's ``traceparent`` (W3C Trace Context), so that its stages, which other
processes run later, belong to the same trace. Off by default; then nothing of OpenTelemetry is
imported. Spans have ids, routes, statuses and durations, never addresses, names or contents.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from serve_app import __version__

LOG_NAME = "service.log"
FILE_BYTES = 64 * 1024**2
FILES_KEPT = 4
"""Full files beside the one that is written: ``service.log.1`` is the newest of them."""

LOGGERS = {"vas": logging.NOTSET, "ray.serve": logging.WARNING}
"""Logger -> its lowest level, whatever ``VAS_LOG_LEVEL`` is: Serve logs much."""


class _Formatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process


class JsonFormatter(_Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message; ids where there are; the process; the exception."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            "process": self._process,
            **{name: str(value) for name, value in current_context().items()},
            "pid": record.process,
        }
        if (exception := _exception(record)) is not None:
            line["exception"] = exception
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(_Formatter):
    """The same for people: a line, and the exception below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, process, logger, message, ids."""
        ids = "".join(f" {name}={value}" for name, value in current_context().items())
        head = f"{_time(record)} {record.levelname} {self._process} {record.name}: "
        # Line ends and what terminals obey are spelt out.
        message = _CONTROL.sub(
            lambda found: found[0].encode("unicode_escape").decode(),
            without_secrets(record.getMessage()),
        )
        line = head + message + ids
        exception = _exception(record)
        return line if exception is None else f"{line}\n{exception}"


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _exception(record: logging.LogRecord) -> str | None:
    """Return the traceback as text.

    Not by ``formatException``, which prints it: Serve has a ``print`` of its own in replicas, which
    writes a line's arguments as a tuple.
    """
    if not record.exc_info:
        return None
    return without_secrets("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))


class SharedFile(logging.Handler):
    """A file that several processes append to: a record is one write, so lines stay whole.

    A process that finds it full rotates it under a lock.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        super().__init__()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._file_bytes = file_bytes
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record; failures go to standard error by ``logging`` itself."""
        try:
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
            if self._is_full(len(line)):
                self._begin_anew(len(line))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except Exception:
            self.handleError(record)

    def _is_full(self, more_bytes: int) -> bool:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        return size > 0 and size + more_bytes > self._file_bytes

    def _begin_anew(self, more_bytes: int) -> None:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Another process may have done it while this one waited.
            if not self._is_full(more_bytes):
                return
            for number in range(self._kept, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class LogSettings(Protocol):
    """What of the settings decides about the log."""

    @property
    def log_dir(self) -> Path | None: ...
    @property
    def log_format(self) -> str: ...
    @property
    def log_level(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LogTarget:
    """``LogSettings`` for a process that needs to know no other setting, and no secret."""

    log_dir: Path | None
    log_format: str
    log_level: str


def configure_logging(settings: LogSettings, process: str) -> logging.Handler:
    """Send this process's log where ``settings`` direct it; ``process`` names it in every line."""
    handler: logging.Handler
    if settings.log_dir is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = SharedFile(settings.log_dir / LOG_NAME)
    form = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler.setFormatter(form(process))
    handler.addFilter(_is_no_queueing)
    level = logging.getLevelNamesMapping()[settings.log_level]
    for name, least in LOGGERS.items():
        logger = logging.getLogger(name)
        _remove_ours(logger)
        logger.addHandler(handler)
        logger.setLevel(max(level, least))
    return handler


def _is_no_queueing(record: logging.LogRecord) -> bool:
    """Return whether it is anything but Serve's warning that a full replica sends a request on,
    which is how its router spreads requests whenever some wait."""
    return not (record.name == "ray.serve" and record.msg.startswith("Replica at capacity"))


def _remove_ours(logger: logging.Logger) -> None:
    for handler in list(logger.handlers):
        if isinstance(handler.formatter, _Formatter):
            logger.removeHandler(handler)


@contextlib.contextmanager
def logging_for(settings: LogSettings, process: str) -> Iterator[None]:
    """``configure_logging`` for the length of a block."""
    configure_logging(settings, process)
    try:
        yield
    finally:
        for name in LOGGERS:
            _remove_ours(logging.getLogger(name))


Fields = dict[str, object]
"""Field name to value; made text only where a record is written."""

_CURRENT: ContextVar[Fields | None] = ContextVar("vas_log_context", default=None)


def enter_context(fields: Fields) -> Token[Fields | None]:
    """Records of this task, and of those it starts, bear ``fields`` until ``leave_context``."""
    return _CURRENT.set(fields)


def leave_context(token: Token[Fields | None]) -> None:
    """What was before ``enter_context``."""
    _CURRENT.reset(token)


@contextlib.contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """``fields``, with those around the block, on every record of the block."""
    token = enter_context({**current_context(), **fields})
    try:
        yield
    finally:
        leave_context(token)


def note(**fields: object) -> None:
    """Add to the fields of the request or job at hand."""
    current = _CURRENT.get()
    if current is not None:
        current.update(fields)


def current_context() -> Mapping[str, object]:
    """Return the fields in force."""
    return _CURRENT.get() or {}


HIDDEN = "[hidden]"

_SHAPES: tuple[tuple[str, str], ...] = (
    # Our own: API keys, session and sign-in tokens, webhook signing secrets.
    (r"\b(vas_[a-z]+_)[A-Za-z0-9_-]{8,}", r"\1" + HIDDEN),
    (r"\b(whsec_)[A-Za-z0-9+/=_-]{8,}", r"\1" + HIDDEN),
    # PostgreSQL's details of a refused row: all that a client sent.
    (r"(?s)(\bDETAIL:\s+).+?(?=\n\[SQL|\n\n|\n[A-Z]{4,}:\s|\Z)", r"\1" + HIDDEN),
    # Values beside a telling name: in JSON, Python's own form, pairs of headers.
    (
        r"(?i)([\"'][\w-]*(?:token|secret|password|api[_-]?key|authorization|cookie|signature)[\"']"
        r"\s*[:,]\s*b?)([\"'])(?:(?!\2).)+\2",
        r"\1\2" + HIDDEN + r"\2",
    ),
    # Credentials in headers.
    (
        r"(?i)\b((?:x-api-key|(?:set-)?cookie|(?:proxy-)?authorization):\s*)\S[^\r\n]*",
        r"\1" + HIDDEN,
    ),
    (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", r"\1 " + HIDDEN),
    # Credentials in addresses: before the host (a token may stand for the user), in parameters.
    (r"(://)[^/\s@?#\"'<>]+@", r"\1" + HIDDEN + "@"),
    (
        r"(?i)([?&](?:[a-z0-9_-]*(?:signature|token|credential|secret|key|sig|policy|auth|jwt|hmac)"
        r"|expires|code|state|invitation|pwd|pass(?:word|wd|phrase)?|hdn[a-z]{2})=)"
        r"[^&\s\"'<>]+",
        r"\1" + HIDDEN,
    ),
    # A connection string's words.
    (r"(?i)\b(password=)('[^']*'|[^\s'\"]+)", r"\1" + HIDDEN),
)
_COMPILED = tuple((re.compile(shape), kept) for shape, kept in _SHAPES)


def without_secrets(text: str) -> str:
    """``text`` with everything that looks like a credential hidden."""
    for shape, kept in _COMPILED:
        text = shape.sub(kept, text)
    return text


_EXPORT_TIMEOUT_SECONDS = 5
"""A collector that is away delays the end of a process by so much at most; its spans are lost."""

_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


class TracingNotInstalledError(Exception):
    """``VAS_TRACES_URL`` is set and the library that sends traces is not installed."""

    def __init__(self) -> None:
        super().__init__("VAS_TRACES_URL needs the extra 'tracing': `make setup-dev` has it.")


def exporter_class() -> Any:
    """Return what sends spans. Raises TracingNotInstalledError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise TracingNotInstalledError from error
    return OTLPSpanExporter


def current_traceparent() -> str | None:
    """Of the span that the caller runs in; None where nothing is traced."""
    return _traceparent.get()


class Tracing:
    """Sends spans to a collector, in the background and in batches."""

    def __init__(self, url: str, ratio: float) -> None:
        """``url`` takes OTLP over HTTP; ``ratio`` of the traces is kept, the same in each process.

        Raises TracingNotInstalledError.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

        resource = {"service.name": "video-analysis-service", "service.version": __version__}
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(ratio), resource=Resource.create(resource)
        )
        exporter = exporter_class()(endpoint=url, timeout=_EXPORT_TIMEOUT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("serve_app")

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, str],
        *,
        parent: str | None,
        of_request: bool = False,
    ) -> Iterator[Span]:
        """A span for the block, which fails where the block does. ``parent`` is a traceparent."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        kind = SpanKind.SERVER if of_request else SpanKind.INTERNAL
        context = propagator.extract({"traceparent": parent} if parent else {})
        with self._tracer.start_as_current_span(
            name, context=context, kind=kind, attributes=dict(attributes), record_exception=False
        ) as span:
            carrier: dict[str, str] = {}
            propagator.inject(carrier, set_span_in_context(span))
            token = _traceparent.set(carrier.get("traceparent"))
            try:
                yield Span(span)
            finally:
                _traceparent.reset(token)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()


class Span:
    """A span under way, or nothing where traces are off."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        if self._span is not None:
            self._span.update_name(name)

    def add(self, attributes: Mapping[str, str | int | float]) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)

    def fail(self, code: str) -> None:
        """Mark the span as failed, with the code of the error."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, code)


def traced(
    tracing: Tracing | None,
    name: str,
    attributes: Mapping[str, str],
    *,
    parent: str | None,
    of_request: bool = False,
) -> contextlib.AbstractContextManager[Span]:
    """``Tracing.span``, or nothing where traces are off."""
    if tracing is None:
        return contextlib.nullcontext(Span())
    return tracing.span(name, attributes, parent=parent, of_request=of_request)
