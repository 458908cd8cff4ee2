"""``vas doctor``: is this machine able to run the service? Each model does one real inference."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from models.contracts import SAMPLE_RATE_HZ, AudioChunk, SceneStills
from models.registry import REGISTRY, Task
from models.sources import LocalModels
from serve_app.local_service import prepared
from serve_app.model_choice import chosen_models, visible_gpus
from serve_app.settings import GIB, Settings
from storage.database import Database

MIN_FREE_BYTES = 2 * GIB
CODECS = ("h264", "hevc", "vp9", "av1", "mpeg2video", "prores", "aac", "mp3", "opus", "flac")

_SAMPLE_TEXT = "ROLL 12"

Check = Callable[[Settings], str]


class CheckFailedError(Exception):
    """The machine lacks something; the message says what."""


def examine(settings: Settings) -> list[dict[str, Any]]:
    """One finding a check: ``{check, ok, detail}``."""
    return [_finding(name, check, settings) for name, check in CHECKS.items()]


def _finding(name: str, check: Check, settings: Settings) -> dict[str, Any]:
    try:
        return {"check": name, "ok": True, "detail": check(settings)}
    except Exception as error:  # whatever it is, the operator is told
        return {"check": name, "ok": False, "detail": f"{type(error).__name__}: {error}"}


def _port(settings: Settings) -> str:
    from serve_app.local_service import require_free_port

    require_free_port(settings.host, settings.port)
    return f"{settings.host}:{settings.port} is free"


def _disk(settings: Settings) -> str:
    folder = settings.data_dir.expanduser().resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        raise CheckFailedError(f"only {free / GIB:.1f} GiB free at {existing}")
    return f"{free / GIB:.1f} GiB free at {existing}"


def _gpu(_: Settings) -> str:
    """No GPU is no failure: the packaged models need none."""
    count = visible_gpus()
    return f"{count} found" if count else "none; the packaged models run on the CPU"


def _codecs(_: Settings) -> str:
    import av

    missing = [name for name in CODECS if name not in av.codecs_available]
    if missing:
        raise CheckFailedError(f"PyAV lacks {', '.join(missing)}")
    return f"PyAV {av.__version__} decodes {', '.join(CODECS)}"


def _database(settings: Settings) -> str:
    async def version(url: str) -> str:
        database = Database(url, pool_size=2)
        try:
            async with database.statement() as connection:
                result = await connection.exec_driver_sql("SHOW server_version")
                return str(result.scalar_one())
        finally:
            await database.close()

    with tempfile.TemporaryDirectory(prefix="vas-doctor-") as folder:
        own = settings.database_url is None
        # Without a server of the operator's, a throw-away one proves that one can be started.
        tried = settings.model_copy(update={"data_dir": Path(folder)}) if own else settings
        with prepared(tried) as complete:
            found = asyncio.run(version(complete.database_url or ""))
    return f"PostgreSQL {found}" + (" (embedded)" if own else "")


def _objects(settings: Settings) -> str:
    """One object through the store that the settings name, as jobs use it."""
    if settings.s3_bucket is None:
        return "a folder in the data folder"
    store, key = settings.object_store, f"doctor/{uuid.uuid4()}"
    with store.append_partial(key, 0) as stream:
        stream.write(b"examined")
    store.finish_partial(key)
    read = store.read_bytes(key)
    store.delete_prefix("doctor")
    if read != b"examined":
        raise CheckFailedError("the bucket gave back something else than was written")
    return f"bucket {settings.s3_bucket}: written, read, deleted"


def _models(settings: Settings) -> str:
    choice = chosen_models(settings)
    return f"profile {choice.profile}: {choice.reason}"


def _local(settings: Settings) -> LocalModels:
    return LocalModels(chosen_models(settings).profile, settings.models_dir)


def _transcriber(settings: Settings) -> str:
    silence = np.zeros(SAMPLE_RATE_HZ, dtype=np.float32)
    [result] = _local(settings).transcriber().transcribe([AudioChunk(silence)])
    if result.words:
        raise CheckFailedError(f"heard {result.words[0].text!r} in silence")
    return "transcribes; hears nothing in silence"


def _describer(settings: Settings) -> str:
    grey = np.full((180, 320, 3), 128, dtype=np.uint8)
    [result] = _local(settings).scene_describer().describe([SceneStills((grey,), 1.0)])
    return f"describes a grey picture: {result.description}"


def _text_reader(settings: Settings) -> str:
    image = Image.new("RGB", (480, 120), (20, 30, 60))
    ImageDraw.Draw(image).text(
        (240, 60), _SAMPLE_TEXT, (240, 240, 240), ImageFont.load_default(48), anchor="mm"
    )
    [lines] = _local(settings).text_reader().read([np.asarray(image, np.uint8)])
    read = ", ".join(line.text for line in lines)
    if read != _SAMPLE_TEXT:
        raise CheckFailedError(f"read {read!r} where {_SAMPLE_TEXT!r} is written")
    return f"reads {read!r}"


def _speech_detector(settings: Settings) -> str:
    silence = np.zeros(2 * SAMPLE_RATE_HZ, dtype=np.float32)
    regions = _local(settings).speech_detector().detect(silence)
    if regions:
        raise CheckFailedError("found speech in silence")
    return "finds no speech in silence"


def _speaker_embedder(settings: Settings) -> str:
    seconds = np.arange(2 * SAMPLE_RATE_HZ, dtype=np.float32) / SAMPLE_RATE_HZ
    tone = (0.3 * np.sin(2 * np.pi * 140 * seconds)).astype(np.float32)
    vectors = _local(settings).speaker_embedder().embed([tone])
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
        raise CheckFailedError("vectors are not of unit length")
    return f"{vectors.shape[1]} dimensions"


def _classifier(settings: Settings) -> str:
    models = _local(settings)
    if Task.CLASSIFY not in REGISTRY[models.profile]:
        return f"none in profile {models.profile}"
    [scores] = models.content_classifier().classify([np.full((180, 320, 3), 128, np.uint8)])
    return f"scores {', '.join(sorted(scores))}"


CHECKS: dict[str, Check] = {
    "port": _port,
    "disk": _disk,
    "GPU": _gpu,
    "codecs": _codecs,
    "database": _database,
    "objects": _objects,
    "models": _models,
    "model: transcribe": _transcriber,
    "model: detect": _speech_detector,
    "model: embed": _speaker_embedder,
    "model: describe": _describer,
    "model: classify": _classifier,
    "model: read": _text_reader,
}
