"""From a row to its loaded model. That of a plug-in is in a process of its own, so that its caller
goes on whatever it does there; it may still do all that the service may."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import logging
import pickle
import queue
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from models.backends import Backend
from models.backends.plugins import PluginError
from models.conformance import check_answers
from models.contracts import DeviceMemoryError
from models.tasks import TASKS, Shape, Task

log = logging.getLogger("vas.models")

_MOST_REASON = 300
"""Characters of a plug-in's own message, which is shown to the job's owner."""
_EXIT_SECONDS = 5.0
_PROGRAM = "import sys; sys.path[:] = {}; from models.isolation import serve; serve({})"


def load(row: Backend, models_dir: Path | None) -> Any:
    """The model, loaded in this process. Raises what its opener raises."""
    from threadpoolctl import ThreadpoolController

    if row.gpu_memory_bytes:
        from models.backends.transformers import bound_memory

        bound_memory(row)
    module, _, name = row.opener.partition(":")
    opener = getattr(importlib.import_module(module), name)
    # A task has one processor. NumPy's OpenBLAS starts a thread for each processor of the machine
    # instead; waiting for each other they took 0.8 of the 1.0 processor seconds of an embedding.
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    return opener(row, models_dir)


class IsolatedModel:
    """The contract of a task, and of those that share its model. Raises DeviceMemoryError, and
    PluginError where an answer is not as the contract requires, the model raises, its process ends,
    or a call takes longer than its row allows."""

    def __init__(self, row: Backend, models_dir: Path | None) -> None:
        self._row, self._models_dir = row, models_dir
        self._places: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(row.workers):
            self._places.put(None)
        for task in TASKS:
            setattr(self, task.method_name, functools.partial(self._answer, task))

    def _answer(self, task: Task[Any], given: Any) -> Any:
        inputs = [given] if task.call.shape is Shape.SINGLE else list(given)
        process = self._places.get()
        try:
            process = process or _Process(self._row, self._models_dir)
            answers = process.answers(task, inputs)
            check_answers(task, inputs, answers)
        except DeviceMemoryError:
            raise
        except Exception as error:
            reason = f"{error}".strip().partition("\n")[0][:_MOST_REASON] or type(error).__name__
            raise PluginError(f"plug-in {self._row.plugin}, {task.name}: {reason}") from None
        finally:
            self._places.put(None if process is None or process.has_ended else process)
        return task.gathered(answers)


class _Process:
    has_ended = False

    def __init__(self, row: Backend, models_dir: Path | None) -> None:
        self._seconds = row.call_seconds
        self._pipe, theirs = Pipe()
        with theirs:
            program = _PROGRAM.format(sys.path, theirs.fileno())
            self._child = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-c", program], pass_fds=[theirs.fileno()], process_group=0
            )
        self._pipe.send((row, models_dir))

    def answers(self, task: Task[Any], inputs: Sequence[Any]) -> list[Any]:
        self.has_ended = True  # until it has answered
        try:
            self._pipe.send((task, inputs))
            if not self._pipe.poll(self._seconds):
                raise PluginError(f"a call took longer than {self._seconds:g} s")
            answers, error, trace = self._pipe.recv()
            self.has_ended = False
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_EXIT_SECONDS)
            raise PluginError(f"its process ended ({self._child.returncode})") from None
        finally:
            if self.has_ended:
                self._child.kill()
                self._child.wait()
                self._pipe.close()
        if error is not None:
            log.warning("%s", trace)
            raise error
        return list(answers)


def serve(descriptor: int) -> None:
    """Answer calls until the caller has ended. The model is opened with the first."""
    pipe, model = Connection(descriptor), None
    row, models_dir = pipe.recv()
    with contextlib.suppress(EOFError, OSError):
        while True:
            task, inputs = pipe.recv()
            # Where the caller has ended meanwhile, nobody else ends a call that hangs.
            faulthandler.dump_traceback_later(2 * row.call_seconds, exit=True)
            try:
                model = load(row, models_dir) if model is None else model
                message = pickle.dumps((task.answers(model, inputs), None, ""))
            except Exception as error:
                kind = DeviceMemoryError if isinstance(error, DeviceMemoryError) else PluginError
                failed = kind(f"{type(error).__name__}: {error}")
                message = pickle.dumps((None, failed, traceback.format_exc()))
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(message)
