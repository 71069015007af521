"""Python stacks of a hung process: from the file that faulthandler wrote, or from py-spy.

Kept are the names of functions, base names of files and line numbers; no source text, no locals.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from badput.files import open_file
from badput.stacks import FILE

MAX_THREADS, MAX_FRAMES = 16, 32
_MAX_BYTES = 256 << 10
_SPY_S = 15.0
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_SPY_THREAD = re.compile(r"^Thread (?:0x)?([0-9A-Fa-f]+) \((\w+)\)(?:: \"(.*)\")?")
_SPY_FRAME = re.compile(r"^    (\S.*) \((.*?)(?::(\d+))?\)$")

Threads = list[dict[str, Any]]


def last_dump(spool: Path) -> Threads:
    """Stacks of the last dump in the spool's file; empty if there is none."""
    with contextlib.suppress(OSError):
        fd = open_file(spool / FILE, os.O_RDONLY)
        with os.fdopen(fd, "rb") as handle:
            handle.seek(max(0, os.fstat(fd).st_size - _MAX_BYTES))
            return parse_dump(handle.read().decode(errors="replace"))
    return []


def parse_dump(text: str) -> Threads:
    """The threads of the last dump in what faulthandler wrote."""
    threads: Threads = []
    for line in text.rpartition("Timeout (")[2].splitlines():
        if found := _THREAD.match(line):
            threads.append({"thread": found[1], "frames": []})
        elif threads and (found := _FRAME.match(line)):
            _add(threads[-1], found[3], found[1], found[2])
    return _foreign(threads)


def parse_spy(text: str) -> Threads:
    """The threads of what ``py-spy dump`` printed."""
    threads: Threads = []
    for line in text.splitlines():
        if found := _SPY_THREAD.match(line):
            threads.append({"thread": found[3] or found[1], "state": found[2], "frames": []})
        elif threads and (found := _SPY_FRAME.match(line)):
            _add(threads[-1], found[1], found[2], found[3] or "?")
    return _foreign(threads)


def _foreign(threads: Threads) -> Threads:
    """Without our own thread, which keeps the stacks."""
    return [t for t in threads if not any(f.startswith("_run stacks.py:") for f in t["frames"])][
        :MAX_THREADS
    ]


def _add(thread: dict[str, Any], function: str, path: str, line: str) -> None:
    frames: list[str] = thread["frames"]
    if len(frames) < MAX_FRAMES:
        frames.append(f"{function[:100]} {path.rpartition('/')[2][:100]}:{line}")


def find_spy() -> str | None:
    """Path of py-spy, if it is installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


class Spy:
    """One run of py-spy on a process that allowed it; never waited for."""

    def __init__(self, program: str, pid: int) -> None:
        """Start it. Raises OSError."""
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by result
        self._until = time.monotonic() + _SPY_S
        self._child = subprocess.Popen(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    def done(self) -> bool:
        """True once there is a result; one that takes too long is killed."""
        if self._child.poll() is not None:
            return True
        if time.monotonic() > self._until:
            self._child.kill()
            self._child.wait()
            return True
        return False

    def result(self) -> Threads:
        """What it found; empty if nothing."""
        with self._out as out:
            out.seek(0)
            return parse_spy(out.read(_MAX_BYTES).decode(errors="replace"))
