"""What the probe's tests share: a spool of their own, children, and reading what arrived."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from badput.parts import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 60.0
LAUNCHER_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "BADPUT_DIR", "BADPUT_DISABLE", "BADPUT_STRICT",
    "BADPUT_JOB_ID", "BADPUT_ATTEMPT", "BADPUT_AUTO", "BADPUT_LAUNCHER", "BADPUT_PYTHON",
    "TORCHELASTIC_RUN_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_PROCID", "PYTHONPATH",
    "KUBERNETES_SERVICE_HOST",
)  # fmt: skip


class Box:
    """A run folder and a spool root for one test."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.spool = spool
        self.env = {**os.environ, "BADPUT_SPOOL": str(self.spool), "RUN": str(self.run)}

    def start(self, code: str, **more: Any) -> subprocess.Popen[str]:
        """Start a child that runs ``code``."""
        env = {**self.env, **more.pop("env", {})}
        return subprocess.Popen([sys.executable, "-c", code], env=env, text=True, **more)

    def run_child(self, code: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a child to its end."""
        env = {**self.env, **more.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            text=True,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
            **more,
        )

    def books(self) -> dict[str, Any]:
        """What `badput report` says of the run, which `badput fsck` must find in order."""
        badput = [sys.executable, "-m", "badput.cli"]
        for command in (["fsck", str(self.run)], ["report", str(self.run), "--json"]):
            done = subprocess.run(
                [*badput, *command], text=True, capture_output=True, check=False, env=self.env
            )
            assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, by process and number. Every part must be readable."""
        rows = read_rows(self.run, table)
        return sorted(rows, key=lambda r: (r.get("process_id", 0), r.get("seq", 0)))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind, with their attributes decoded."""
        rows = [r for r in self.rows("events") if r["kind"] == kind]
        return [{**r, "attrs": json.loads(r["attrs"])} for r in rows]

    def ends(self, count: int = 1) -> list[dict[str, Any]]:
        """The end events, once there are ``count`` and their spools are gone."""
        wait_until(
            lambda: len(self.events("end")) >= count and not self.spools(),
            f"{count} processes to end in Parquet",
        )
        return self.events("end")

    def spools(self) -> list[Path]:
        """Spools of this run that still wait."""
        found: list[Path] = []
        for path in self.spool.glob("?" * 16):
            with contextlib.suppress(OSError):
                if json.loads((path / "facts.json").read_text())["run"] == str(self.run):
                    found.append(path)
        return found

    def collectors(self) -> list[int]:
        """Pids of collectors of this spool root that are alive."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"badput.collector" in words and os.fsencode(self.spool) in words:
                    found.append(int(entry.name))
        return found

    def log(self) -> str:
        """The collector's log."""
        return (self.spool / "collector.log").read_text()

    def kill_collectors(self) -> None:
        """Kill the collectors that this test started, and wait until nothing of them is left."""
        for pid in self.collectors():
            with contextlib.suppress(ProcessLookupError):
                # The command line goes before the last thread does, and the locks with that.
                fd = os.pidfd_open(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                    select.select([fd], [], [], DEADLINE_S)
                finally:
                    os.close(fd)
        wait_until(lambda: not self.collectors(), "collectors to die")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds; fail after a generous while."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(0.05)


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[[Callable[[], bool], str], None]:
    return wait_until


@pytest.fixture(scope="module")
def shared_spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One spool root, and so one collector, for the tests of a module that do not harm it."""
    folder = tmp_path_factory.mktemp("shared")
    yield folder / "spool"
    Box(folder, folder / "spool").kill_collectors()


@pytest.fixture
def box(shared_spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A run folder; errors of the probe fail the test unless it says otherwise."""
    return _box(Box(tmp_path, shared_spool), monkeypatch)


@pytest.fixture
def own_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A run folder with a spool root and a collector of its own, which may be killed."""
    made = _box(Box(tmp_path, tmp_path / "spool"), monkeypatch)
    yield made
    made.kill_collectors()


def _box(made: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        made.env.pop(name, None)
    monkeypatch.setenv("BADPUT_SPOOL", str(made.spool))
    monkeypatch.setenv("BADPUT_STRICT", "1")
    made.env["BADPUT_STRICT"] = "1"
    return made


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="badput-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class FakeGpus:
    """What the stand-in for NVML says; fake_nvml.c tells the language of ``lines``."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._script = folder / "gpus.txt"
        self._calls = folder / "calls.txt"
        self.env = {
            "FAKE_NVML": str(self._script),
            "FAKE_NVML_CALLS": str(self._calls),
            "LD_LIBRARY_PATH": str(library.parent),
        }
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        """Add directives; they hold from now on."""
        self.lines += lines
        fresh = self._script.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in self.lines))
        fresh.replace(self._script)

    def calls(self, gpu: int | None = None) -> list[str]:
        """The calls so far, or those about one GPU (-1: about none)."""
        try:
            rows = [line.split() for line in self._calls.read_text().splitlines()]
        except FileNotFoundError:
            return []
        return [call for _, number, call in rows if gpu is None or int(number) == gpu]

    @staticmethod
    def uuid(gpu: int) -> str:
        """The UUID of a GPU unless the script says otherwise."""
        return f"GPU-{gpu:08d}-0000-0000-0000-000000000000"


@pytest.fixture(scope="session")
def fake_nvml_library(gcc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnvidia-ml.so.1 that does as a script says."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).resolve().parents[1] / "fake_nvml" / "fake_nvml.c"
    command = [gcc, "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def fake_gpus(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpus]:
    """GPUs for this process and for children that get ``env``."""
    import ctypes

    import pynvml

    made = FakeGpus(tmp_path, fake_nvml_library)
    for name in ("FAKE_NVML", "FAKE_NVML_CALLS"):
        monkeypatch.setenv(name, made.env[name])
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    library = ctypes.CDLL(str(fake_nvml_library))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    yield made
    library.nvmlShutdown()
