"""What the kernel says of a process that does not move: cheap reads of /proc, no ptrace."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from badput.watch import stat_fields

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting in the kernel, usually for a disk or a driver",
    "T": "stopped by a signal (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "its main thread has ended",
    "I": "idle",
}
_THREADS = 512
"""Threads looked at, at most."""


def cpu_ns(pid: int) -> int | None:
    """CPU time that the process has used, ns; None if it cannot be known."""
    fields = stat_fields(pid)
    if len(fields) < 13:
        return None
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def frozen(pid: int) -> bool:
    """True if the process's control group (version 2) is frozen, as by ``docker pause``."""
    with contextlib.suppress(OSError, ValueError):
        for line in _text(f"/proc/{pid}/cgroup").splitlines():
            if line.startswith("0::"):
                path = "/sys/fs/cgroup" + line[3:].strip()
                return "frozen 1" in _text(f"{path}/cgroup.events")
    return False


def look(pid: int) -> dict[str, Any]:
    """State of the process: ``state``, ``state_text``, ``wchan``, ``threads`` by state."""
    fields = stat_fields(pid)
    if not fields:
        return {}
    found: dict[str, Any] = {"state": fields[0], "state_text": STATES.get(fields[0], fields[0])}
    if frozen(pid):
        found |= {"state": "frozen", "state_text": "frozen by its control group"}
    with contextlib.suppress(OSError):
        wchan = _text(f"/proc/{pid}/wchan").strip()
        if wchan not in ("", "0"):
            found["wchan"] = wchan[:80]
    with contextlib.suppress(OSError):  # for root alone
        lines = _text(f"/proc/{pid}/stack").splitlines()[:16]
        found["kernel_stack"] = [line.rpartition("] ")[2].partition("+")[0] for line in lines]
    threads: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(f"/proc/{pid}/task"))[:_THREADS]:  # noqa: PTH208
            state = (stat_fields_of(pid, task) or ["?"])[0]
            threads[state] = threads.get(state, 0) + 1
    return {**found, "threads": threads}


def stat_fields_of(pid: int, task: str) -> list[str]:
    """Fields of a thread's stat from the state on."""
    with contextlib.suppress(OSError):
        return _text(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()
    return []


def stopped(found: dict[str, Any]) -> bool:
    """True if somebody stopped the process: it cannot move until let go."""
    return found.get("state") in ("T", "t", "frozen")


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
