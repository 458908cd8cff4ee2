"""Near duplicates found among files: 200 made pairs and 500 others; one line of JSON.

    python -m benchmarks.duplicates [--set report] [--pairs 200] [--others 500] [--keep DIR]

An original is a film of made or real pictures with made or real sound, or of one of both; its pair
is re-encoded, put between bars that cover some of it, trimmed at both ends, played 4 % faster or
slower (its sound with or without its pitch), or several of these. Others are like originals; some
have the sound of another, some one picture all along. ``--set tune`` has other seeds and footage:
what was tuned was tuned on that. Every pair and every other is sought among all, by the keys that
the service stores; what is found beside its own original, and an original not found, is an error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.filter
import cv2
import numpy as np
import numpy.typing as npt

from benchmarks.comparisons import FOOTAGE
from models.provider import LocalModels
from pipelines.across.duplicates import Duplicate, DuplicateKind, MediaPrint, duplicates, shot_keys
from pipelines.across.duplicates import sound_probes as probes_of
from pipelines.execution.chain import FreeRun, Workspace, map_here
from pipelines.ingest.pipeline import IngestConfig, IngestContext, ingest
from pipelines.media.audio import SoundPrint, print_of, read_blocks
from pipelines.vision.cuts.pipeline import find_cuts
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig, ReadFrames
from pipelines.vision.fingerprints import Fingerprints
from pipelines.vision.pipeline import fingerprints_of
from pipelines.vision.scenes import scenes_between, whole_video
from storage.objects.folder import FolderStore
from tests.places import SHARED_MEDIA

Picture = npt.NDArray[np.uint8]
Sound = npt.NDArray[np.float32]
RATE, WIDTH, HEIGHT, HZ = 25, 256, 144, 16_000
SOUNDS = {
    "tune": [
        "speakers/ami-dev00.wav", "speakers/ami-trn01.wav", "speech/azure-de.wav",
        "speakers2/watson-ja-call-a.wav", "speakers2/watson-twospeakers-en.wav",
        "cuts/big_buck_bunny_0_30.webm", "speech/leopard-test_fr.wav",
    ],
    "report": [
        "speakers/ami-dev01.wav", "speakers/ami-trn02.wav", "speakers/ami-trn05.wav",
        "speakers/ami-trn06.wav", "speech/azure-en.wav", "speech/azure-ja.wav",
        "speakers2/riva-interview-with-bill.wav", "speakers2/watson-dutch-duo.wav",
        "speakers2/watson-en-US-interview.wav", "speakers2/synthetic-podcast-0.mp3",
        "speakers2/podcast-three.opus", "cuts2/google-paris.mp4", "speech/sonnet-I-p001.mp3",
        "mixed-speech/music-noise-speech.mp3", "speech/rain-nospeech.mp3",
    ],
}  # fmt: skip
SEEDS = {"tune": 1_000_000, "report": 2_000_000}


@dataclass(frozen=True, slots=True)
class Film:
    """What a file is made of; ``pictures`` and ``sound`` are seeds, None without."""

    pictures: int | None
    sound: int | None
    seconds: float
    kind: str = "film"
    changes: tuple[str, ...] = ()
    change_seed: int = 0


@dataclass(frozen=True, slots=True)
class Footage:
    """Real pictures and sounds, each of which is used in one film only."""

    pictures: tuple[list[Picture], ...]
    sounds: tuple[Sound, ...]


def texture(random: np.random.Generator, height: int, width: int) -> Picture:
    """A made picture, of coarse and fine structure, in some colour."""
    total = np.zeros((height, width, 3), np.float32)
    for size, weight in ((3, 1.0), (6, 0.7), (12, 0.45), (40, 0.25)):
        coarse = random.random((size, size * 16 // 9, 3)).astype(np.float32)
        total += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    total -= total.min()
    bright = 255 * total / total.max() * random.uniform(0.5, 1.0)
    return np.asarray(bright.clip(0, 255), np.uint8)


def slide(random: np.random.Generator) -> Picture:
    """A light page with lines of writing."""
    page = np.full((HEIGHT, WIDTH, 3), random.integers(225, 256), np.uint8)
    cv2.rectangle(
        page, (0, 0), (WIDTH, int(random.integers(10, 30))), random.integers(0, 200, 3).tolist(), -1
    )
    for line in range(int(random.integers(2, 7))):
        text = "".join(
            chr(int(each)) for each in random.integers(97, 123, int(random.integers(5, 22)))
        )
        place = int(random.integers(8, 40)), 45 + 16 * line
        cv2.putText(page, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.45, (20, 20, 20), 1, cv2.LINE_AA)
    return page


def made_shot(random: np.random.Generator, scene: int, frames: int) -> Iterator[Picture]:
    """A camera over a scene, with things that move in it."""
    of_scene = np.random.default_rng(scene)
    wide = texture(of_scene, HEIGHT * 3 // 2, WIDTH * 3 // 2)
    place, move = (
        random.uniform(0.2, 0.8, 2),
        random.uniform(-0.25, 0.25, 2) * (random.random() < 0.7),
    )
    things = [
        (
            random.random(2),
            random.uniform(-0.4, 0.4, 2),
            random.uniform(6, 34),
            random.integers(0, 256, 3).tolist(),
        )
        for _ in range(int(random.integers(0, 4)))
    ]
    for number in range(frames):
        at = np.clip(place + move * number / max(1, frames), 0, 1)
        top, left = round(at[0] * HEIGHT / 2), round(at[1] * WIDTH / 2)
        shown = wide[top : top + HEIGHT, left : left + WIDTH].copy()
        for start, speed, size, colour in things:
            x, y = (start + speed * number / RATE) % 1 * (WIDTH, HEIGHT)
            cv2.circle(shown, (int(x), int(y)), int(size), colour, -1, cv2.LINE_AA)
        yield shown


def pictures_of(film: Film, real: Footage) -> list[Picture]:
    """All frames of an original."""
    assert film.pictures is not None
    count, random = round(film.seconds * RATE), np.random.default_rng(film.pictures)
    if film.kind == "still":
        return [texture(random, HEIGHT, WIDTH)] * count
    shown, scenes = list[Picture](), [int(random.integers(1 << 60))]
    if film.kind == "real":
        shown += real.pictures[film.pictures % SEEDS["tune"] % len(real.pictures)]
    while len(shown) < count:
        length = int(random.integers(RATE * 1, RATE * 5))
        if film.kind == "slides":
            shown += [slide(random)] * (length * 2)
            continue
        if random.random() < 0.7:
            scenes.append(int(random.integers(1 << 60)))
        shown += made_shot(random, scenes[int(random.integers(len(scenes)))], length)
    return shown[:count]


def sound_of(film: Film, real: Footage) -> Sound:
    """All samples of an original."""
    assert film.sound is not None
    number = film.sound % SEEDS["tune"]
    if number < len(real.sounds):
        return real.sounds[number][: round(film.seconds * HZ)]
    random, count = np.random.default_rng(film.sound), round(film.seconds * HZ)
    sound, at = random.normal(0, 0.003, count).astype(np.float32), 0.0
    scale, beat = 110 * 2 ** random.random(), random.uniform(0.12, 0.5)
    while at < film.seconds:
        length = beat * float(random.choice([1, 1, 2, 4]))
        times = np.arange(round((length + 0.2) * HZ)) / HZ
        for _ in range(int(random.integers(1, 4))):
            note = scale * 2 ** (int(random.choice([0, 2, 4, 5, 7, 9, 11, 12, 16, 19, 24])) / 12)
            tone = sum(
                np.sin(2 * np.pi * note * each * times) / each ** random.uniform(0.6, 2)
                for each in range(1, 9)
            )
            tone = tone * np.exp(-times * random.uniform(1, 6)) * random.uniform(0.03, 0.12)
            first = round(at * HZ)
            own = tone[: max(0, count - first)]
            sound[first : first + len(own)] += own.astype(np.float32)
        at += length
    return sound.clip(-1, 1)


def filtered(sound: Sound, *chain: tuple[str, str]) -> Sound:
    graph = av.filter.Graph()
    links = [
        graph.add_abuffer(format="flt", sample_rate=HZ, layout="mono", time_base=Fraction(1, HZ))
    ]
    links += [graph.add(name, options) for name, options in chain]
    links += [graph.add("abuffersink")]
    graph.link_nodes(*links).configure()
    frame = av.AudioFrame.from_ndarray(sound[None], format="flt", layout="mono")
    frame.sample_rate, frame.pts = HZ, 0
    graph.push(frame)
    graph.push(None)
    parts = []
    while True:
        try:
            parts.append(graph.pull().to_ndarray()[0])
        except (av.error.EOFError, av.error.BlockingIOError):
            return np.concatenate(parts)


def changed(
    film: Film, shown: list[Picture] | None, heard: Sound | None
) -> tuple[list[Picture] | None, Sound | None, Fraction]:
    """The pair of an original; and its frames a second."""
    random, rate = np.random.default_rng(film.change_seed), Fraction(RATE)
    if "trimmed" in film.changes:
        head, tail = random.uniform(0.3, 0.15 * film.seconds, 2)
        shown = shown and shown[round(head * RATE) : len(shown) - round(tail * RATE)]
        heard = None if heard is None else heard[round(head * HZ) : len(heard) - round(tail * HZ)]
    if "bars" in film.changes and shown:
        wide, part = random.random() < 0.5, random.uniform(0.0, 0.13)
        up, aside = (round(part * HEIGHT), 0) if wide else (0, round(part * WIDTH))
        barred = []
        for each in shown:
            picture = np.zeros_like(each)
            picture[up : HEIGHT - up, aside : WIDTH - aside] = each[
                up : HEIGHT - up, aside : WIDTH - aside
            ]
            barred.append(picture)
        shown = barred
    if speed := next((each for each in film.changes if each in {"faster", "slower"}), None):
        factor = 1.04 if speed == "faster" else 0.96
        rate *= Fraction(round(factor * 100), 100)
        if heard is not None and random.random() < 0.5:
            heard = filtered(heard, ("atempo", str(factor)))
        elif heard is not None:
            heard = filtered(heard, ("asetrate", str(round(HZ * factor))), ("aresample", str(HZ)))
    return shown, heard, rate


def written(
    path: Path,
    shown: list[Picture] | None,
    heard: Sound | None,
    rate: Fraction,
    crf: int,
    bits: int,
) -> None:
    with av.open(str(path), "w") as container:
        if shown is not None:
            video = container.add_stream("libx264", rate=rate)
            video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            video.options = {"crf": str(crf), "preset": "ultrafast", "threads": "1"}
        if heard is not None:
            audio = container.add_stream("aac", rate=HZ, layout="mono")
            audio.bit_rate = bits
        if shown is not None:
            for number, each in enumerate(shown):
                frame = av.VideoFrame.from_ndarray(each, format="rgb24")
                frame.pts, frame.time_base = number, 1 / rate
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        if heard is not None:
            sounds = av.AudioFrame.from_ndarray(heard[None], format="flt", layout="mono")
            sounds.sample_rate, sounds.pts = HZ, 0
            resampler = av.AudioResampler("fltp", "mono", HZ, frame_size=1024)
            for part in (*resampler.resample(sounds), *resampler.resample(None)):
                container.mux(audio.encode(part))
            container.mux(audio.encode(None))


def analysed(path: Path) -> MediaPrint:
    """What a job stores of a file."""
    with tempfile.TemporaryDirectory(prefix="vas-") as folder:
        store, control = FolderStore(Path(folder)), FreeRun()
        store.write_bytes("job/source", path.read_bytes())
        workspace, models, shots = Workspace(store, "job"), LocalModels(), None
        made = ingest("job/source", IngestContext(workspace, control, IngestConfig()))
        if video := made.video:
            features = map_here(
                video.segments, ReadFrames(video, workspace, FeaturesConfig()), control
            )
            cuts = find_cuts(
                features, video, workspace, control, CutConfig(), models=models, mapper=map_here
            )
            borders = scenes_between(cuts.cuts, video.duration_ms) or [
                whole_video(video.duration_ms)
            ]
            shots = fingerprints_of(video, features, borders, cuts.active, store)
        sounds = dict[int, SoundPrint]()
        for track in made.tracks:
            with store.local_copy(track.key) as file:
                sounds[track.index] = print_of(
                    read_blocks(file), round(track.offset_seconds * 1000)
                )
        return MediaPrint(round(made.media.duration_seconds * 1000), shots, sounds)


def films(
    name: str, pairs: int, others: int, real: Footage
) -> tuple[list[Film], list[Film], list[Film]]:
    """Originals, their pairs, and the rest."""
    random, seed = np.random.default_rng(SEEDS[name]), SEEDS[name]
    originals, copies = list[Film](), list[Film]()
    every = ("encoded", "bars", "trimmed", "faster", "slower")
    made = list[Film]()
    for number in range(pairs + others):
        kind = "real" if number < len(real.pictures) else "slides" if number % 10 == 9 else "film"
        shown: int | None = seed + number
        # A prime that divides neither: no two have the same sound.
        heard: int | None = seed + (number * 11) % (pairs + others)
        if number % 10 == 4:
            heard = None
        elif number % 10 == 6 and kind == "film":
            shown = None
        made.append(Film(shown, heard, float(random.uniform(8, 12)), kind))
    for number, film in enumerate(made[:pairs]):
        chosen = {every[number % 5]}
        if number % 3 == 0:
            chosen |= {str(each) for each in random.choice(every[1:], 2, replace=False)}
            chosen -= {"slower"} if "faster" in chosen else set()
        originals.append(film)
        copies.append(
            Film(
                film.pictures,
                film.sound,
                film.seconds,
                film.kind,
                tuple(sorted(chosen)),
                seed + number,
            )
        )
    rest = list[Film]()
    for number, original in enumerate(made[pairs:]):
        film = original
        if number % 25 == 3:  # the music of another film
            film = Film(seed + 500_000 + number, made[number].sound, made[number].seconds)
        elif number % 25 == 8:  # one cover before different recordings
            film = Film(
                seed + 600_000, film.sound or seed + 700_000 + number, film.seconds, "still"
            )
        rest.append(film)
    return originals, copies, rest


def footage(name: str) -> Footage:
    """Real pictures by stretches, and sounds of at most 16 seconds each."""
    pictures = []
    for path, spans in FOOTAGE[name].items():
        with av.open(str(SHARED_MEDIA / path)) as container:
            stream = container.streams.video[-1 if "nasa" in path else 0]
            timed = [
                (float(each.time or 0), each.reformat(WIDTH, HEIGHT, "rgb24").to_ndarray())
                for each in container.decode(stream)
            ]
        start, end = spans[0][0], spans[-1][1]
        pictures.append(
            [each for at, each in timed if start <= at - timed[0][0] < end][: 16 * RATE]
        )
    sounds = []
    for path in SOUNDS[name]:
        with av.open(str(SHARED_MEDIA / path)) as container:
            resampler, parts = av.AudioResampler("flt", "mono", HZ), []
            for frame in container.decode(audio=0):
                parts += [each.to_ndarray()[0] for each in resampler.resample(frame)]
        whole = np.concatenate(parts).astype(np.float32)
        sounds += [whole[at : at + 16 * HZ] for at in range(0, len(whole) - 10 * HZ, 16 * HZ)]
    return Footage(tuple(pictures), tuple(sounds))


def _make(given: tuple[str, Film, Path]) -> None:
    name, film, path = given
    if path.with_suffix(".print").exists():
        return
    real = _FOOTAGE.setdefault(name, footage(name)) if name not in _FOOTAGE else _FOOTAGE[name]
    shown = None if film.pictures is None else pictures_of(film, real)
    heard = None if film.sound is None else sound_of(film, real)
    shown, heard, rate = changed(film, shown, heard)
    random = np.random.default_rng(film.change_seed)
    crf, bits = (int(random.integers(26, 37)), 40_000) if film.changes else (20, 96_000)
    written(path, shown, heard, rate, crf, bits)
    found = analysed(path)
    path.unlink()
    sounds = {at: each.to_bytes().hex() for at, each in found.sounds.items()}
    shots = None if found.shots is None else found.shots.to_bytes().hex()
    path.with_suffix(".print").write_text(json.dumps([found.duration_ms, shots, sounds]))


_FOOTAGE: dict[str, Footage] = {}


def read(path: Path) -> MediaPrint:
    duration, shots, sounds = json.loads(path.read_text())
    return MediaPrint(
        duration,
        None if shots is None else Fingerprints.from_bytes(bytes.fromhex(shots)),
        {int(at): SoundPrint.from_bytes(bytes.fromhex(each)) for at, each in sounds.items()},
    )


class Library:
    """Files by their keys, as the service looks them up."""

    def __init__(self, prints: list[MediaPrint]) -> None:
        self.prints, self.by_key = prints, dict[tuple[str, int], set[int]]()
        for number, each in enumerate(prints):
            if each.shots is not None:
                for key in np.unique(shot_keys(each.shots)[0]).tolist():
                    self.by_key.setdefault(("shot", key), set()).add(number)
            for sound in each.sounds.values():
                for key in np.unique(sound.keys()).tolist():
                    self.by_key.setdefault(("sound", key), set()).add(number)

    def candidates(self, mine: MediaPrint) -> list[int]:
        counts = Counter[int]()
        if mine.shots is not None:
            for key in np.unique(shot_keys(mine.shots, probes=True)[0]).tolist():
                counts.update(self.by_key.get(("shot", key), ()))
        for sound in mine.sounds.values():
            for key in np.unique(probes_of(sound)).tolist():
                counts.update(self.by_key.get(("sound", key), ()))
        return [number for number, count in counts.most_common(20) if count >= 2]


def run(name: str, pairs: int, others: int, folder: Path, workers: int) -> dict[str, Any]:
    """All made, then all sought."""
    real = footage(name)
    originals, copies, rest = films(name, pairs, others, real)
    every = [*originals, *copies, *rest]
    paths = [folder / f"{name}-{pairs}-{number:04d}.mp4" for number in range(len(every))]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for number, _ in enumerate(
            pool.imap(
                _make, [(name, film, path) for film, path in zip(every, paths, strict=True)], 4
            )
        ):
            if number % 100 == 99:
                print(number + 1, "made", file=sys.stderr, flush=True)
    prints = [read(path.with_suffix(".print")) for path in paths]
    library = Library([*prints[:pairs], *prints[2 * pairs :]])
    true = wrong = missed = compared = 0
    by_change = dict[str, list[int]]()
    began, kinds = time.process_time(), Counter[str]()
    for number, (film, mine) in enumerate(
        [
            *zip(copies, prints[pairs : 2 * pairs], strict=True),
            *zip(rest, prints[2 * pairs :], strict=True),
        ]
    ):
        truth, own = (number, None) if number < pairs else (None, number)
        found = dict[int, list[Duplicate]]()
        for at in library.candidates(mine):
            if at != own:
                compared += 1
                found[at] = duplicates(mine, library.prints[at])
        files = {
            at
            for at, same in found.items()
            if any(each.kind is DuplicateKind.FILE for each in same)
        }
        kinds.update(str(each.kind) for at, same in found.items() for each in same if at != truth)
        true += truth in files
        missed += truth is not None and truth not in files
        wrong += len(files - {truth})
        if truth is not None:
            count = by_change.setdefault("+".join(film.changes), [0, 0])
            count[truth not in files] += 1
        if files != {truth} - {None}:
            print(
                json.dumps(
                    {
                        "file": number,
                        "film": str(film),
                        "found": {
                            at: [str(each) for each in found[at]]
                            for at in found
                            if at in files or at == truth
                        },
                    }
                ),
                file=sys.stderr,
                flush=True,
            )
    return {
        "set": name,
        "pairs": pairs,
        "others": others,
        "f1": round(2 * true / max(1, 2 * true + wrong + missed), 4),
        "found": true,
        "missed": missed,
        "wrong": wrong,
        "stretches_beside": dict(kinds),
        "found_and_missed_by_change": by_change,
        "comparisons": compared,
        "ms_a_comparison": round(1000 * (time.process_time() - began) / max(1, compared), 1),
    }


def main() -> None:
    """One line of JSON; on stderr a line for each file with a mistake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=FOOTAGE, default="report")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--others", type=int, default=500)
    parser.add_argument(
        "--keep", type=Path, help="a folder for the fingerprints, reused where there"
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vas-") as folder:
        place = options.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run(options.set, options.pairs, options.others, place, options.workers)))


if __name__ == "__main__":
    main()
