"""A synchronous client of the public API, with its retry rules.

Every operation of the interface document can be called (``ApiClient.call``): its method, path and
parameters come from ``operations.json``, which the suite keeps equal to the document.
"""

from __future__ import annotations

import functools
import json
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, overload
from urllib.parse import quote

import httpx

MAX_WAIT_SECONDS = 60.0
"""A longer ``Retry-After`` than this, or more waiting in all, ends a request."""
MAX_SERVER_FAILURES = 4
"""Attempts at most where the server failed or could not be reached."""

_WAIT_AND_RETRY = frozenset({"IDEMPOTENCY_IN_PROGRESS", "RESULTS_NOT_READY"})

JsonObject = dict[str, Any]

UploadProgress = Callable[[int, int], None]
"""Called with bytes sent so far and bytes in all."""

JobProgress = Callable[[JsonObject], None]
"""Called with every Job object that was read while waiting."""

ProcessingMode = Literal["all", "transcript", "vision"]

JobState = Literal[
    "awaiting_upload", "queued", "processing", "completed", "failed", "cancelled", "expired"
]

CaptionFormat = Literal["srt", "vtt", "ttml", "txt", "md", "csv"]

ExportFormat = Literal["edl", "otio", "fcpxml", "csv", "ffmetadata", "youtube", "webvtt-chapters"]

TERMINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})

UPLOAD_CHUNK_BYTES = 256 * 1024
FIRST_POLL_SECONDS = 0.3
LONGEST_POLL_SECONDS = 2.0
_POLL_GROWTH = 1.3

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)

_ANSWER_TIMEOUT = httpx.Timeout(150.0, connect=10.0)
"""A model may write for two minutes."""

# The service may still be storing the last bytes when all of them have been sent.
_UPLOAD_TIMEOUT = httpx.Timeout(60.0, connect=10.0, read=300.0)

_TUS = {"Tus-Resumable": "1.0.0"}
_OPERATIONS = Path(__file__).with_name("operations.json")
_TAKE_EFFECT = frozenset({"cancelJob"})


def retry_delay_seconds(
    status: int, code: str, headers: Mapping[str, str], *, attempt: int, waited_seconds: float
) -> float | None:
    """Return seconds until the next attempt after an error answer; None when it is final.

    ``attempt`` counts from 1. Every 429 and 503, and the two codes of 409 that pass,
    are retried after the server's Retry-After; 500, 502 and 504 with growing pauses.
    """
    if status in {429, 503} or code in _WAIT_AND_RETRY:
        # In seconds; its other form, a date, is not used by this API.
        stated = headers.get("retry-after", "").strip()
        delay = (float(stated) if stated.isdigit() else 0.0) or backoff_seconds(attempt)
        return delay if waited_seconds + delay <= MAX_WAIT_SECONDS else None
    if status in {500, 502, 504} and attempt < MAX_SERVER_FAILURES:
        return backoff_seconds(attempt)
    return None


def backoff_seconds(attempt: int) -> float:
    """0.5, 1, 2 … seconds, up to a quarter less or more, so that clients spread out."""
    return float(0.5 * 2 ** min(attempt - 1, 4) * random.uniform(0.75, 1.25))


def poll_pauses_seconds() -> Iterator[float]:
    """Between readings of a job that is waited for: short ones first, without end."""
    pause_seconds = FIRST_POLL_SECONDS
    while True:
        yield pause_seconds
        pause_seconds = min(pause_seconds * _POLL_GROWTH, LONGEST_POLL_SECONDS)


class RequestFailedError(Exception):
    """The API refused a request. ``code`` is stable; the message is for people."""

    def __init__(
        self,
        *,
        code: str,
        message: str,
        status: int,
        request_id: str | None,
        param: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.param = param

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.message}{request}"


class WaitTimeoutError(Exception):
    """A job did not end within the time that the caller gave it."""

    def __init__(self, job_id: str, state: str, timeout_seconds: float) -> None:
        super().__init__(f"Job {job_id} is still {state} after {timeout_seconds:g} seconds.")
        self.job_id = job_id
        self.state = state


class FileChangedError(Exception):
    """A file changed while it was sent."""


class ApiClient:
    """A client of one service with one API key. Use it as a context manager, or close it.

    ``base_url`` includes the path prefix: ``http://host:port/v1/api``. Requests that may
    succeed later are repeated (``retry_delay_seconds``). Methods raise RequestFailedError when
    the API refuses, and httpx.TransportError when it cannot be reached.
    """

    def __init__(
        self, base_url: str, api_key: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._authorization = {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            timeout=_TIMEOUT, headers={"User-Agent": "vas-client"}, verify=_certificates()
        )
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, operation: str, **arguments: object) -> Any:
        """Call an operation by its id, with its parameters and the fields of its body by name.

        Those that are None are left out. Returns the answer's ``data``; of a list in pages the
        whole page: ``data``, ``hasMore`` and ``nextCursor``. Raises TypeError for an argument that
        the operation has not, and RequestFailedError where the API refuses.
        """
        response = self.request(operation, **arguments)
        try:
            answer = response.json()
            return answer if "nextCursor" in answer else answer["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise RequestFailedError(
                code=f"HTTP_{response.status_code}",
                message="The answer is none of this API: is the base URL right?",
                status=response.status_code,
                request_id=response.headers.get("x-request-id"),
            ) from error

    def request(self, operation: str, **arguments: object) -> httpx.Response:
        """Return the whole answer to a ``call``, for operations that answer with a file."""
        known = operations()[operation]
        places = {each["name"]: each["in"] for each in known["parameters"]}
        parts, query, body = dict[str, str](), dict[str, str](), dict[str, object]()
        headers = dict(self._authorization)
        if "Idempotency-Key" in places:
            key = arguments.pop("idempotency_key", None)
            headers["Idempotency-Key"] = str(key or uuid.uuid4())
        for name, value in arguments.items():
            if name not in places and name not in known["body"]:
                raise TypeError(f"{operation} has no argument {name}.")
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if places.get(name) == "path":
                parts[name] = _part(text)
            elif value is not None and name in places:
                query[name] = text
            elif value is not None:
                body[name] = value
        # Once sent it may have taken effect: then only an unmade connection is tried again.
        repeated = httpx.ConnectError if operation in _TAKE_EFFECT else httpx.TransportError
        return self._send(
            lambda: self._http.request(
                known["method"],
                f"{self._base_url}{known['path'].format(**parts)}",
                params=query,
                json=body if known["body"] else None,
                headers=headers,
                timeout=_ANSWER_TIMEOUT if operation == "ask" else _TIMEOUT,
            ),
            retry_on=repeated,
        )

    def create_job(
        self,
        file_name: str,
        size_bytes: int | None = None,
        mode: ProcessingMode = "all",
        *,
        metadata: Mapping[str, str | float | bool | None] | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> JsonObject:
        """Create a job whose media is uploaded next; the answer has ``uploadUrl``."""
        job: JsonObject = self.call(
            "createJob",
            fileName=file_name,
            fileSizeBytes=size_bytes,
            processingMode=mode,
            metadata=metadata,
            callbackUrl=callback_url,
            idempotency_key=idempotency_key,
        )
        return job

    def create_job_from_url(self, url: str, mode: ProcessingMode = "all") -> JsonObject:
        """Create a job that the service fetches from a public URL itself."""
        job: JsonObject = self.call("createJobFromUrl", url=url, processingMode=mode)
        return job

    def upload(
        self,
        path: Path,
        upload_url: str,
        headers: Mapping[str, str],
        on_progress: UploadProgress | None = None,
    ) -> None:
        """PUT the file to a job's ``uploadUrl``, read piece by piece.

        A repeated attempt starts again from the first byte.
        """
        size_bytes = path.stat().st_size
        sent = dict(headers) | {"Content-Length": str(size_bytes)}

        def send() -> httpx.Response:
            pieces = _read_pieces(path, size_bytes, on_progress)
            return self._http.put(upload_url, content=pieces, headers=sent, timeout=_UPLOAD_TIMEOUT)

        self._send(send, retry_on=httpx.ConnectError)

    def upload_resumable(
        self, path: Path, resumable_url: str, on_progress: UploadProgress | None = None
    ) -> None:
        """Send what is missing of the file to a job's ``resumableUploadUrl`` (tus 1.0.0).

        A connection that breaks is made again, and goes on behind what has arrived. Raises
        FileChangedError where the file gets another length meanwhile.
        """
        size_bytes, failures, last_offset = path.stat().st_size, 0, -1
        while True:
            head = self._send(lambda: self._http.head(resumable_url, headers=_TUS))
            offset = int(head.headers["upload-offset"])
            if offset >= size_bytes:
                return
            failures = failures + 1 if offset == last_offset else 0
            last_offset = offset
            try:
                self._append(path, resumable_url, offset, size_bytes, on_progress)
            except (httpx.TransportError, RequestFailedError) as error:
                if path.stat().st_size != size_bytes:
                    raise FileChangedError(path.name) from error
                # 409: at another offset; 423: the connection that broke is still known.
                passing = not isinstance(error, RequestFailedError) or error.status in {409, 423}
                if not passing or failures >= MAX_SERVER_FAILURES:
                    raise
                self._sleep(backoff_seconds(failures + 1))

    def _append(
        self,
        path: Path,
        resumable_url: str,
        offset: int,
        size_bytes: int,
        on_progress: UploadProgress | None,
    ) -> None:
        headers = _TUS | {
            "Content-Type": "application/offset+octet-stream",
            "Content-Length": str(size_bytes - offset),
            "Upload-Offset": str(offset),
        }

        def send() -> httpx.Response:
            pieces = _read_pieces(path, size_bytes, on_progress, offset)
            return self._http.patch(
                resumable_url, content=pieces, headers=headers, timeout=_UPLOAD_TIMEOUT
            )

        self._send(send, retry_on=httpx.ConnectError)

    def get_job(self, job_id: str, include: str = "none") -> JsonObject:
        """Return a job; ``include`` is ``none`` or a comma list of ``scenes`` and
        ``transcript``."""
        job: JsonObject = self.call("getJob", jobId=job_id, include=include)
        return job

    def wait(
        self,
        job_id: str,
        on_progress: JobProgress | None = None,
        timeout_seconds: float | None = None,
    ) -> JsonObject:
        """Poll until the job has ended; return it in its terminal state, whichever that is.

        Raises WaitTimeoutError after ``timeout_seconds``; the job goes on.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for pause_seconds in poll_pauses_seconds():
            job = self.get_job(job_id)
            if on_progress is not None:
                on_progress(job)
            if job["state"] in TERMINAL_STATES:
                return job
            if deadline is not None and time.monotonic() + pause_seconds > deadline:
                raise WaitTimeoutError(job_id, job["state"], timeout_seconds or 0.0)
            self._sleep(pause_seconds)
        raise AssertionError("The pauses have no end.")

    def get_scenes(self, job_id: str) -> list[JsonObject]:
        """Return the scenes; empty when the video has no cuts."""
        scenes: list[JsonObject] = self.call("getScenes", jobId=job_id)["scenes"]
        return scenes

    def get_summary(self, job_id: str) -> list[JsonObject]:
        """Return the sentences of the summary. Raises RequestFailedError RESULTS_UNAVAILABLE where
        none is made."""
        sentences: list[JsonObject] = self.call("getSummary", jobId=job_id)["sentences"]
        return sentences

    @overload
    def compare(self, before: str, after: str) -> JsonObject: ...

    @overload
    def compare(self, before: str, after: str, format: Literal["otio", "edl"]) -> str: ...

    def compare(
        self,
        before: str,
        after: str,
        format: Literal["otio", "edl"] | None = None,  # noqa: A002
    ) -> JsonObject | str:
        """Return what became of the shots, words and titles of a cut in another; or as a file.

        Waits until the comparison is made. Raises RequestFailedError where there is none.
        """
        begun = self.call("compareJobs", **{"from": before, "to": after})
        made = begun["comparisonId"]
        for pause_seconds in poll_pauses_seconds():
            found = self.call("getComparison", comparisonId=made)
            if found["state"] == "completed":
                if format is not None:
                    return self.request("getComparison", comparisonId=made, format=format).text
                result: JsonObject = found["result"]
                return result
            if found["state"] == "failed":
                raise RequestFailedError(status=200, request_id=None, **found["error"])
            self._sleep(pause_seconds)
        raise AssertionError("The pauses have no end.")

    @overload
    def get_transcript(
        self, job_id: str, format: Literal["json"] = "json", track: int | None = None
    ) -> JsonObject: ...

    @overload
    def get_transcript(
        self, job_id: str, format: CaptionFormat, track: int | None = None
    ) -> str: ...

    def get_transcript(
        self,
        job_id: str,
        format: Literal["json"] | CaptionFormat = "json",  # noqa: A002 - the API's name
        track: int | None = None,
    ) -> JsonObject | str:
        """Return the transcript as an object, or as the text of a caption or text file."""
        if format == "json":
            transcript: JsonObject = self.call("getTranscript", jobId=job_id, track=track)
            return transcript
        answer = self.request("getTranscript", jobId=job_id, track=track, format=format)
        return answer.content.decode("utf-8")

    def search(self, q: str | None = None, **query: object) -> JsonObject:
        """Return a page of hits, best first, under ``data``; the next one by ``cursor=nextCursor``.

        Without ``q`` ``like`` names a scene, ``JOB:INDEX``.
        """
        page: JsonObject = self.call("search", q=q or None, **query)
        return page

    def cancel(self, job_id: str) -> JsonObject:
        """Cancel a job that has not ended; raises RequestFailedError JOB_NOT_CANCELLABLE else."""
        job: JsonObject = self.call("cancelJob", jobId=job_id)
        return job

    def get_thumbnail(self, thumbnail_url: str) -> bytes:
        """Return the still behind a scene's ``thumbnailUrl``, which is signed and needs no key."""
        return self._send(lambda: self._http.get(thumbnail_url)).content

    def _send(
        self,
        send: Callable[[], httpx.Response],
        *,
        retry_on: type[httpx.TransportError] = httpx.TransportError,
    ) -> httpx.Response:
        """Send until an answer is final; raises RequestFailedError unless that is a success."""
        attempt, waited_seconds = 0, 0.0
        while True:
            attempt += 1
            try:
                response = send()
            except retry_on:
                if attempt >= MAX_SERVER_FAILURES:
                    raise
                self._sleep(backoff_seconds(attempt))
                continue
            if response.is_success:
                return response
            error = _error_of(response)
            delay = retry_delay_seconds(
                response.status_code,
                error.code,
                response.headers,
                attempt=attempt,
                waited_seconds=waited_seconds,
            )
            if delay is None:
                raise error
            self._sleep(delay)
            waited_seconds += delay


@functools.cache
def operations() -> dict[str, JsonObject]:
    """The operations of the interface document by their ids: ``method``, ``path``, ``parameters``
    and ``body``, the names of its fields."""
    found: dict[str, JsonObject] = json.loads(_OPERATIONS.read_bytes())
    return found


def _part(text: str) -> str:
    """Return text as one part of a path, whatever it consists of."""
    # A part of dots alone would lead up the path.
    return quote(text, safe="").replace(".", "%2E")


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes 20 ms."""
    return httpx.create_ssl_context()


def _read_pieces(
    path: Path, size_bytes: int, on_progress: UploadProgress | None, offset: int = 0
) -> Iterator[bytes]:
    sent_bytes = offset
    with path.open("rb") as stream:
        stream.seek(offset)
        while piece := stream.read(UPLOAD_CHUNK_BYTES):
            yield piece
            sent_bytes += len(piece)
            if on_progress is not None:
                on_progress(sent_bytes, size_bytes)


def _error_of(response: httpx.Response) -> RequestFailedError:
    """Return the error envelope; something else (a proxy's page) keeps its HTTP status as code."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or "code" not in body:
        body = {"code": f"HTTP_{response.status_code}", "error": response.reason_phrase}
    return RequestFailedError(
        code=str(body["code"]),
        message=str(body.get("error", "")),
        status=response.status_code,
        request_id=body.get("requestId") or response.headers.get("x-request-id"),
        param=body.get("param"),
    )
