"""What an account's money must be, told a second time and much more simply: plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serve_app.work.publishing import Lease

ANALYSES = {"all": ("vision", "transcript"), "vision": ("vision",), "transcript": ("transcript",)}
PRICE_OF_30_SECONDS = 1
"""Cents a stage: every rate of the table makes less than 1.5 cents of half a minute."""
RATES = {"vision": 120, "transcript": 40}
ENDED = {"completed", "failed", "cancelled", "expired"}


@dataclass(slots=True)
class ModelJob:
    """A job as the model sees it."""

    id: str
    state: str
    mode: str
    upload_url: str | None
    held: int
    lease: Lease | None = None
    leases: int = 0
    quote: dict[str, int] | None = None
    ingested: bool = False
    open_stages: set[str] = field(default_factory=set)
    failed_stages: set[str] = field(default_factory=set)
    charged: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ModelRefund:
    """A refund: what of it was taken, and whether it still counts."""

    reference: str
    payment: str
    amount: int
    taken: int = 0
    reversed: bool = False
    known: bool = False


@dataclass(slots=True)
class Model:
    """The whole account."""

    balance: int = 0
    limit: int = 0
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    payments: dict[str, int] = field(default_factory=dict)
    refunds: dict[str, ModelRefund] = field(default_factory=dict)
    answers: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    """Idempotency key to the body sent and the answer given."""

    @property
    def held(self) -> int:
        return sum(job.held for job in self.jobs.values())

    @property
    def spendable(self) -> int:
        return self.balance - self.held + self.limit

    def credit(self, cents: int) -> None:
        self.balance += cents
        self.settle()

    def settle(self) -> None:
        """Refunds are taken, oldest first, as far as credits are free."""
        for refund in self.refunds.values():
            if refund.known and not refund.reversed:
                taken = max(0, min(refund.amount - refund.taken, self.spendable))
                refund.taken += taken
                self.balance -= taken

    def pay(self, payment: str, cents: int) -> None:
        if payment not in self.payments:
            self.payments[payment] = cents
            self.balance += cents
            for refund in self.refunds.values():
                refund.known |= refund.payment == payment
            self.settle()

    def repay(self, reference: str, payment: str, cents: int) -> None:
        refund = ModelRefund(reference, payment, cents, known=payment in self.payments)
        self.refunds.setdefault(reference, refund)
        self.settle()

    def reverse(self, refund: ModelRefund) -> None:
        self.balance += refund.taken
        refund.taken, refund.reversed = 0, True
        self.settle()

    def price(self, job: ModelJob, seconds: int, stages: set[str]) -> bool:
        """Whether the account covers it; if so it is held."""
        quote = {stage: max(1, (RATES[stage] * seconds + 1800) // 3600) for stage in stages}
        missing = max(0, sum(quote.values()) - job.held)
        if missing > self.spendable:
            return False
        job.held += missing
        job.quote = quote
        return True

    def complete(self, job: ModelJob, stage: str) -> None:
        assert job.quote is not None
        cents = job.quote[stage]
        job.charged[stage] = cents
        job.held -= cents
        self.balance -= cents
        job.open_stages.discard(stage)
        self._end_if_over(job)

    def fail(self, job: ModelJob, stage: str) -> None:
        job.failed_stages.add(stage)
        job.open_stages.discard(stage)
        if stage == "ingest":
            self.end(job, "failed")
        else:
            self._end_if_over(job)

    def ingest(self, job: ModelJob, stages: set[str]) -> None:
        job.ingested = True
        job.open_stages = set(stages)
        self._end_if_over(job)

    def _end_if_over(self, job: ModelJob) -> None:
        if not job.open_stages:
            self.end(job, "failed" if job.failed_stages else "completed")

    def end(self, job: ModelJob, state: str) -> None:
        job.state = state
        job.lease = None
        freed = job.held > 0
        job.held = 0
        if freed:
            self.settle()

    def lose(self, job: ModelJob) -> None:
        """The runner was lost: three times, and the job is given up."""
        job.lease = None
        if job.leases < 3:
            job.state = "queued"
        else:
            self.end(job, "failed")
