"""Thousands of files through the pipelines, without a service and without a database.

    python -m pipelines.backfill MANIFEST OUT [options]
    ray job submit --working-dir . -- python -m pipelines.backfill MANIFEST OUT [options]

MANIFEST is a CSV, JSON lines or Parquet file with a column `source` (a path, s3:// or http(s) URL)
and, where wanted, `id`, `name`, `mode`, `language`, `keyterms`, `speakers_expected`, `channels`,
`provider`, `metadata`; or a folder, or s3://bucket/prefix, every file of which is an item. OUT is a
folder that all nodes share, or s3://bucket/prefix: Parquet tables items, scenes, segments, words
and errors, and a still a scene. The same command again goes on where a run was interrupted.

Exit status: 0 all items completed; 1 some are in the table of errors; 2 the run could not be
begun; 3 it could not go on, or was interrupted: run it again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_args, get_type_hints

from models import profiles
from models.backends.plugins import PluginError
from models.provider import LocalModels
from models.registry import REGISTRY, own_profile, with_others
from models.tasks import TRANSCRIBE, Purpose, tasks_for
from models.weights import RemoteModel, WeightsError
from pipelines.backfill import driver
from pipelines.backfill.items import ItemWork, SourceRules
from pipelines.backfill.manifest import Manifest, ManifestError, read_manifest
from pipelines.backfill.output import Output, OutputError, begin_output
from pipelines.collection import WORK_FOLDER, BucketAccess, Place, PlaceError, place_at
from pipelines.execution.ray_data import forget_datasets
from pipelines.execution.ray_start import RayStartError, start_ray
from pipelines.ingest.headers import RAW_FAMILIES, command_words
from pipelines.ingest.pipeline import IngestConfig
from pipelines.ingest.source import RawConfig
from pipelines.net.addresses import AddressPolicy
from pipelines.net.fetch import FetchLimits
from pipelines.types import CutsBy
from pipelines.vision.cuts.selection import CutConfig
from pipelines.vision.features import FeaturesConfig
from pipelines.vision.pipeline import VisionConfig
from pipelines.vision.policy import BlocklistError, ContentPolicy, read_blocklist
from pipelines.vision.scenes import DescribeConfig
from storage.objects import ObjectStoreUnavailableError
from storage.types import StageStatus

ALL_DONE, WITH_ERRORS, NOT_BEGUN, NOT_FINISHED = 0, 1, 2, 3

GIB = 1024**3
CANNOT_BEGIN = (
    ManifestError, OutputError, PlaceError, BlocklistError, PluginError, WeightsError
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        # Addresses by options, secrets by the environment: the service's names, else boto3's.
        access = BucketAccess(
            endpoint=options.s3_endpoint_url,
            region=options.s3_region,
            access_key_id=os.environ.get("VAS_S3_ACCESS_KEY_ID"),
            secret_access_key=os.environ.get("VAS_S3_SECRET_ACCESS_KEY"),
        )
        place = place_at(options.out, access)
        with place.locked():
            return _backfill(options, place, access)
    except CANNOT_BEGIN as error:
        _print(str(error))
        return NOT_BEGUN
    except (driver.RunStoppedError, ObjectStoreUnavailableError, RayStartError) as error:
        _print(f"{error} The same command goes on from here.")
        return NOT_FINISHED
    except KeyboardInterrupt:
        _print("Interrupted. The same command goes on from here.")
        return NOT_FINISHED


def _backfill(options: argparse.Namespace, place: Place, access: BucketAccess) -> int:
    manifest = read_manifest(
        options.manifest, access, include=options.include, outside=place.address
    )
    rules = SourceRules(
        access=access,
        addresses=AddressPolicy(allowed_networks=tuple(options.allow_network)),
        limits=FetchLimits(max_bytes=options.max_bytes),
        raw=RawConfig(decoders=dict(options.raw_decoder)),
    )
    hashes = options.blocked_hashes
    policy = ContentPolicy(blocked_hashes=read_blocklist(hashes)) if hashes else ContentPolicy()
    with _ray(options.address):
        profile = _profile(options)
        output = begin_output(place, _kind(profile, options))
        output.recover()
        output.write_row_errors(manifest.errors)
        if options.retry_errors:
            _print(f"{output.forget_failures()} failed items are tried again.")
        work = ItemWork(
            out=place,
            models=LocalModels(profile, options.models_dir, options.whisper_weights),
            profile=profile,
            run=uuid.uuid4().hex,
            rules=rules,
            ingest=IngestConfig(segment_seconds=options.segment_seconds),
            vision=VisionConfig(
                describe=DescribeConfig(
                    models=profiles.digest_of(profile, tasks_for(Purpose.VISION))
                ),
                features=FeaturesConfig(decode_threads=max(1, int(options.cpus_an_item))),
                policy=policy,
                cuts=CutConfig(by=options.cuts),
            ),
            own_whisper=options.whisper_weights,
        )
        pacing = {each.name: getattr(options, each.name) for each in fields(driver.Pacing)}
        _run(manifest, work, output, driver.Pacing(**pacing))
    place.files.delete_prefix(WORK_FOLDER)
    # What is in the output of this manifest decides.
    finished = output.finished()
    statuses = [finished[item.id] for item in manifest.items]
    failed = sum(status is StageStatus.FAILED for status in statuses)
    _print(f"{len(statuses) - failed} completed, {failed} failed, {len(manifest.errors)} refused.")
    return WITH_ERRORS if failed or manifest.errors else ALL_DONE


def _run(manifest: Manifest, work: ItemWork, output: Output, pacing: driver.Pacing) -> None:
    finished = output.finished()
    waiting = [item for item in manifest.items if item.id not in finished]
    before = len(manifest.items) - len(waiting)
    _print(
        f"{len(manifest.items)} items, {before} of them finished before; "
        f"{len(manifest.errors)} rows refused; models: {own_profile(work.profile)}."
    )
    if not waiting:
        return
    started = time.monotonic()
    tally = driver.BackfillTally(
        total=len(manifest.items), finished_before=before, started_seconds=started
    )
    with stop_signals() as is_stopped:
        driver.run_items(
            waiting, work, output, tally, pacing=pacing, report=_print, is_stopped=is_stopped
        )
    now = time.monotonic()
    _print(f"{tally.line(now)}; {driver.spell_seconds(now - started)} in all.")


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[None]:
    """Joined to the cluster at ``address``, or to one of this machine's own."""
    import ray
    import ray.data

    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    local: dict[str, Any] = {} if address else {"include_dashboard": False}
    start_ray(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
    forget_datasets()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come: what is ready is committed before the process ends.

    The handler raises nothing: in the middle of a commit that would have the part written
    once more, and other libraries' code might swallow it.
    """
    came = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: came.set()) for number in numbers}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _profile(options: argparse.Namespace) -> str:
    import ray

    # Those that the run may use count, whether or not they are up yet.
    gpus = options.gpus
    if gpus is None:
        gpus = ray.cluster_resources().get("GPU", 0.0)
    choice = profiles.choose_profile(options.profile, gpus=gpus, models_dir=options.models_dir)
    if options.models_dir is not None:
        missing = profiles.missing_checkpoints(choice.profile, options.models_dir)
        if missing:
            names = ", ".join(checkpoint.origin for checkpoint in missing)
            raise OutputError(f"{options.models_dir} lacks weights of {choice.profile}: {names}.")
    plugged = os.environ.get("VAS_MODEL_PLUGINS", "").replace(",", " ").split()
    profile = with_others(choice.profile, options.remote_models, plugged)
    profiles.check_weights(profile, options.models_dir)
    if options.whisper_weights is not None:
        profiles.check_own_weights(choice.profile, TRANSCRIBE, options.whisper_weights)
    return profile


def _kind(profile: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what results depend on: an output holds results of one kind."""
    own: Path | None = options.whisper_weights
    kind: dict[str, Any] = {"profile": own_profile(profile), "cuts": str(options.cuts)}
    if options.remote_models:
        kind["remote_models"] = {name: it.identity for name, it in options.remote_models.items()}
    if plugged := sorted({row.plugin for row in REGISTRY[profile].values() if row.plugin}):
        kind["model_plugins"] = plugged
    return kind if own is None else kind | {"whisper_weights": profiles.own_digest(own)}


def _print(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.backfill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("manifest", metavar="MANIFEST")
    parser.add_argument("out", metavar="OUT")
    _add_what(parser.add_argument_group("what is done"))
    _add_where(parser.add_argument_group("sources"))
    _add_how(parser.add_argument_group("pace"))
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    models_dir = os.environ.get("VAS_MODELS_DIR")
    add(
        "--profile",
        choices=["auto", *REGISTRY],
        default="auto",
        help="models; default: auto",
    )
    add(
        "--models-dir",
        type=Path,
        default=Path(models_dir) if models_dir else None,
        help="folder of weights, the same on every node; default: VAS_MODELS_DIR",
    )
    add(
        "--cuts",
        type=CutsBy,
        choices=list(CutsBy),
        default=CutsBy.JUDGED,
        help="who finds them, as VAS_CUTS has it (default: %(default)s)",
    )
    add(
        "--whisper-weights",
        type=Path,
        help="folder of a Whisper of your own, in place of the profile's (VAS_WHISPER_WEIGHTS)",
    )
    add(
        "--remote-models",
        type=_remote_models,
        default=os.environ.get("VAS_REMOTE_MODELS", "{}"),
        metavar="JSON",
        help="tasks that models of other servers do, as VAS_REMOTE_MODELS has it (the default)",
    )
    add("--blocked-hashes", type=Path, help="pictures that are not permitted (vas policy hash)")
    add("--segment-seconds", type=_positive, default=60.0, help="length of a video segment")
    add("--retry-errors", action="store_true", help="try items again that failed")


def _add_where(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="of a folder or prefix, only such files count, e.g. '*.mp4' or, with a slash, of what "
        "is behind the prefix; of whatever case; may be repeated",
    )
    add("--s3-endpoint-url", default=os.environ.get("VAS_S3_ENDPOINT_URL"), help="else Amazon's")
    add("--s3-region", default=os.environ.get("VAS_S3_REGION"))
    add(
        "--allow-network",
        type=ip_network,
        action="append",
        default=[],
        metavar="CIDR",
        help="a private network that http(s) sources may lie in; may be repeated",
    )
    add("--max-bytes", type=int, default=100 * GIB, help="largest http(s) source")
    add(
        "--raw-decoder",
        type=_raw_decoder,
        action="append",
        default=[],
        metavar="FAMILY=COMMAND",
        help="decodes camera RAW (r3d, braw, arri); COMMAND has {input} and {output}",
    )


def _add_how(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--address",
        default=os.environ.get("RAY_ADDRESS"),
        help="of a Ray cluster; default: RAY_ADDRESS, else a Ray of this machine's own",
    )
    hints = get_type_hints(driver.Pacing, include_extras=True)
    for each in fields(driver.Pacing):
        kind, about = get_args(hints[each.name])
        names = [f"--{each.name.replace('_', '-')}", *_OLDER_NAMES.get(each.name, ())]
        parse = _positive if kind is float else int
        add(*names, type=parse, default=each.default, help=about)


_OLDER_NAMES = {"concurrency": ["--at-once"]}


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _remote_models(text: str) -> dict[str, RemoteModel]:
    try:
        return {name: RemoteModel(**each) for name, each in json.loads(text).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _raw_decoder(text: str) -> tuple[str, str]:
    family, _, command = text.partition("=")
    if family not in RAW_FAMILIES:
        raise argparse.ArgumentTypeError(f"{family!r} is none of {', '.join(RAW_FAMILIES)}")
    try:
        command_words(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return family, command


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of Ray's outlive it, and now and then abort the interpreter while it tidies up: the
    # exit status would be lost. All that must last has been written.
    os._exit(status)
