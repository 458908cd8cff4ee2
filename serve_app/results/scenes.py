"""What is seen: scenes from what is stored, and as the API shows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from models.contracts import CameraMotion, ShotAngle, ShotType
from pipelines.codec import decode, list_parts
from pipelines.types import Scene
from serve_app.api.schemas import Count, Seconds, Share, Url, Uuid, doc, rendered
from serve_app.api.urls import OVERVIEW_STILL, still_path
from serve_app.crypto import Signer
from serve_app.results.availability import require_stage
from storage import results
from storage.database import Connection
from storage.job_records import JobRecord
from storage.results import SceneSpan
from storage.types import StageName


class BoxJson(TypedDict):
    """A rectangle in the picture, in shares of its width and height."""

    left: Annotated[Share, doc("Of its left edge.")]
    top: Annotated[Share, doc("Of its upper edge.")]
    width: Annotated[Share, doc("How wide it is.")]
    height: Annotated[Share, doc("How high it is.")]


class SeenBoxJson(TypedDict):
    """Where an object is at a time."""

    time: Annotated[Seconds, doc("Of the frame, in seconds of the media.")]
    box: BoxJson


class ObjectTrackJson(TypedDict):
    """Objects of a class in an interval of a scene."""

    label: Annotated[str, doc("A lower-case noun.", "woman")]
    start: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    end: Annotated[Seconds, doc("Where it ends, in seconds of the media.")]
    confidence: Share
    boxes: NotRequired[
        Annotated[
            list[SeenBoxJson],
            doc(
                "Where they are, by time, then from the left: with `include=boxes`. None of scenes "
                "that were analysed before there were boxes."
            ),
        ]
    ]


class TextLineJson(TypedDict):
    """A line of writing on the screen."""

    text: Annotated[str, doc("As read.", "Anna Weber, baker")]
    confidence: Share
    box: BoxJson
    startTime: NotRequired[Annotated[Seconds, doc("From when it is there, in seconds.")]]
    endTime: NotRequired[Annotated[Seconds, doc("Until when it is there; both to half a second.")]]


class TagJson(TypedDict):
    """What a still probably shows."""

    label: Annotated[str, doc("A tag of the service's bank of tags.", "kitchen")]
    score: Annotated[Share, doc("The model's probability that its caption is the still's.", 0.31)]


class StillJson(TypedDict):
    """A frame that represents a scene."""

    time: Annotated[Seconds, doc("Of the frame, in seconds of the media.")]
    url: Annotated[Url, doc("Its picture; signed, needs no key, expires.")]
    explicitLikelihood: NotRequired[
        Annotated[Share, doc("That it is sexually explicit, where the service has a policy on it.")]
    ]


class OverviewJson(TypedDict):
    """What is seen of a whole video, as of a scene."""

    startTime: Annotated[Seconds, doc("Where it begins, in seconds of the media.")]
    endTime: Annotated[Seconds, doc("Where it ends: the next scene's start.")]
    description: Annotated[
        str,
        doc(
            "What is seen, in one or two sentences.",
            "A woman speaks to the camera in a bright kitchen.",
        ),
    ]
    objects: Annotated[
        list[str], doc("What is in it: lower-case nouns, sorted.", ["kettle", "woman"])
    ]
    colorPalette: Annotated[
        list[Annotated[str, Field(pattern="^#[0-9a-f]{6}$")]],
        doc(
            "Its colours, most of the picture first.",
            ["#e8e2d6", "#6b4f3a", "#2f3a40"],
            min_length=1,
            max_length=5,
        ),
    ]
    shotType: Annotated[ShotType, doc("How much of the subject is in the frame.")]
    shotAngle: Annotated[ShotAngle, doc("From where the camera looks.")]
    cameraMotion: NotRequired[Annotated[CameraMotion, doc("What the camera does.", "static")]]
    confidence: NotRequired[Annotated[Share, doc("Of the cut that opens it, 0 to 1.")]]
    thumbnailUrl: NotRequired[Annotated[Url, doc("A still; signed, needs no key, expires.")]]
    stills: NotRequired[
        Annotated[
            list[StillJson],
            doc(
                "What shows most of it: first that of `thumbnailUrl`; of what is longer than 30 "
                "seconds a second one, from elsewhere. None of scenes that were analysed before."
            ),
        ]
    ]
    objectTracks: NotRequired[
        Annotated[
            list[ObjectTrackJson],
            doc(
                "When objects of known classes are in the picture, sampled every two "
                "seconds and twice a scene at least, by start."
            ),
        ]
    ]
    activePicture: NotRequired[
        Annotated[
            BoxJson,
            doc(
                "The picture between black bars (letterbox, pillarbox), found over the whole "
                "video; colours, light, shot and faces are measured inside it. The whole picture "
                "where there are none, and of scenes that were analysed before."
            ),
        ]
    ]
    onScreenText: NotRequired[
        Annotated[
            list[TextLineJson],
            doc(
                "Writing that is there at any time of it, each line once, by start; at most "
                "200 lines. None of scenes that were analysed before writing was read."
            ),
        ]
    ]
    tags: NotRequired[
        Annotated[
            list[TagJson],
            doc(
                "What its still probably shows, as places, light, weather and activities, the most "
                "probable first, where the service has a model of pictures; of the overview those "
                "of all scenes."
            ),
        ]
    ]


OVERVIEW = (
    "The whole video as if it were one scene, with cuts or without. Absent from jobs that were "
    "analysed before there were overviews."
)


class SceneJson(OverviewJson):
    """What is between two cuts."""

    index: Annotated[Count, doc("From 0.")]


class Seen(TypedDict):
    """What is seen in a video."""

    scenes: Annotated[list[SceneJson], doc("Cover the whole video; empty when it has no cuts.")]
    overview: NotRequired[Annotated[OverviewJson, doc(OVERVIEW)]]


class SceneList(Seen):
    """The scenes of a job."""

    jobId: Annotated[Uuid, doc("The job.")]


class ProcessedScene(SceneJson):
    """A scene with the field that older clients read."""

    endTs: Annotated[Seconds, doc("The same as `endTime`.")]


def scenes_of(stored: str | bytes) -> tuple[Scene, ...]:
    """Return scenes as they are stored, of whatever version."""
    return tuple(_read_scenes(stored if isinstance(stored, str) else stored.decode()))


def _read_scenes(text: str) -> Iterator[Scene]:
    for part, _ in list_parts(text):
        yield from decode(tuple[Scene, ...], part.encode(), ignore_unknown=True)


Address = Callable[[str], str]
"""Of a still, by its name."""


def scene_json(scene: Scene, address: Address, *, boxes: bool = False) -> SceneJson:
    """Return a scene, its stills at addresses."""
    if not boxes:
        tracks = tuple(replace(each, boxes=None) for each in scene.object_tracks)
        scene = replace(scene, object_tracks=tracks)
    shown = overview_json(scene, address, str(scene.index))
    return {**shown, "index": scene.index, "confidence": round(scene.confidence, 4)}


def overview_json(scene: Scene, address: Address, name: str = OVERVIEW_STILL) -> OverviewJson:
    """Return what is seen, of a whole video too, its stills at addresses by its name."""
    urls = address(name), address(f"{name}-2")
    stills = list[StillJson]()
    for still, url in zip(scene.stills, urls, strict=False):
        likely = {} if still.explicit is None else {"explicitLikelihood": still.explicit}
        stills.append(rendered(StillJson, still, url=url, **likely))
    shown = rendered(OverviewJson, scene, stills=stills, thumbnailUrl=urls[0])
    del shown["confidence"]  # of its cut: a whole video has none
    return shown


@dataclass(frozen=True, slots=True)
class StoredSeen:
    """What is seen in a job, as it is stored."""

    scenes: str
    overview: Scene | None


async def read_seen(connection: Connection, job: JobRecord) -> StoredSeen:
    """Return what is seen in a job whose vision stage is completed."""
    require_stage(job, StageName.VISION)
    scenes = await results.get_scenes(connection, job.id)
    return StoredSeen(scenes, await find_overview(connection, job.id))


def seen_json(
    root: str, signer: Signer, job: JobRecord, stored: StoredSeen, *, boxes: bool = False
) -> tuple[Iterator[SceneJson], OverviewJson | None]:
    """As the API shows it, its stills at signed addresses below ``root``; some seconds for a long
    job, of whose scenes each is made when it is written."""

    def address(name: str) -> str:
        return root + still_path(signer, job.id, name)

    whole = None if stored.overview is None else overview_json(stored.overview, address)
    return (scene_json(each, address, boxes=boxes) for each in _read_scenes(stored.scenes)), whole


async def find_overview(connection: Connection, job_id: uuid.UUID) -> Scene | None:
    """Return the whole video of a job as if it were one scene; None where it has no overview."""
    found = await results.find_overview(connection, job_id)
    return None if found is None else scenes_of(f"[{found}]")[0]


async def list_scene_spans(connection: Connection, job: JobRecord) -> list[SceneSpan]:
    """When the scenes are and what they show; of a job whose vision stage is completed."""
    require_stage(job, StageName.VISION)
    return await results.get_scene_spans(connection, job.id)
