"""Exceptions that nobody caught: the one that ends the program, and those that end a thread."""

from __future__ import annotations

import sys
import threading

from badput.hooks.base import Hook, guarded, live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


@guarded("exceptions.program")
def _ends_program(kind: type[BaseException], trace: TracebackType | None) -> None:
    rec = live()
    if rec is not None:
        rec.uncaught(kind, trace)


@guarded("exceptions.thread")
def _ends_thread(kind: type[BaseException], trace: TracebackType | None) -> None:
    rec = live()
    if rec is not None and kind is not SystemExit:
        place = ""
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
            place = f" at {file}:{trace.tb_lineno}"
            trace = trace.tb_next
        what = f"{kind.__name__} ended a thread"
        rec.event("note", {"what": what, "signature": f"{kind.__name__}{place}"})


def _chain_program(previous: Any) -> Any:
    def badput_excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            _ends_program(kind, trace)
        finally:
            previous(kind, error, trace)

    return badput_excepthook


def _chain_thread(previous: Any) -> Any:
    def badput_thread_excepthook(args: Any) -> None:
        try:
            _ends_thread(args.exc_type, args.exc_traceback)
        finally:
            previous(args)

    return badput_thread_excepthook


class ExceptionsHook(Hook):
    """Chains ``sys.excepthook`` and ``threading.excepthook``."""

    def __init__(self) -> None:
        self._held: dict[Any, tuple[Any, Any]] = {}
        """By module: what was put there, and what was there before."""

    def attach(self, module: str, found: Any) -> None:
        """Note what ends the program, then do what would have been done anyway."""
        places: list[tuple[Any, Any]] = [(sys, _chain_program), (threading, _chain_thread)]
        for owner, chain in places:
            if owner not in self._held:
                previous: Any = owner.excepthook
                owner.excepthook = chain(previous)
                self._held[owner] = owner.excepthook, previous

    def detach(self) -> None:
        """Give back those that nobody has chained since; the others have nothing to record to."""
        for owner, (ours, previous) in list(self._held.items()):
            if owner.excepthook is ours:
                owner.excepthook = previous
                del self._held[owner]


HOOK = ExceptionsHook()
