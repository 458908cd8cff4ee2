"""How far a backfill is, and when it will be done: figures from counts and a clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """What a run has done so far. Times are those of one monotonic clock, in seconds."""

    total: int
    """Items of the manifest."""
    finished_before: int
    """Of these, by earlier runs."""
    started_seconds: float
    done: int = 0
    """By this run, failed ones included."""
    failed: int = 0
    footage_seconds: float = 0.0
    """Of the items of this run."""

    @property
    def left(self) -> int:
        """Items that are not finished."""
        return self.total - self.finished_before - self.done

    def add(self, *, failed: bool, footage_seconds: float) -> None:
        """Count an item of this run."""
        self.done += 1
        self.failed += failed
        self.footage_seconds += footage_seconds

    def seconds_left(self, now_seconds: float) -> float | None:
        """At the pace of this run so far; None before there is one."""
        if self.done == 0:
            return None
        return (now_seconds - self.started_seconds) / self.done * self.left

    def line(self, now_seconds: float) -> str:
        """One line for people."""
        finished = self.finished_before + self.done
        share = 100 * finished // max(1, self.total)
        parts = [f"{finished} of {self.total} items ({share} %)"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        elapsed = now_seconds - self.started_seconds
        if self.done and elapsed > 0:
            parts.append(f"{60 * self.done / elapsed:.1f} items a minute")
            pace = self.footage_seconds / elapsed
            parts.append(f"{spell_seconds(self.footage_seconds)} of footage at {pace:.1f}x")
        left_seconds = self.seconds_left(now_seconds)
        if self.left and left_seconds is not None:
            parts.append(f"about {spell_seconds(left_seconds)} left")
        return ", ".join(parts)


def spell_seconds(seconds: float) -> str:
    """A length of time in the two units that say most."""
    whole = round(seconds)
    for unit, name, finer, finer_name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // finer} {finer_name}"
    return f"{whole} s"
