"""An archive of a customer: listed, paused and resumed while everything breaks, and listed again
when an object has changed and another one has come."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from storage.objects.s3 import client_of
from tests.acceptance.chaos.archived import EMPTY, TRIED_AGAIN
from tests.acceptance.chaos.caller import PATIENCE_SECONDS, UncoveredError
from tests.acceptance.chaos.clips import Clip
from tests.acceptance.chaos.journal import Walked
from tests.acceptance.chaos.load import AFTER_FAILURE_SECONDS, POLL_SECONDS, Client

NAMES = ("plain.mp4", "with space + plus.mp4", "below/50%25 Müller #1.MP4")
OTHER = "list.txt"
MOST_ACTIVE = 2
PAUSE_SHARE = 0.25
"""Of the looks at an archive under way."""
PAUSED_SECONDS = (0.5, 6.0)
END_SECONDS = 2 * PATIENCE_SECONDS
"""Until an archive has ended that is looked after and waits for no job."""
PRIORITIES = ("low", "normal")


@dataclass(slots=True)
class Archivist:
    """Has one archive after the other analysed."""

    client: Client

    def run(self) -> None:
        """Until stopped; an archive that was begun is brought to an end."""
        while not self.client.stopping.is_set():
            try:
                self.walk()
            except UncoveredError:  # written in the journal, where the checker finds it
                self.client.stopping.wait(AFTER_FAILURE_SECONDS)
            except Exception as error:
                self.client.journal.violated(f"archive: {type(error).__name__}: {error}")

    def walk(self) -> None:
        """One archive, from its making until all is analysed that has changed since."""
        chance, journal = self.client.chance, self.client.journal
        prefix = f"footage/{uuid.UUID(int=chance.getrandbits(128)).hex}/"
        clips = [clip for clip in self.client.clips.values() if clip.path.suffix == ".mp4"]
        first, second, third, changed = chance.sample(clips, 4)
        keys = [prefix + name for name in chance.sample(NAMES, 3)]
        for name, content in ((EMPTY, b""), (OTHER, b"no video")):
            self._put(prefix + name, content)
        put = dict[str, list[str]]()
        self._place(put, keys[0], first)
        self._place(put, keys[1], second)
        archive_id = self._create(prefix)
        walked = Walked(archive_id, self.client.customer.account, put, journal.seconds())
        journal.archives.append(walked)
        self._until_listed(walked)
        self._until_ended(archive_id)
        self._place(put, keys[0], changed)
        self._place(put, keys[2], third)
        self._change(archive_id, "resume")
        self._until_ended(archive_id)
        journal.did("archive walked")

    def _create(self, prefix: str) -> str:
        client, chance, place = self.client, self.client.chance, self.client.stage.footage
        body = client.body() | {
            "url": f"s3://{place.bucket}/{prefix}",
            "patterns": ["*.mp4"],
            "maxActiveJobs": MOST_ACTIVE,
            "priority": chance.choice(PRIORITIES),
            "bucketAccess": {
                "endpoint": place.endpoint_url,
                "region": place.region,
                "accessKeyId": place.access_key_id,
                "secretAccessKey": place.secret_access_key,
            },
        }
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        made = client.caller.data("POST", "/archives", json=body, headers=headers)
        return str(made["archiveId"])

    def _until_listed(self, walked: Walked) -> None:
        """Its first page, for which it waits for nothing but its bucket."""
        path, deadline = f"/archives/{walked.archive_id}", time.monotonic() + END_SECONDS
        while walked.listed_seconds is None and time.monotonic() < deadline:
            shown = self.client.caller.data("GET", path)
            if any(shown["objects"].values()):
                walked.listed_seconds = self.client.journal.seconds()
            elif shown["state"] == "paused":  # its bucket failed too often
                self._change(walked.archive_id, "resume")
            time.sleep(POLL_SECONDS)

    def _until_ended(self, archive_id: str) -> None:
        """Look after it, as its owner: pause it now and then, and resume what has stopped."""
        client, deadline = self.client, time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            shown = client.caller.data("GET", f"/archives/{archive_id}")
            if shown["state"] == "paused":
                client.journal.did(f"archive resumed after {shown.get('error', {}).get('code')}")
                self._change(archive_id, "resume")
            elif shown["state"] == "completed":
                if not self._has_unfetched(archive_id):
                    return
                self._change(archive_id, "resume")
            elif not client.stopping.is_set() and client.chance.random() < PAUSE_SHARE:
                self._change(archive_id, "pause")
                time.sleep(client.chance.uniform(*PAUSED_SECONDS))
            time.sleep(POLL_SECONDS)
            if time.monotonic() > deadline - PATIENCE_SECONDS and self._waits_for_jobs(archive_id):
                deadline = time.monotonic() + END_SECONDS
        self._change(archive_id, "resume")  # which its last turn may have paused
        client.journal.violated(f"archive {archive_id} never ends: {shown}")
        raise UncoveredError(archive_id)

    def _has_unfetched(self, archive_id: str) -> bool:
        return any(each["errorCode"] in TRIED_AGAIN for each in self._objects(archive_id, "failed"))

    def _waits_for_jobs(self, archive_id: str) -> bool:
        """Of low priority they wait for all others of the account."""
        caller = self.client.caller
        ids = [each["jobId"] for each in self._objects(archive_id, "running")]
        jobs = [caller.data("GET", f"/jobs/{job_id}?include=none") for job_id in ids]
        return any(job["completedAt"] is None for job in jobs)

    def _objects(self, archive_id: str, state: str) -> list[Any]:
        caller = self.client.caller
        url = f"{caller.base_url}/archives/{archive_id}/objects?state={state}"
        objects: list[Any] = caller.final("GET", url).json()["data"]
        return objects

    def _change(self, archive_id: str, how: str) -> None:
        self.client.caller.data("POST", f"/archives/{archive_id}/{how}", json={})
        self.client.journal.did(f"archive {how}")

    def _place(self, put: dict[str, list[str]], key: str, clip: Clip) -> None:
        self._put(key, clip.data)
        put.setdefault(key, []).append(clip.name)

    def _put(self, key: str, content: bytes) -> None:
        place, deadline = self.client.stage.footage, time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                client_of(place).put_object(Bucket=place.bucket, Key=key, Body=content)
            except (BotoCoreError, ClientError):  # its store is down, full or silent just now
                if time.monotonic() > deadline:
                    raise
                time.sleep(AFTER_FAILURE_SECONDS)
            else:
                return
