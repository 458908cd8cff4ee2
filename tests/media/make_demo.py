"""Makes ``demo.mp4`` and ``demo.truth.json``: a drawn and spoken film of half a minute.

Run from the project root, on a machine whose ``ffmpeg`` has the ``flite`` filter:

    .venv/bin/python -m tests.media.make_demo

The result is committed: nobody needs to run this to use or test the project. The same
versions of NumPy, OpenCV, PyAV and Flite make the same film, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from tests.media.studio.canvas import FILM_HEIGHT, FILM_WIDTH, Picture, to_film
from tests.media.studio.indoors import Painter, end_card, presenter, title_card, two_people
from tests.media.studio.outdoors import city_night, landscape_pan, sea_zoom
from tests.media.studio.voice import (
    FEMALE_VOICE,
    MALE_VOICE,
    SAMPLE_RATE_HZ,
    Sentence,
    SentenceTruth,
    Sound,
    place,
    room_tone,
)

FOLDER = Path(__file__).parent
FRAME_RATE = 25
FADE_FRAMES = 12
"""Length of each half of the fade; two fully black frames lie between them."""
AAC_DELAY_SAMPLES = 1024
"""What FFmpeg's AAC encoder puts before the sound. That much room tone is cut off instead, so
that the sound is in its place for every reader, also for one that knows no edit lists."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence and when it starts, in milliseconds from the start of its shot."""

    start_ms: int
    voice: str
    text: str


@dataclass(frozen=True, slots=True)
class Shot:
    """One shot of the script."""

    name: str
    shows: str
    frames: int
    camera: Literal["static", "pan_right", "zoom_in"]
    faces: int
    lines: tuple[Line, ...] = ()
    fades_in: bool = False
    """Whether the joint before this shot is a fade through black instead of a cut."""


SCRIPT = (
    Shot("title", "title card with large text", 72, "static", 0, (
        Line(240, MALE_VOICE, "good morning and welcome to the show"),
    )),
    Shot("presenter", "a man talks to the camera, medium close-up", 150, "static", 1, (
        Line(280, MALE_VOICE, "this is a short film about the sea and the city"),
        Line(3520, MALE_VOICE, "the weather is very good today"),
    )),
    Shot("landscape", "mountains, hills, firs and a house", 100, "pan_right", 0, (
        Line(700, FEMALE_VOICE, "you can see the mountains from here"),
    )),
    Shot("sea", "a sailing boat at sunset", 104, "zoom_in", 0, fades_in=True),
    Shot("city", "a street at night with passing cars", 128, "static", 0, (
        Line(400, MALE_VOICE, "people are going home for the night"),
        Line(2840, FEMALE_VOICE, "the city never sleeps at night"),
    )),
    Shot("talk", "a man and a woman at a table before books", 124, "static", 2, (
        Line(300, FEMALE_VOICE, "thank you very much for your time"),
        Line(2800, MALE_VOICE, "we will be back in the morning"),
    )),
    Shot("end", "closing card with large text", 66, "static", 0, (
        Line(440, FEMALE_VOICE, "this is the end of the program"),
    )),
)  # fmt: skip


def frame_to_ms(frame: int) -> int:
    """Start of a frame in milliseconds."""
    return frame * 1000 // FRAME_RATE


def first_frames() -> list[int]:
    """Number of each shot's first frame."""
    return [sum(shot.frames for shot in SCRIPT[:index]) for index in range(len(SCRIPT))]


def record_sound() -> tuple[Sound, list[SentenceTruth]]:
    """All sentences over room tone and, at sea, the noise of waves."""
    total_frames = sum(shot.frames for shot in SCRIPT)
    track = room_tone(total_frames * SAMPLE_RATE_HZ // FRAME_RATE, level=0.0025, seed=7)
    truths = []
    for shot, first in zip(SCRIPT, first_frames(), strict=True):
        for line in shot.lines:
            start_ms = frame_to_ms(first) + line.start_ms
            truths.append(place(track, Sentence(line.voice, line.text), start_ms))
        if shot.name == "sea":
            _add_surf(track, first, shot.frames)
    return track, truths


def _add_surf(track: Sound, first_frame: int, frames: int) -> None:
    start, end = (
        frame * SAMPLE_RATE_HZ // FRAME_RATE for frame in (first_frame, first_frame + frames)
    )
    seconds = np.arange(end - start) / SAMPLE_RATE_HZ
    swell = (0.55 - 0.45 * np.cos(seconds * 2 * np.pi / 2.1)) * np.hanning(end - start)
    track[start:end] += room_tone(end - start, level=0.03, seed=8) * swell.astype(np.float32)


def loudness_by_frame(track: Sound, truths: list[SentenceTruth], voice: str) -> NDArray[np.float32]:
    """How loud the voice is in each frame, 0 to 1: it opens the drawn mouths."""
    samples = np.zeros_like(track)
    for truth in truths:
        if truth["voice"] == voice:
            part = slice(*(truth[key] * SAMPLE_RATE_HZ // 1000 for key in ("start_ms", "end_ms")))
            samples[part] = track[part]
    frames = samples.reshape(-1, SAMPLE_RATE_HZ // FRAME_RATE)
    level = np.sqrt((frames**2).mean(axis=1))
    openness: NDArray[np.float32] = np.clip(level / 0.16, 0, 1).astype(np.float32)
    return openness


def painter_of(
    shot: Shot, first: int, host: NDArray[np.float32], guest: NDArray[np.float32]
) -> Painter:
    """The painter that draws a shot's frames."""
    painters = {
        "title": title_card,
        "presenter": lambda: presenter(lambda frame: float(host[first + frame])),
        "landscape": lambda: landscape_pan(shot.frames),
        "sea": lambda: sea_zoom(shot.frames),
        "city": city_night,
        "talk": lambda: two_people(
            lambda frame: float(host[first + frame]), lambda frame: float(guest[first + frame])
        ),
        "end": end_card,
    }
    return painters[shot.name]()


def film(track: Sound, truths: list[SentenceTruth]) -> Iterator[NDArray[np.uint8]]:
    """All frames in order."""
    host = loudness_by_frame(track, truths, MALE_VOICE)
    guest = loudness_by_frame(track, truths, FEMALE_VOICE)
    for index, (shot, first) in enumerate(zip(SCRIPT, first_frames(), strict=True)):
        painter = painter_of(shot, first, host, guest)
        fades_out = index + 1 < len(SCRIPT) and SCRIPT[index + 1].fades_in
        for frame in range(shot.frames):
            yield to_film(_faded(painter(frame), shot, frame, fades_out))


def _faded(picture: Picture, shot: Shot, frame: int, fades_out: bool) -> Picture:
    """Dim the frame where the shot fades in from or out to black."""
    light = 1.0
    if shot.fades_in:
        light = min(light, frame / FADE_FRAMES)
    if fades_out:
        light = min(light, (shot.frames - 1 - frame) / FADE_FRAMES)
    return picture * np.float32(light)


def encode(path: Path, frames: Iterator[NDArray[np.uint8]], track: Sound) -> None:
    """Write H.264 and AAC into an MP4 that starts playing before it is loaded."""
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        video = container.add_stream("libx264", rate=FRAME_RATE)
        video.width, video.height, video.pix_fmt = FILM_WIDTH, FILM_HEIGHT, "yuv420p"
        video.options = {"crf": "21", "preset": "veryslow", "threads": "1", "tune": "animation"}
        audio = container.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="mono")
        audio.bit_rate = 48_000
        for picture in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode(None))
        samples = track[AAC_DELAY_SAMPLES:].clip(-1, 1)
        sound = av.AudioFrame.from_ndarray(samples[np.newaxis], "fltp", "mono")
        sound.sample_rate = SAMPLE_RATE_HZ
        container.mux(audio.encode(sound))
        container.mux(audio.encode(None))


def truth_of(sentences: list[SentenceTruth]) -> dict[str, object]:
    """What the film holds: shots, the joints between them, the sentences."""
    firsts = first_frames()
    shots = [
        {
            "name": shot.name,
            "shows": shot.shows,
            "start_ms": frame_to_ms(first),
            "end_ms": frame_to_ms(first + shot.frames),
            "camera_motion": shot.camera,
            "faces": shot.faces,
        }
        for shot, first in zip(SCRIPT, firsts, strict=True)
    ]
    cuts = [_joint(shot, first) for shot, first in zip(SCRIPT[1:], firsts[1:], strict=True)]
    total = sum(shot.frames for shot in SCRIPT)
    media = {"width": FILM_WIDTH, "height": FILM_HEIGHT, "frame_rate": FRAME_RATE}
    media |= {"frames": total, "duration_ms": frame_to_ms(total)}
    return {"media": media, "cuts": cuts, "shots": shots, "sentences": sentences}


def _joint(shot: Shot, first: int) -> dict[str, object]:
    """The joint before a shot: its frame, and what time a fade takes (a cut takes none)."""
    half = FADE_FRAMES if shot.fades_in else 0
    return {
        "frame": first,
        "time_ms": frame_to_ms(first),
        "kind": "fade" if shot.fades_in else "cut",
        "start_ms": frame_to_ms(first - half),
        "end_ms": frame_to_ms(first + half),
    }


def main() -> None:
    """Write the film and its truth beside this script."""
    track, sentences = record_sound()
    encode(FOLDER / "demo.mp4", film(track, sentences), track)
    (FOLDER / "demo.truth.json").write_text(json.dumps(truth_of(sentences), indent=2) + "\n")


if __name__ == "__main__":
    main()
