"""Receipts: what a job's results were made of and with, signed, for others to check."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

import pipelines
from serve_app import __version__
from serve_app.api.schemas import Count, Uuid, doc
from serve_app.crypto import PublicKeyJson, canonical

Sha256 = Annotated[str, doc("SHA-256 in hexadecimal.", "9f86d081884c7d65", pattern="^[0-9a-f]+$")]
Setting = str | int | float | bool | list[str] | None
KEYS_PATH = "/.well-known/vas-receipts.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"

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
    results: NotRequired[list[ReceiptResultJson]]


class ReceiptStages(TypedDict):
    """The completed stages."""

    ingest: NotRequired[StageReceipt]
    vision: NotRequired[StageReceipt]
    transcript: NotRequired[StageReceipt]


class ReceiptJson(TypedDict):
    """What is stated of the subjects."""

    jobId: Annotated[Uuid, doc("The job.")]
    stages: ReceiptStages


class SubjectDigest(TypedDict):
    """Of a subject."""

    sha256: Sha256


class Subject(TypedDict):
    """A file of the media, or a result."""

    name: Annotated[str, doc("The file's name, or `scenes`, `transcript`, `transcript 1`, …")]
    digest: SubjectDigest


class Statement(TypedDict):
    """The payload: a statement of in-toto, version 1."""

    _type: Literal["https://in-toto.io/Statement/v1"]
    subject: list[Subject]
    predicateType: Literal["urn:video-analysis-service:receipt:v2"]
    predicate: ReceiptJson


class EnvelopeSignatureJson(TypedDict):
    """An Ed25519 signature (RFC 8032) of payload and type, as DSSE has it."""

    keyid: Annotated[str, doc(f"Of a key in `{KEYS_PATH}`, by its thumbprint (RFC 7638).")]
    sig: Annotated[str, doc("In base64.")]


class EnvelopeJson(TypedDict):
    """A DSSE envelope."""

    payloadType: Annotated[str, doc("Media type of the payload.", PAYLOAD_TYPE)]
    payload: Annotated[str, doc("The statement as JSON, in base64.", "eyJfdHlwZSI6…")]
    signatures: list[EnvelopeSignatureJson]


class PublicKeys(TypedDict):
    """A JSON Web Key Set (RFC 7517)."""

    keys: list[PublicKeyJson]


def result_json(
    kind: Literal["scenes", "transcript"], result: object, track: int | None = None
) -> ReceiptResultJson:
    """Return a result as the API answers it, addresses and all."""
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
