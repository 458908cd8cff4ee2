"""Tags of scenes: captions of a bank that a still probably has, by the model that embeds both."""

from __future__ import annotations

import functools
import hashlib
import re
import tomllib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from models.contracts import Picture
from models.tasks import PhraseEmbedder, PictureEmbedder
from pipelines.types import Tag

DEFAULT_BANK = Path(__file__).parent / "tags.toml"
FEWEST_CAPTIONS, MOST_CAPTIONS = 8, 500
"""With fewer there is nothing to compare a caption with; each costs what a short text costs."""
_TAG_CHARACTERS, _CAPTION_CHARACTERS = 40, 200
_MOST_TAGS = 20
_FLAT_DEVIATION = 2.0
"""A still whose values spread less, of 255, is of one colour: it shows nothing."""
_RULES = {"least_probability": (0.0, 1.0), "least_odds": (1.0, 1e9), "most": (1, _MOST_TAGS)}


class TagBankError(ValueError):
    """A bank of tags cannot be used; the message has the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class TagBank:
    """Tags with their captions, and when a still has one (see ``tags.toml``)."""

    captions: tuple[tuple[str, str], ...]
    least_probability: float
    least_odds: float
    most: int


def load_tag_bank(path: Path | None = None) -> TagBank:
    """Return the bank of a file, or the service's own. Raises TagBankError."""
    path = path or DEFAULT_BANK
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).partition(" (at line ")
        number = place.partition(",")[0] if place else str(len(text.splitlines()))
        raise TagBankError(f"Tag bank {path}, line {number}: {reason}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TagBankError(f"Tag bank {path}: {error}.") from error
    for name, reason in _faults(table):
        # The last line that begins with the name, as a key or a table.
        begins = re.compile(rf"""\s*\[?\s*["']?{re.escape(name)}["']?\s*[=\]]""")
        lines = [number for number, line in enumerate(text.splitlines(), 1) if begins.match(line)]
        raise TagBankError(f"Tag bank {path}, line {[1, *lines][-1]}: {name}: {reason}.")
    rules = {name: table.pop(name) for name in _RULES}
    return TagBank(tuple(row for own in table.values() for row in own.items()), **rules)


def _faults(table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and the name at whose line."""
    for name, (least, most) in _RULES.items():
        value = table.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= cast("float", value) <= most:
            yield name, f"is a number from {least:g} to {most:g}, which it is not"
        if name == "most" and not isinstance(value, int):
            yield name, "is a whole number, which it is not"
    seen: set[str] = set()
    for kind, own in table.items():
        if kind in _RULES:
            continue
        if not isinstance(own, dict):
            yield kind, "is neither a rule nor a table of tags"
            return
        for tag, caption in own.items():
            if not tag.strip() or len(tag) > _TAG_CHARACTERS:
                yield tag, f"a tag has 1 to {_TAG_CHARACTERS} characters"
            if not isinstance(caption, str) or not 0 < len(caption.strip()) <= _CAPTION_CHARACTERS:
                yield tag, f"a caption is text of 1 to {_CAPTION_CHARACTERS} characters"
            if tag in seen:
                yield tag, "stands in two tables"
            seen.add(tag)
    if not FEWEST_CAPTIONS <= len(seen) <= MOST_CAPTIONS:
        wanted = f"between {FEWEST_CAPTIONS} and {MOST_CAPTIONS} tags are needed"
        yield ["", *table][-1], f"{wanted}, there are {len(seen)}"


@dataclass(frozen=True, slots=True, eq=False)
class Tagger:
    """A bank whose captions have vectors of the model that embeds stills."""

    bank: TagBank
    vectors: npt.NDArray[np.float32]
    scale: float
    bias: float

    @property
    def identity(self) -> str:
        """Names all that tags depend on beside the stills."""
        rules = repr((self.bank, self.scale, self.bias)).encode()
        return hashlib.sha256(rules + self.vectors.tobytes()).hexdigest()

    def tags(self, embedder: PictureEmbedder, stills: Sequence[Picture]) -> list[tuple[Tag, ...]]:
        """Return those of each still, the most probable first. Raises what the model raises."""
        shown = [still.reshape(-1, 3).std(axis=0).max() >= _FLAT_DEVIATION for still in stills]
        pictures = [still for still, any_shown in zip(stills, shown, strict=True) if any_shown]
        vectors = iter(embedder.embed_pictures(pictures) if pictures else ())
        return [self._said(next(vectors)) if any_shown else () for any_shown in shown]

    def _said(self, picture: npt.NDArray[np.float32]) -> tuple[Tag, ...]:
        logits = self.scale * (self.vectors @ picture) + self.bias
        odds = np.exp(logits - np.median(logits))
        probabilities = 1 / (1 + np.exp(-logits))
        likely = (probabilities >= self.bank.least_probability) & (odds >= self.bank.least_odds)
        best = [n for n in np.argsort(-logits, kind="stable").tolist() if likely[n]]
        return tuple(
            Tag(self.bank.captions[n][0], round(float(probabilities[n]), 4))
            for n in best[: self.bank.most]
        )


def open_tagger(embedder: PhraseEmbedder, bank: TagBank) -> Tagger:
    """Return the bank with vectors, which are made once of the same two. Raises what the model
    raises."""
    return _opened(cast("Hashable", embedder), bank)


@functools.lru_cache(maxsize=1)
def _opened(model: Hashable, bank: TagBank) -> Tagger:
    embedder = cast("PhraseEmbedder", model)
    phrases = embedder.embed_phrases([caption for _, caption in bank.captions])
    vectors = np.array([each.vector for each in phrases], np.float32)
    return Tagger(bank, vectors, phrases[0].scale, phrases[0].bias)
