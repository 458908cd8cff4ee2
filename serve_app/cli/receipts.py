"""``vas verify``: a receipt against its signature, the media, and what is computed again."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from serve_app.cli.output import DataOption, JsonOption, UsageError, settings_with, show, show_rows

if TYPE_CHECKING:
    from pipelines.recompute import Recipe
    from pipelines.types import ShardDigest
    from serve_app.results.receipts import ReceiptJson, SignedReceipt, StageReceipt
    from serve_app.settings import Settings

Outcome = Literal["same", "differs", "not checked"]


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
    sample: Annotated[
        int, typer.Option(min=0, help="So many shards of the media are computed again.")
    ] = 3,
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

    Of the media some shards are computed again, in this process, and must give the same bytes.
    Fields of a result that are not signed, such as labels of speakers, which people may change, are
    named. The exit status is 1 where anything differs."""
    for path in (receipt, *(media or ()), *(result or ())):
        if not path.is_file():
            raise UsageError(f"There is no file {path}.")
    settings = settings_with(data)
    checks = _checks(
        receipt, media or [], sample, result or [], _public_keys(keys, url, settings), settings
    )
    found = [*checks]
    verified = all(each.outcome != "differs" for each in found)
    if as_json:
        show({"verified": verified, "checks": [asdict(each) for each in found]}, as_json=True)
    else:
        show_rows([asdict(each) for each in found])
    if not verified:
        raise typer.Exit(1)


def _checks(
    path: Path,
    media: Sequence[Path],
    sample: int,
    results: Sequence[Path],
    keys: dict[str, str],
    settings: Settings,
) -> Iterator[Check]:
    signed = read_receipt(path.read_bytes())
    if signed is None or not is_signed(signed, keys):
        yield Check("signature", "differs", "altered, or not of this service")
        return
    yield Check("signature", "same", signed["signature"]["keyId"])
    receipt = signed["receipt"]
    for each in results:
        yield _result_check(each, receipt)
    if not media:
        return
    sources = receipt["stages"]["ingest"]["source"]
    known = {each["sha256"]: each["fileName"] for each in sources}
    for each in media:
        with each.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        yield Check(f"media {each.name}", "same" if found in known else "differs", found)
        if found not in known:
            return
    if sample:
        yield from _shard_checks(receipt, media, sample, settings)


def read_receipt(text: bytes) -> SignedReceipt | None:
    """The receipt in the API's envelope or without; None where it is none."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    try:
        found = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    signed = found.get("data", found) if isinstance(found, dict) else None
    if not isinstance(signed, dict) or signed.keys() != {"receipt", "signature"}:
        return None
    parts: SignedReceipt = signed  # type: ignore[assignment]
    return parts if isinstance(parts["signature"], dict) else None


def is_signed(signed: SignedReceipt, keys: dict[str, str]) -> bool:
    """Whether one of the ``keys``, by their ids, signed the receipt."""
    from serve_app.crypto import BadSignatureError, canonical, check_signature

    match signed["signature"]:
        case {"algorithm": "Ed25519", "keyId": str(key), "value": str(value), **more} if not more:
            try:
                check_signature(keys.get(key, ""), canonical(signed["receipt"]), value)
            except (BadSignatureError, UnicodeEncodeError, RecursionError):
                return False  # what has no canonical text was never signed
            return True
        case _:
            return False


def _public_keys(place: str | None, url: str | None, settings: Settings) -> dict[str, str]:
    """Keys by their ids. Raises UsageError where there are none."""
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
    """A result's file against the digest that the receipt has of it."""
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


def _shard_checks(
    receipt: ReceiptJson, media: Sequence[Path], sample: int, settings: Settings
) -> Iterator[Check]:
    """Shards drawn at random, computed again."""
    from models.provider import LocalModels
    from pipelines.recompute import recompute
    from pipelines.types import StageError
    from serve_app.results.receipts import software

    stages = receipt["stages"]
    if len(stages["ingest"]["source"]) > 1 or stages["ingest"]["settings"]["decoded"]:
        yield Check("shards", "not checked", "of several files, or of camera RAW")
        return
    analyses = [stages[name] for name in ("vision", "transcript") if name in stages]
    profile = analyses[0]["settings"]["profile"] if analyses else "packaged"
    if any(each["software"] != software() for each in analyses):
        yield Check("software", "not checked", "another version or other libraries here")
    every = [
        shard
        for each in analyses
        if _has_models(each, settings)
        for shard in map(_digest, each["shards"])
        if shard.claimed
    ]
    chosen = random.SystemRandom().sample(every, min(sample, len(every)))
    if not chosen:
        yield Check("shards", "not checked", "none is claimed, or other models are here")
        return
    models = LocalModels(str(profile), settings.models_dir, settings.whisper_weights)
    recipe = _recipe(stages["ingest"], stages.get("transcript"))
    try:
        found = [*recompute(media[0], recipe, chosen, models)]
    except StageError as error:
        yield Check("shards", "differs", str(error))
        return
    for each in chosen:
        same = each in found
        track = "" if each.track is None else f" of track {each.track}"
        name = f"{each.kind} {each.index}{track}"
        yield Check(name, "same" if same else "differs", each.sha256)


def _has_models(stage: StageReceipt, settings: Settings) -> bool:
    """Whether the weights here are those that the stage was made with."""
    from models.profiles import digest_of
    from models.registry import REGISTRY
    from models.tasks import get_task

    profile = str(stage["settings"]["profile"])
    for name, digest in stage["models"].items():
        task = get_task(name)
        own = settings.whisper_weights if task.own_weights else None
        if profile not in REGISTRY or digest_of(profile, (task,), own) != digest:
            return False
    return True


def _digest(shard: Any) -> ShardDigest:
    from pipelines.types import ShardDigest, ShardKind

    return ShardDigest(
        ShardKind(shard["kind"]),
        shard["index"],
        round(shard["startTime"] * 1000),
        round(shard["endTime"] * 1000),
        shard["sha256"],
        shard.get("trackIndex"),
        shard.get("language"),
        shard["claimed"],
    )


def _recipe(ingest: StageReceipt, transcript: StageReceipt | None) -> Recipe:
    from models.profiles import digest_of
    from models.tasks import Purpose, tasks_for
    from pipelines.ingest.pipeline import IngestConfig
    from pipelines.recompute import Recipe
    from pipelines.speech.languages import LanguageChoice
    from pipelines.speech.pipeline import TranscriptConfig
    from pipelines.speech.regions import Sharding
    from storage.types import ProcessingMode

    cut: Any = ingest["settings"]
    config = IngestConfig(cut["segmentSeconds"], cut["shortestSegmentSeconds"])
    if transcript is None:
        return Recipe(ProcessingMode.VISION, config, TranscriptConfig())
    made: Any = transcript["settings"]
    return Recipe(
        ProcessingMode.ALL,
        config,
        TranscriptConfig(
            choice=LanguageChoice(made["language"], tuple(made["languages"])),
            keyterms=tuple(made["keyterms"]),
            models=digest_of(made["profile"], tasks_for(Purpose.TRANSCRIPT)),
            sharding=Sharding(made["shardSeconds"]),
        ),
    )
