"""How much personal data is redacted in speech that was made for it, and how much stays audible.

    .venv/bin/python -m benchmarks.redaction [--count 200]

Sentences from templates with people, places and numbers of their own, spoken by Flite's voices
(``apt-get install flite``), the item apart so that its time is known, and transcribed with the
packaged models as jobs are. An item is found where no word that the transcript has in its time is
left. The first half, with names of its own, was there to write the rules with; the second half is
the figure. ``heard`` counts items that a second transcription writes of the muted sound, a name
by any of its parts, a number by six of its digits. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.speech.plain_loop import transcribe_samples
from models.contracts import Samples
from models.provider import LocalModels
from models.tasks import RECOGNIZE_ENTITIES
from pipelines.across.redaction import RedactedSegments, redact_segments
from pipelines.across.redaction_patterns import PersonalData
from pipelines.media.audio import silenced
from pipelines.speech.pipeline import TranscriptConfig
from pipelines.types import TranscriptSegment

_RATE_HZ = 16_000
_VOICES = ("slt", "rms", "awb")
_LEAST_DIGITS = 6

_PEOPLE = (
    "Anna Weber|Mark Johnson|Maria Garcia|Wei Zhang|Priya Patel|David Cohen|Fatima Hassan|"
    "Emily Clark|Carlos Mendoza|Sarah Miller|Ivan Petrov|Laura Rossi|James Wilson|Aisha Khan|"
    "Peter Novak|Julia Schmidt|Michael Brown|Sofia Martinez|Thomas Anderson|Nadia Popov|"
    "Daniel Kim|Rachel Green|Oscar Nielsen|Helen Carter|Ahmed Ali",
    "Robert Taylor|Elena Ivanova|Hans Mueller|Grace Lee|Pablo Torres|Olivia Harris|Yuki Tanaka|"
    "Samuel Okafor|Claire Dubois|George Walker|Ingrid Larsen|Kevin Murphy|Leila Haddad|"
    "William Scott|Marta Silva|Benjamin Fisher|Chloe Martin|Rajesh Kumar|Victoria Adams|"
    "Simon Baker|Natalie Young|Diego Ramirez|Hannah Wright|Patrick Collins|Irene Papadopoulos",
)
_PLACES = (
    "London|Chicago|Berlin|Manchester|Madrid|Toronto|Dallas|Vienna|Bristol|Seattle|Lisbon|Mumbai|"
    "Boston|Edinburgh|Florence",
    "Paris|Houston|Munich|Liverpool|Barcelona|Vancouver|Denver|Prague|Oxford|Portland|Athens|"
    "Tokyo|Detroit|Glasgow|Milan",
)
_NAME_SENTENCES = (
    "My name is {} and I would like to change my order.",
    "I spoke to {} yesterday about the invoice.",
    "Please send the contract to {} before the end of the week.",
    "Yesterday {} told us that the project is late.",
    "This is {} speaking, how can I help you?",
    "The letter was signed by {} and by the director.",
)
_PLACE_SENTENCES = (
    "I live in {} with my two children.",
    "We moved to {} three years ago.",
    "The train from {} was late again this morning.",
    "Our office in {} is closed on Mondays.",
)
_EMAIL_SENTENCES = (
    "You can write to me at {} if you have questions.",
    "My email address is {} and I read it every day.",
)
_PHONE_SENTENCES = (
    "Please call me back on {} after lunch.",
    "My phone number is {} and I am at home all day.",
)
_CARD_SENTENCES = ("The card number is {} and it is valid until next year.",)
_IBAN_SENTENCES = ("Please transfer the money to the IBAN {} by Friday.",)
_SSN_SENTENCES = ("My social security number is {} as you can see here.",)
_DIGIT_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_LOCAL_PARTS = (
    "john smith",
    "mary jones",
    "info",
    "sales",
    "peter brown",
    "anna white",
    "lisa king",
)
_DOMAINS = ["example", "hotmail", "company", "webmail", "acme", "northwind"]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence and what is to be hidden of it."""

    kind: PersonalData
    before: str
    item: str
    """As it is spoken."""
    after: str


def _digits(count: int, pick: random.Random) -> list[int]:
    return [pick.randrange(10) for _ in range(count)]


def _grouped(digits: list[int], size: int) -> str:
    words = [_DIGIT_WORDS[it] for it in digits]
    return ", ".join(" ".join(words[at : at + size]) for at in range(0, len(words), size))


def _card(pick: random.Random) -> list[int]:
    digits = [4, *_digits(14, pick)]
    doubled = [it * (2 - at % 2) for at, it in enumerate(digits)]
    return [*digits, -sum(it - 9 * (it > 9) for it in doubled) % 10]


def _iban(pick: random.Random) -> str:
    account = "".join(map(str, _digits(18, pick)))
    check = 98 - int(f"{account}131400") % 97
    return f"d e {_grouped([*map(int, f'{check:02}{account}')], 4)}"


def sentences(count: int, half: int, seed: int) -> Iterator[Spoken]:
    """``count`` sentences with the names of a half: 0 to write the rules with, 1 to measure."""
    pick = random.Random(seed)
    people, places = _PEOPLE[half].split("|"), _PLACES[half].split("|")
    local = [each.replace(" ", " dot ") for each in _LOCAL_PARTS]
    makers: tuple[tuple[PersonalData, tuple[str, ...], Callable[[], str]], ...] = (
        (PersonalData.NAME, _NAME_SENTENCES, lambda: pick.choice(people)),
        (PersonalData.NAME, _NAME_SENTENCES, lambda: pick.choice(people)),
        (PersonalData.PLACE, _PLACE_SENTENCES, lambda: pick.choice(places)),
        (
            PersonalData.EMAIL,
            _EMAIL_SENTENCES,
            lambda: f"{pick.choice(local)} at {pick.choice(_DOMAINS)} dot com",
        ),
        (PersonalData.PHONE, _PHONE_SENTENCES, lambda: _grouped(_digits(10, pick), 5)),
        (PersonalData.PHONE, _PHONE_SENTENCES, lambda: _grouped([5, 5, 5, *_digits(4, pick)], 3)),
        (PersonalData.CARD, _CARD_SENTENCES, lambda: _grouped(_card(pick), 4)),
        (PersonalData.IBAN, _IBAN_SENTENCES, lambda: _iban(pick)),
        (PersonalData.NATIONAL_NUMBER, _SSN_SENTENCES, lambda: _grouped(_digits(9, pick), 3)),
    )
    for number in range(count):
        kind, templates, make = makers[number % len(makers)]
        before, after = pick.choice(templates).split("{}")
        yield Spoken(kind, before, make(), after)


def speak(text: str, voice: str) -> Samples:
    """16 kHz, without the silence around it."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", file.name], check=True)
        content = Path(file.name).read_bytes()
    samples = np.frombuffer(content[44:], np.int16).astype(np.float32) / 32768
    audible = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[audible[0] : audible[-1] + 1].astype(np.float32)


def spoken(sentence: Spoken, voice: str) -> tuple[Samples, int, int]:
    """The sentence, and when its item begins and ends in milliseconds."""
    pause = np.zeros(_RATE_HZ // 12, np.float32)
    lead = np.zeros(_RATE_HZ // 2, np.float32)
    parts = [
        speak(it, voice) if it.strip(" .?") else pause[:0]
        for it in (sentence.before, sentence.item, sentence.after)
    ]
    start = len(lead) + len(parts[0]) + len(pause)
    end = start + len(parts[1])
    samples = np.concatenate([lead, parts[0], pause, parts[1], pause, parts[2], lead])
    return samples, start * 1000 // _RATE_HZ, end * 1000 // _RATE_HZ


def transcribed(samples: Samples, models: LocalModels) -> tuple[TranscriptSegment, ...]:
    """As a job's track is."""
    with tempfile.TemporaryDirectory() as folder:
        return transcribe_samples(samples, Path(folder), models, TranscriptConfig()).segments


def is_heard(sentence: Spoken, text: str) -> bool:
    """Whether a transcript has the item still."""
    if sentence.kind in {PersonalData.NAME, PersonalData.PLACE}:
        parts = {it.lower() for it in sentence.item.split()}
        return bool(parts & {*re.findall(r"[^\W\d]+", text.lower())})
    said = [word for word in re.findall(r"\w+", sentence.item.lower()) if word in _DIGIT_WORDS]
    number = "".join(str(_DIGIT_WORDS.index(word)) for word in said)
    if not number:
        local = [it for it in sentence.item.split(" at ")[0].split() if it != "dot"]
        return any(re.search(rf"\b{part}\b", text.lower()) for part in local)
    written = re.sub(r"\D", "", text)
    pieces = (number[at : at + _LEAST_DIGITS] for at in range(len(number) - _LEAST_DIGITS + 1))
    return any(piece in written for piece in pieces)


def missed(sentence: Spoken, span: tuple[int, int], found: RedactedSegments) -> str:
    """The words that are left of an item: in its time, and none of those around it."""
    around = {*re.findall(r"\w+", f"{sentence.before} {sentence.after}".lower())}
    left = [
        word.text
        for segment in found.segments
        for word in segment.words
        if span[0] <= (word.start_ms + word.end_ms) / 2 < span[1]
        and not word.text.startswith("[")
        and {*re.findall(r"\w+", word.text.lower())} - around
    ]
    return " ".join(left)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--count", type=int, default=200)
    arguments.add_argument("--verbose", action="store_true")
    options = arguments.parse_args()
    models = LocalModels()
    report: dict[str, dict[str, float]] = {}
    for half, name in enumerate(("written with", "unseen")):
        items, kept, heard, hidden = Counter[str](), Counter[str](), Counter[str](), 0
        for number, sentence in enumerate(sentences(options.count // 2, half, seed=38 + half)):
            samples, *span = spoken(sentence, _VOICES[number % len(_VOICES)])
            segments = transcribed(samples, models)
            found = redact_segments(
                segments, "en", set(PersonalData), lambda: models.get(RECOGNIZE_ENTITIES)
            )
            kind = "names" if sentence.kind in {PersonalData.NAME, PersonalData.PLACE} else "forms"
            items[kind] += 1
            rest = missed(sentence, (span[0], span[1]), found)
            again = transcribed(silenced(samples, found.muted, _RATE_HZ), models)
            text = " ".join(each.text for each in again)
            kept[kind] += bool(rest)
            heard[kind] += is_heard(sentence, text)
            words = sum(len(each.words) for each in found.segments)
            hidden += words
            if options.verbose and (rest or is_heard(sentence, text)):
                print(f"{sentence.kind}: {sentence.item} | "
                      f"{' '.join(it.text for it in segments)} | "
                      f"{' '.join(it.text for it in found.segments)} | left: {rest} | {text}",
                      flush=True)  # fmt: skip
        report[name] = {f"recall of {each}": 1 - kept[each] / items[each] for each in items}
        report[name] |= {f"{each} heard": heard[each] for each in items}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
