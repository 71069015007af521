"""The guard: nothing that goes wrong in the probe reaches the training program.

Every entry point catches its own errors and hands them to ``fail``, which counts, says it
once for each kind and, after MAX_FAILURES, switches the probe off. With BADPUT_STRICT=1
(tests) ``fail`` raises instead.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import get_ident
from typing import cast

from badput.neutral import neutral

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

MAX_FAILURES = 16
"""Failures of all kinds after which the probe gives up."""

# No public way to ask.
_frames = sys._current_frames  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
_counts: dict[str, int] = {}
_said: set[str] = set()
_switch_off: Callable[[], None] | None = None


def on_switch_off(action: Callable[[], None]) -> None:
    """Name the action that disconnects the recorder from the public functions."""
    global _switch_off  # noqa: PLW0603 - one probe a process
    _switch_off = action


def reset() -> None:
    """Forget failures: a new incarnation starts with a clean slate."""
    _counts.clear()
    _said.clear()


def counts() -> dict[str, int]:
    """Failures so far, by kind."""
    return dict(_counts)


def runs_elsewhere(file: str) -> bool:
    """Is another thread inside a function of the module ``file``? Slow: for rare doubts."""
    me = get_ident()
    for thread, frame in _frames().items():
        at = None if thread == me else frame
        while at is not None:
            if at.f_code.co_filename == file:
                return True
            at = at.f_back
    return False


def fail(kind: str, error: BaseException) -> None:
    """Count a failure of ours and swallow it; raises only when it is not ours to swallow.

    Not ours: BADPUT_STRICT=1, and what ``foreign`` says.
    """
    if os.environ.get("BADPUT_STRICT") == "1" or foreign(error):
        try:
            raise error
        finally:
            del error  # else error, traceback, this frame and error again hold each other alive
    _counts[kind] = _counts.get(kind, 0) + 1
    say(kind, f"{kind} failed ({type(error).__name__}: {error}); training is not affected")
    if sum(_counts.values()) >= MAX_FAILURES and _switch_off is not None:
        say("off", f"recording is off after {MAX_FAILURES} failures; training is not affected")
        _switch_off()


def say(kind: str, text: str) -> None:
    """Tell the user one line, once for each kind: by logging if the program uses it."""
    if kind in _said:
        return
    _said.add(kind)
    text = neutral(text)
    try:
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("badput").warning("badput: %s", text)
        else:
            sys.stderr.write(f"badput: {text}\n")
    except Exception as error:  # a broken log handler or closed stderr is not our affair
        if foreign(error):
            raise


def cannot_write(control: Any, run: str) -> None:
    """Say, once, that the collector cannot write into ``run``, if the control page says so."""
    from badput import layout as lo

    number = lo.STATE.unpack_from(control, lo.STATE_AT)[0]
    if number:
        say("run folder", f"{run} cannot be written ({os.strerror(number)}); its records wait")


def foreign(error: BaseException) -> bool:
    """True if the program's own code raised ``error`` while ours happened to run.

    Its signal handler did, or another thread threw it into this one (what tools that limit
    the time of a call do), or it is no ``Exception``, like KeyboardInterrupt.
    """
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    frame: FrameType | None = None
    while trace is not None:
        caller, frame = frame, trace.tb_frame
        if caller is not None and _handles_signal(frame, caller):
            return True
        trace = trace.tb_next
    # Thrown in: our own line raised what neither we nor Python's own code know of.
    home = type(error).__module__.partition(".")[0]
    place = "" if frame is None else str(frame.f_globals.get("__name__"))
    known = home in sys.stdlib_module_names or home in ("builtins", "badput")
    return place.partition(".")[0] == "badput" and not known


def _handles_signal(frame: FrameType, caller: FrameType) -> bool:
    """A signal handler is the one function that is given the frame that it interrupted.

    Not asked is whether it is the handler of a signal now: it may have set another one.
    """
    given: list[object] = list(frame.f_locals.values())
    for value in given:
        if isinstance(value, tuple):  # *args
            given.extend(cast("tuple[object, ...]", value))
        if value is caller:
            return True
    code = frame.f_code
    return any(
        getattr(signal.getsignal(number), "__code__", None) is code
        for number in signal.valid_signals()
    )
