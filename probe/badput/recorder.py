"""The recorder: the state of one incarnation, and how its records are appended.

Rare records are appended under a plain lock, and beside the training thread by the rule that
steps.py explains. When neither can be had at once, because a signal handler interrupted its
own thread inside an append or a step's record is half written, the record waits in a queue
that the one in the way empties, so nothing can lock up.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from sys import getrefcount

from badput import clock
from badput import layout as lo
from badput.guard import cannot_write, say
from badput.schema import STEP_CATEGORIES
from badput.steps import ENDING, make_step
from badput.values import MAX_STEP, as_count, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from badput.spans import Span
    from badput.spool import Spool
    from badput.steps import Step
    from badput.tracing import Tracer

CATEGORY = {name: index for index, name in enumerate(STEP_CATEGORIES)}
_LOCK_WAIT_S = 0.05
_STACK_ALONE = 2
"""References to a span that only the stack holds, as getrefcount counts: with its own argument."""
_RESERVED = frozenset({
    "end", "dropped", "hang", "hang_end", "clock", "device", "gpu_lost", "xid",  # the collector's
    "world", "steps", "optimizers", "failed_attempt", "compile", "frameworks",  # the hooks'
})  # fmt: skip
"""Kinds of events that are not the program's to tell."""
_now = clock.mono


class Recorder:
    """One incarnation's recording state. ``owner`` is the thread that runs the steps."""

    __slots__ = (
        "acc_used", "fresh", "lock", "names", "owner", "pending", "spool",
        "stack", "step", "trace",
    )  # fmt: skip

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.lock = threading.RLock()
        self.pending: deque[tuple[int, bytes]] = deque(maxlen=4096)
        self.names: dict[str, int] = {}
        self.owner = threading.get_ident()
        self.stack: list[Span] = []
        self.trace: Tracer | None = None
        self.acc_used = False
        self.fresh = True
        self.step = make_step(self)
        self.set_phase(lo.PHASE_INIT, _now())

    def first_step(self) -> Step:
        """The step object; the thread that asks for it is from now on the training thread."""
        self.owner = threading.get_ident()
        self.fresh = False
        return self.step

    # -- the state slot ---------------------------------------------------------------------
    def set_phase(self, phase: int, since: int) -> None:
        """Rewrite the state slot: phase id and since when (monotonic ns)."""
        step = self.step
        number = step.number if step.open else step.last
        step.slot = at = step.slot ^ lo.SLOT_TURN
        state = self.spool.state
        state[at + 1] = number << 16 | phase
        state[at] = since

    def back_to(self, since: int) -> None:
        """Set the phase that a span's end leaves behind."""
        if self.stack:
            self.prune()
        if self.stack:
            phase = self.stack[-1].phase
        elif self.step.open:
            phase = lo.PHASE_STEP
        else:
            phase = lo.PHASE_INIT if self.fresh else lo.PHASE_LOOP
        self.set_phase(phase, since)

    def phase_of(self, name: str) -> int:
        """Phase id of a span's name."""
        index = CATEGORY.get(name)
        return self.name_id(name) if index is None else lo.PHASE_CATEGORY + index

    def name_id(self, name: str) -> int:
        """Id of a name in this stream; 0 if it could not be recorded."""
        known = self.names.get(name)
        if known is not None:
            return known
        if len(self.names) >= lo.MAX_NAMES:
            return 0
        number = lo.FIRST_NAME + len(self.names)
        if self.append(lo.NAME, {"id": number, "name": name[:200]}) is None:
            return 0
        self.names[name] = number
        return number

    def unwind(self, end: int) -> None:
        """Take off the spans that were entered inside the step; those still open end with it.

        ``end``: the step's end (monotonic ns), or 0 if nothing is to be booked.
        """
        if not self.stack:
            return
        self.prune()
        while self.stack and self.stack[-1].inside:
            span = self.stack.pop()
            if end:
                if self.stack:
                    self.stack[-1].child += end - span.base
                span.book(span.start, end)

    def prune(self) -> None:
        """Take off spans that no ``with`` block holds any more.

        An exception of a signal handler can come right at the end of a block, before its span
        could do anything. Only the missing reference of the block tells such a span.
        """
        if self.spool.always:
            return
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if getrefcount(stack[at]) <= _STACK_ALONE:
                del stack[at]

    # -- appending --------------------------------------------------------------------------
    def append(self, kind: int, payload: dict[str, Any]) -> int | None:
        """Append a rare record; its sequence number, or None if dropped or put off."""
        data = to_json(payload)
        if self.spool.control[lo.STATE_AT]:
            cannot_write(self.spool.control, self.spool.run)
        if self.mine() or not self.lock.acquire(timeout=_LOCK_WAIT_S):
            self.pending.append((kind, data))
            return None
        spool = self.spool
        try:
            spool.other = True
            if self.step.open == ENDING:  # the training thread is in the middle of a step's record
                self.pending.append((kind, data))
                return None
            return spool.write(kind, data)
        finally:
            spool.other = spool.always
            self.lock.release()
            if self.pending and self.step.open != ENDING:
                self.flush_pending()

    def mine(self) -> bool:
        """True if this thread holds the lock: a signal handler interrupted its own thread."""
        # As threading.Condition asks it.
        return self.lock._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001

    def flush_pending(self) -> None:
        """Append what had to wait."""
        spool = self.spool
        while self.pending and not self.mine() and self.lock.acquire(False):
            try:
                spool.other = True
                if self.step.open == ENDING:
                    return
                while self.pending:
                    spool.write(*self.pending.popleft())
            finally:
                spool.other = spool.always
                self.lock.release()

    def step_ended(self) -> None:
        """Append what had to wait for the end of a step that took the slow way."""
        if self.trace is not None:
            self.trace.flush()
        if self.pending:
            self.flush_pending()

    # -- events and the end -----------------------------------------------------------------
    def told(self, kind: str, attrs: dict[str, Any]) -> None:
        """Record an instant that the program tells."""
        if kind in _RESERVED:
            say(f"event {kind}", f"event({kind!r}) is not the program's to tell; kept as a note")
            kind, attrs = "note", {**attrs, "kind": kind}
        self.event(kind, attrs)

    def event(self, kind: str, attrs: dict[str, Any]) -> None:
        """Record an instant. ``rewind`` also sets the step counter to its ``to_step``."""
        step = as_count("event step", attrs.pop("step", None), MAX_STEP)
        if step is None:
            step = self.step.number if self.step.open else self.step.last
        if kind == "rewind":
            target = as_count("to_step", attrs.get("to_step"), MAX_STEP)
            if target is not None:
                self.step.last = target
        self.append(lo.EVENT, {"k": kind, "t": _now(), "s": step, "a": attrs})

    def failure(self, what: str, kind: type[BaseException], trace: TracebackType | None) -> None:
        """Record the first sign of a failure: type and place, never the message or locals."""
        place = ""
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
            place = f" at {file}:{trace.tb_lineno}"
            trace = trace.tb_next
        self.event("failure", {"what": what, "signature": f"{kind.__name__}{place}"})

    def uncaught(self, kind: type[BaseException], trace: TracebackType | None) -> None:
        """Record that an exception ends the program (SystemExit never comes here)."""
        self.failure(f"uncaught {kind.__name__}", kind, trace)

    def close(self) -> None:
        """Write the close record and mark the spool closed."""
        failed = sys.exc_info()[0]
        name = None if failed is None else failed.__name__
        self.append(lo.CLOSE, {"t": _now(), "s": self.step.last, "failed": name})
        self.spool.closed = True
        self.spool.note()
