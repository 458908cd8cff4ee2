"""The service as one Ray Serve application: API, runners, webhook senders, model replicas.

On a machine of its own, with one of each, the API's replica runs the others too (decision 48).
Each replica imports this module, so what only one kind needs is imported where it is used: a start
is mostly imports, by a dozen processes at once. Metrics go through ``deployment.ray_metrics``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve import Application

from models.profiles import concurrent_inputs, has_task, is_one_actor, replicas_of
from models.provider import ServedModels
from models.registry import REGISTRY
from models.replica import ModelReplica
from models.tasks import RECOGNIZE_ENTITIES, Task
from serve_app.deployment.ray_metrics import ModelObserver, RayMetrics
from serve_app.observability.logs import LogTarget, configure_logging, log_context
from serve_app.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from serve_app.context import AppContext
    from serve_app.webhooks.sender import Sender
    from serve_app.work.runner import Runner

log = logging.getLogger("vas.replica")

_QUEUED_BATCHES = 1024
"""Inputs that may wait in each caller; beyond it calls fail at once."""

APP_NAME = "vas"
_ONGOING_REQUESTS = 512
_QUEUED_REQUESTS = 512
MOST_REQUESTS = _ONGOING_REQUESTS + _QUEUED_REQUESTS
"""What one replica of the API holds at a time; more get 503."""

_BUSY_SECONDS = 5
"""``Retry-After`` of a replica that has too much to do."""

STOP_SECONDS = 25
"""Time for a runner or a webhook sender to requeue what it holds; then Serve ends it."""

_DRAIN_LOOK_SECONDS = 0.1
"""How often a stopping replica looks whether its last request has ended; Serve's 2 s add up, as
deployments stop one after the other."""

_PLACEMENT_SHARE = 0.001
"""Of the resource that marks a node, so that one unit of it holds a thousand replicas."""


def model_application(settings: Settings, task: Task[Any]) -> Application:
    """Return one task as a deployment that grows with its queue and shrinks when idle."""
    row = REGISTRY[settings.model_profile][task]
    concurrency = concurrent_inputs(settings.model_profile, task)
    with_gpu = {"num_cpus": 0.0, "num_gpus": row.gpus}
    return serve.deployment(
        ModelReplica,
        name=task.contract_name,
        max_ongoing_requests=concurrency,
        max_queued_requests=_QUEUED_BATCHES,
        autoscaling_config={
            "min_replicas": settings.model_min_replicas,
            "initial_replicas": max(1, settings.model_min_replicas),
            "max_replicas": settings.most_replicas(task),
            "target_ongoing_requests": concurrency // 2,
            "upscale_delay_s": settings.model_upscale_seconds,
            "downscale_delay_s": settings.model_downscale_seconds,
        },
        health_check_period_s=10,
        health_check_timeout_s=120,
        graceful_shutdown_timeout_s=20,
        graceful_shutdown_wait_loop_s=_DRAIN_LOOK_SECONDS,
        ray_actor_options=with_gpu if row.gpus else {"num_cpus": settings.model_cpus},
    ).bind(*_replica_arguments(settings, task))


def _replica_arguments(settings: Settings, task: Task[Any]) -> tuple[Any, ...]:
    from serve_app.deployment.model_choice import own_weights

    log = LogTarget(settings.log_dir, settings.log_format, settings.log_level)
    model = settings.model_profile, task, settings.models_dir
    return *model, ModelObserver(log, task), own_weights(settings, task)


def _models(settings: Settings, *, one_machine: bool = False) -> ServedModels:
    return ServedModels(APP_NAME, settings.model_profile, settings.models_dir, one_machine)


def _searching_context(settings: Settings) -> AppContext:
    """Return the context of a process that searches, or keeps what is searched."""
    from serve_app.context import build_context
    from serve_app.deployment.model_choice import answerer_of, encoder_of, picture_encoder_of

    models = _models(settings)
    return build_context(
        settings,
        RayMetrics(),
        encoder_of(models),
        picture_encoder_of(models),
        lambda: models.get(RECOGNIZE_ENTITIES),
        answerer_of(models),
    )


_SWITCH_SECONDS = 0.0002
"""How long a thread that prepares a large answer keeps the interpreter from the loop, which takes
it back some ten times a request: after Python's 5 ms, one large answer makes all others slow."""


class _Api:
    def __init__(self, settings: Settings, *_: Any) -> None:
        self._settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        from serve_app.app import build_api

        configure_logging(self._settings, "api")
        sys.setswitchinterval(_SWITCH_SECONDS)
        return build_api(_searching_context(self._settings))


@serve.ingress()
class ApiReplica(_Api):
    """The HTTP API. Stateless: the database is the only truth."""


class _LoopReplica:
    """Runs a loop until the replica stops."""

    def _begin(self, loop: Runner | Sender) -> None:
        self._loop, self._running = loop, asyncio.create_task(loop.run())

    def check_health(self) -> None:
        """Raises what ended the loop, so that Serve replaces the replica."""
        if self._running.done():
            self._running.result()
            raise RuntimeError("The replica's loop has ended.")

    async def __del__(self) -> None:
        """Serve calls this when the replica stops in order: finish, or requeue."""
        await self._loop.stop()


class RunnerReplica(_LoopReplica):
    """Runs jobs until the replica stops."""

    async def __init__(self, settings: Settings, *_: Any) -> None:  # type: ignore[misc]
        configure_logging(settings, "runner")
        self._begin(_runner(settings, _searching_context(settings)))


class WebhookSender(_LoopReplica):
    """Delivers events until the replica stops; any number of replicas share them."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        from serve_app.context import build_context

        configure_logging(settings, "sender")
        self._begin(_sender(build_context(settings, RayMetrics())))


def _runner(settings: Settings, context: AppContext, *, one_machine: bool = False) -> Runner:
    from serve_app.protocols import answers  # noqa: F401  (it writes some of the callbacks)
    from serve_app.work.runner import Runner

    return Runner(context, _models(settings, one_machine=one_machine))


def _sender(context: AppContext) -> Sender:
    from serve_app.webhooks.sender import Sender

    return Sender(context)


@serve.ingress()
class MachineReplica(_Api):
    """API, runner and sender in one process, which imports once what they share.

    Runner and sender have an event loop in a thread of its own. It begins once the API has been
    built, as its imports take a second in which clients need not wait.
    """

    def __init__(self, settings: Settings, *_: Any) -> None:
        super().__init__(settings)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._has_ended = False
        self._beside = threading.Thread(target=self._run_beside, name="beside", daemon=True)

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = super().__serve_build_asgi_app__()
        self._beside.start()
        return app

    def _run_beside(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as loop:
                loop.run(self._work())
        except Exception:
            log.exception("runner or sender has ended")

    async def _work(self) -> None:
        """Run both until told to stop. Raises what ended one of them."""
        _start_model_actors(self._settings)
        context = _searching_context(self._settings)
        working: dict[str, Runner | Sender] = {
            "runner": _runner(self._settings, context, one_machine=True),
            "sender": _sender(context),
        }
        running = []
        for name, each in working.items():
            # In every record of theirs, wherever it is written.
            with log_context(process=name):
                running.append(asyncio.create_task(each.run(), name=name))
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([*running, stop], return_when=asyncio.FIRST_COMPLETED)
        self._has_ended = True
        try:
            if self._stop.is_set():
                await asyncio.gather(*(each.stop() for each in working.values()))
            for task in running:
                if task.done():
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await context.database.close()

    def check_health(self) -> None:
        """Raises RuntimeError where runner or sender has ended, so that Serve replaces both."""
        if self._has_ended or not self._beside.is_alive():
            raise RuntimeError("The runner or the sender has ended.")

    async def requeue(self) -> None:
        """Stop runner and sender: what they hold is finished, or requeued."""
        if self._beside.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._beside.join)

    async def __del__(self) -> None:
        """Serve calls this when the replica stops in order, after its last request."""
        await self.requeue()


def build_app(settings: Settings) -> Application:
    """Return the application graph. Nothing of it but models takes CPUs: Ray Data's tasks need
    them.

    Raises ContentPolicyError where the settings' content policy cannot be applied, and
    ModelProfileError where their models cannot serve.
    """
    from serve_app.deployment.model_choice import with_models_chosen

    settings = with_models_chosen(settings)
    if is_one_process(settings):
        served = [task for task in _replicated(settings) if task not in _actors(settings)]
        return _api(settings, MachineReplica, *_checked_models(settings, served))
    return build_named_app(settings)


def is_one_process(settings: Settings) -> bool:
    """Return whether API, runner and sender of a machine of its own are one replica."""
    return settings.api_replicas == settings.runners == settings.webhook_senders == 1


def build_named_app(settings: Settings) -> Application:
    """Return the application graph for settings that name their models, which may serve on other
    nodes.

    Raises ContentPolicyError where the settings' content policy cannot be applied, TagBankError,
    and ModelProfileError for plug-ins that cannot be used.
    """
    from serve_app.deployment.model_choice import with_others_of

    profile = with_others_of(settings, settings.model_profile)
    settings = settings.model_copy(update={"model_profile": profile})
    models = _checked_models(settings, _replicated(settings))
    stops_in_order: dict[str, Any] = {
        "health_check_period_s": 2,
        "graceful_shutdown_timeout_s": STOP_SECONDS,
        "graceful_shutdown_wait_loop_s": _DRAIN_LOOK_SECONDS,
        "ray_actor_options": _placement(settings),
    }
    run = {"name": "Runner", "num_replicas": settings.runners, "max_ongoing_requests": 8}
    send = {"name": "WebhookSender", "num_replicas": settings.webhook_senders}
    runner = serve.deployment(RunnerReplica, **run, **stops_in_order).bind(settings, *models)
    sender = serve.deployment(WebhookSender, **send, **stops_in_order).bind(settings)
    return _api(settings, ApiReplica, runner, sender)


def _replicated(settings: Settings) -> list[Task[Any]]:
    """Return the tasks whose models are not opened in the process that has the inputs."""
    profile = settings.model_profile
    return [
        task
        for task in REGISTRY[profile]
        if replicas_of(profile, task) is task
        and has_task(profile, task, settings.models_dir)
        and (task.enabled_by is None or getattr(settings, task.enabled_by))
    ]


def _actors(settings: Settings) -> list[Task[Any]]:
    """Return those of them that on one machine have an actor without Serve."""
    return [task for task in _replicated(settings) if is_one_actor(settings.model_profile, task)]


def _start_model_actors(settings: Settings) -> None:
    """Start what does not run yet. Nobody owns it, so that it outlives the process that started it;
    it ends with Ray."""
    import ray

    for task in _actors(settings):
        ray.remote(ModelReplica).options(
            name=task.contract_name,
            namespace=APP_NAME,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=settings.model_cpus,
        ).remote(*_replica_arguments(settings, task), settings.most_replicas(task))


def _checked_models(settings: Settings, tasks: Sequence[Task[Any]]) -> list[Application]:
    """Return the model deployments, once what all replicas read has been."""
    from pipelines.vision.tags import load_tag_bank
    from serve_app.context import load_content_policy

    load_content_policy(settings)
    load_tag_bank(settings.tags_file)
    return [model_application(settings, task) for task in tasks]


def _api(settings: Settings, replica: Any, *beside: Application) -> Application:
    return serve.deployment(
        replica,
        name="Api",
        num_replicas=settings.api_replicas,
        max_ongoing_requests=_ONGOING_REQUESTS,
        # Without a bound a replica whose database hangs would take requests until it bursts.
        max_queued_requests=_QUEUED_REQUESTS,
        backpressure_config={"status_code": 503, "retry_after_s": _BUSY_SECONDS},
        # A lost replica is noticed, and another started, while clients still wait.
        health_check_period_s=2,
        graceful_shutdown_timeout_s=15,
        graceful_shutdown_wait_loop_s=_DRAIN_LOOK_SECONDS,
        # A line a request, formatted and written, is a good part of a small request's time.
        logging_config={"enable_access_log": False},
        ray_actor_options=_placement(settings),
    ).bind(settings, *beside)


def _placement(settings: Settings) -> dict[str, Any]:
    """No CPU, which tasks need; on nodes of the named resource, which all others may then leave."""
    if settings.service_resource is None:
        return {"num_cpus": 0}
    return {"num_cpus": 0, "resources": {settings.service_resource: _PLACEMENT_SHARE}}
