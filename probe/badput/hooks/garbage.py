"""Pauses of Python's garbage collector: inside a step they are overhead."""

from __future__ import annotations

import gc

from badput import clock
from badput.hooks.base import Hook, guarded, mine
from badput.recorder import CATEGORY
from badput.steps import MORE, OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONG_NS = 1_000_000
"""Shorter collections are not worth telling apart from the step."""
_OVERHEAD = CATEGORY["overhead"]
_now = clock.mono
_since = 0


def _collected(phase: str, _info: dict[str, int]) -> None:
    global _since  # noqa: PLW0603 - only one collection runs at a time
    if phase == "start":
        _since = _now()
    elif _now() - _since > _LONG_NS:
        _long_pause(_now() - _since)


@guarded("gc.long pause")
def _long_pause(ns: int) -> None:
    rec = mine()
    # It comes between any two instructions, ours too: while a step is being written, hands off.
    if rec is None or rec.step.open not in (OPEN, MORE):
        return
    rec.step.add(_OVERHEAD, ns)
    if rec.stack and rec.stack[-1].inside:
        rec.stack[-1].child += ns


class GarbageHook(Hook):
    """One callback in ``gc.callbacks``."""

    def attach(self, module: str, found: Any) -> None:
        """Add the callback."""
        if _collected not in gc.callbacks:
            gc.callbacks.append(_collected)

    def detach(self) -> None:
        """Take it out."""
        if _collected in gc.callbacks:
            gc.callbacks.remove(_collected)


HOOK = GarbageHook()
