"""The checks of `badput doctor`: each is a function that gives findings and never raises."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput import environment, identity
from badput import layout as lo
from badput.on_event import command_of
from badput.parts import read_rows
from badput.spool import SpoolError, default_root, file_system, open_root
from badput.stack_reader import find_spy
from badput.stacks import PID_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIN_FREE = 2 * lo.MAX_SEGMENTS * lo.SEGMENT_SIZE
"""Free bytes below which a spool may not find room: two ranks that nobody drains."""
SELF_TEST_S = 60.0
_TEST = """
import badput, os, time
badput.init(os.environ["RUN"])
for number in range(100):
    with badput.step(tokens=1):
        pass
print("done", flush=True)
time.sleep(600)
"""


_ASK_NVML = """
import os
from badput.nvml import NoAnswerError, Nvml, describe_absence
try:
    nvml = Nvml()
    print(f"{len(nvml.devices())} GPUs by {nvml.library}, driver {nvml.driver}")
except NoAnswerError as error:
    raise SystemExit(describe_absence(error.reason, os.environ))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``level`` is ok, warn or fail."""

    level: str
    name: str
    text: str
    todo: str = ""

    def row(self) -> dict[str, str]:
        """As JSON holds it."""
        return asdict(self)


def all_checks(run: str | None, *, self_test: bool) -> Iterator[Finding]:
    """Every finding, in the order in which they are shown."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python, _root, _primitives, _pidfd, _collector, _on_event, _left_behind, _clock,
        _container, _shm, _stacks, _packages, _nvml,
    ]  # fmt: skip
    if run is not None:
        checks.append(lambda: _run_folder(Path(run)))
    if self_test:
        checks.append(_self_test)
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - a check that fails says nothing of the others
            yield Finding("warn", getattr(check, "__name__", "check").strip("_"),
                          f"could not be checked ({type(error).__name__}: {error})")  # fmt: skip


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _python() -> Iterator[Finding]:
    kernel = f"{platform.system()} kernel {os.uname().release}"
    text = f"{platform.python_version()} at {sys.executable}, {kernel}"
    if sys.platform != "linux":
        yield Finding("fail", "python", text, "the probe needs Linux")
    else:
        yield Finding("ok", "python", text)
    for _, text in environment.problems():
        yield Finding("warn", "environment", text, "correct or unset it")
    if os.environ.get("BADPUT_DISABLE") == "1":
        yield Finding("warn", "environment", "BADPUT_DISABLE=1: nothing is recorded", "unset it")


def _root() -> Iterator[Finding]:
    root = default_root()
    try:
        os.close(open_root(root))
    except (SpoolError, OSError) as error:
        yield Finding("fail", "spool", str(error), "set BADPUT_SPOOL to a folder on a local disk")
        return
    kind, free = file_system(root), shutil.disk_usage(root).free
    text = f"{root} on {kind or 'an unknown file system'}, {_size(free)} free"
    if free < MIN_FREE:
        yield Finding("warn", "spool", text, "free some space, or set BADPUT_SPOOL elsewhere")
    elif kind in ("tmpfs", "ramfs"):
        todo = "it counts against the memory limit and goes with the container: BADPUT_SPOOL"
        yield Finding("warn", "spool", text, todo)
    else:
        yield Finding("ok", "spool", text)


def _primitives() -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(dir=default_root(), prefix="doctor-") as folder:
        fd = os.open(Path(folder) / "file", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, lo.SEGMENT_SIZE)
            with mmap.mmap(fd, lo.SEGMENT_SIZE) as area:
                area[0] = 1
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = f"space cannot be reserved, mapped and locked there: {error.strerror}"
            yield Finding("fail", "files", text, "set BADPUT_SPOOL to a folder on ext4 or xfs")
            return
        finally:
            os.close(fd)
    yield Finding("ok", "files", "posix_fallocate, mmap, flock and record locks work there")


def _pidfd() -> Iterator[Finding]:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        text = "no pidfd: death is seen by the lock alone, how a rank ended stays unknown"
        yield Finding("warn", "pidfd", text, "Linux 5.3 or newer")
        return
    release = tuple(int(x) for x in platform.release().split("-")[0].split(".")[:2])
    if release >= (6, 15):
        yield Finding("ok", "pidfd", "how a rank ended is known (PIDFD_GET_INFO)")
    else:
        text = "how a rank ended is known only while it is a zombie"
        yield Finding("warn", "pidfd", text, "Linux 6.15 or newer tells it always")


def _collector() -> Iterator[Finding]:
    root = Path(default_root())
    running = False
    for path in root.glob("collector-v*.lock"):
        with contextlib.suppress(OSError), open(path, "rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                running = True
    lines = _text(str(root / "collector.log")).splitlines()
    signs = ("cannot", "failed", "given up", "left alone", "is off", "rror")
    bad = [line for line in lines if any(sign in line for sign in signs)]
    text = "one runs" if running else "none runs now; the next init starts one"
    if bad:
        yield Finding("warn", "collector", f"{text}; last complaint: {bad[-1][:200]}",
                      f"see {root / 'collector.log'}")  # fmt: skip
    else:
        yield Finding("ok", "collector", text)


def _on_event() -> Iterator[Finding]:
    said = command_of(Path(default_root()))
    mine = os.environ.get("BADPUT_ON_EVENT")
    if said is None:
        text = (
            f"{mine} is set here, for a collector that begins here" if mine else "none is set here"
        )
        yield Finding("ok", "on event", f"no collector runs; {text}")
    elif said["command"] is None and mine:
        text = "BADPUT_ON_EVENT is set here, but the collector that runs was started without it"
        yield Finding("warn", "on event", text, "it begins anew when no rank is left on the node")
    elif said["command"] is None:
        yield Finding("ok", "on event", "the collector that runs has no command for events")
    else:
        text = f"{said['command']} on {', '.join(said['on'])} (the collector's own setting)"
        if said["last_code"]:
            text += f"; the last time it ended with code {said['last_code']}"
            yield Finding("warn", "on event", text, "its output is in the collector's log")
        else:
            yield Finding("ok", "on event", text)


def _left_behind() -> Iterator[Finding]:
    from badput.live import live, spool_folders

    root = Path(default_root())
    found = live(root)
    dead = [x for x in found if not x.alive]
    odd = len(spool_folders(root)) - len(found)
    if dead or odd:
        text = f"{len(dead)} spools of dead processes" + (f", {odd} unreadable" if odd else "")
        yield Finding("warn", "spools", text, f"badput collect {root}")
    else:
        yield Finding("ok", "spools", f"{len(found)} of living processes, none left behind")


def _clock() -> Iterator[Finding]:
    source = _text("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    synced = Path("/run/systemd/timesync/synchronized").exists()
    text = f"clock source {source}; wall clock " + ("synchronised" if synced else "sync unknown")
    if source in ("tsc", "kvm-clock", "arch_sys_counter", "unknown", "hyperv_clocksource_tsc_page"):
        yield Finding("ok", "clock", text)
    else:
        yield Finding("warn", "clock", text, "reading it may be slow, and so each step's record")


def _container() -> Iterator[Finding]:
    inside = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    inside = inside or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    limits = [_text("/sys/fs/cgroup/memory.max"),
              _text("/sys/fs/cgroup/memory/memory.limit_in_bytes")]  # fmt: skip
    known = [int(t) for t in limits if t.isdigit() and int(t) < 1 << 60]
    limit = f"memory limit {_size(min(known))}" if known else "no memory limit seen"
    where = "in a container" if inside else "no container seen"
    space = identity.pid_namespace() or "pid namespace unknown"
    yield Finding("ok", "container", f"{where}, {space}, {limit}")
    if inside:
        todo = f"keep {default_root()} on a volume, or `badput collect` before the container goes"
        yield Finding("warn", "container", "what is in no Parquet yet goes with it", todo)


def _shm() -> Iterator[Finding]:
    with contextlib.suppress(OSError):
        use = shutil.disk_usage("/dev/shm")  # noqa: S108 - looked at only
        level = "ok" if use.total > 512 << 20 else "warn"
        todo = "" if level == "ok" else "DataLoader workers need more: --shm-size or an emptyDir"
        yield Finding(level, "shared memory", f"{_size(use.total)}, {_size(use.free)} free", todo)


def _stacks() -> Iterator[Finding]:
    scope = _text("/proc/sys/kernel/yama/ptrace_scope")
    means = {"": "no Yama", "0": "ptrace allowed", "1": "ptrace needs BADPUT_PTRACE=1",
             "2": "ptrace for root alone", "3": "no ptrace at all"}  # fmt: skip
    text = f"{means.get(scope, scope)}; faulthandler works with BADPUT_STACKS=1"
    spy = find_spy()
    if spy is None:
        yield Finding("ok", "stacks", f"{text}; no py-spy", "pip install py-spy")
    else:
        yield Finding("ok", "stacks", f"{text}; py-spy at {spy}")


def _packages() -> Iterator[Finding]:
    for name, need in (("pyarrow", True), ("psutil", False), ("torch", False), ("duckdb", False)):
        try:
            yield Finding("ok", name, version(name))
        except PackageNotFoundError:
            todo = {
                "pyarrow": "pip install badput",
                "psutil": "pip install badput; without it no host telemetry",
                "torch": "",
                "duckdb": "pip install 'badput[ledger]', for report and goodput on this machine",
            }[name]
            yield Finding("fail" if need else "ok", name, "not installed", todo)


def _nvml() -> Iterator[Finding]:
    names: list[str] = []
    for name in ("nvidia-ml-py", "pynvml"):
        with contextlib.suppress(PackageNotFoundError):
            names.append(f"{name} {version(name)}")
    if len(names) > 1:
        yield Finding("warn", "nvml", f"{' and '.join(names)} are both installed",
                      "pip uninstall pynvml: it hides the vendor's own")  # fmt: skip
    # In a child: a driver may never answer.
    done = subprocess.run(
        [sys.executable, "-c", _ASK_NVML], capture_output=True, text=True, timeout=30, check=False
    )
    who = ", ".join(names) or "no NVML binding"
    found = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode == 0:
        yield Finding("ok", "nvml", f"{who}; {found}")
        return
    device = Path("/dev/nvidiactl").exists()
    yield Finding("warn" if device else "ok", "nvml",
                  f"{who}; no GPU telemetry: {found[:160] or 'no answer'}",
                  "see `nvidia-smi`: driver and library must fit" if device else "")  # fmt: skip


def _run_folder(run: Path) -> Iterator[Finding]:
    kind = file_system(str(run)) or "an unknown file system"
    made = [folder for folder in (run, *run.parents) if not folder.exists()]
    try:
        run.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=run, prefix=".doctor-") as folder:
            one = Path(folder) / "one"
            began = time.monotonic()
            with open(one, "wb") as handle:
                handle.write(b"x" * 4096)
                handle.flush()
                os.fsync(handle.fileno())
            one.replace(Path(folder) / "two")
            took = (time.monotonic() - began) * 1000
    except OSError as error:
        text = f"{run} on {kind} cannot be written: {error.strerror}"
        yield Finding("fail", "run folder", text, "what is recorded waits in the spool meanwhile")
        return
    free = _size(shutil.disk_usage(run).free)
    text = f"{run} on {kind}: write, fsync and rename take {took:.1f} ms; {free} free"
    if made:
        text += "; it does not exist yet, training makes it"
        with contextlib.suppress(OSError):  # somebody uses one by now
            for folder in made:
                folder.rmdir()
    yield Finding("ok", "run folder", text)


def _self_test() -> Iterator[Finding]:
    """100 steps in a child that is then killed, with a collector and a run folder of their own."""
    with tempfile.TemporaryDirectory(dir=default_root(), prefix="doctor-") as folder:
        run, root = Path(folder) / "run", Path(folder) / "spool"
        env = {k: v for k, v in os.environ.items() if not k.startswith("BADPUT_")}
        env |= {"RUN": str(run), "BADPUT_SPOOL": str(root), "BADPUT_STACKS": "0"}
        child = subprocess.Popen(
            [sys.executable, "-c", _TEST], env=env, text=True, cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            if child.stdout is None or child.stdout.readline() != "done\n":
                child.kill()
                yield Finding(
                    "fail", "self test", f"the child failed: {child.communicate()[1][-300:]}"
                )
                return
            began = time.monotonic()
            seen = _wait_for(lambda: len(read_rows(run, "steps")) == 100)
            child.send_signal(signal.SIGKILL)
            child.wait()
            ends = _wait_for(lambda: any(r["kind"] == "end" for r in read_rows(run, "events")))
        finally:
            child.kill()
            child.communicate()
            _end_collector(root)
        log = _text(str(root / "collector.log")).splitlines()
        if not (seen and ends):
            why = log[-1] if log else "no collector was started"
            yield Finding("fail", "self test", f"100 steps did not arrive in Parquet: {why[:300]}",
                          "BADPUT_COLLECTOR=thread, where no process may be started")  # fmt: skip
            return
        (end,) = [r for r in read_rows(run, "events") if r["kind"] == "end"]
        attrs: dict[str, Any] = json.loads(end["attrs"])
        text = f"100 steps of a killed process are in Parquet ({time.monotonic() - began:.1f} s)"
        yield Finding("ok", "self test", f"{text}; its end: {attrs['reason']}")


def _end_collector(root: Path) -> None:
    """End the collector of the self test, which would still write into its folder."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(_text(str(root / PID_FILE)))
        os.kill(pid, signal.SIGTERM)
        _wait_for(lambda: not Path(f"/proc/{pid}").exists())


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SELF_TEST_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if condition():
                return True
        time.sleep(0.1)
    return False
