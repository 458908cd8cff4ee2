"""``vas jobs | archives | search | review | export | compare | mcp``: a running service over its
API, for people, programs and agents.

A command that does what one operation of the API does is made of the interface document, where
its arguments, options and help stand (``remote``).
"""

from __future__ import annotations

import contextlib
import keyword
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from inspect import Parameter
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast, get_args

import typer
from rich.text import Text

from serve_app import API_PREFIX
from serve_app.cli.output import (
    JsonOption,
    Mode,
    UsageError,
    YesOption,
    base_address,
    command_of,
    console,
    dashboard_address,
    group,
    parameter,
    show,
    show_rows,
    usable_key,
)
from serve_app.client.api import ApiClient, CaptionFormat, ExportFormat, JsonObject, operations
from serve_app.client.rendering import clock, one_line, time_range

DEFAULT_LIMIT = 20
MAX_PAGE = 100
"""Of the API."""

UrlOption = Annotated[str, typer.Option("--url", envvar="VAS_URL", help="Base URL of a service.")]
KeyOption = Annotated[str, typer.Option("--key", envvar="VAS_KEY", help="API key.")]
LimitOption = Annotated[int, typer.Option(min=1, max=100_000, help="Most to show.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show all, however many.")]

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
ArchiveArgument = Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's id.")]
EndpointOption = Annotated[str | None, typer.Option(help="A server that speaks S3.")]
RegionOption = Annotated[str | None, typer.Option(help="The bucket's region.")]
AccessKeyOption = Annotated[
    str | None,
    typer.Option("--access-key-id", envvar="VAS_ARCHIVE_ACCESS_KEY_ID", help="Of the bucket."),
]
SecretOption = Annotated[
    str | None,
    typer.Option(
        "--secret-access-key",
        envvar="VAS_ARCHIVE_SECRET_ACCESS_KEY",
        help="Its secret; better in the environment than on the command line.",
    ),
]
SessionOption = Annotated[
    str | None,
    typer.Option("--session-token", envvar="VAS_ARCHIVE_SESSION_TOKEN", help="If temporary."),
]


def _choices(name: str, values: Iterable[str]) -> Any:
    """Return the type of an option that is one of ``values``."""
    return StrEnum(name, {each: each for each in values})


FileFormat: Any = _choices("FileFormat", (*get_args(ExportFormat), *get_args(CaptionFormat)))
"""Of scenes, chapters and transcripts; ``csv`` is a table of scenes."""

_TYPES: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "string": str}
_NONE: Mapping[str, Any] = MappingProxyType({})


class ExportContent(StrEnum):
    """What an export's parts are."""

    SCENES = "scenes"
    CHAPTERS = "chapters"
    TRANSCRIPT = "transcript"


def connected(url: str, key: str | None) -> ApiClient:
    """Return a client with the options of a command. Raises UsageError."""
    return ApiClient(base_address(url), usable_key(key))


def remote(
    operation: str,
    about: str,
    present: Callable[[Any, str], None],
    *,
    question: str = "",
    names: Mapping[str, str] = _NONE,
    fixed: Mapping[str, object] = _NONE,
    either: Sequence[str] = (),
) -> Callable[..., None]:
    """Return a command that calls an operation of the API.

    ``about`` is its help. What the operation answers is given to ``present``, with the service's
    base address, to be printed. Its parameters become options, or arguments where they stand in
    the path or ``names`` has them in capitals, but for those that are ``fixed``. A list in pages
    has --limit and --all. A ``question``, with names of parameters in braces, is asked before,
    unless --yes is given. Of ``either`` one must be given.
    """
    known = operations()[operation]
    made = {
        each["name"]: _parameter(each, names.get(each["name"], each["name"]))
        for each in known["parameters"]
        if each["in"] != "header" and each["name"] not in fixed and "deprecated" not in each
    }
    is_paged = made.pop("limit", None) is not None

    def run(url: str, key: str, as_json: bool, yes: bool = True, **given: Any) -> None:
        if either and sum(given[name] is not None for name in either) != 1:
            raise typer.BadParameter(f"Give either {' or --'.join(either)}.")
        if not yes:
            typer.confirm(question.format(**given), abort=True, err=True)
        arguments = {**{name: given[each.name] for name, each in made.items()}, **fixed}
        limit = given.get("limit")
        with connected(url, key) as client:
            if is_paged:
                most = None if given["everything"] else limit
                found = _gathered(client, operation, arguments, most)
            else:
                found = client.call(operation, **arguments)
        if as_json:
            show({"data": found} if isinstance(found, list) else found, as_json=True)
            return
        present(found, base_address(url))
        if is_paged and found["hasMore"]:
            more = f"More: --limit {2 * given['limit']}, or --all."
            console.print(more, style="dim", highlight=False)

    parameters = [*made.values()]
    if question:
        parameters.append(parameter("yes", YesOption, False))
    if is_paged:
        parameters.append(parameter("limit", LimitOption, DEFAULT_LIMIT))
        parameters.append(parameter("everything", AllOption, False))
    parameters += [parameter("url", UrlOption), parameter("key", KeyOption)]
    parameters.append(parameter("as_json", JsonOption, False))
    return command_of(run, about, parameters)


def _parameter(documented: JsonObject, name: str) -> Parameter:
    """Return a parameter of an operation as one of a command that is called ``name``."""
    kind = _TYPES[documented["type"]]
    if "enum" in documented:
        kind = _choices(name, documented["enum"])
    about: dict[str, Any] = {"help": documented["help"]}
    about |= {"min": documented.get("minimum"), "max": documented.get("maximum")}
    info: Any
    if documented["in"] == "path":
        name = name.removesuffix("Id").upper()
    if name.isupper():
        identifier = name.lower()
        info = typer.Argument(metavar=name, **about)
    else:
        words = re.sub("([A-Z])", r"-\1", name).lower()
        identifier = words.replace("-", "_") + ("_" if keyword.iskeyword(words) else "")
        info = typer.Option(f"--{words}", **about)
    if documented.get("required"):
        return parameter(identifier, Annotated[kind, info])
    return parameter(identifier, Annotated[kind | None, info], documented.get("default"))


def _gathered(
    client: ApiClient, operation: str, arguments: Mapping[str, Any], limit: int | None
) -> JsonObject:
    """Pages of a list as one, of ``limit`` entries at most, or all.

    ``nextCursor`` and ``hasMore`` are those of the last page.
    """
    gathered: list[Any] = []
    while True:
        left = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(gathered))
        page: JsonObject = client.call(operation, **{**arguments, "limit": left})
        gathered += page["data"]
        arguments = {**arguments, "cursor": page["nextCursor"]}
        if not page["hasMore"] or len(gathered) == limit:
            return page | {"data": gathered}


_UNFINISHED = {"failed", "cancelled", "expired"}
"""States of jobs that ended before their work was done: all of their stages have ended."""


def _show_jobs(page: JsonObject, _: str) -> None:
    show_rows(
        [
            {
                "job": job["jobId"],
                "file": job["fileName"],
                "state": job["error"]["code"] if "error" in job else job["state"],
                "done": f"{job['progress']:.0%}" if job["state"] not in _UNFINISHED else "",
                "length": _length(job),
                "created": job["createdAt"],
            }
            for job in page["data"]
        ],
        "jobs",
    )


def _show_job(job: JsonObject, base: str) -> None:
    stages = {
        name: stage["status"] + (f" ({stage['reason']})" if "reason" in stage else "")
        for name, stage in job["stages"].items()
    }
    rows = {
        "job": job["jobId"],
        "file": job["fileName"],
        "state": job["state"],
        "done": f"{job['progress']:.0%}",
        **stages,
        "length": _length(job),
        "created": job["createdAt"],
        "completed": job["completedAt"],
        "charged": f"{job['chargedCents']} cent{'' if job['chargedCents'] == 1 else 's'}",
        "error": _words_of(job.get("error")),
        "warnings": [_words_of(each) for each in job["warnings"]],
        "dashboard": dashboard_address(base, job["jobId"]),
    }
    show({name: value for name, value in rows.items() if value}, as_json=False)


def _words_of(coded: JsonObject | None) -> str:
    """Return an error or a warning."""
    return "" if coded is None else f"{coded['code']} {coded['message']}"


def _length(job: JsonObject) -> str:
    return "" if job["durationSeconds"] is None else clock(job["durationSeconds"])


def _show_duplicates(page: JsonObject, _: str) -> None:
    show_rows(
        [
            {name: found[name] for name in ("kind", "jobId", "fileName")}
            | {side: time_range(found[side]) for side in ("here", "there")}
            | {"score": f"{found['score']:.2f}", "speed": f"{found['speed']:g}"}
            for found in page["data"]
        ],
        "duplicates",
    )


def _show_hits(page: JsonObject, _: str) -> None:
    for hit in page["data"]:
        console.print(_line(hit), soft_wrap=True)
    if not page["data"]:
        console.print("No hits.")
    if page["mode"] == "hybrid":
        console.print("By words and by meaning.", style="dim")


def _line(hit: dict[str, Any]) -> Text:
    """Return its place and its text, with what matches in bold; text cannot steer the terminal."""
    snippet = hit["snippet"]
    said = Text(_printable(snippet["text"]))
    for matched in snippet["ranges"]:
        said.stylize("bold", matched["start"], matched["end"])
    name = one_line(hit["fileName"])
    kind = f"{hit['kind']} {hit['sceneIndex']}" if "sceneIndex" in hit else hit["kind"]
    return Text(f"{name}  {time_range(hit)}  {kind}  {hit['jobId']}\n  ") + said


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="In any language.")],
    url: UrlOption,
    key: KeyOption,
    job: Annotated[list[str] | None, typer.Option(help="Only this job; several may be.")] = None,
    archive: Annotated[str | None, typer.Option(help="Only the jobs of this archive.")] = None,
    language: Annotated[str | None, typer.Option(help="Of the answer.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask about the recordings; each sentence of the answer quotes what was said."""
    of = {"jobIds": job or None, "archiveId": archive, "language": language}
    with connected(url, key) as client:
        found = client.call("ask", question=question, **of)
    if as_json:
        show(found, as_json=True)
        return
    for sentence in found["sentences"]:
        console.print(_printable(sentence["text"]), markup=False, soft_wrap=True)
        for cited in sentence["citations"]:
            _show_citation(cited)
    if not found["answered"]:
        console.print(_UNANSWERED[found["reason"]])
        for passage in found["passages"]:
            _show_citation(passage)


def _show_citation(cited: JsonObject) -> None:
    place = f"  {one_line(cited['fileName'])}  {time_range(cited)}  {cited['jobId']}\n  "
    console.print(Text(place, "dim") + f"“{_printable(cited['quote'])}”", soft_wrap=True)


_UNANSWERED = {
    "NO_MODEL": "The service has no model that answers. The nearest passages:",
    "MODEL_FAILED": "The model that answers has failed. The nearest passages:",
    "NOT_IN_RECORDINGS": "The recordings do not answer this. The nearest passages:",
}


def _printable(text: str) -> str:
    """Return text that cannot steer the terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def _show_review(found: JsonObject, _: str) -> None:
    show_rows(
        [
            {
                "time": time_range(each),
                "check": ", ".join(each["reasons"]),
                "errors": f"{each['expectedErrors']:.1f}",
                "text": each["text"],
            }
            for each in found["stretches"]
        ],
        "places to check",
    )
    before, after = found["before"], found["after"]
    console.print(
        f"{found['reviewSeconds']:.0f} s to check. Errors expected now {before['errors']:.1f}"
        f" ({before['wordErrorRate']:.1%} of words), then {after['errors']:.1f}"
        f" ({after['wordErrorRate']:.1%})."
    )
    if not found["calibrated"]:
        console.print("Confidences of this transcript are not calibrated: take these as an order.")


def export_job(
    job_id: JobArgument,
    format: Annotated[FileFormat, typer.Option(help="The file type.")],  # noqa: A002
    url: UrlOption,
    key: KeyOption,
    content: Annotated[
        ExportContent | None, typer.Option(help="What is written, where a type leaves it open.")
    ] = None,
    track: Annotated[int | None, typer.Option(help="Audio track of a transcript.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; printed if not given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a job's scenes, chapters or transcript for an editing program or a player."""
    of_transcript = content is ExportContent.TRANSCRIPT or format.value not in get_args(
        ExportFormat
    )
    if of_transcript and (
        content not in {None, ExportContent.TRANSCRIPT}
        or format.value not in get_args(CaptionFormat)
    ):
        raise UsageError(f"--content {content} cannot be written as {format.value}.")
    if track is not None and not of_transcript:
        raise UsageError("--track is for transcripts only.")
    with connected(url, key) as client:
        if of_transcript:
            text = client.get_transcript(job_id, cast("CaptionFormat", format.value), track)
        else:
            wanted = {"format": format.value, "content": content}
            text = client.request("exportJob", jobId=job_id, **wanted).content.decode()
    _write(text, out, quiet=as_json)
    if as_json:
        written = {"file": str(out)} if out is not None else {"content": text}
        show({"jobId": job_id, "format": format.value, **written}, as_json=True)


def _write(text: str, out: Path | None, *, quiet: bool = False) -> None:
    """To a file, else to standard output unless ``quiet``. Raises UsageError."""
    if out is not None:
        try:
            out.write_bytes(text.encode())
        except OSError as error:
            message = f"{out} cannot be written ({error.strerror}): name another file with --out."
            raise UsageError(message) from error
    if not quiet and out is None:
        typer.echo(text, nl=False)
    elif not quiet:
        console.print(f"Written to [bold]{out}[/].")


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="The job of the first cut.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The job of the second cut.")],
    url: UrlOption,
    key: KeyOption,
    format: Annotated[  # noqa: A002
        Literal["otio", "edl"] | None, typer.Option(help="Write the second cut as such a file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write with --format.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two cuts: shots removed, added, moved, retimed; words and titles changed."""
    if out is not None and format is None:
        raise UsageError("--out is the file of a --format: name one.")
    with connected(url, key) as client:
        if format is not None:
            _write(client.compare(before, after, format), out)
            return
        found = client.compare(before, after)
    if as_json:
        show(found, as_json=True)
        return
    if found["identical"]:
        console.print("The cuts are identical.")
        return
    shots = [_change(each["change"], each, _how(each)) for each in found["shots"]]
    rows = [*shots, *_others("words", found), *_others("title", found)]
    show_rows([row for row in rows if row["change"] != "kept"], "differences")


def _change(kind: str, pair: JsonObject, what: str) -> JsonObject:
    sides = {side: _when(pair.get(side)) for side in ("from", "to")}
    return {"change": kind, **sides, "what": what}


def _how(pair: JsonObject) -> str:
    parts = []
    if pair["retimed"]:
        parts.append(
            f"runs {pair['speed']:g} times as fast"
            if pair["speed"] != 1
            else f"head {pair['headSeconds']:+.2f} s, tail {0 - pair['tailSeconds']:+.2f} s"
        )
    parts += ["reframed"] if pair["reframed"] else []
    return "; ".join(parts)


def _others(kind: str, found: JsonObject) -> list[JsonObject]:
    return [
        _change(kind, each, " → ".join(each.get(side, _NO_TEXT)["text"] for side in ("from", "to")))
        for each in found["words" if kind == "words" else "titles"]
    ]


_NO_TEXT = {"text": "–"}


def _when(span: JsonObject | None) -> str:
    if span is None or "startTime" not in span:
        return ""
    return time_range({"endTime": span["startTime"], **span})


def _access(*given: str | None) -> JsonObject | None:
    """Return what is given of ``_ACCESS``."""
    return {name: text for name, text in zip(_ACCESS, given, strict=True) if text} or None


_ACCESS = ("endpoint", "region", "accessKeyId", "secretAccessKey", "sessionToken")


def archives_add(
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="s3://bucket/prefix or gs://…")],
    url: UrlOption,
    key: KeyOption,
    pattern: Annotated[list[str] | None, typer.Option(help="Only such names: '*.mp4'.")] = None,
    watch: Annotated[
        int | None, typer.Option(min=60, help="List it again so many seconds after each list.")
    ] = None,
    max_active_jobs: Annotated[int, typer.Option(min=1, max=1000, help="Jobs under way.")] = 20,
    mode: Annotated[Mode, typer.Option(help="Which analysis stages run.")] = Mode.ALL,
    priority: Annotated[str, typer.Option(help="low, normal or high.")] = "low",
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    access_key_id: AccessKeyOption = None,
    secret_access_key: SecretOption = None,
    session_token: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Analyse every object below a prefix of a bucket, once, and again when it changes."""
    access = _access(endpoint, region, access_key_id, secret_access_key, session_token)
    with connected(url, key) as client:
        archive = client.call(
            "createArchive",
            url=bucket,
            patterns=pattern or None,
            watchSeconds=watch,
            maxActiveJobs=max_active_jobs,
            processingMode=mode.value,
            priority=priority,
            bucketAccess=access,
        )
    show(archive, as_json=True) if as_json else _show_archive(archive)


def _show_archives(found: list[JsonObject], _: str = "") -> None:
    show_rows([_row(each) for each in found], "archives")


def _show_archive(archive: JsonObject, _: str = "") -> None:
    _show_archives([archive])
    if error := archive.get("error"):
        console.print(f"{error['code']}: {error['message']}", markup=False)


def _row(archive: JsonObject) -> dict[str, object]:
    counts = archive["objects"]
    ended = counts["completed"] + counts["failed"]
    return {
        "archive": archive["archiveId"],
        "bucket": archive["url"],
        "state": archive["state"],
        "done": f"{ended} of {ended + counts['waiting'] + counts['running']}",
        "failed": counts["failed"],
        "refused": counts["refused"],
        "error": archive.get("error", {}).get("code", ""),
        "nextTry": archive.get("nextTryAt", ""),
    }


def archives_show(
    archive_id: ArchiveArgument,
    url: UrlOption,
    key: KeyOption,
    errors: Annotated[bool, typer.Option("--errors", help="Objects that failed too.")] = False,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Groups of objects that are the same too.")
    ] = False,
    limit: LimitOption = DEFAULT_LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Show an archive; which of its objects failed or were refused, and which are the same."""
    own, more = {"archiveId": archive_id}, dict[str, Any]()
    with connected(url, key) as client:
        archive = client.call("getArchive", **own)
        if errors:
            more["errors"] = [
                each
                for state in ("failed", "refused")
                for each in _gathered(client, "listArchiveObjects", own | {"state": state}, limit)[
                    "data"
                ]
            ]
        if duplicates:
            more["duplicates"] = client.call("listArchiveDuplicates", **own, limit=1000)["data"]
    if as_json:
        show(archive | more, as_json=True)
        return
    _show_archive(archive)
    if duplicates:
        show_rows(
            [
                {"group": number, "key": each["key"], "jobId": each["jobId"]}
                for number, group in enumerate(more["duplicates"], 1)
                for each in group["objects"]
            ],
            "duplicates",
        )
    if errors:
        names = ("key", "state", "errorCode", "errorMessage", "jobId")
        show_rows([{name: each[name] for name in names} for each in more["errors"]], "errors")


def archives_resume(
    archive_id: ArchiveArgument,
    url: UrlOption,
    key: KeyOption,
    endpoint: EndpointOption = None,
    region: RegionOption = None,
    access_key_id: AccessKeyOption = None,
    secret_access_key: SecretOption = None,
    session_token: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on, with new credentials if they are given; endpoint and region stay unless given too.

    A completed archive is listed again, for what is new or has changed.
    """
    access = _access(endpoint, region, access_key_id, secret_access_key, session_token)
    with connected(url, key) as client:
        if access is not None:
            known = client.call("getArchive", archiveId=archive_id)["bucketAccess"]
            access = {name: known[name] for name in ("endpoint", "region") if known[name]} | access
            client.call("changeArchive", archiveId=archive_id, bucketAccess=access)
        archive = client.call("resumeArchive", archiveId=archive_id)
    show(archive, as_json=True) if as_json else _show_archive(archive)


def serve_agents(
    url: UrlOption,
    key: Annotated[
        str | None, typer.Option("--key", envvar="VAS_KEY", help="API key, over stdio.")
    ] = None,
    http: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of streamable HTTP, at /mcp.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Offer the service to agents over the Model Context Protocol (stdio, or --http PORT).

    Over HTTP each request is made with its own API key, and --key is not used.
    """
    try:
        from serve_app.client.mcp_server import KeyRequired, build_server
    except ModuleNotFoundError as error:
        message = f"{error.name} is missing: `make setup-dev` installs the extra 'agents'"
        raise UsageError(message) from error
    base = base_address(url)
    if http is None:
        with ApiClient(base, usable_key(key)) as client:
            client.call("listJobs", limit=1)  # a wrong address or key ends it here, in a sentence
        for number in (signal.SIGINT, signal.SIGTERM):
            # At once: the thread that reads standard input waits for its next line.
            signal.signal(number, lambda *_: os._exit(0))
        build_server(base, usable_key(key)).run("stdio")
        return
    import httpx
    import uvicorn

    from serve_app.deployment.local import PortInUseError, require_free_port

    httpx.get(f"{base.removesuffix(API_PREFIX)}/health", trust_env=False, timeout=30)
    try:
        require_free_port(host, http)
    except PortInUseError as error:
        raise UsageError(str(error).replace("--port", "--http")) from None
    app = build_server(base, None).streamable_http_app(
        stateless_http=True, json_response=True, host=host
    )
    api = KeyRequired(app, base)
    config = uvicorn.Config(api, host, http, log_level="warning", timeout_keep_alive=90)
    listener = config.bind_socket()
    listener.listen(config.backlog)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/mcp"
    told = (
        f"Agents connect to {address} (streamable HTTP). Each request\n"
        "has its own API key in a header, Authorization: Bearer vas_live_….\n"
        f"The tools work for the service at {base}."
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # Not before: the server has its handlers of signals by now.
            console.print(told, markup=False, highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


jobs_app = group(
    "The jobs of an account.",
    {
        "list": remote("listJobs", "List jobs, newest first.", _show_jobs),
        "show": remote(
            "getJob",
            "Show a job: its state, its stages, what it cost, what it warns of.",
            _show_job,
            fixed={"include": "none"},
        ),
        "cancel": remote(
            "cancelJob",
            "Cancel a job that has not ended; stages that are completed stay, and are charged.",
            _show_job,
        ),
        "erase": remote(
            "eraseJob",
            "Erase a job's media and results for good; its state, times and charges stay.",
            _show_job,
            question="Erase the media and results of job {job}? It cannot be undone.",
        ),
        "duplicates": remote(
            "listDuplicates",
            "List in which other jobs its file, or parts of it, are again.",
            _show_duplicates,
        ),
    },
)
archives_app = group(
    "Buckets that are analysed object by object.",
    {
        "add": archives_add,
        "list": remote("listArchives", "List archives with their progress.", _show_archives),
        "show": archives_show,
        "pause": remote("pauseArchive", "Create no more jobs until it is resumed.", _show_archive),
        "resume": archives_resume,
        "remove": remote(
            "deleteArchive",
            "Forget an archive with its credentials; its jobs under way are cancelled, results "
            "stay.",
            _show_archive,
            question="Remove archive {archive}?",
        ),
    },
)
search = remote(
    "search",
    "Search everything that the account has analysed.",
    _show_hits,
    names={"q": "QUERY", "jobId": "job"},
    either=("query", "like"),
)
review = remote(
    "getReview",
    "List what of a job is most worth checking, and the errors expected before and after.",
    _show_review,
    names={"budgetSeconds": "budget"},
)
