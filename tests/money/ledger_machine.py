"""Everything that can happen to an account's money, in any order, held against a plain model.

The real application over ASGI, the real publishing functions, the real reaper,
the real PostgreSQL; after every step the database is read as a whole.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pipelines.types import MediaInfo, StageCode, StageError
from serve_app.work import publishing
from serve_app.work.publishing import Lease
from storage import jobs, keys, ledger
from storage.database import Connection
from storage.jobs import LeaseLostError
from storage.ledger import OPERATOR, InsufficientCreditsError, RefundKey
from storage.types import StageName
from tests.contract.runner_side import AUDIO_ONLY, FOOTAGE, SILENT
from tests.money.in_process import InProcessService
from tests.money.ledger_model import ANALYSES, ENDED, PRICE_OF_30_SECONDS, Model, ModelJob
from tests.serve_app.published_jobs import SCENES, stored, track

LONG = timedelta(hours=1)
MEDIA = {"both": FOOTAGE, "silent": SILENT, "sound only": AUDIO_ONLY}
HAS = {"both": {"vision", "transcript"}, "silent": {"vision"}, "sound only": {"transcript"}}
SECONDS = st.integers(1, 20_000)
CENTS = st.integers(1, 400)
_numbers = itertools.count(1)


class LedgerMachine(RuleBasedStateMachine):
    """One account and everybody who touches it."""

    def __init__(self, service: InProcessService) -> None:
        super().__init__()
        self.service = service
        self.model = Model()
        self.lost_leases: list[Lease] = []

    @initialize(cents=st.integers(0, 300), limit=st.sampled_from([0, 0, 7, 150]))
    def open_account(self, cents: int, limit: int) -> None:
        async def create(connection: Connection) -> tuple[uuid.UUID, str]:
            account = await keys.create_account(connection, uuid.uuid4().hex)
            issued = await keys.create_key(connection, account.id)
            if limit:
                await keys.set_limits(
                    connection, account.id, pay_as_you_go=True, credit_limit_cents=limit
                )
            if cents:
                await ledger.grant(connection, account.id, cents, "test")
            return account.id, issued.secret

        self.account, key = self.service.transact(create)
        self.headers = {"X-API-Key": key}
        self.model.limit = limit
        self.model.credit(cents)

    # Money that comes and goes

    @rule(cents=CENTS)
    def grant(self, cents: int) -> None:
        self.service.transact(lambda c: ledger.grant(c, self.account, cents, "test"))
        self.model.credit(cents)

    @rule(cents=st.integers(-300, 300).filter(bool))
    def adjust(self, cents: int) -> None:
        if -cents > self.model.spendable:
            with pytest.raises(InsufficientCreditsError):
                self.service.transact(lambda c: ledger.adjust(c, self.account, cents, "test"))
            return
        self.service.transact(lambda c: ledger.adjust(c, self.account, cents, "test"))
        self.model.balance += cents
        if cents > 0:
            self.model.settle()

    @rule(cents=CENTS, data=st.data())
    def purchase(self, cents: int, data: st.DataObject) -> None:
        """A new payment, one that is told again, or one whose refund came first."""
        told = [refund.payment for refund in self.model.refunds.values()]
        payment = data.draw(st.sampled_from([f"p{next(_numbers)}", *self.model.payments, *told]))
        cents = self.model.payments.get(payment, cents)

        async def record(connection: Connection) -> bool:
            return await ledger.record_purchase(
                connection, self.account, cents, provider=OPERATOR, reference=self._own(payment)
            )

        assert self.service.transact(record) is (payment not in self.model.payments)
        self.model.pay(payment, cents)

    @rule(cents=CENTS, data=st.data())
    def refund(self, cents: int, data: st.DataObject) -> None:
        """A new refund, or one that is told again; of a known payment or one still to come."""
        fresh = f"r{next(_numbers)}"
        reference = data.draw(st.sampled_from([fresh, *self.model.refunds]))
        known = self.model.refunds.get(reference)
        payments = [f"p{next(_numbers)}", *self.model.payments]
        payment = known.payment if known else data.draw(st.sampled_from(payments))
        cents = known.amount if known else cents
        key = RefundKey(OPERATOR, self._own(reference), self._own(payment))
        self.service.transact(lambda c: ledger.record_refund(c, key, cents))
        self.model.repay(reference, payment, cents)

    @precondition(lambda self: self.model.refunds)
    @rule(data=st.data())
    def reverse_refund(self, data: st.DataObject) -> None:
        refund = self.model.refunds[data.draw(st.sampled_from(list(self.model.refunds)))]
        key = RefundKey(OPERATOR, self._own(refund.reference), self._own(refund.payment))
        self.service.transact(lambda c: ledger.reverse_refund(c, key, refund.amount))
        self.model.reverse(refund)

    def _own(self, reference: str) -> str:
        return f"{reference} of {self.account}"

    # What the customer does

    @rule(mode=st.sampled_from(list(ANALYSES)), upload=st.booleans(), clips=st.integers(1, 3))
    def create(self, mode: str, upload: bool, clips: int) -> None:
        body: dict[str, Any] = {"processingMode": mode}
        path = "/v1/api/jobs"
        source = "https://media.example.com/clip.mp4"
        if clips > 1:
            path, upload = f"{path}/batch", False
            body |= {"mode": "independent", "clips": [{"sourceUrl": source}] * clips}
        else:
            path = path if upload else f"{path}/from-url"
            body |= {"fileName": "clip.mp4"} if upload else {"url": source}
        key = f"key {next(_numbers)}"
        answer = self._create(path, body, key)
        price = PRICE_OF_30_SECONDS * len(ANALYSES[mode])
        if clips * price > self.model.spendable:
            assert (answer.status_code, answer.json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        else:
            assert answer.status_code == 201, answer.text
            data = answer.json()["data"]
            for job in data.get("jobs", [data]):
                self._note_job(job, mode, price)
        self.model.answers[key] = ({"path": path, "body": body}, answer.content)

    def _create(self, path: str, body: dict[str, Any], key: str) -> httpx.Response:
        # A machine that runs for minutes must not wait for the next one.
        self.service.sql("DELETE FROM rate_limits")
        headers = self.headers | {"Idempotency-Key": key}
        return self.service.ask("POST", path, json=body, headers=headers)

    def _note_job(self, shown: dict[str, Any], mode: str, price: int) -> None:
        job = ModelJob(
            id=shown["jobId"],
            state=shown["state"],
            mode=mode,
            upload_url=shown.get("uploadUrl"),
            held=price,
        )
        self.model.jobs[job.id] = job

    @precondition(lambda self: self.model.answers)
    @rule(data=st.data())
    def repeat_creation(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.model.answers)))
        asked, answered = self.model.answers[key]
        answer = self._create(asked["path"], asked["body"], key)
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert answer.content == answered

    @precondition(lambda self: self._in("awaiting_upload"))
    @rule(data=st.data())
    def upload(self, data: st.DataObject) -> None:
        job = self._draw(data, "awaiting_upload")
        assert job.upload_url is not None
        assert self.service.ask("PUT", job.upload_url, content=b"footage").status_code == 200
        job.state = "queued"

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.model.jobs[data.draw(st.sampled_from(list(self.model.jobs)))]
        answer = self.service.ask("POST", f"/v1/api/jobs/{job.id}/cancel", headers=self.headers)
        assert answer.status_code == (409 if job.state in ENDED else 200)
        if job.state not in ENDED:
            self._forget_lease(job)
            self.model.end(job, "cancelled")

    # What runners and the reaper do

    @precondition(lambda self: self._in("queued"))
    @rule()
    def lease(self) -> None:
        found = self.service.transact(lambda c: jobs.lease_next(c, lease=LONG))
        assert found is not None
        job = self.model.jobs[str(found[0])]
        assert job.state == "queued"
        job.state, job.lease = "processing", Lease(*found)
        job.leases += 1

    @precondition(lambda self: self._to_ingest())
    @rule(data=st.data(), seconds=SECONDS, kind=st.sampled_from(list(MEDIA)))
    def ingest(self, data: st.DataObject, seconds: int, kind: str) -> None:
        """Price and publish; the price of a job that was quoted already stays as it is."""
        job = data.draw(st.sampled_from(self._to_ingest()))
        media = replace(MEDIA[kind], duration_seconds=float(seconds))
        stages = set(ANALYSES[job.mode]) & HAS[kind]
        if job.quote is not None:
            stages, media = set(job.quote), self._media_for(job, media)
        covered = job.quote is not None or self.model.price(job, max(30, seconds), stages)
        if not covered:
            with pytest.raises(StageError):
                self._price(job, media)
            self._fail(job, "ingest", StageCode.INSUFFICIENT_CREDITS)
            return
        self._price(job, media)
        if data.draw(st.booleans(), label="published before the runner is lost"):
            self._publish_ingest(job, media)
            self.model.ingest(job, stages)

    def _media_for(self, job: ModelJob, media: MediaInfo) -> MediaInfo:
        """The same footage that another runner quoted: its streams cannot have changed."""
        wanted = set(job.quote or ())
        [kind, *_] = [k for k in MEDIA if set(ANALYSES[job.mode]) & HAS[k] == wanted]
        return replace(MEDIA[kind], duration_seconds=media.duration_seconds)

    def _price(self, job: ModelJob, media: MediaInfo) -> None:
        lease, prices = self._lease(job), self.service.context.prices
        self.service.transact(lambda c: publishing.start_stage(c, lease, StageName.INGEST))
        self.service.transact(lambda c: publishing.raise_hold(c, lease, media, prices))

    def _publish_ingest(self, job: ModelJob, media: MediaInfo) -> None:
        lease = self._lease(job)
        self.service.transact(
            lambda c: publishing.publish_ingest(
                c, lease, media=media, result={}, track_names=[], warnings=[], timings={}
            )
        )

    @precondition(lambda self: self._analysing())
    @rule(data=st.data(), twice=st.booleans())
    def complete_stage(self, data: st.DataObject, twice: bool) -> None:
        job = data.draw(st.sampled_from(self._analysing()))
        stage = data.draw(st.sampled_from(sorted(job.open_stages)))
        last = len(job.open_stages) == 1
        self._publish(self._lease(job), stage)
        if twice and not last:
            self._publish(self._lease(job), stage)
        if last:
            self.lost_leases.append(self._lease(job))
        self.model.complete(job, stage)

    def _publish(self, lease: Lease, stage: str) -> None:
        if stage == "vision":
            self.service.transact(lambda c: publishing.publish_scenes(c, lease, stored(SCENES), {}))
        else:
            tracks = [track(0)]
            self.service.transact(lambda c: publishing.publish_transcripts(c, lease, tracks, {}))

    @precondition(lambda self: self._analysing() or self._to_ingest())
    @rule(data=st.data())
    def fail_stage(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self._analysing() + self._to_ingest()))
        stage = data.draw(st.sampled_from(sorted(job.open_stages) or ["ingest"]))
        self._fail(job, stage, StageCode.PROCESSING_FAILED)

    def _fail(self, job: ModelJob, stage: str, code: StageCode) -> None:
        lease = self._lease(job)
        error = StageError(code, "It broke.")
        self.service.transact(lambda c: publishing.fail_stage(c, lease, StageName(stage), error))
        if stage == "ingest" or job.open_stages == {stage}:
            self._forget_lease(job)
        self.model.fail(job, stage)

    @precondition(lambda self: self.lost_leases)
    @rule(data=st.data(), stage=st.sampled_from(["vision", "transcript"]))
    def publish_late(self, data: st.DataObject, stage: str) -> None:
        """A runner that was given up for lost comes back with its result."""
        lease = data.draw(st.sampled_from(self.lost_leases))
        with pytest.raises(LeaseLostError):
            self._publish(lease, stage)

    @precondition(lambda self: self._in("processing"))
    @rule(data=st.data())
    def lose_runner(self, data: st.DataObject) -> None:
        job = self._draw(data, "processing")
        lease = self._lease(job)
        over = timedelta(seconds=-1)
        self.service.transact(
            lambda c: jobs.extend_lease(c, lease.job_id, lease.token, lease=over, progress={})
        )
        self.service.sweep()
        self._forget_lease(job)
        self.model.lose(job)

    @precondition(lambda self: self._in("awaiting_upload"))
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        job = self._draw(data, "awaiting_upload")
        self.service.sql(
            "UPDATE jobs SET upload_expires_at = now() - interval '1 second' WHERE id = :id",
            id=job.id,
        )
        self.service.sweep()
        self.model.end(job, "expired")

    # What must be true at any moment

    @invariant()
    def the_ledger_and_every_total_agree_with_each_other_and_with_the_model(self) -> None:
        if not hasattr(self, "account"):
            return
        self.service.steps += 1
        assert self.service.transact(ledger.find_discrepancies) == []
        account = self.service.transact(lambda c: keys.get_account(c, str(self.account)))
        assert (account.balance_cents, account.held_cents) == (self.model.balance, self.model.held)
        assert account.available_cents >= -self.model.limit

    @invariant()
    def completed_stages_are_charged_once_others_never_and_ended_jobs_hold_nothing(self) -> None:
        if not self.model.jobs:
            return
        rows = self.service.sql(
            "SELECT id::text, state, held_cents, coalesce((SELECT jsonb_agg(jsonb_build_array("
            "stage, -balance_delta_cents)) FROM ledger_entries e WHERE e.job_id = jobs.id AND"
            " kind = 'charge'), '[]') AS charges, (SELECT jsonb_object_agg(stage, status) FROM"
            " stages s WHERE s.job_id = jobs.id) AS stages FROM jobs WHERE account_id = :account",
            account=self.account,
        )
        assert {row["id"] for row in rows} == set(self.model.jobs)
        for row in rows:
            expected = self.model.jobs[row["id"]]
            assert row["state"] == expected.state
            assert row["held_cents"] == (0 if expected.state in ENDED else expected.held)
            assert sorted(row["charges"]) == sorted([s, c] for s, c in expected.charged.items())
            completed = {s for s, status in row["stages"].items() if status == "completed"}
            assert completed - {"ingest"} == set(expected.charged)

    def teardown(self) -> None:
        """End everything, so that the next account's runner finds only its own jobs."""
        for job in self.model.jobs.values():
            if job.state not in ENDED:
                path = f"/v1/api/jobs/{job.id}/cancel"
                assert self.service.ask("POST", path, headers=self.headers).status_code == 200
                self.model.end(job, "cancelled")
        assert self.model.held == 0
        self.the_ledger_and_every_total_agree_with_each_other_and_with_the_model()

    def _in(self, state: str) -> list[ModelJob]:
        return [job for job in self.model.jobs.values() if job.state == state]

    def _draw(self, data: st.DataObject, state: str) -> ModelJob:
        return data.draw(st.sampled_from(self._in(state)))

    def _to_ingest(self) -> list[ModelJob]:
        return [job for job in self._in("processing") if not job.ingested]

    def _analysing(self) -> list[ModelJob]:
        return [job for job in self._in("processing") if job.open_stages]

    def _lease(self, job: ModelJob) -> Lease:
        assert job.lease is not None
        return job.lease

    def _forget_lease(self, job: ModelJob) -> None:
        if job.lease is not None:
            self.lost_leases.append(job.lease)
