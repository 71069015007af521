# No pathlib: the training process imports this, if asked to, and pathlib is slow to import.
# ruff: noqa: PTH118
"""The rank's side of the hang watch: what its environment asks for, and Python stacks.

BADPUT_STACKS=1: ``faulthandler`` writes the stacks of all threads into the spool folder when the
state slot has not moved for most of BADPUT_HANG_S, even while the interpreter lock is held. A
re-arm costs some 50 us and cancels a timer of the program's own, so it is done at most once each
quarter of the timeout, by a thread of ours. BADPUT_PTRACE=1: the collector, and so py-spy as its
child, may look into this process where the kernel asks for that (Yama).
"""

from __future__ import annotations

import os
import threading

from badput import layout as lo
from badput.files import open_file, read_text
from badput.guard import fail, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from badput.recorder import Recorder

HANG_S = 600.0
"""Default of BADPUT_HANG_S: no hang in a step before that."""
FILE = "stacks.txt"
PID_FILE = "collector.pid"
_SHARE = 0.7
"""Share of BADPUT_HANG_S after which stacks are dumped: they are there when the hang is told."""
_MAX_PERIOD_S = 60.0
_LONGEST_S = 1e9
_FILE_LIMIT = 1 << 20
_PR_SET_PTRACER = 0x59616D61

_stop: threading.Event | None = None


def settings() -> dict[str, Any]:
    """What this process's environment says about hangs, for its facts."""
    found: dict[str, Any] = {}
    for key, name in (("hang_s", "BADPUT_HANG_S"), ("slow_s", "BADPUT_HANG_SLOW_S")):
        given = os.environ.get(name, "").strip()
        try:
            seconds = float(given or "nan")
        except ValueError:
            seconds = -1.0
        if 0 <= seconds < _LONGEST_S:
            found[key] = seconds
        elif given:
            what = f"{name}={given[:80]!r} is no number of seconds from 0 up"
            say(f"variable {name}", f"{what}; the default is used")
    for key, name in (("stacks", "BADPUT_STACKS"), ("ptrace", "BADPUT_PTRACE")):
        if os.environ.get(name) == "1":
            found[key] = True
    return found


def start(recorder: Recorder, root: str) -> None:
    """Begin to keep stacks for this process, as its environment asks."""
    global _stop  # noqa: PLW0603 - one probe a process
    wants = settings()
    _stop = event = threading.Event()
    file = None
    if wants.get("stacks"):
        path = os.path.join(recorder.spool.path, FILE)
        file = os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b")
    timeout = max(0.05, _SHARE * (float(wants.get("hang_s", HANG_S)) or HANG_S))
    args = (recorder, event, file, timeout, root if wants.get("ptrace") else None)
    threading.Thread(target=_run, args=args, name="badput-stacks", daemon=True).start()


def stop() -> None:
    """Stop keeping stacks."""
    if _stop is not None:
        _stop.set()


def _run(
    recorder: Recorder,
    event: threading.Event,
    file: IO[bytes] | None,
    timeout: float,
    root: str | None,
) -> None:
    import faulthandler

    seen, allowed = (-1, -1), 0
    period = min(timeout / 4, _MAX_PERIOD_S)
    try:
        while True:
            slots = _slots(recorder)
            if file is not None and slots != seen:
                seen = slots
                _clear(file)
                faulthandler.dump_traceback_later(timeout, repeat=True, file=file)
            elif file is not None and os.fstat(file.fileno()).st_size > _FILE_LIMIT:
                _clear(file)
            if root is not None:
                allowed = _allow(root, allowed)
            if event.wait(period) or recorder.spool.closed or recorder.owner == 0:
                return
    except Exception as error:  # noqa: BLE001 - guard
        fail("stacks", error)
    finally:
        if file is not None:
            faulthandler.cancel_dump_traceback_later()
            file.close()


def _slots(recorder: Recorder) -> tuple[int, int]:
    state = recorder.spool.state
    return state[lo.SLOT_WORD], state[lo.SLOT_WORD ^ lo.SLOT_TURN]


def _clear(file: IO[bytes]) -> None:
    os.ftruncate(file.fileno(), 0)
    os.lseek(file.fileno(), 0, os.SEEK_SET)


def _allow(root: str, allowed: int) -> int:
    """Let the collector and its children trace this process; the pid that was let."""
    try:
        pid = int(read_text(os.path.join(root, PID_FILE)))
    except (OSError, ValueError):
        return allowed
    if pid == allowed or pid < 2:
        return allowed
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    return pid
