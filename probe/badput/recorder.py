"""The recorder: the state of one incarnation, and how its records are appended.

Appending is serialised by a plain lock. When it cannot be had, because a signal handler
interrupted its own thread inside an append, the record waits in a queue that the holder
empties, so nothing can lock up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque

from badput import layout as lo
from badput.schema import STEP_CATEGORIES
from badput.steps import Step
from badput.values import as_count, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from badput.spans import Span
    from badput.spool import Spool

CATEGORY = {name: index for index, name in enumerate(STEP_CATEGORIES)}
_LOCK_WAIT_S = 0.05
_now = time.monotonic_ns
_slot_into = lo.SLOT.pack_into


class Recorder:
    """One incarnation's recording state. ``owner`` is the thread that runs the steps."""

    __slots__ = (
        "acc", "acc_used", "control", "fresh", "in_step", "last_step", "lock", "names", "owner",
        "pending", "pre_data", "spool", "stack", "step", "version",
    )  # fmt: skip

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.control = spool.control
        self.lock = threading.Lock()
        self.pending: deque[tuple[int, bytes]] = deque()
        self.names: dict[str, int] = {}
        self.owner = threading.get_ident()
        self.stack: list[Span] = []
        self.acc = [lo.ACC_NULL] * len(STEP_CATEGORIES)
        self.acc_used = self.in_step = False
        self.fresh = True
        self.last_step = self.version = 0
        self.pre_data: int | None = None
        self.step = Step(self)
        self.set_phase(lo.PHASE_INIT, _now())

    # -- the state slot ---------------------------------------------------------------------
    def set_phase(self, phase: int, since: int) -> None:
        """Rewrite the state slot: phase id and since when (monotonic ns)."""
        self.version = version = self.version + 1
        step = self.step.number if self.in_step else self.last_step
        at = lo.SLOT_AT + (version & 1) * lo.SLOT_STRIDE
        _slot_into(self.control, at, version, step, phase, since, version)

    def back_to(self, since: int) -> None:
        """Set the phase that a span's end leaves behind."""
        if self.stack:
            phase = self.stack[-1].phase
        elif self.in_step:
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

    # -- time inside steps ------------------------------------------------------------------
    def add(self, category: int, ns: int) -> None:
        """Add nanoseconds to an accumulator of the step under way."""
        have = self.acc[category]
        self.acc[category] = ns if have == lo.ACC_NULL else have + ns
        self.acc_used = True

    # -- appending --------------------------------------------------------------------------
    def append(self, kind: int, payload: dict[str, Any]) -> int | None:
        """Append a rare record; its sequence number, or None if dropped or put off."""
        data = to_json(payload)
        if not self.lock.acquire(timeout=_LOCK_WAIT_S):
            self.pending.append((kind, data))
            return None
        try:
            return self.spool.write(kind, data)
        finally:
            self.lock.release()
            if self.pending:
                self.flush_pending()

    def flush_pending(self) -> None:
        """Append what had to wait for the lock."""
        while self.pending and self.lock.acquire(False):
            try:
                while self.pending:
                    self.spool.write(*self.pending.popleft())
            finally:
                self.lock.release()

    # -- events and the end -----------------------------------------------------------------
    def event(self, kind: str, attrs: dict[str, Any]) -> None:
        """Record an instant. ``rewind`` also sets the step counter to its ``to_step``."""
        step = as_count("event step", attrs.pop("step", None))
        if step is None:
            step = self.step.number if self.in_step else self.last_step
        if kind == "rewind":
            target = as_count("to_step", attrs.get("to_step"))
            if target is not None:
                self.last_step = target
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
        self.append(lo.CLOSE, {"t": _now(), "s": self.last_step, "failed": name})
        self.spool.closed = True
        self.spool.note()
