"""The content policy: a list of blocked pictures, limits of labels, its verdict on stills.

Imported by the API process, so it imports nothing heavier than NumPy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.contracts import Picture
from models.tasks import ContentClassifier

_HASH = re.compile(r"[0-9a-fA-F]{16}(?=\s|$)")
DEFAULT_DISTANCE = 8
"""Of 64 bits. Measured on the shared media (benchmarks/README.md): re-encoding, scaling and
crops of up to a twelfth from each side stay within it, other media does not come near."""


@dataclass(frozen=True, slots=True)
class ContentPolicy:
    """What is not permitted. Picklable: it travels to every task; empty, it permits all."""

    blocked_hashes: bytes = b""
    """Perceptual hashes of blocked pictures, 8 bytes each, big-endian (see ``read_blocklist``)."""
    hash_distance: int = DEFAULT_DISTANCE
    """Bits that a still's hash may differ by and still match."""
    label_limits: tuple[tuple[str, float], ...] = ()
    """Labels of the classifier, and the score from which each blocks."""

    @property
    def is_active(self) -> bool:
        return bool(self.blocked_hashes or self.label_limits)


@dataclass(frozen=True, slots=True)
class Breach:
    """Why a picture is not permitted; for the operator's log, never for the client."""

    index: int
    reason: str


def find_breach(
    stills: Sequence[Picture], policy: ContentPolicy, classifier: ContentClassifier | None
) -> Breach | None:
    """Return the first of the stills that the policy does not permit.

    ``classifier`` is needed where the policy limits labels; ValueError without it.
    """
    return _listed(stills, policy) or _labelled(stills, policy, classifier)


def _listed(stills: Sequence[Picture], policy: ContentPolicy) -> Breach | None:
    if not policy.blocked_hashes:
        return None
    from pipelines.vision.blocked_pictures import still_hash

    listed = np.frombuffer(policy.blocked_hashes, ">u8").astype(np.uint64)
    for index, still in enumerate(stills):
        own = still_hash(still)
        if own is None:
            continue
        distances = np.bitwise_count(listed ^ np.uint64(own))
        nearest = int(distances.argmin())
        if distances[nearest] <= policy.hash_distance:
            reason = f"{own:016x} is {distances[nearest]} bits from {int(listed[nearest]):016x}"
            return Breach(index, reason)
    return None


def _labelled(
    stills: Sequence[Picture], policy: ContentPolicy, classifier: ContentClassifier | None
) -> Breach | None:
    if not policy.label_limits or not stills:
        return None
    if classifier is None:
        raise ValueError("The policy limits labels, and there is no classifier to give them.")
    for index, scores in enumerate(classifier.classify(stills)):
        for label, limit in policy.label_limits:
            if _score(scores, label) >= limit:
                return Breach(index, f"{label} {_score(scores, label):.2f}")
    return None


def _score(scores: Mapping[str, float], label: str) -> float:
    """Raises ValueError for a label that the classifier lacks: the operator's mistake."""
    if label not in scores:
        raise ValueError(f"The classifier has no label {label!r}; it has {sorted(scores)}.")
    return scores[label]


class BlocklistError(ValueError):
    """A list of hashes cannot be read; the message has the line and the reason."""


def read_blocklist(path: Path) -> bytes:
    """Return the hashes of a text file, packed as ``ContentPolicy`` takes them. Raises
    BlocklistError.

    A line holds a hash of 16 hex digits and perhaps a note; empty lines and lines that begin
    with ``#`` are skipped.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BlocklistError(f"{path} cannot be read: {error}") from error
    return packed(parsed(lines, str(path)))


def parsed(lines: Iterable[str], name: str) -> list[int]:
    """Hashes in order. Raises BlocklistError naming the line."""
    hashes = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _HASH.match(text)
        if found is None:
            raise BlocklistError(f"{name}, line {number}: not a hash of 16 hex digits: {text!r}")
        hashes.append(int(found.group(), 16))
    return hashes


def packed(hashes: Iterable[int]) -> bytes:
    """Hashes as 8 bytes each, sorted, without repeats."""
    return b"".join(value.to_bytes(8, "big") for value in sorted(set(hashes)))
