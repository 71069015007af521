"""The guard: nothing that goes wrong in the probe reaches the training program.

Every entry point catches its own errors and hands them to ``fail``, which counts, says it
once for each kind and, after MAX_FAILURES, switches the probe off. With BADPUT_STRICT=1
(tests) ``fail`` raises instead.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MAX_FAILURES = 16
"""Failures of all kinds after which the probe gives up."""

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


def fail(kind: str, error: BaseException) -> None:
    """Count a failure of ours and swallow it; raises only when it is not ours to swallow.

    Not ours: BADPUT_STRICT=1, and an exception that the user's own signal handler raised
    while our code happened to run.
    """
    if os.environ.get("BADPUT_STRICT") == "1" or _from_signal_handler(error.__traceback__):
        raise error
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
    try:
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("badput").warning("badput: %s", text)
        else:
            sys.stderr.write(f"badput: {text}\n")
    except Exception:  # noqa: BLE001 - a broken log handler or closed stderr is not our affair
        return


def _from_signal_handler(trace: TracebackType | None) -> bool:
    codes: list[object] = []
    while trace is not None:
        codes.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    for number in signal.valid_signals():
        code = getattr(signal.getsignal(number), "__code__", None)
        if code is not None and code in codes:
            return True
    return False
