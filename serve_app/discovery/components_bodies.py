"""Request bodies: the models that the API itself reads with, and what they cannot say of
themselves because Python says it (patterns, and rules between fields).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from serve_app.discovery.components_forms import Schema, reference
from serve_app.jobs.schemas import CreateBatchBody, CreateJobBody, CreateJobFromUrlBody
from serve_app.webhooks.routes import TestWebhookBody

BODIES: dict[str, type[BaseModel]] = {
    "CreateJobRequest": CreateJobBody,
    "CreateJobFromUrlRequest": CreateJobFromUrlBody,
    "CreateBatchRequest": CreateBatchBody,
    "TestWebhookRequest": TestWebhookBody,
}
_NAMES = {"UploadedTrack": "AudioTrackToUpload", "FetchedTrack": "AudioTrackToFetch"}

FILE_NAME_PATTERN = r"^([^\u0000-\u001f\u007f]*[/\\])?(?!\.{1,2}$)[^/\\\u0000-\u001f\u007f]+$"
IDEMPOTENCY_KEY_PATTERN = "^[ -~]{1,255}$"
IDEMPOTENCY_HEADER_PATTERN = "^[!-~]([ -~]{0,253}[!-~])?$"
"""White space around a header's value is no part of it."""
NO_NUL_PATTERN = r"^[^\u0000]*$"

_FILE_NAME = {"pattern": FILE_NAME_PATTERN}
_MEDIA_URL = {"format": "uri", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"}
_HTTPS_URL = {"format": "uri", "pattern": "^[Hh][Tt][Tt][Pp][Ss]://"}
_OFFSET = (
    "Milliseconds; positive: the audio starts that much after the picture. "
    "Required where the sync mode is `offset`."
)
_SYNC = (
    "How the audio is aligned: by itself (`auto`), by timecode, or by the given offset, which is "
    "what happens where an offset is given and no mode."
)
_TOKEN = "Sent as `Authorization: Bearer` to this URL's own origin only."  # noqa: S105

_NOTES: dict[str, tuple[str, dict[str, Any]]] = {
    "processingMode": ("Which analysis stages run.", {}),
    "callbackUrl": ("Public HTTPS endpoint that gets the webhook.", _HTTPS_URL),
    "idempotencyKey": (
        "The same as the `Idempotency-Key` header.",
        {"pattern": IDEMPOTENCY_KEY_PATTERN},
    ),
    "keyterms": ("Words that the transcription should know.", {}),
    "speakersExpected": (
        "How many people speak, where you know; of several audio tracks, on each of them.",
        {},
    ),
    "fileName": ("Only the last path component is kept.", _FILE_NAME),
    "fileSizeBytes": (
        "Lets an oversized file be refused before it is sent; a file of another size is refused.",
        {},
    ),
    "audioFileName": ("A separate audio file, to be uploaded too.", _FILE_NAME),
    "audioSyncMode": (_SYNC, {}),
    "syncMode": (_SYNC, {}),
    "audioOffsetMs": (_OFFSET, {}),
    "offsetMs": (_OFFSET, {}),
    "audioTracks": ("Separate audio in several files.", {}),
    "label": ("Name of the track.", {"pattern": NO_NUL_PATTERN}),
    "perChannelTranscription": ("Each channel becomes a track of its own.", {}),
    "channels": ("Which channels, from 0; all if not given.", {}),
    "url": ("Public http or https address of the media.", _MEDIA_URL),
    "sourceUrl": ("Public http or https address of the clip.", _MEDIA_URL),
    "audioUrl": ("Public http or https address of a separate audio file.", _MEDIA_URL),
    "downloadToken": (_TOKEN, {}),
    "audioDownloadToken": (_TOKEN, {}),
    "provider": ("Turns a share link into its direct download.", {}),
    "mode": ("A job a clip, or all clips as one programme.", {}),
    "clips": ("The clips, in order.", {}),
    "metadata": ("Echoed on the job and in its webhooks.", {}),
}
"""Description and additional rules of each field, wherever it appears."""


def _needs(condition: str, value: str, field: str) -> Schema:
    return {
        "if": {"required": [condition], "properties": {condition: {"const": value}}},
        "then": {"required": [field], "properties": {field: {"type": "integer"}}},
    }


def _exclude(first: str, second: str) -> Schema:
    """Not both of two fields, null counting as absent."""
    given = {"not": {"type": "null"}}
    return {"not": {"required": [first, second], "properties": {first: given, second: given}}}


_RULES: dict[str, list[Schema]] = {
    "CreateJobRequest": [
        _needs("audioSyncMode", "offset", "audioOffsetMs"),
        _exclude("audioFileName", "audioTracks"),
    ],
    "CreateJobFromUrlRequest": [
        _needs("audioSyncMode", "offset", "audioOffsetMs"),
        _exclude("audioUrl", "audioTracks"),
    ],
    "AudioTrackToUpload": [_needs("syncMode", "offset", "offsetMs")],
    "AudioTrackToFetch": [_needs("syncMode", "offset", "offsetMs")],
}
"""Rules between fields."""


def body_schemas() -> dict[str, Schema]:
    """Components of request bodies, by name, with those they are made of."""
    schemas: dict[str, Schema] = {}
    for name, model in BODIES.items():
        raw = model.model_json_schema(ref_template="{model}")
        for inner, schema in raw.pop("$defs", {}).items():
            schemas[_NAMES.get(inner, inner)] = schema
        schemas[name] = raw
    return {name: _finished(name, schema) for name, schema in sorted(schemas.items())}


def _finished(name: str, schema: Schema) -> Schema:
    fields = {field: _field(name, field, rules) for field, rules in schema["properties"].items()}
    required = schema.get("required", [])
    shown: Schema = {
        "type": "object",
        "description": schema.get("description", "").replace("``", "`"),
        "properties": {name: fields[name] for name in sorted(fields, key=_order(required))},
    }
    if required:
        shown["required"] = required
    if name in _RULES:
        shown["allOf"] = _RULES[name]
    return shown


def _order(required: list[str]) -> Any:
    names = [*required, *_NOTES]
    return lambda name: names.index(name) if name in names else len(names)


def _field(body: str, field: str, schema: Schema) -> Schema:
    description, rules = _NOTES.get(field, ("", {}))
    if body == "TestWebhookRequest" and field == "url":
        description, rules = "Public HTTPS endpoint, port 443.", _HTTPS_URL
    if field == "metadata":
        shown: Schema = {"anyOf": [reference("Metadata"), {"type": "null"}]}
    else:
        shown = _simplified(schema)
    if shown.get("default", ...) is None:
        del shown["default"]
    if field == "keyterms":
        shown["items"]["pattern"] = NO_NUL_PATTERN
    if "type" in shown and rules:
        shown |= rules
    return {"description": description, **shown} if description else shown


def _simplified(schema: Any) -> Any:
    """Without titles; ``anyOf`` with null as a list of types; references to components."""
    if isinstance(schema, list):
        return [_simplified(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = str(schema["$ref"])
        return reference(_NAMES.get(name, name))
    plain = {name: _simplified(value) for name, value in schema.items() if name != "title"}
    parts = plain.get("anyOf", [])
    if len(parts) == 2 and parts[1] == {"type": "null"} and isinstance(parts[0].get("type"), str):
        inner = {**plain.pop("anyOf")[0]}
        inner["type"] = [inner["type"], "null"]
        if "enum" in inner:
            inner["enum"] = [*inner["enum"], None]
        return plain | inner
    return plain
