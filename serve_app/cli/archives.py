"""``vas archives``: buckets that a running service analyses object by object."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_app.cli.library import DEFAULT_LIMIT, KeyOption, LimitOption, UrlOption
from serve_app.cli.output import (
    JsonOption,
    Mode,
    base_address,
    console,
    show,
    show_rows,
    usable_key,
)
from serve_app.client.api import ApiClient, JsonObject

archives_app = typer.Typer(no_args_is_help=True, help="Buckets that are analysed object by object.")

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
WatchOption = Annotated[
    int | None, typer.Option(min=60, help="List it again so many seconds after each list.")
]


@archives_app.callback()
def _group() -> None:
    """Buckets that are analysed object by object."""


def _access(
    endpoint: str | None,
    region: str | None,
    key_id: str | None,
    secret: str | None,
    token: str | None,
) -> JsonObject | None:
    given = {
        "endpoint": endpoint,
        "region": region,
        "accessKeyId": key_id,
        "secretAccessKey": secret,
        "sessionToken": token,
    }
    return {name: text for name, text in given.items() if text} or None


@archives_app.command("add")
def archives_add(
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="s3://bucket/prefix or gs://…")],
    url: UrlOption,
    key: KeyOption,
    pattern: Annotated[list[str] | None, typer.Option(help="Only such names: '*.mp4'.")] = None,
    watch: WatchOption = None,
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
    body = {
        "url": bucket,
        "patterns": pattern or None,
        "watchSeconds": watch,
        "maxActiveJobs": max_active_jobs,
        "processingMode": mode.value,
        "priority": priority,
        "bucketAccess": access,
    }
    given = {name: value for name, value in body.items() if value is not None}
    with ApiClient(base_address(url), usable_key(key)) as client:
        _show(client.call_archive("POST", body=given), as_json)


@archives_app.command("list")
def archives_list(url: UrlOption, key: KeyOption, as_json: JsonOption = False) -> None:
    """List archives with their progress."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        found = client.list_archives()
    if as_json:
        show({"data": found}, as_json=True)
        return
    show_rows([_row(each) for each in found])


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


@archives_app.command("show")
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
    with ApiClient(base_address(url), usable_key(key)) as client:
        archive = client.call_archive("GET", archive_id)
        failed = [
            each
            for state in ("failed", "refused")
            for each in (client.list_archive_objects(archive_id, state, limit) if errors else ())
        ]
        groups = client.list_archive_duplicates(archive_id) if duplicates else []
    more = ({"errors": failed} if errors else {}) | ({"duplicates": groups} if duplicates else {})
    _show(archive | (more if as_json else {}), as_json)
    if duplicates and not as_json:
        show_rows(
            [
                {"group": number, "key": each["key"], "jobId": each["jobId"]}
                for number, group in enumerate(groups, 1)
                for each in group["objects"]
            ]
        )
    if errors and not as_json:
        names = ("key", "state", "errorCode", "errorMessage", "jobId")
        show_rows([{name: each[name] for name in names} for each in failed])


@archives_app.command("pause")
def archives_pause(
    archive_id: ArchiveArgument, url: UrlOption, key: KeyOption, as_json: JsonOption = False
) -> None:
    """Create no more jobs until it is resumed."""
    with ApiClient(base_address(url), usable_key(key)) as client:
        _show(client.call_archive("POST", archive_id, "pause"), as_json)


@archives_app.command("resume")
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
    with ApiClient(base_address(url), usable_key(key)) as client:
        if access is not None:
            known = client.call_archive("GET", archive_id)["bucketAccess"]
            access = {name: known[name] for name in ("endpoint", "region") if known[name]} | access
            client.call_archive("PATCH", archive_id, body={"bucketAccess": access})
        _show(client.call_archive("POST", archive_id, "resume"), as_json)


@archives_app.command("remove")
def archives_remove(
    archive_id: ArchiveArgument,
    url: UrlOption,
    key: KeyOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Forget an archive with its credentials; its jobs under way are cancelled, results stay."""
    if not yes:
        typer.confirm(f"Remove archive {archive_id}?", abort=True, err=True)
    with ApiClient(base_address(url), usable_key(key)) as client:
        _show(client.call_archive("DELETE", archive_id), as_json)


def _show(archive: JsonObject, as_json: bool) -> None:
    if as_json:
        show(archive, as_json=True)
        return
    show_rows([_row(archive)])
    if error := archive.get("error"):
        console.print(f"{error['code']}: {error['message']}", markup=False)
