"""``vas archives``: an account's buckets, over the API."""

from __future__ import annotations

import json

from tests.serve_app.cli.test_job_commands import vas
from tests.serve_app.running_api import Customer, RunningApi

SECRET_KEY = "a-secret-of-the-bucket"


def test_an_archive_is_added_shown_paused_renewed_and_removed(
    api: RunningApi, customer: Customer
) -> None:
    keys = ["--access-key-id", "one", "--secret-access-key", SECRET_KEY]
    place = ["--endpoint", "https://minio.example.com", "--region", "eu-central-1"]
    options = ["--pattern", "*.mp4", "--watch", "3600", *place, *keys, "--json"]
    words = ["s3://bucket/films/", *options]
    added = vas(api, customer, "archives", "add", *words)
    assert added.exit_code == 0, added.output
    archive = json.loads(added.output)
    assert (archive["patterns"], archive["watchSeconds"]) == (["*.mp4"], 3600)
    assert archive["bucketAccess"]["accessKeyId"] == "one"
    lines = vas(api, customer, "archives", "list").output.splitlines()
    head = ["archive", "bucket", "state", "done", "failed", "refused", "error", "nextTry"]
    assert lines[0].split() == head
    assert lines[1].split()[:3] == [archive["archiveId"], "s3://bucket/films/", "active"]
    api.sql(
        "UPDATE archives SET failures = 1, error_code = 'BUCKET_UNREACHABLE',"
        " due_at = '2100-01-01T00:00:00Z'"
    )
    row = vas(api, customer, "archives", "list").output.splitlines()[1]
    assert row.split()[-2:] == ["BUCKET_UNREACHABLE", "2100-01-01T00:00:00.000Z"]
    paused = vas(api, customer, "archives", "pause", archive["archiveId"], "--json")
    assert json.loads(paused.output)["state"] == "paused"
    new = ["--access-key-id", "two", "--secret-access-key", SECRET_KEY, "--json"]
    resumed = json.loads(
        vas(api, customer, "archives", "resume", archive["archiveId"], *new).output
    )
    assert resumed["state"] == "active"
    assert resumed["bucketAccess"] == archive["bucketAccess"] | {"accessKeyId": "two"}
    shown = vas(api, customer, "archives", "show", archive["archiveId"], "--errors", "--json")
    assert json.loads(shown.output)["errors"] == []
    assert SECRET_KEY not in added.output + shown.output
    removed = vas(api, customer, "archives", "remove", archive["archiveId"], "--yes")
    assert removed.exit_code == 0, removed.output
    assert json.loads(vas(api, customer, "archives", "list", "--json").output)["data"] == []
