"""``vas verify``: a receipt against its signature, the media and the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from serve_app.cli.output import DataOption, JsonOption, UsageError, settings_with, show, show_rows

if TYPE_CHECKING:
    from serve_app.results.receipts import ReceiptJson, Statement
    from serve_app.settings import Settings

Outcome = Literal["same", "differs"]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that a receipt states, and whether it is so."""

    what: str
    outcome: Outcome
    detail: str = ""
    unsigned: str = ""
    """Names of fields of a result that its receipt has no digest of: anybody can change them."""


def verify(
    receipt: Annotated[Path, typer.Argument(help="A file of what GET /jobs/JOB/receipt answers.")],
    media: Annotated[
        list[Path] | None, typer.Option(help="The media; repeat it for several files.")
    ] = None,
    result: Annotated[
        list[Path] | None, typer.Option(help="Scenes or a transcript as the API answered them.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="The service's public keys, a file or address; default: those of VAS_URL, else "
            "of the data folder."
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(envvar="VAS_URL", help="Base URL.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a receipt: its signature, then the media and the results that are given.

    Fields of a result that are not signed, such as labels of speakers, which people may change, are
    named. The exit status is 1 where anything differs."""
    for path in (receipt, *(media or ()), *(result or ())):
        if not path.is_file():
            raise UsageError(f"There is no file {path}.")
    settings = settings_with(data)
    known = _public_keys(keys, url, settings)
    found = [*_checks(receipt, media or [], result or [], known)]
    verified = all(each.outcome != "differs" for each in found)
    if as_json:
        show({"verified": verified, "checks": [asdict(each) for each in found]}, as_json=True)
    else:
        show_rows([asdict(each) for each in found], "checks")
    if not verified:
        raise typer.Exit(1)


def _checks(
    path: Path, media: Sequence[Path], results: Sequence[Path], keys: dict[str, str]
) -> Iterator[Check]:
    statement = read_statement(path.read_bytes(), keys)
    if statement is None:
        yield Check("signature", "differs", "altered, or not of this service")
        return
    yield Check("signature", "same", statement["predicateType"])
    for each in results:
        yield _result_check(each, statement["predicate"])
    known = {each["digest"]["sha256"] for each in statement["subject"]}
    for each in media:
        with each.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        yield Check(f"media {each.name}", "same" if found in known else "differs", found)


def read_statement(text: bytes, keys: dict[str, str]) -> Statement | None:
    """Return the statement in an envelope, in the API's answer or without; None where it is none,
    or none of ``keys`` (``x`` by ``kid``) signed it."""
    from serve_app.crypto import BadSignatureError, open_envelope

    try:
        found = json.loads(text)
        envelope = found.get("data", found)
        statement: Statement = json.loads(open_envelope(envelope, keys))
    except (ValueError, AttributeError, RecursionError, BadSignatureError):
        return None
    return statement


def _public_keys(place: str | None, url: str | None, settings: Settings) -> dict[str, str]:
    """Return keys by their ids. Raises UsageError where there are none."""
    import httpx

    from serve_app.crypto import ReceiptSigner
    from serve_app.results.receipts import KEYS_PATH

    if place is None and url is not None:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}{KEYS_PATH}"
    if place is None:
        from serve_app.deployment.data import SECRET_KEY_FILE

        own = settings.data_dir / SECRET_KEY_FILE
        secret = settings.secret_key.get_secret_value() or (own.exists() and own.read_text())
        if not secret:
            raise UsageError(
                f"Whose receipt is it? Name the service with --url, or its {KEYS_PATH} with --keys."
            )
        key = ReceiptSigner(str(secret).encode()).public_key()
        return {key["kid"]: key["x"]}
    try:
        if place.startswith(("http://", "https://")):
            listed = httpx.get(place, timeout=30).raise_for_status().json()
        else:
            listed = json.loads(Path(place).read_bytes())
        return {each["kid"]: each["x"] for each in listed["keys"] if each["crv"] == "Ed25519"}
    except (OSError, ValueError, KeyError, TypeError, httpx.HTTPStatusError) as error:
        raise UsageError(f"{place} holds no keys ({error}).") from error


def _result_check(path: Path, receipt: ReceiptJson) -> Check:
    """Return a result's file against the digest that the receipt has of it."""
    from serve_app.results.receipts import field_names, result_digest

    what = f"result {path.name}"
    try:
        found = json.loads(path.read_bytes().decode())
        found = found.get("data", found)
        kind = "scenes" if "scenes" in found else "transcript"
        track = found.get("trackIndex")
        names = field_names(found)
        "".join(names).encode()
    except (ValueError, AttributeError, RecursionError):
        return Check(what, "differs", "no result")
    stages = receipt["stages"]
    stage = stages.get("vision") if kind == "scenes" else stages.get("transcript")
    for each in [] if stage is None else stage["results"]:
        if track in {None, each.get("trackIndex")} or kind == "scenes":
            unsigned = ", ".join(sorted(names - set(each["fields"])))
            try:
                same = result_digest(found, each["fields"]) == each["sha256"]
            except (UnicodeEncodeError, RecursionError):
                same = False
            return Check(what, "same" if same else "differs", each["sha256"], unsigned)
    return Check(what, "differs", f"the receipt is of no such {kind}")
