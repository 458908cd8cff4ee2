"""Camera RAW: which footage is decoded, by what, and what a decoder may not do."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipelines.execution.chain import FreeRun
from pipelines.ingest.headers import RAW_FAMILIES, command_words, family_of
from pipelines.ingest.pipeline import IngestConfig, probe, probe_source
from pipelines.ingest.source import RawConfig, decoded_source
from pipelines.types import StageCode, StageError, StageStoppedError
from storage.objects.folder import FolderStore
from tests.pipelines.ingest.format_samples import H264, Sample, write_sample
from tests.tables import every

MIB = 1 << 20
R3D = b"\0\0\0\x40RED2" + bytes(range(256)) * 40
ARRI = b"ARRI\x78\x56\x34\x12" + bytes(5000)
BRAW = (
    b"\0\0\0\x08wide"
    + (1000).to_bytes(4, "big") + b"mdat" + bytes(992)
    + (60).to_bytes(4, "big") + b"moov"
    + (52).to_bytes(4, "big") + b"stsd" + bytes(8) + (36).to_bytes(4, "big") + b"brxq" + bytes(28)
)  # fmt: skip

SCRIPT = """
import os, socket, subprocess, sys, time
source, target, film, outside = sys.argv[1:5]
def copy():
    data = open(film, "rb").read()
    open(target, "wb").write(data)
"""

WORKS = "assert open(source, 'rb').read(8)[4:] == b'RED2'; copy()"


class Bench:
    """A store with a RAW file in it, and decoders written for the occasion."""

    def __init__(self, folder: Path, film: Path) -> None:
        self.folder, self.film = folder, film
        self.outside = folder / "outside.txt"
        self.outside.write_text("secret")
        self.temporary = folder / "temporary"
        self.store = FolderStore(folder / "store")
        self.store.write_bytes("job/source", R3D)

    def config(self, lines: str, **shares: float) -> RawConfig:
        script = self.folder / "decoder.py"
        script.write_text(SCRIPT + lines)
        words = [sys.executable, str(script), "{input}", "{output}", str(self.film)]
        command = shlex.join([*words, str(self.outside)])
        config = RawConfig({"r3d": command}, temporary_folder=self.temporary)
        return replace(config, **shares)  # type: ignore[arg-type]

    def decode(
        self, config: RawConfig, control: FreeRun | None = None, family: str | None = "r3d"
    ) -> str:
        return decoded_source(
            "job/source",
            named_family=family,
            store=self.store,
            config=config,
            control=control or FreeRun(),
        )

    def litter(self) -> list[Path]:
        return list(self.temporary.iterdir()) if self.temporary.exists() else []


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("film"), Sample("film.mov", H264))


@pytest.fixture
def bench(tmp_path: Path, film: Path) -> Bench:
    return Bench(tmp_path, film)


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench) -> object:
    """After every test: no process of a decoder, no temporary file."""
    yield None
    assert bench.litter() == []
    assert processes_naming(str(bench.folder)) == []


def processes_naming(text: str, seconds: float = 60.0) -> list[list[str]]:
    """Command lines that name ``text`` and do not end within ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline", "pid"])
                 if p.info["pid"] != os.getpid()]  # fmt: skip
        found = [line for line in lines if text in " ".join(line)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


@every(
    ("content", "family"),
    [
        pytest.param(R3D, "r3d", id="RED"),
        pytest.param(b"\0\0\0\x40RED1" + bytes(60), "r3d", id="older RED"),
        pytest.param(BRAW, "braw", id="Blackmagic"),
        pytest.param(ARRI, "arri", id="ARRI"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"xxRED2" * 20, None, id="the letters elsewhere"),
        pytest.param(BRAW.replace(b"brxq", b"avc1"), None, id="another QuickTime file"),
        pytest.param(b"\0\0\0\x08wide" * 100, None, id="boxes without end"),
    ],
)
def test_a_family_is_known_by_its_content(
    content: bytes, family: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert family_of(path) == family


def test_an_ordinary_film_is_of_no_family(film: Path) -> None:
    assert family_of(film) is None


@pytest.mark.parametrize("content", [R3D, BRAW, ARRI], ids=["r3d", "braw", "arri"])
def test_media_that_hide_their_family_are_refused_when_probed(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mov"
    path.write_bytes(content)
    with pytest.raises(StageError, match="create the job with a file name that says so") as caught:
        probe(path)
    assert caught.value.code is StageCode.VALIDATION_FAILED


def test_what_is_not_named_raw_is_left_as_it_is(bench: Bench) -> None:
    assert bench.decode(RawConfig(), family=None) == "job/source"


def test_a_decoder_makes_a_video_that_goes_the_way_of_every_other(bench: Bench) -> None:
    key = bench.decode(bench.config(WORKS))
    assert key.startswith("job/source")
    media = probe_source(key, store=bench.store, config=IngestConfig())
    assert media.video is not None
    assert media.duration_seconds == pytest.approx(2.0, abs=0.01)


def test_what_was_decoded_once_is_not_decoded_again(bench: Bench) -> None:
    first = bench.decode(bench.config(WORKS))
    assert bench.decode(bench.config("sys.exit(1)")) == first


def test_the_content_decides_which_familys_decoder_runs(bench: Bench) -> None:
    config = bench.config(WORKS)
    assert bench.decode(config, family="braw") == bench.decode(config)


def test_unknown_content_is_left_to_the_decoder_that_the_name_calls_for(bench: Bench) -> None:
    bench.store.write_bytes("job/source", b"a family's next generation")
    assert bench.decode(bench.config("copy()")) == "job/source-decoded"


def test_the_decoder_sees_the_extension_that_it_expects(bench: Bench) -> None:
    bench.decode(bench.config("assert source.endswith('.R3D'); copy()"))


@pytest.mark.parametrize("family", RAW_FAMILIES)
def test_a_family_without_a_decoder_is_refused(family: str, bench: Bench) -> None:
    contents = {"r3d": R3D, "braw": BRAW, "arri": ARRI}
    bench.store.write_bytes("job/source", contents[family])
    with pytest.raises(StageError, match=f"{family} is not enabled") as caught:
        bench.decode(RawConfig({"other": "x {input} {output}"}), family=family)
    assert caught.value.code is StageCode.VALIDATION_FAILED


FAILURES = {
    "fails": ("sys.exit(3)", {}, "ended with status 3"),
    "is killed": ("os.kill(os.getpid(), 9)", {}, "ended with status 137"),
    "writes nothing": ("pass", {}, "wrote no video"),
    "writes an empty file": ("open(target, 'wb')", {}, "wrote no video"),
    "makes a link to a file of ours": ("os.symlink(outside, target)", {}, "wrote no video"),
    "makes a folder": ("os.mkdir(target)", {}, "wrote no video"),
    "hangs": ("time.sleep(600)", {"seconds": 1.0}, "took longer than 1 s"),
    "hangs with closed outputs": (
        "os.close(1); os.close(2); time.sleep(600)",
        {"seconds": 1.0},
        "took longer than 1 s",
    ),
    "spins and floods its standard error": (
        "\nwhile True: os.write(2, b'x' * 65536)",
        {"seconds": 1.0},
        "took longer than 1 s",
    ),
    "takes much memory": (
        "data = bytearray(900 * 1024 * 1024)",
        {"memory_bytes": 300 * MIB},
        "ended with status 1",
    ),
    "takes much memory in many processes": (
        "\nfor _ in range(6):\n    if not os.fork():\n        x = os.urandom(1 << 20) * 90\n"
        "        time.sleep(600)\ntime.sleep(600)",
        {"memory_bytes": 300 * MIB},
        "took more memory than is allowed",
    ),
    "writes one large file": (
        "f = open(target, 'wb')\nwhile True: f.write(bytes(1 << 20))",
        {"output_bytes": 20 * MIB},
        "decoder for r3d footage (ended with status|wrote more than)",
    ),
    "writes many files": (
        "\nfor n in range(10_000):\n    open(target + str(n), 'wb').write(os.urandom(1 << 20))\n"
        "    time.sleep(0.002)",
        {"output_bytes": 20 * MIB},
        "wrote more than is allowed",
    ),
}


@every(("lines", "shares", "reason"), FAILURES.values(), ids=FAILURES.keys())
def test_a_decoder_that_does_not_do_its_work_fails_the_stage(
    lines: str, shares: dict[str, float], reason: str, bench: Bench
) -> None:
    with pytest.raises(StageError, match=reason) as caught:
        bench.decode(bench.config(lines, **shares))
    assert caught.value.code is StageCode.INGEST_FAILED
    assert list(bench.store.list_keys("job")) == ["job/source"]


def test_a_decoder_that_is_not_there_fails_the_stage(bench: Bench) -> None:
    config = RawConfig({"r3d": "/no/such/decoder {input} {output}"})
    with pytest.raises(StageError, match="could not be started"):
        bench.decode(config)


def test_garbage_from_a_decoder_is_refused_by_the_probe(bench: Bench) -> None:
    key = bench.decode(bench.config("open(target, 'wb').write(b'garbage' * 1000)"))
    with pytest.raises(StageError) as caught:
        probe_source(key, store=bench.store, config=IngestConfig())
    assert caught.value.code is StageCode.VALIDATION_FAILED


def attempts(bench: Bench, lines: str) -> str:
    """What a decoder says of an attempt, through the only thing that it may write."""
    lines = (
        f"\ntry:\n    {lines}\n    said = 'allowed'\n"
        "except OSError as error:\n    said = type(error).__name__\n"
    )
    key = bench.decode(bench.config(lines + "open(target, 'w').write(said)"))
    return bench.store.read_bytes(key).decode()


OUT_OF_REACH: dict[str, str] = {
    "another file of ours": "open(outside.replace('outside.txt', 'store/job/source')).read()",
    "writing beside its folder": "open(os.path.dirname(outside) + '/new', 'w')",
    "writing over its input": "open(source, 'r+b')",
    "the network": "socket.create_connection(('127.0.0.1', 9), 1)",
}


@pytest.mark.parametrize("lines", OUT_OF_REACH.values(), ids=OUT_OF_REACH.keys())
def test_a_decoder_reaches_nothing_but_its_input_and_its_folder(lines: str, bench: Bench) -> None:
    bench.store.write_bytes("other/source", b"somebody else's")
    lines = lines.replace("store/job/source", "store/other/source")
    assert attempts(bench, lines) in ("PermissionError", "OSError")


def test_a_decoder_may_use_programs_of_the_system_and_its_own_folder(bench: Bench) -> None:
    shell = "subprocess.run(['/bin/sh', '-c', 'echo x > \"$TMPDIR/x\"'], check=True)"
    assert attempts(bench, shell) == "allowed"


def test_a_decoder_sees_nothing_of_the_services_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAS_SECRET_KEY", "s3cret")
    key = bench.decode(bench.config("open(target, 'w').write(repr(sorted(os.environ)))"))
    assert "VAS" not in bench.store.read_bytes(key).decode()


CHILDREN = {
    "a child": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', source])",
    "a child of its own session": (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', source],"
        " start_new_session=True)"
    ),
    "an orphan": (
        "\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        "        time.sleep(600)\n    os._exit(0)\nos.wait()"
    ),
}


@pytest.mark.parametrize("lines", CHILDREN.values(), ids=CHILDREN.keys())
def test_what_a_decoder_leaves_running_ends_with_it(lines: str, bench: Bench) -> None:
    assert bench.decode(bench.config(f"{lines}\ncopy()")) == "job/source-decoded"


class StopSoon(FreeRun):
    """A Control that says stop as soon as ``when`` holds."""

    def __init__(self, when: Callable[[], bool]) -> None:
        super().__init__()
        self.when = when

    def check(self) -> None:
        if self.when():
            raise StageStoppedError("job")


@pytest.mark.parametrize("lines", CHILDREN.values(), ids=CHILDREN.keys())
def test_a_cancelled_decoder_ends_with_all_it_started(lines: str, bench: Bench) -> None:
    started = bench.temporary

    def is_running() -> bool:
        return any(started.glob("**/ready"))

    config = bench.config(f"{lines}\nopen(target[:-11] + 'ready', 'w')\ntime.sleep(600)")
    before = threading.active_count()
    with pytest.raises(StageStoppedError):
        bench.decode(config, StopSoon(is_running))
    ends = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < ends:
        time.sleep(0.05)
    assert threading.active_count() <= before


@every("command", ["decode {input}", "decode {output}", "decode", "a '{input}"])
def test_a_command_that_cannot_work_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"does not contain|quotation"):
        command_words(command)


def test_a_command_is_split_as_a_shell_would_but_no_shell_runs_it(bench: Bench) -> None:
    config = bench.config("assert '; touch x' in sys.argv; copy()")
    quoted = config.decoders["r3d"] + " '; touch x'"
    assert bench.decode(replace(config, decoders={"r3d": quoted})) == "job/source-decoded"
