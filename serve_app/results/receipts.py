"""Receipts: what a job's results were made of and with, signed, for others to check."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, NotRequired, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

import pipelines
from pipelines.types import ShardDigest, ShardKind
from serve_app import __version__
from serve_app.api.authentication import CurrentJob, KeyedRoute
from serve_app.api.context import API_PREFIX, Context
from serve_app.api.envelope import success
from serve_app.api.openapi import errors
from serve_app.api.schemas import Answer, Count, Seconds, Uuid, doc
from serve_app.crypto import PublicKeyJson, canonical
from serve_app.errors import ErrorCode
from serve_app.results.availability import no_result, require_stage
from storage import reruns
from storage.types import ANALYSES, ENDED_STATUSES, SkipReason, StageName

Sha256 = Annotated[str, doc("SHA-256 in hexadecimal.", "9f86d081884c7d65", pattern="^[0-9a-f]+$")]
Setting = str | int | float | bool | list[str] | None
KEYS_PATH = "/.well-known/vas-receipts.json"

DETERMINISTIC = ("pictures", "scenes", "sound", "transcript", "words")
NOT_CLAIMED = (
    "shards with claimed false: of damaged pictures, or of models other than the packaged ones",
    "other versions of the software or of its libraries",
    "processors with other vector instructions",
    "summaries and translations",
)
"""Held by ``tests/pipelines/test_recompute.py`` on one and on two processors."""
_LIBRARIES = ("av", "ctranslate2", "decord", "numpy", "onnxruntime", "opencv-python-headless")
_LEFT_OUT = frozenset(
    {"jobId", "label", "revision", "thumbnailUrl", "trackName", "tracks", "url", "voiceId"}
)
"""Of a result: addresses, and what people may change."""


class ReceiptSourceJson(TypedDict):
    """A file of the media, as it came."""

    fileName: Annotated[str, doc("Its name.", "interview.mp4")]
    sizeBytes: Annotated[Count, doc("Its length.", 1_048_576)]
    sha256: Sha256


class ReceiptShardJson(TypedDict):
    """A stored output that can be computed again."""

    kind: Annotated[ShardKind, doc("Features of pictures, samples of sound, or words.")]
    index: Annotated[Count, doc("Among those of its kind and track, from 0.")]
    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the video or track.")]
    endTime: Annotated[Seconds, doc("Where it ends.")]
    sha256: Sha256
    claimed: Annotated[bool, doc("Whether it is the same each time that it is computed.", True)]
    trackIndex: NotRequired[Annotated[Count, doc("Of sound and words: the audio track.")]]
    language: NotRequired[Annotated[str, doc("In which doubtful words were read again.", "de")]]


class ReceiptResultJson(TypedDict):
    """A result: of its answer only these fields, wherever in it, and of them all."""

    kind: Annotated[Literal["scenes", "transcript"], doc("Which.")]
    fields: Annotated[list[str], doc("Sorted.", ["endTime", "startTime", "text"])]
    sha256: Sha256
    trackIndex: NotRequired[Annotated[Count, doc("Of a transcript: the audio track.")]]


class ReceiptSoftwareJson(TypedDict):
    """What computed it."""

    version: Annotated[str, doc("Of the service.", "0.3.0")]
    code: Annotated[str, doc("SHA-256 over the sources of its pipelines and models.")]
    libraries: Annotated[dict[str, str], doc("Versions of those that matter.", {"av": "15.0"})]


class StageReceipt(TypedDict):
    """What a stage was made of and with."""

    software: ReceiptSoftwareJson
    settings: Annotated[dict[str, Setting], doc("Of the service and of the job.")]
    models: Annotated[dict[str, str], doc("A digest for each task of a model.")]
    steps: Annotated[dict[str, int], doc("Versions of the steps.")]
    source: NotRequired[Annotated[list[ReceiptSourceJson], doc("Of ingest: the media.")]]
    shards: NotRequired[list[ReceiptShardJson]]
    results: NotRequired[list[ReceiptResultJson]]


class ReceiptStages(TypedDict):
    """The completed stages."""

    ingest: NotRequired[StageReceipt]
    vision: NotRequired[StageReceipt]
    transcript: NotRequired[StageReceipt]


class ReceiptJson(TypedDict):
    """What is signed: this object as canonical JSON (RFC 8785)."""

    format: Annotated[int, doc("Of receipts.", 1)]
    jobId: Annotated[Uuid, doc("The job.")]
    stages: ReceiptStages
    deterministic: Annotated[list[str], doc("What is the same on any number of processors.")]
    notClaimed: Annotated[list[str], doc("What may differ.")]


class ReceiptSignatureJson(TypedDict):
    """An Ed25519 signature (RFC 8032)."""

    algorithm: Literal["Ed25519"]
    keyId: Annotated[str, doc(f"Of a key in `{KEYS_PATH}`, by its thumbprint (RFC 7638).")]
    value: Annotated[str, doc("In base64url, without padding.")]


class SignedReceipt(TypedDict):
    """A receipt."""

    receipt: ReceiptJson
    signature: ReceiptSignatureJson


class PublicKeys(TypedDict):
    """A JSON Web Key Set (RFC 7517)."""

    keys: list[PublicKeyJson]


router = APIRouter(prefix=API_PREFIX, route_class=KeyedRoute, tags=["Results"])
key_router = APIRouter(include_in_schema=False)


@router.get(
    "/jobs/{jobId}/receipt",
    operation_id="getReceipt",
    summary="Read the receipt",
    response_model=Answer[SignedReceipt],
    response_description="The receipt.",
    responses=errors(
        ErrorCode.NOT_FOUND, ErrorCode.RESULTS_UNAVAILABLE, ErrorCode.RESULTS_NOT_READY
    ),
)
async def get_receipt(request: Request, context: Context, job: CurrentJob) -> Response:
    """What the results were made of and with: digests of the media, of the code, of models, of
    settings, of shards and of the results as the machine made them, signed by the service.
    `vas verify` checks it. Once all stages have ended; jobs of earlier versions have none."""
    require_stage(job, StageName.INGEST)
    for stage in ANALYSES:
        if job.stages[stage].status not in ENDED_STATUSES:
            require_stage(job, stage)
    async with context.database.statement() as connection:
        stages = await reruns.find_receipts(connection, job.id)
    if StageName.INGEST not in stages:
        message = "The job was analysed before there were receipts: rerun it as a new job."
        raise no_result(job, StageName.INGEST, message, SkipReason.STAGE_SKIPPED)
    receipt: ReceiptJson = {
        "format": 1,
        "jobId": str(job.id),
        "stages": cast("ReceiptStages", stages),
        "deterministic": list(DETERMINISTIC),
        "notClaimed": list(NOT_CLAIMED),
    }
    signature: ReceiptSignatureJson = {
        "algorithm": "Ed25519",
        "keyId": context.receipts.public_key()["kid"],
        "value": context.receipts.sign(canonical(receipt)),
    }
    signed: SignedReceipt = {"receipt": receipt, "signature": signature}
    return success(request, signed)


@key_router.get(KEYS_PATH)
async def get_receipt_keys(context: Context) -> Response:
    """The key that signs receipts, open to everybody."""
    keys: PublicKeys = {"keys": [context.receipts.public_key()]}
    return JSONResponse(keys, headers={"Cache-Control": "public, max-age=300"})


def shard_json(shard: ShardDigest, *, claimed: bool = True) -> ReceiptShardJson:
    """A shard, claimed where its kind is and nothing of it is damaged."""
    shown: ReceiptShardJson = {
        "kind": shard.kind,
        "index": shard.index,
        "startTime": shard.start_ms / 1000,
        "endTime": shard.end_ms / 1000,
        "sha256": shard.sha256,
        "claimed": claimed and shard.claimed,
    }
    if shard.track is not None:
        shown["trackIndex"] = shard.track
    if shard.language is not None:
        shown["language"] = shard.language
    return shown


def result_json(
    kind: Literal["scenes", "transcript"], result: object, track: int | None = None
) -> ReceiptResultJson:
    """A result as the API answers it, addresses and all."""
    fields = sorted(field_names(result) - _LEFT_OUT)
    shown: ReceiptResultJson = {
        "kind": kind,
        "fields": fields,
        "sha256": result_digest(result, fields),
    }
    if track is not None:
        shown["trackIndex"] = track
    return shown


def result_digest(result: object, fields: Collection[str]) -> str:
    """SHA-256 of the canonical JSON of the named fields of a result, wherever in it."""
    return hashlib.sha256(canonical(_only(result, frozenset(fields)))).hexdigest()


def field_names(value: object) -> set[str]:
    """The names of all fields of a result, wherever in it."""
    if isinstance(value, Mapping):
        return {*value}.union(*(field_names(each) for each in value.values()))
    return set[str]().union(*map(field_names, value)) if isinstance(value, list) else set()


def _only(value: object, fields: frozenset[str]) -> object:
    if isinstance(value, Mapping):
        return {name: _only(each, fields) for name, each in value.items() if name in fields}
    return [_only(each, fields) for each in value] if isinstance(value, list) else value


@functools.cache
def software() -> ReceiptSoftwareJson:
    """Of this process."""
    total, root = hashlib.sha256(), Path(pipelines.__file__).parent.parent
    for package in ("models", "pipelines"):
        for path in sorted((root / package).rglob("*.[pt][yo]*")):
            total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    libraries = dict[str, str]()
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return {"version": __version__, "code": total.hexdigest(), "libraries": libraries}
