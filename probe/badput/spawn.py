# No pathlib: the training process imports this, and pathlib is slow to import.
# ruff: noqa: PTH100, PTH120
"""Starting the collector: a process of its own that outlives ranks and launcher."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

from badput import identity
from badput.files import create
from badput.layout import FORMAT_VERSION
from badput.spool import above_standard, open_root

LOG_LIMIT = 1 << 20


def lock_name() -> str:
    """Name of the lock file: one collector for each format, boot, pid namespace and spool root."""
    boot = (identity.boot_id() or "unknown")[:13]
    space = (identity.pid_namespace() or "unknown").strip("pid:[]")
    return f"collector-v{FORMAT_VERSION}-{boot}-{space}.lock"


def try_lock(root_fd: int) -> int | None:
    """A descriptor that holds the collector's lock, or None if a collector has it."""
    fd = create(lock_name(), os.O_RDWR | os.O_CREAT, root_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def ensure_collector(root: str) -> bool:
    """Start a collector for the spools below ``root`` unless one runs; True if started.

    The lock is taken here and handed to the new process, so that of many ranks exactly one
    starts a collector. A shell in between puts it into the background: it becomes no child
    of the training process, whose own waitpid() must not meet a stranger.
    """
    python = os.environ.get("BADPUT_PYTHON")  # of `badput run`: ours may lack what it needs
    if not python or not os.access(python, os.X_OK):
        python = sys.executable
        if not python or getattr(sys, "frozen", False):  # it would start the program again
            raise OSError("no Python to start the collector with; use `badput collect` afterwards")
    with above_standard():
        return _ensure_collector(root, python)


def _ensure_collector(root: str, python: str) -> bool:
    root_fd = open_root(root)
    lock: int | None = None
    log: int | None = None
    try:
        lock = try_lock(root_fd)
        if lock is None:
            return False
        log = _open_log(root_fd)
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), package) if p)
        command = [python, "-P", "-m", "badput.collector", root, "--lock-fd", str(lock)]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path, "BADPUT_AUTO": ""},
            pass_fds=(lock,),
            start_new_session=True,
            check=True,
            timeout=5,
        )
        return True
    finally:
        for fd in (root_fd, lock, log):
            if fd is not None:
                os.close(fd)


def _open_log(root_fd: int) -> int:
    fd = create("collector.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, root_fd)
    if os.fstat(fd).st_size > LOG_LIMIT:
        os.ftruncate(fd, 0)
    return fd
