"""Collectives called from Python: when each was entered, and when it was left.

Off unless asked for by name. Blocking calls on CPU tensors (gloo) have a duration; with
``async_op`` it lasts until ``wait`` returns. On GPU tensors (NCCL) a call only enqueues, so the
duration is NULL. What DDP's and FSDP's C++ parts and functional collectives do is not seen.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import cast

from badput import clock
from badput import layout as lo
from badput.hooks.base import Hook, Patch, guarded, ident, live
from badput.recorder import CATEGORY
from badput.steps import MORE, OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from badput.recorder import Recorder

_NAMES = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "all_gather_object", "all_gather_coalesced", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_single", "broadcast", "broadcast_object_list",
    "gather", "gather_object", "scatter", "scatter_object_list", "all_to_all",
    "all_to_all_single", "barrier", "monitored_barrier", "send", "recv", "isend", "irecv",
    "send_object_list", "recv_object_list", "batch_isend_irecv",
)  # fmt: skip
_WAITS = frozenset({"comm", "send", "wait_activation", "wait_gradient"})
"""Spans of the program's own in which a collective's time already has its category."""
_COMM = CATEGORY["comm"]
_MAX_A_STEP = 1000
_MAX_ASYNC = 4096
_now = clock.mono


class Row:
    """One collective: a row of the table in the making."""

    __slots__ = ("bytes", "dur", "enqueued", "group", "name", "start", "step")

    def __init__(self, rec: Recorder, name: str, given: tuple[Any, ...], group: Any) -> None:
        step = rec.step
        self.name = name
        self.step = step.number if step.open else step.last
        self.group = _group(group)
        self.bytes, self.enqueued = _weigh(given)
        self.dur: int | None = None
        self.start = _now()


def _group(group: Any) -> str:
    name = None if group is None else getattr(group, "group_name", None)
    return name if isinstance(name, str) else "default" if group is None else "unknown"


def _weigh(given: tuple[Any, ...]) -> tuple[int | None, bool]:
    """Bytes of the input, and whether any tensor lies elsewhere than on the CPU."""
    sizes: list[int] = []
    away = False
    for value in given:
        many = cast("list[Any]", value if isinstance(value, (list, tuple)) else [value])
        total = 0
        for one in many[:1024]:
            if hasattr(one, "element_size") and hasattr(one, "device"):
                total += int(one.numel()) * int(one.element_size())
                away = away or str(one.device.type) != "cpu"
        if total:
            sizes.append(total)
    return (min(sizes) if sizes else None), away


class CollectivesHook(Hook):
    """Wraps the functions of ``torch.distributed``, and ``Work.wait``."""

    def __init__(self) -> None:
        self._patches: dict[str, Patch] = {}
        self._wait = Patch()
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Nothing is under way."""
        self._rows: list[Row] = []
        self._step = -1
        self._count = 0
        self._works: dict[int, tuple[Any, Row]] = {}

    def begin(self, process: dict[str, Any]) -> None:
        """A new recorder, and perhaps another process."""
        self._lock = threading.Lock()
        self.clear()

    def attach(self, module: str, found: Any) -> None:
        """Wrap each function in both modules that hold it."""
        if not found.is_available():
            return
        import sys

        compiling = sys.modules["torch"].compiler.is_compiling
        core = found.distributed_c10d
        for name in _NAMES:
            if name in vars(core):
                patch = self._patches.setdefault(name, Patch())
                patch.apply([core, found], name, functools.partial(_wrap, name, compiling))
        self._wait.apply([found.Work], "wait", _wrap_wait)

    def detach(self) -> None:
        """Put them back, and write what is left."""
        rec = live()
        if rec is not None:
            self.flush(rec)
        for patch in (*self._patches.values(), self._wait):
            patch.undo()
        self.clear()

    def add(self, rec: Recorder, row: Row) -> None:
        """Keep a row until its step is over; there may be no more than so many of one step."""
        with self._lock:
            new = row.step != self._step
            full = len(self._rows) >= lo.MAX_ROWS
        if new or full:
            self.flush(rec)
        with self._lock:
            if new:
                self._step, self._count = row.step, 0
            self._count += 1
            if self._count <= _MAX_A_STEP:
                self._rows.append(row)

    def flush(self, rec: Recorder) -> None:
        """Write the rows that are there; a row of an async call is written without its end."""
        with self._lock:
            rows, self._rows = self._rows, []
        while rows:
            part, rows = rows[: lo.MAX_ROWS], rows[lo.MAX_ROWS :]
            lists = {
                "n": [r.name for r in part], "g": [r.group for r in part],
                "t": [r.start for r in part], "d": [r.dur for r in part],
                "b": [r.bytes for r in part],
            }  # fmt: skip
            rec.append(lo.COLLECTIVES, {"s": part[0].step, **lists})

    def follow(self, work: Any, row: Row) -> None:
        """Remember a call whose end is the return of ``wait``."""
        key = id(work)
        if len(self._works) < _MAX_ASYNC:
            gone = weakref.ref(work, lambda _: self._works.pop(key, None))
            self._works[key] = (gone, row)

    def waited(self, work: Any) -> Row | None:
        """The row that ``work`` belongs to, once."""
        found = self._works.pop(id(work), None)
        return None if found is None or found[0]() is not work else found[1]


_INSIDE = threading.local()
HOOK = CollectivesHook()


@guarded("collectives.begin")
def _begin(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row | None:
    rec = live()
    if rec is None or getattr(_INSIDE, "on", False):
        return None
    given = (*args[:3], *(v for k, v in kwargs.items() if k != "group"))
    group = kwargs.get("group")
    if group is None:
        group = next((a for a in args if hasattr(a, "group_name")), None)
    return Row(rec, name, given, group)


@guarded("collectives.end")
def _end(row: Row | None, work: Any) -> None:
    rec = live()
    if rec is None or row is None:
        return
    ns = _now() - row.start
    if work is None or not hasattr(work, "wait"):
        if not row.enqueued:
            row.dur = ns
            _book(rec, ns)
    elif not row.enqueued:
        HOOK.follow(work, row)
    HOOK.add(rec, row)


def _book(rec: Recorder, ns: int) -> None:
    """Add to the step's communication what blocked the training thread."""
    stack = rec.stack
    if ident() != rec.owner or rec.step.open not in (OPEN, MORE):
        return
    if stack and stack[-1].inside:
        if stack[-1].name in _WAITS:
            return
        stack[-1].child += ns
    rec.step.add(_COMM, ns)


def _wrap(
    name: str, compiling: Callable[[], bool], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        row = _begin(name, args, kwargs)
        if row is None:
            return original(*args, **kwargs)
        work = None
        _INSIDE.on = True  # what it calls in turn is part of it
        try:
            work = original(*args, **kwargs)
        finally:
            _INSIDE.on = False
            _end(row, work)
        return work

    return collective


@guarded("collectives.wait begins")
def _wait_begins(work: Any) -> tuple[Row, int] | None:
    row = HOOK.waited(work)
    return None if row is None else (row, _now())


@guarded("collectives.wait ends")
def _wait_ends(row: Row, since: int) -> None:
    rec = live()
    now = _now()
    row.dur = now - row.start
    if rec is not None:
        _book(rec, now - since)


def _wrap_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = _wait_begins(self)
        if found is None:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _wait_ends(*found)

    return wait
