"""Traces by OpenTelemetry: a span a request, and a span a stage of the job that it created.

A job keeps its request's ``traceparent`` (W3C Trace Context), so that its stages, which other
processes run later, belong to the same trace. Off by default; then nothing of OpenTelemetry is
imported. Spans have ids, routes, statuses and durations, never addresses, names or contents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from serve_app import __version__

_EXPORT_TIMEOUT_SECONDS = 5
"""A collector that is away delays the end of a process by so much at most; its spans are lost."""

_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


class TracingNotInstalledError(Exception):
    """``VAS_TRACES_URL`` is set and the library that sends traces is not installed."""

    def __init__(self) -> None:
        super().__init__("VAS_TRACES_URL needs the extra 'tracing': `make setup-dev` has it.")


def exporter_class() -> Any:
    """What sends spans. Raises TracingNotInstalledError."""
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
