"""The wait for data: iteration of torch's DataLoader.

Where ``badput.data`` or a span ``data`` already measures the wait, this adds nothing. A loader
whose own iterator is bypassed is not seen, nor is a wait in another thread than the training one.
"""

from __future__ import annotations

import functools
import sys

from badput import clock
from badput import layout as lo
from badput.hooks.base import Hook, Patch, guarded, mine
from badput.recorder import CATEGORY
from badput.spans import wait_begins, wait_ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from badput.recorder import Recorder

_PHASE_DATA = lo.PHASE_CATEGORY + CATEGORY["data"]
_now = clock.mono


def waits(rec: Recorder) -> bool:
    """True while the training thread waits for data and somebody measures it."""
    return rec.spool.state[rec.step.slot + 1] & 0xFFFF == _PHASE_DATA


@guarded("dataloader.begin")
def _begin() -> int | None:
    """When the wait began, or None where it is not this hook's to measure."""
    rec = mine()
    if rec is None or waits(rec):
        return None
    optimizer = sys.modules.get("badput.hooks.optimizer")
    if optimizer is not None:
        optimizer.HOOK.open(rec)
    start = _now()
    wait_begins(rec, start)
    return start


@guarded("dataloader.end")
def _end(start: int) -> None:
    rec = mine()
    if rec is not None:
        wait_ends(rec, start)


def _measured(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any) -> Any:
        start = _begin()
        if start is None:
            return original(self)
        try:
            return original(self)
        finally:
            _end(start)

    return method


class LoaderHook(Hook):
    """Measures ``__iter__`` of a DataLoader, where workers start, and ``__next__``."""

    def __init__(self) -> None:
        self._iter, self._next = Patch(), Patch()

    def attach(self, module: str, found: Any) -> None:
        """Wrap the two methods of the classes."""
        self._iter.apply([found.DataLoader], "__iter__", _measured)
        self._next.apply([found._BaseDataLoaderIter], "__next__", _measured)  # noqa: SLF001

    def detach(self) -> None:
        """Put them back."""
        self._iter.undo()
        self._next.undo()


HOOK = LoaderHook()
