"""From a row of the registry to a loaded model, and how a pipeline step reaches it: in its process
or through Ray Serve."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from models.backends import Backend
from models.contracts import DeviceMemoryError
from models.isolation import IsolatedModel, load
from models.profiles import has_task, is_one_actor, most_media_seconds, replicas_of
from models.registry import REGISTRY
from models.tasks import Contract, Shape, Task


def open_model(
    profile: str,
    task: Task[Contract],
    models_dir: Path | None = None,
    own: Path | None = None,
    workers: int = 1,
) -> Contract:
    """The model of a task, loaded in this process, a plug-in's in one of its own; with weights of
    the user's ``own`` where a folder of them is given, and for so many callers at once.

    Raises KeyError for an unknown profile or a task that it lacks, MissingCheckpointError where a
    models folder lacks the weights, WeightsError for packaged ones that are missing or altered.
    """
    row = replace(REGISTRY[profile][task], own=own, workers=workers)
    return cast("Contract", (IsolatedModel if row.plugin else load)(row, models_dir))


CALL_TIMEOUT_SECONDS = 600
"""A model call that takes longer than this has failed."""

LOST_REPLICA_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Before each further call where a replica is lost in the middle of one: with its node, or because
an update or a shrinking deployment ended it. Bounded, as an input might be what kills them."""

log = logging.getLogger("vas.models")


class ModelProvider(Protocol):
    """Hands out one model a task. Picklable; models are opened where they are used."""

    def find(self, task: Task[Contract]) -> Contract | None:
        """The task's model; None where the profile has none, or an optional one's weights are not
        installed."""
        ...

    def has(self, task: Task[Any]) -> bool:
        """Whether ``find`` finds one, without loading it where that can be known."""
        return self.find(task) is not None

    def most_media_seconds(self, _: Task[Any]) -> float:
        """The longest media of a job, in seconds, on which the task's model may be used."""
        return math.inf

    def get(self, task: Task[Contract]) -> Contract:
        """The task's model. Raises KeyError where there is none."""
        model = self.find(task)
        if model is None:
            raise KeyError(task.name)
        return model


@dataclass(frozen=True, slots=True)
class LocalModels(ModelProvider):
    """Models of a profile, loaded once a process (notebooks, tests, doctor)."""

    profile: str = "packaged"
    models_dir: Path | None = None
    own: Path | None = None
    """A folder of the user's own weights, for the task that takes them."""

    def has(self, task: Task[Any]) -> bool:
        return has_task(self.profile, task, self.models_dir)

    def most_media_seconds(self, task: Task[Any]) -> float:
        return most_media_seconds(self.profile, task)

    def find(self, task: Task[Contract]) -> Contract | None:
        if not self.has(task):
            return None
        loaded = REGISTRY[self.profile][task].shares or task
        own = self.own if loaded.own_weights else None
        return cast("Contract", _open_once(self.profile, loaded, self.models_dir, own))


_open_once = functools.lru_cache(maxsize=16)(open_model)

GATHERING_SECONDS = 4.0
"""How long a batch of GatheredModels waits for its next input, at least: nobody waits for a single
one, and a model that waits has nothing else to do."""
MOST_GATHERING_SECONDS = 15.0
"""Where inputs came so far apart lately, it waits as long again. In ``benchmarks.cluster --pools``,
whose films come some seconds apart, batches were half full with 4 s."""
_FORGOTTEN = 0.95
"""Of the longest distance of inputs, with each that comes."""
ObserveBatch: TypeAlias = Callable[[str, int, float], None]
"""Receives a task's name, and the size and seconds of each batch."""


def unobserved(name: str, size: int, seconds: float) -> None:
    """Observe nothing."""


class GatheredModels(ModelProvider):
    """Models of another provider for the threads of one process, whose inputs become batches.

    A batch is computed once it has as many inputs as its row of the registry takes, or no other
    input has come for GATHERING_SECONDS or longer; several at a time where a replica does. A model
    is loaded when it is called first. Not picklable.
    """

    def __init__(
        self, models: ModelProvider, profile: str, observe: ObserveBatch = unobserved
    ) -> None:
        self._models, self._profile, self._observe = models, profile, observe
        self._found: dict[Task[Any], Any] = {}
        self._finding = threading.Lock()

    def has(self, task: Task[Any]) -> bool:
        return self._models.has(task)

    def most_media_seconds(self, task: Task[Any]) -> float:
        return self._models.most_media_seconds(task)

    def find(self, task: Task[Contract]) -> Contract | None:
        with self._finding:
            if task not in self._found and self.has(task):
                row = REGISTRY[self._profile][task]
                row = REGISTRY[self._profile][row.shares] if row.shares else row
                if row.remote is not None:  # its server gathers them
                    self._found[task] = self._models.get(task)
                    return cast("Contract", self._found[task])
                model = functools.partial(self._models.get, task)
                self._found[task] = GatheredModel(task, row, model, self._observe)
        return cast("Contract | None", self._found.get(task))


class GatheredModel:
    """A task's contract, for many threads."""

    def __init__(
        self, task: Task[Any], row: Backend, model: Callable[[], Any], observe: ObserveBatch
    ) -> None:
        self._task, self._row, self._model, self._observe = task, row, model, observe
        self._waiting: deque[tuple[Any, Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._came_seconds = self._apart_seconds = 0.0
        if row.max_batch == 1:
            # Of a model that takes no batches, one call at a time.
            def alone(given: Any) -> Any:
                with self._changed:
                    return getattr(self._model(), task.method_name)(given)

            setattr(self, task.method_name, alone)
            return
        for _ in range(row.concurrent_batches):
            threading.Thread(target=self._work, name=task.name, daemon=True).start()
        is_single = task.call.shape is Shape.SINGLE
        answer = (lambda item: self._answer([item])) if is_single else self._answer
        setattr(self, task.method_name, answer)

    def _answer(self, inputs: Sequence[Any]) -> Any:
        calls = [(each, Future[Any]()) for each in inputs]
        with self._changed:
            now = time.monotonic()
            self._apart_seconds *= _FORGOTTEN
            if (apart := now - self._came_seconds) < MOST_GATHERING_SECONDS:
                self._apart_seconds = max(apart, self._apart_seconds)
            self._came_seconds = now
            self._waiting += calls
            self._changed.notify_all()
        return self._task.gathered([answer.result() for _, answer in calls])

    @property
    def _patience_seconds(self) -> float:
        return max(GATHERING_SECONDS, min(2 * self._apart_seconds, MOST_GATHERING_SECONDS))

    def _work(self) -> None:
        most, waiting = self._row.max_batch, self._waiting
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting)
                while len(waiting) < most and self._changed.wait(self._patience_seconds):
                    pass  # another input has come
                batch = [waiting.popleft() for _ in range(min(most, len(waiting)))]
            started = time.perf_counter()
            inputs = [each for each, _ in batch]
            try:
                answers = answers_of(self._task, self._model(), inputs) if batch else []
            except Exception as error:  # of loading the model
                answers = [error] * len(batch)
            for (_, answer), given in zip(batch, answers, strict=True):
                if isinstance(given, Exception):
                    answer.set_exception(given)
                else:
                    answer.set_result(given)
            if batch:
                self._observe(self._task.name, len(batch), time.perf_counter() - started)


def answers_of(task: Task[Any], model: Any, items: Sequence[Any]) -> Sequence[Any]:
    """An answer for each input, or the exception that the model raises for it.

    A batch holds inputs of many jobs: where it fails, its inputs are worked on one by one, so that
    only the job fails whose input the model cannot take. Where memory is short all shall come
    again: the model has tried fewer at once.
    """
    try:
        return task.answers(model, items)
    except DeviceMemoryError as error:
        return [error] * len(items)
    except Exception as error:
        if len(items) == 1:
            return [error]
        return [answer for item in items for answer in answers_of(task, model, [item])]


@dataclass(frozen=True, slots=True)
class ServedModels(ModelProvider):
    """Models behind Serve deployments of one application; small ones run in the task."""

    app_name: str
    profile: str = "packaged"
    models_dir: Path | None = None
    one_machine: bool = False
    """Whether those of ``is_one_actor`` are actors in the namespace of the application's name."""

    def most_media_seconds(self, task: Task[Any]) -> float:
        return most_media_seconds(self.profile, task)

    def find(self, task: Task[Contract]) -> Contract | None:
        if not has_task(self.profile, task, self.models_dir):
            return None
        replicas = replicas_of(self.profile, task)
        if replicas is None:
            return LocalModels(self.profile, self.models_dir).find(task)
        as_actor = self.one_machine and is_one_actor(self.profile, replicas)
        handle = functools.partial(
            _actor if as_actor else _handle, self.app_name, replicas.contract_name
        )
        return cast("Contract", ServedModel(handle, task, replicas))


class ServedModel:
    """A task's contract, whose method is answered by replicas: the task's own, or those of the task
    whose model it shares."""

    def __init__(self, handle: Callable[[], Any], task: Task[Any], replicas: Task[Any]) -> None:
        """``handle`` returns Serve's of the deployment, or a ModelActor."""
        self._handle, self._task, self._replicas = handle, task, replicas
        is_single = task.call.shape is Shape.SINGLE
        answer = (lambda item: self._answer([item])) if is_single else self._answer
        setattr(self, task.method_name, answer)

    def _answer(self, items: Sequence[Any]) -> Any:
        handle = self._handle()
        shared = () if self._replicas is self._task else (self._task,)
        calls = [(item, *shared) for item in items]
        responses = [handle.remote(*call) for call in calls]
        answers = [_result(handle, *pair) for pair in zip(calls, responses, strict=True)]
        return self._task.gathered(answers)


def _result(handle: Any, call: tuple[Any, ...], response: Any) -> Any:
    """The model's answer to ``call``; called again where the replica that had it was lost."""
    from ray.exceptions import RayActorError

    for pause_seconds in LOST_REPLICA_PAUSES_SECONDS:
        try:
            return response.result(timeout_s=CALL_TIMEOUT_SECONDS)
        except RayActorError as error:
            log.warning("a model's replica was lost, calling another: %s", error)
            time.sleep(pause_seconds)
            response = handle.remote(*call)
    return response.result(timeout_s=CALL_TIMEOUT_SECONDS)


@functools.lru_cache(maxsize=16)
def _handle(app_name: str, deployment: str) -> Any:
    from ray import serve

    return serve.get_deployment_handle(deployment, app_name=app_name)


class ModelActor:
    """A ModelReplica that is an actor by itself, called as by a handle of Serve's."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def remote(self, *call: Any) -> _ActorsAnswer:
        """Begin a call."""
        return _ActorsAnswer(self._actor, self._actor.__call__.remote(*call))


@dataclass(frozen=True, slots=True)
class _ActorsAnswer:
    actor: Any
    answer: Any

    def result(self, timeout_s: float) -> Any:
        """Wait for the answer. Raises what the model raises, and TimeoutError, with which the actor
        is ended: Ray starts another in its place."""
        import ray

        try:
            return ray.get(self.answer, timeout=timeout_s)
        except TimeoutError:
            ray.kill(self.actor, no_restart=False)
            raise


@functools.lru_cache(maxsize=16)
def _actor(namespace: str, name: str) -> ModelActor:
    import ray

    return ModelActor(ray.get_actor(name, namespace=namespace))
