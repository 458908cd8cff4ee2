"""The source of a job as its row holds it, in this version and the ones beside it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from storage.job_records import JobSource

CLIP = {"url": "https://media.example.com/a.mp4", "provider": None, "sealed_token": "c2VhbGVk"}
SYNC = {"sync_mode": "auto", "offset_ms": None}
TRACK = SYNC | {"label": None, "per_channel": True, "channels": [1, 2]}
SHARED = {"base_url": "http://x", "keyterms": ["sea"], "speakers_expected": None}

ROWS: dict[str, dict[str, Any]] = {
    "upload": {"kind": "upload", "clips": [], "audio": [], **SHARED},
    "uploaded audio": {
        "kind": "upload",
        "clips": [],
        "audio": [SYNC | {"slot": "audio", "name": "a.wav"}, TRACK | {"slot": "t", "name": "b"}],
        **SHARED,
    },
    "fetched": {"kind": "url", "clips": [CLIP], "audio": [TRACK | CLIP | {"name": "b"}], **SHARED},
    "batch": {
        "kind": "url",
        "clips": [CLIP | {"name": "a.mp4", "metadata": {"take": 2}}],
        "audio": [],
        "continuous": True,
        **SHARED,
    },
    "backfill": {"kind": "backfill", "clips": [], "audio": [], **SHARED},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_a_row_of_the_version_before_is_written_again_as_it_was(row: dict[str, Any]) -> None:
    """A runner of that version may be the one that leases the job."""
    assert JobSource.model_validate(row).stored() == row


def test_fields_that_a_row_lacks_have_defaults() -> None:
    row = {"kind": "url", "base_url": "http://x", "clips": [CLIP], "audio": [], "keyterms": []}
    source = JobSource.model_validate(row)
    assert (source.speakers_expected, source.continuous) == (None, False)
    assert (source.clips[0].name, source.clips[0].metadata) == (None, {})


def test_fields_of_the_next_version_are_ignored() -> None:
    row = ROWS["fetched"] | {"later": 1, "clips": [CLIP | {"later": 1}]}
    assert JobSource.model_validate(row).stored()["clips"] == [CLIP]


def test_a_source_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValidationError):
        JobSource.model_validate({"kind": "tape", **SHARED})
