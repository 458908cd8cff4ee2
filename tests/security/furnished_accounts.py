"""Accounts that have one of everything, and the words by which each would be recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from storage import keys, ledger, people
from storage.types import Role
from tests.contract.calling import Caller, ContractApi, shown
from tests.contract.runner_side import TWO_TRACKS, RunnerSide

BATCH_CLIPS = 2


@dataclass(frozen=True, slots=True)
class FurnishedAccount:
    """An account, signed in, with jobs, a batch, deliveries, stills, keys, secret, a purchase."""

    caller: Caller
    session: dict[str, str]
    finished: dict[str, Any]
    """A completed job with two tracks, scenes, stills and a delivery."""
    uploading: dict[str, Any]
    """A job that waits for its file, as its creation was answered."""
    batch: dict[str, Any]
    key_id: str
    endpoint_id: str
    voice_id: str
    archive_id: str
    signing_secret: str
    portal_url: str
    still_urls: tuple[str, ...]
    marks: frozenset[str]
    """Ids and words that stand in answers to this account and must stand in no other's."""

    @property
    def credentials(self) -> dict[str, dict[str, str]]:
        """Headers by the kind of operation."""
        key = {"X-API-Key": self.caller.customer.key}
        return {"key": key, "session": self.session, "none": {}}

    @classmethod
    def furnish(cls, api: ContractApi, runner: RunnerSide, word: str) -> Self:
        """A new account; ``word`` stands in everything that it names itself."""
        caller = api.caller()
        session = caller.sign_in()
        callback = f"https://{word}.customers.example.com/hooks/{word}-path"
        job_id = runner.complete(
            caller, TWO_TRACKS, fileName=f"{word}-film.mp4", callbackUrl=callback,
            metadata={"account": f"{word}-metadata"},
        )  # fmt: skip
        uploading = caller.create(fileName=f"{word}-upload.mp4")
        clips = [{"sourceUrl": f"https://{word}.example.com/{n}.mp4"} for n in range(BATCH_CLIPS)]
        batch = shown(caller.post("/jobs/batch", {"mode": "independent", "clips": clips}))
        endpoint = {"url": f"https://{word}.example.com/hook"}
        voiced = f"/jobs/{job_id}/speakers/speaker_0/voice?track=0"
        voice_id = shown(caller.ask("PUT", voiced, json={"name": f"{word}-voice"}))["id"]
        endpoint_id = shown(caller.post("/webhooks/endpoints", endpoint))["id"]
        terms = {"keyterms": [f"{word}-term"], "replacements": []}
        shown(caller.ask("PUT", "/vocabulary", json=terms))
        bucket = {"url": f"s3://{word}-bucket/films/"}
        archive_id = shown(caller.post("/archives", bucket))["archiveId"]
        account = caller.customer.account_id
        spare = api.transact(lambda c: keys.create_key(c, account))
        _buy(caller, f"{word}-receipt")
        guest = f"{word}-guest@example.com"
        api.transact(lambda c: people.invite(c, account, guest, Role.VIEWER))
        secret = shown(api.client.get("/webhooks/secret", headers=session))["secret"]
        portal = shown(api.client.get("/keys/portal", headers=session))["url"]
        scenes = shown(caller.get(f"/jobs/{job_id}/scenes"))["scenes"]
        ids = [job_id, uploading["jobId"], *(job["jobId"] for job in batch["jobs"])]
        words = [f"{word}-film", f"{word}-upload", f"{word}-metadata", f"{word}-receipt",
                 f"{word}-path", f"{word}-term", f"{word}.example.com",
                 f"{word}.customers"]  # fmt: skip
        ids += [endpoint_id, voice_id, f"{word}-voice", archive_id, f"{word}-bucket"]
        marks = {
            *ids,
            *words,
            guest,
            batch["batchId"],
            str(account),
            str(spare.id),
            spare.secret,
            secret,
        }
        return cls(
            caller, session, caller.job(job_id), uploading, batch, str(spare.id), endpoint_id,
            voice_id, archive_id, secret, portal, tuple(scene["thumbnailUrl"] for scene in scenes),
            frozenset(marks),
        )  # fmt: skip


def _buy(caller: Caller, reference: str) -> None:
    account = caller.customer.account_id
    caller.api.transact(
        lambda c: ledger.record_purchase(
            c, account, 500, provider=ledger.OPERATOR, reference=f"{reference} {account}"
        )
    )
