"""``vas doctor``: is this machine able to run the service? Each model does one real inference."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import httpx

from models.backends.plugins import installed
from models.profiles import Choice, has_task, how_to_add, listed_weights
from models.provider import open_model
from models.registry import REGISTRY, own_profile
from models.tasks import TASKS, Task
from serve_app.deployment.data import NoServiceDataError, prepared
from serve_app.deployment.model_choice import chosen_models, own_weights, visible_gpus
from serve_app.deployment.proxy import reachable
from serve_app.settings import GIB, Settings
from storage.database import Database

MIN_FREE_BYTES = 2 * GIB
CODECS = ("h264", "hevc", "vp9", "av1", "mpeg2video", "prores", "aac", "mp3", "opus", "flac")


@dataclass
class MachineFacts:
    """What the checks look at: settings, and the models that they choose here."""

    settings: Settings

    @cached_property
    def models(self) -> Choice:
        """Chosen once, for it reads all weights. Raises ModelProfileError."""
        return chosen_models(self.settings)

    @cached_property
    def opened(self) -> Callable[[str, Task[Any]], Any]:
        """The model that is loaded for a task, kept while the next tasks share it."""

        def opened(profile: str, task: Task[Any]) -> Any:
            return open_model(
                profile, task, self.settings.models_dir, own_weights(self.settings, task)
            )

        return lru_cache(maxsize=1)(opened)


Check = Callable[[MachineFacts], str]


class CheckFailedError(Exception):
    """The machine lacks something, named in the message."""


def examine(settings: Settings) -> list[dict[str, Any]]:
    """Return one finding a check, ``{check, ok, detail}``, in their order.

    The database is begun aside: it waits for the disk, models for the processor.
    """
    machine = MachineFacts(settings)
    with ThreadPoolExecutor(1) as aside:
        begun = {name: aside.submit(finding, name, CHECKS[name], machine) for name in CHECKS
                 if CHECKS[name] is _database}  # fmt: skip
        found = {name: finding(name, check, machine)
                 for name, check in CHECKS.items() if name not in begun}  # fmt: skip
        return [found[name] if name in found else begun[name].result() for name in CHECKS]


def finding(name: str, check: Callable[..., str], *facts: MachineFacts) -> dict[str, Any]:
    """Return how a check ends."""
    try:
        return {"check": name, "ok": True, "detail": check(*facts)}
    except Exception as error:  # whatever it is, it is reported
        return {"check": name, "ok": False, "detail": f"{type(error).__name__}: {error}"}


def _port(machine: MachineFacts) -> str:
    """Return the address of the service which runs on the data folder, or one that it could be
    started at."""
    from serve_app.deployment.local import require_free_port, with_running_address

    settings, runs = with_running_address(machine.settings)
    if not runs:
        require_free_port(settings.host, settings.port)
        return f"{settings.host}:{settings.port} is free"
    address = f"http://{reachable(settings.host)}:{settings.port}/healthz"
    httpx.get(address, trust_env=False, timeout=2).raise_for_status()
    return f"the service of {settings.data_dir} answers at {settings.host}:{settings.port}"


def _disk(machine: MachineFacts) -> str:
    folder = machine.settings.data_dir.expanduser().resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        raise CheckFailedError(f"only {free / GIB:.1f} GiB free at {existing}")
    return f"{free / GIB:.1f} GiB free at {existing}"


def _gpu(_: MachineFacts) -> str:
    """No GPU is no failure: the packaged models need none."""
    count = visible_gpus()
    return f"{count} found" if count else "none; the packaged models run on the CPU"


def _codecs(_: MachineFacts) -> str:
    import av

    missing = [name for name in CODECS if name not in av.codecs_available]
    if missing:
        raise CheckFailedError(f"PyAV lacks {', '.join(missing)}")
    return f"PyAV {av.__version__} decodes {', '.join(CODECS)}"


def _database(machine: MachineFacts) -> str:
    """Return the service's own; before there is one, that a server answers, or that one can be
    started."""

    async def version(url: str) -> str:
        database = Database(url, pool_size=2)
        try:
            async with database.statement() as connection:
                result = await connection.exec_driver_sql("SHOW server_version")
                return str(result.scalar_one())
        finally:
            await database.close()

    settings = machine.settings
    kind = " (embedded)" if settings.database_url is None else ""
    try:
        with prepared(settings, migrated=False, existing=True) as complete:
            return f"PostgreSQL {asyncio.run(version(complete.database_url or ''))}{kind}"
    except NoServiceDataError:
        if settings.database_url is not None:
            return f"PostgreSQL {asyncio.run(version(settings.database_url))}, empty"
    with tempfile.TemporaryDirectory(prefix="vas-doctor-") as folder:
        tried = settings.model_copy(update={"data_dir": Path(folder)})
        with prepared(tried, migrated=False) as complete:
            return f"PostgreSQL {asyncio.run(version(complete.database_url or ''))}{kind}"


def _objects(machine: MachineFacts) -> str:
    """Return one object through the store that the settings name, as jobs use it."""
    settings = machine.settings
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


def _model(task: Task[Any]) -> Check:
    """Return one real inference of a task's model, and which weights it is done with."""

    def check(machine: MachineFacts) -> str:
        settings, profile = machine.settings, machine.models.profile
        if not has_task(profile, task, settings.models_dir):
            missing = f"none in profile {own_profile(profile)} as it is installed"
            how = how_to_add(profile, task, settings.models_dir)
            return missing if how is None else f"{missing}; {how}"
        own = own_weights(settings, task)
        loaded = REGISTRY[profile][task].shares or task
        answer = task.probe(machine.opened(profile, loaded))
        weights = "; ".join(
            f"{each.weights.origin} @ {each.weights.version[:12]} from {each.weights.carrier}, "
            f"{each.weights.licence}"
            for each in listed_weights(profile)
            if each.task == task.name
            and (not each.optional or each.weights.is_installed(settings.models_dir))
        )
        weights = weights if own is None else str(own)
        return f"{task.call.report(answer)} ({weights})"

    return check


CHECKS: dict[str, Check] = {
    "port": _port,
    "disk": _disk,
    "GPU": _gpu,
    "codecs": _codecs,
    "database": _database,
    "objects": _objects,
    "models": lambda machine: f"profile {machine.models.name}: {machine.models.reason}",
    "plug-ins": lambda machine: (
        f"installed: {', '.join(name for name, _ in installed()) or 'none'}; "
        f"in use: {', '.join(machine.settings.model_plugins) or 'none'}"
    ),
    **{f"model: {task.name}": _model(task) for task in TASKS},
}
