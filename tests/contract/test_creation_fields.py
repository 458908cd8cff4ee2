"""The fields of the three creation bodies, one by one: what they do, what they refuse."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.contract.calling import Caller, ContractApi, refusal, shown
from tests.contract.spec_rows import covers_each

URL = "https://media.example.com/a/clip.mp4"
SOUND = "https://media.example.com/boom.wav"
TOKEN = "token-of-the-source"
CALLBACK = "https://customer.example.com/hook"

Body = dict[str, Any]
Check = Callable[[Caller, Body], None]
"""Given the caller and the answer's data."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a body: good values with what they do, bad ones with what they are told."""

    good: tuple[tuple[Body, Check], ...]
    bad: tuple[tuple[Body, str, str], ...]
    """Body, code, param."""


def shows(**expected: Any) -> Check:
    """The job shows these values."""

    def check(_: Caller, job: Body) -> None:
        assert {name: job[name] for name in expected} == expected

    return check


def plans(*path: str | int, equals: Any) -> Check:
    """The job is stored for the runner with this value in its source."""

    def check(caller: Caller, job: Body) -> None:
        value = source_of(caller, job)
        for part in path:
            value = value[part]
        assert value == equals

    return check


def source_of(caller: Caller, job: Body) -> Any:
    [(source,)] = caller.api.sql(
        "SELECT source FROM jobs WHERE id = :id", id=uuid.UUID(job["jobId"])
    )
    return source


def seals(*path: str | int) -> Check:
    """The token is stored encrypted, and no answer shows it."""

    def check(caller: Caller, job: Body) -> None:
        value: Any = source_of(caller, job)
        assert TOKEN not in json.dumps(value)
        assert TOKEN not in json.dumps(job)
        for part in path:
            value = value[part]
        assert isinstance(value["sealed_token"], str)

    return check


def has(*names: str) -> Check:
    """The answer has these fields."""

    def check(_: Caller, job: Body) -> None:
        assert set(names) <= set(job)

    return check


def repeats(path: str, body: Body) -> Check:
    """The same request again gives the same job."""

    def check(caller: Caller, first: Body) -> None:
        assert shown(caller.post(path, body)) == first

    return check


def invalid(param: str, *bodies: Body) -> tuple[tuple[Body, str, str], ...]:
    return tuple((body, "INVALID_REQUEST", param) for body in bodies)


def key_field(path: str, required: Body) -> Field:
    body = required | {"idempotencyKey": "key-1"}
    return Field(
        good=(({"idempotencyKey": "key-1"}, repeats(path, body)),),
        bad=invalid("idempotencyKey", {"idempotencyKey": 5}, {"idempotencyKey": ""}),
    )


MODE = Field(
    good=tuple(
        ({"processingMode": mode}, shows(processingMode=mode))
        for mode in ("all", "transcript", "vision")
    ),
    bad=invalid("processingMode", {"processingMode": "both"}, {"processingMode": 5}),
)
CALLBACK_URL = Field(
    good=(({"callbackUrl": CALLBACK}, shows(callbackUrl=CALLBACK)),),
    bad=(
        ({"callbackUrl": "http://customer.example.com/"}, "INVALID_CALLBACK_URL", "callbackUrl"),
        ({"callbackUrl": ""}, "INVALID_CALLBACK_URL", "callbackUrl"),
        ({"callbackUrl": CALLBACK + "a" * 2048}, "INVALID_CALLBACK_URL", "callbackUrl"),
        ({"callbackUrl": 5}, "INVALID_REQUEST", "callbackUrl"),
    ),
)
METADATA = Field(
    good=(({"metadata": {"assetId": "a"}}, shows(metadata={"assetId": "a"})),),
    bad=(
        *invalid("metadata", {"metadata": []}, {"metadata": {str(n): n for n in range(51)}}),
        *invalid("metadata.assetId", {"metadata": {"assetId": "x" * 501}}),
    ),
)


def sync_mode(audio: Body) -> Field:
    return Field(
        good=(
            (
                audio | {"audioSyncMode": "timecode"},
                plans("audio", 0, "sync_mode", equals="timecode"),
            ),
            (audio, plans("audio", 0, "sync_mode", equals="auto")),
        ),
        bad=invalid("audioSyncMode", audio | {"audioSyncMode": "magic"}),
    )


def offset(audio: Body) -> Field:
    by_offset = audio | {"audioSyncMode": "offset"}
    return Field(
        good=(
            (by_offset | {"audioOffsetMs": -250}, plans("audio", 0, "offset_ms", equals=-250)),
            (audio | {"audioOffsetMs": 0}, plans("audio", 0, "sync_mode", equals="offset")),
            (
                audio | {"audioSyncMode": "auto", "audioOffsetMs": 9},
                plans("audio", 0, "sync_mode", equals="auto"),
            ),
        ),
        bad=invalid(
            "audioOffsetMs",
            by_offset,
            by_offset | {"audioOffsetMs": "soon"},
            by_offset | {"audioOffsetMs": 86_400_001},
        ),
    )


UPLOADED_AUDIO = {"audioFileName": "boom.wav"}
CREATE_JOB: dict[str, Field] = {
    "fileName": Field(
        good=(({"fileName": "shoot/clip.mov"}, shows(fileName="clip.mov")),),
        bad=invalid("fileName", {"fileName": None}, {"fileName": ""}, {"fileName": 5}),
    ),
    "fileSizeBytes": Field(
        good=(({"fileSizeBytes": 20 * 1024**3}, shows(maxUploadBytes=20 * 1024**3)),),
        bad=(
            *invalid("fileSizeBytes", {"fileSizeBytes": "5"}, {"fileSizeBytes": -1}),
            ({"fileSizeBytes": 20 * 1024**3 + 1}, "FILE_TOO_LARGE", "fileSizeBytes"),
            ({"fileSizeBytes": 10**30}, "FILE_TOO_LARGE", "fileSizeBytes"),
            ({"fileSizeBytes": 1e20}, "FILE_TOO_LARGE", "fileSizeBytes"),
        ),
    ),
    "processingMode": MODE,
    "callbackUrl": CALLBACK_URL,
    "idempotencyKey": key_field("/jobs", {"fileName": "clip.mp4"}),
    "metadata": METADATA,
    "audioFileName": Field(
        good=((UPLOADED_AUDIO, has("audioUploadUrl")),),
        bad=invalid("audioFileName", {"audioFileName": ""}, {"audioFileName": 5}),
    ),
    "audioSyncMode": sync_mode(UPLOADED_AUDIO),
    "audioOffsetMs": offset(UPLOADED_AUDIO),
    "audioTracks": Field(
        good=(
            (
                {"audioTracks": [{"fileName": "a.wav"}, {"fileName": "b.wav", "offsetMs": 40}]},
                plans("audio", 1, "offset_ms", equals=40),
            ),
            (
                {"audioTracks": [{"fileName": "a.wav"}, {"fileName": "b.wav", "offsetMs": 40}]},
                plans("audio", 1, "sync_mode", equals="offset"),
            ),
        ),
        bad=(
            *invalid("audioTracks", {"audioTracks": []}, {"audioTracks": "a.wav"}),
            *invalid("audioTracks[0].fileName", {"audioTracks": [{"offsetMs": 1}]}),
            *invalid(
                "audioTracks[0].offsetMs",
                {"audioTracks": [{"fileName": "a.wav", "offsetMs": "1"}]},
            ),
        ),
    ),
}
FETCHED_AUDIO = {"audioUrl": SOUND}
SIGNED = f"{URL}?X-Amz-Security-Token={'a' * 5000}"
BY_PROGRAM = "https://media.example.com/download.php?id=7"
FROM_URL: dict[str, Field] = {
    "url": Field(
        good=(
            ({"url": URL}, plans("clips", 0, "url", equals=URL)),
            ({"url": SIGNED}, plans("clips", 0, "url", equals=SIGNED)),
            ({"url": BY_PROGRAM}, shows(fileName="download.php")),
        ),
        bad=(
            *invalid("url", {"url": None}, {"url": 5}),
            ({"url": "ftp://media.example.com/a.mp4"}, "INVALID_URL", "url"),
            ({"url": ""}, "INVALID_URL", "url"),
            ({"url": URL + "?" + "a" * 8192}, "INVALID_URL", "url"),
            ({"url": "https://media.example.com/a.exe"}, "UNSUPPORTED_FORMAT", "url"),
            ({"url": "http://10.0.0.1/a.mp4"}, "URL_NOT_ALLOWED", "url"),
        ),
    ),
    "fileName": Field(
        good=(
            ({"fileName": "take.mov"}, shows(fileName="take.mov")),
            ({}, shows(fileName="clip.mp4")),
        ),
        bad=invalid("fileName", {"fileName": ""}, {"fileName": 5}),
    ),
    "downloadToken": Field(
        good=(({"downloadToken": TOKEN}, seals("clips", 0)),),
        bad=invalid("downloadToken", {"downloadToken": 5}, {"downloadToken": "a\nb"}),
    ),
    "provider": Field(
        good=tuple(
            ({"provider": name}, plans("clips", 0, "provider", equals=name))
            for name in ("gdrive", "dropbox")
        ),
        bad=invalid("provider", {"provider": "box"}, {"provider": 5}),
    ),
    "processingMode": MODE,
    "callbackUrl": CALLBACK_URL,
    "idempotencyKey": key_field("/jobs/from-url", {"url": URL}),
    "metadata": METADATA,
    "audioUrl": Field(
        good=((FETCHED_AUDIO, plans("audio", 0, "url", equals=SOUND)),),
        bad=(
            ({"audioUrl": "boom.wav"}, "INVALID_URL", "audioUrl"),
            ({"audioUrl": "https://media.example.com/a.exe"}, "UNSUPPORTED_FORMAT", "audioUrl"),
            ({"audioUrl": "http://10.0.0.1/boom.wav"}, "URL_NOT_ALLOWED", "audioUrl"),
        ),
    ),
    "audioDownloadToken": Field(
        good=((FETCHED_AUDIO | {"audioDownloadToken": TOKEN}, seals("audio", 0)),),
        bad=invalid("audioDownloadToken", {"audioDownloadToken": ""}),
    ),
    "audioSyncMode": sync_mode(FETCHED_AUDIO),
    "audioOffsetMs": offset(FETCHED_AUDIO),
    "audioTracks": Field(
        good=(
            (
                {"audioTracks": [{"url": SOUND}, {"url": SOUND, "offsetMs": -40}]},
                plans("audio", 1, "offset_ms", equals=-40),
            ),
        ),
        bad=(
            *invalid("audioTracks[0].url", {"audioTracks": [{"fileName": "a.wav"}]}),
            *invalid("audioTracks[0].offsetMs", {"audioTracks": [{"url": SOUND, "offsetMs": 0.5}]}),
            ({"audioTracks": [{"url": SOUND}, {"url": "/b"}]}, "INVALID_URL", "audioTracks[1].url"),
            (
                {"audioTracks": [{"url": SOUND}, {"url": "https://media.example.com/b.exe"}]},
                "UNSUPPORTED_FORMAT",
                "audioTracks[1].url",
            ),
        ),
    ),
}


def of_each_job(check: Check) -> Check:
    """``check`` for every job of a batch."""

    def check_all(caller: Caller, batch: Body) -> None:
        assert batch["jobs"]
        for job in batch["jobs"]:
            check(caller, job)

    return check_all


def batched(field: Field) -> Field:
    return Field(tuple((body, of_each_job(check)) for body, check in field.good), field.bad)


def one_programme(_: Caller, batch: Body) -> None:
    assert [job["index"] for job in batch["jobs"]] == [0]


def a_job_a_clip(_: Caller, batch: Body) -> None:
    assert [job["index"] for job in batch["jobs"]] == [0, 1]


TWO_CLIPS: Body = {"clips": [{"sourceUrl": URL}, {"sourceUrl": URL}]}
BATCH: dict[str, Field] = {
    "mode": Field(
        good=(
            (TWO_CLIPS | {"mode": "independent"}, a_job_a_clip),
            (TWO_CLIPS | {"mode": "continuous"}, one_programme),
        ),
        bad=invalid("mode", {"mode": None}, {"mode": "parallel"}),
    ),
    "clips": Field(
        good=((TWO_CLIPS, a_job_a_clip),),
        bad=invalid("clips", {"clips": None}, {"clips": []}, {"clips": URL}),
    ),
    "processingMode": batched(MODE),
    "callbackUrl": batched(CALLBACK_URL),
    "idempotencyKey": key_field(
        "/jobs/batch", {"mode": "independent", "clips": [{"sourceUrl": URL}]}
    ),
    "metadata": batched(METADATA),
}


def clip(**fields: Any) -> Body:
    """A body whose second clip has these fields."""
    return {"clips": [{"sourceUrl": URL}, {"sourceUrl": URL} | fields]}


def of_the_second(check: Check) -> Check:
    return lambda caller, batch: check(caller, batch["jobs"][1])


CLIP: dict[str, Field] = {
    "sourceUrl": Field(
        good=((clip(sourceUrl=SOUND), of_the_second(plans("clips", 0, "url", equals=SOUND))),),
        bad=(
            *invalid("clips[1].sourceUrl", clip(sourceUrl=None), clip(sourceUrl=5)),
            (clip(sourceUrl="clip.mp4"), "INVALID_URL", "clips[1].sourceUrl"),
            (clip(sourceUrl="http://[fe80::1]/"), "URL_NOT_ALLOWED", "clips[1].sourceUrl"),
        ),
    ),
    "fileName": Field(
        good=((clip(fileName="b.mov"), of_the_second(shows(fileName="b.mov"))),),
        bad=(
            *invalid("clips[1].fileName", clip(fileName="")),
            (clip(fileName="b.exe"), "UNSUPPORTED_FORMAT", "clips[1].fileName"),
        ),
    ),
    "downloadToken": Field(
        good=((clip(downloadToken=TOKEN), of_the_second(seals("clips", 0))),),
        bad=invalid("clips[1].downloadToken", clip(downloadToken=5)),
    ),
    "provider": Field(
        good=(
            (
                clip(provider="gdrive"),
                of_the_second(plans("clips", 0, "provider", equals="gdrive")),
            ),
        ),
        bad=invalid("clips[1].provider", clip(provider="box")),
    ),
    "metadata": Field(
        good=((clip(metadata={"take": 2}), of_the_second(shows(metadata={"take": 2}))),),
        bad=(
            *invalid("clips[1].metadata.take", clip(metadata={"take": []})),
            *invalid(
                "clips[1].metadata",
                clip(metadata={f"a{n}": n for n in range(30)})
                | {"metadata": {f"b{n}": n for n in range(30)}},
            ),
        ),
    ),
}
STATUSES = {"FILE_TOO_LARGE": 413, "UNSUPPORTED_FORMAT": 415}


def check_field(api: ContractApi, path: str, required: Body, field: Field) -> None:
    caller = api.caller()  # with creations a minute of its own
    for body, check in field.good:
        answer = caller.post(path, required | body)
        assert answer.status_code == 201, answer.text
        check(caller, shown(answer))
    for body, code, param in field.bad:
        extra: dict[str, Any] = {}
        if code == "FILE_TOO_LARGE":
            extra = {"maxUploadBytes": 20 * 1024**3, "formatTier": "standard"}
        # None stands for a field that is not sent.
        sent = {name: value for name, value in (required | body).items() if value is not None}
        answer = caller.post(path, sent)
        refusal(answer, STATUSES.get(code, 400), code, param=param, **extra)


@covers_each("create-job-body", CREATE_JOB, "field")
def test_create_job_takes(api: ContractApi, field: Field) -> None:
    check_field(api, "/jobs", {"fileName": "clip.mp4"}, field)


@covers_each("from-url-body", FROM_URL, "field")
def test_create_job_from_url_takes(api: ContractApi, field: Field) -> None:
    check_field(api, "/jobs/from-url", {"url": URL}, field)


@covers_each("batch-body", BATCH, "field")
def test_create_batch_takes(api: ContractApi, field: Field) -> None:
    required = {"mode": "independent", "clips": [{"sourceUrl": URL}]}
    check_field(api, "/jobs/batch", required, field)


@covers_each("batch-clip", CLIP, "field")
def test_a_clip_takes(api: ContractApi, field: Field) -> None:
    check_field(api, "/jobs/batch", {"mode": "independent"}, field)
