"""The whole service on one machine: embedded PostgreSQL, a local Ray, Serve behind HAProxy.

Ray reads its environment when it is imported and hands it to every process it
starts, so the environment is set here first and Ray imported after.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from models.profiles import Choice
from pipelines.execution.ray_start import quiet, start_ray
from pipelines.speech.caption_rules import read_rules
from serve_app.deployment import proxy
from serve_app.deployment.data import (
    DataFolderError,
    own_files_private,
    prepared,
    with_folder,
    write_privately,
)
from serve_app.deployment.model_choice import chosen_models, require_machine
from serve_app.observability.logs import exporter_class, logging_for
from serve_app.pricing import load_prices
from serve_app.settings import InvalidSettingsError, Settings, require_provider

if TYPE_CHECKING:
    from ray.serve import Application

log = logging.getLogger("vas.service")

READY_TIMEOUT_SECONDS = 120
QUIET_PORTS = range(20_000, 30_000)
"""Ports that no system assigns: Linux begins at 32768, Ray's workers have 10002 to 19999
(``ray start --min-worker-port``) and Serve's replicas begin at 30000."""
_GIVEN_PORTS: set[int] = set()
"""By this process: what requested one binds it later."""
_RUN_RECORD = "run.json"
_HAPROXY_CONFIGURATION = "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"
"""In the environment of all that Ray starts for a service: the run's own folder."""
_OF_POSTGRESQL = ("postgres", "initdb", "pg_ctl")
_ORPHANS_SECONDS = 10
_LOOK_SECONDS = 0.05
_LONGEST_TEMPORARY_FOLDER = proxy.LONGEST_HAPROXY_FOLDER - len("/vas-12345678/haproxy")


class PortInUseError(Exception):
    """Something else listens on the port."""


class ServiceStartError(Exception):
    """The service did not become ready."""


@contextlib.contextmanager
def running_service(
    settings: Settings, *, on_choice: Callable[[Choice], None] = lambda _: None
) -> Iterator[tuple[str, Settings]]:
    """Run the service until the block ends; yields the base address clients use, and the settings
    completed.

    ``on_choice`` receives the models that will serve, before they are started.
    Raises PortInUseError, ServiceStartError, what ``prepared`` does, RayStartError, PriceFileError,
    TagBankError, ProviderNotInstalledError, TracingNotInstalledError, ContentPolicyError or
    ModelProfileError.
    Everything that was started is stopped again, whatever happens inside the block.
    """
    settings = with_folder(settings)
    with (
        contextlib.ExitStack() as data,
        ThreadPoolExecutor(1) as aside,
        contextlib.ExitStack() as stack,
    ):
        try:
            stack.enter_context(logging_for(settings, "service"))
        except OSError as error:
            message = f"{settings.log_dir} cannot be the folder of the log ({error.strerror}): name"
            raise DataFolderError(f"{message} another with VAS_LOG_DIR.") from error
        run_dir = stack.enter_context(_run_folder())
        _clear_earlier_run(settings.data_dir)
        require_free_port(settings.host, settings.port)
        if settings.metrics_port is not None:
            require_free_port("127.0.0.1", settings.metrics_port)
        _record_run(settings, run_dir)
        stack.callback((settings.data_dir / _RUN_RECORD).unlink, missing_ok=True)
        _set_environment(settings, run_dir)
        # The database starts, and what serves is imported and checked, while Ray starts.
        preparing = aside.submit(_prepare, settings, data)
        stack.enter_context(_ray(settings, run_dir))
        settings, choice, application = preparing.result()
        on_choice(choice)
        stack.enter_context(_serve(settings, application, run_dir))
        base = f"http://{proxy.reachable(settings.host)}:{settings.port}"
        _wait_until_ready(base)
        yield f"{base}/v1/api", settings


def _prepare(
    settings: Settings, data: contextlib.ExitStack
) -> tuple[Settings, Choice, Application]:
    """Return the settings completed, with a database that runs as long as ``data``, and what
    serves."""
    complete = data.enter_context(prepared(settings))
    choice = _require_what_is_named(complete)
    from serve_app.deployment.application import build_app

    return complete, choice, build_app(complete)


def _require_what_is_named(settings: Settings) -> Choice:
    """Check before anything starts what would otherwise fail in the replicas; choose the models."""
    from pipelines.vision.tags import load_tag_bank
    from serve_app.context import load_content_policy

    load_prices(settings.price_file)
    read_rules(settings.caption_rules_file)
    load_tag_bank(settings.tags_file)
    require_provider(settings)
    if settings.traces_url is not None:
        exporter_class()
    authorities = settings.webhook_ca_file
    if authorities is not None and not authorities.is_file():
        raise InvalidSettingsError(f"VAS_WEBHOOK_CA_FILE: {authorities} is no file.")
    choice = chosen_models(settings)
    load_content_policy(settings.model_copy(update={"model_profile": choice.profile}))
    require_machine(choice.profile)
    log.info("models: %s (%s)", choice.name, choice.reason)
    return choice


@contextlib.contextmanager
def _run_folder() -> Iterator[Path]:
    """A short path: the longest Unix socket below it is HAProxy's."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) <= _LONGEST_TEMPORARY_FOLDER else "/tmp"  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix="vas-", dir=short))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_free_port(host: str, port: int) -> None:
    """Raises PortInUseError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "in use" if error.errno == errno.EADDRINUSE else f"no choice ({error.strerror})"
            message = f"Port {port} on {host} is {why}: name another with --port or --host."
            raise PortInUseError(message) from error


def free_port() -> int:
    """Return a TCP port that nothing listens on at the moment, at any address, and that was not
    given yet.

    Taken from :data:`QUIET_PORTS`, as it is bound only after a service of many processes has come
    up, any of whose connections may be given a port of the system's own choice meanwhile.

    Raises:
        ServiceStartError: none of a hundred tried was free.
    """
    for _ in range(100):
        port = secrets.choice(QUIET_PORTS)
        if port in _GIVEN_PORTS:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        _GIVEN_PORTS.add(port)
        return port
    raise ServiceStartError(f"no free port between {QUIET_PORTS[0]} and {QUIET_PORTS[-1]}")


def _environment(settings: Settings, run_dir: Path) -> dict[str, str]:
    return proxy.node_environment(settings, run_dir / "haproxy") | {
        # Several services may share a machine.
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        # HAProxy uses Serve's spare proxy while it knows of no replica: not another service's.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        # A stopping service has no clients to drain: its owner requested the stop.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
        # The controller looks ten times a second by default, also where nothing happens.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
        # Workers keep their models: after a minute without work one does.
        "RAY_num_workers_soft_limit": "1",
        "RAY_idle_worker_killing_time_threshold_ms": "60000",
    }


def _set_environment(settings: Settings, run_dir: Path) -> None:
    """Set what Ray, Serve and all that they start find in it, before the first of them is
    imported."""
    os.environ.update(_environment(settings, run_dir))
    if "ray" not in sys.modules:
        # A node that nobody joins: its ports, that of the metrics too, stay on loopback. Ray
        # decides when it is imported, by the variable that keeps laptops from being clusters.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    importlib.import_module(proxy.PRELOADED_MODULE)  # Serve would import pandas without it


@contextlib.contextmanager
def _ray(settings: Settings, run_dir: Path) -> Iterator[None]:
    import ray

    # Remarks of the machinery on its start and stop are for its log files, not for the terminal.
    logging.getLogger("ray").setLevel(logging.ERROR)

    with own_files_private():
        start_ray(
            free_port,
            num_cpus=settings.ray_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            object_store_memory=512 * 1024**2,
            _metrics_export_port=settings.metrics_port,
            _temp_dir=str(run_dir / "ray"),
        )
    try:
        yield
    finally:
        with quiet():
            ray.shutdown()


@contextlib.contextmanager
def _serve(settings: Settings, application: Application, run_dir: Path) -> Iterator[None]:
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve._private import client

    from pipelines.execution.chain import release_free_memory
    from serve_app.deployment.application import APP_NAME, is_one_process

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    # How often Serve looks whether all replicas run: once a second, and it has no setting.
    client.CLIENT_POLLING_INTERVAL_S = 0.1
    try:
        address = {"host": settings.host, "port": settings.port}
        with ThreadPoolExecutor(1) as aside, _proxy_in_time(RayActorError, TimeoutError):
            starting = aside.submit(serve.start, http_options=address)
            # ``serve.start`` waits for the proxies, beside which replicas can start.
            while not starting.done() and not _has_controller():
                time.sleep(_LOOK_SECONDS)
            if starting.done():
                starting.result()
            handle = serve.run(application, name=APP_NAME, route_prefix="/")
            starting.result()
        release_free_memory()  # of the weights that were checked
        try:
            yield
        finally:
            if is_one_process(settings):
                _requeue(handle)
    finally:
        proxies = _proxies(run_dir)
        with quiet():
            serve.shutdown()
        for process in proxies:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except psutil.TimeoutExpired:
                    process.kill()


def _has_controller() -> bool:
    from ray.util import list_named_actors

    named = list_named_actors(all_namespaces=True)
    return any(each["name"] == "SERVE_CONTROLLER_ACTOR" for each in named)


def _requeue(handle: Any) -> None:
    """Requeue what a MachineReplica's runner holds: Serve's own stop waits for all requests first,
    and ends a replica whose downloads go on."""
    from serve_app.deployment.application import STOP_SECONDS

    try:
        handle.requeue.remote().result(timeout_s=STOP_SECONDS)
    except Exception:
        log.warning("what the runner holds is not requeued in order", exc_info=True)


@contextlib.contextmanager
def _proxy_in_time(*failures: type[Exception]) -> Iterator[None]:
    """Raise ServiceStartError for those ``failures`` of Serve that mean its proxy is not ready."""
    try:
        yield
    except failures as error:
        log.warning("Serve's proxy did not start in time", exc_info=error)
        message = "Ray Serve's proxy does not start in time: the machine is too busy."
        raise ServiceStartError(message) from error


def _wait_until_ready(base: str) -> None:
    """Ready is what clients see: the health page through the port they use."""
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    last = "no answer"
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.monotonic() < deadline:
            try:
                answer = client.get(f"{base}/health")
            except httpx.HTTPError as error:
                last = str(error)
            else:
                if answer.status_code == 200 and answer.json() == {"status": "ok"}:
                    return
                last = f"status {answer.status_code}"
            time.sleep(0.1)
    raise ServiceStartError(f"{base} did not become ready: {last}.")


def _proxies(run_dir: Path) -> list[psutil.Process]:
    """HAProxy processes that run on a configuration of ours."""
    ours = str(run_dir / "haproxy")
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        command = process.info["cmdline"] or []
        if process.info["name"] == "haproxy" and any(part.startswith(ours) for part in command):
            found.append(process)
    return found


def _record_run(settings: Settings, run_dir: Path) -> None:
    """Remember what a hard kill of this process would leave: a folder, and who works in it."""
    own = psutil.Process()
    record = {
        "run_dir": str(run_dir),
        "service": [own.pid, own.create_time()],
        "address": [settings.host, settings.port],
    }
    path = settings.data_dir / _RUN_RECORD
    write_privately(path, json.dumps(record)).replace(path)


def _clear_earlier_run(data_dir: Path) -> None:
    """Remove what an earlier, killed service of this data folder left behind.

    Its proxy outlives it for good, its replicas for seconds, in which the one that looks after the
    proxy may start it again: on our port, beside ours. Raises ServiceStartError while it runs.
    """
    path = data_dir / _RUN_RECORD
    if not path.exists():
        return
    try:
        record = json.loads(path.read_text())
    except ValueError:
        # Written by a version that wrote it in place, as the machine went down: it has no content.
        log.warning("%s is unreadable and left out of account", path)
        path.unlink()
        return
    pid, created = record.get("service", (0, 0.0))  # records of before knew it not
    if pid != os.getpid() and _runs(pid, created):
        message = f"{data_dir} is in use by a running service, process {pid}: stop that, or name"
        raise ServiceStartError(f"{message} another data folder with --data.")
    run_dir = Path(record["run_dir"])
    orphans = _processes_of(run_dir)
    for process in orphans:
        log.warning("ending the orphaned process %s", process.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(orphans, _ORPHANS_SECONDS)
    shutil.rmtree(run_dir, ignore_errors=True)
    path.unlink()


def with_running_address(settings: Settings) -> tuple[Settings, bool]:
    """Return the settings with host and port of the service that runs on the data folder, if one
    does."""
    path = settings.data_dir.expanduser() / _RUN_RECORD
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text())
        if _runs(*record["service"]):
            host, port = record["address"]
            return settings.model_copy(update={"host": host, "port": port}), True
    return settings, False


def _runs(pid: int, created: float) -> bool:
    """Return whether this process still runs: the same id with another start time is another
    process."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _processes_of(run_dir: Path) -> list[psutil.Process]:
    """Processes that Ray started for the run in ``run_dir``, the proxies among them.

    Known by the configuration that their environment names, or, where a process has written its
    title over that, by the files that it writes to. PostgreSQL, which has the same environment, is
    none of them: it goes on for the next start.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            places = [process.environ().get(_HAPROXY_CONFIGURATION, "")]
            places += [file.path for file in process.open_files() if file.mode != "r"]
            names = {each.name() for each in (process, process.parent()) if each is not None}
            if names.isdisjoint(_OF_POSTGRESQL) and any(
                Path(place).is_relative_to(run_dir) for place in places
            ):
                found.append(process)
    return found
