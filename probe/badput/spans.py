"""Spans and the wait for data.

Inside a step a span only adds to the step's accumulators, exclusively: a nested span's time
is taken off the one around it. Outside steps, and for save, load and eval anywhere, a span
gets records of its own: one at its begin, so that a span cut off by a kill is known, and one
at its end. A span of another thread than the training thread runs beside the steps; its row
is marked ``background`` and in_step, since its time takes nothing from the training thread.
"""

from __future__ import annotations

import threading

from badput import Nothing, clock
from badput import layout as lo
from badput.guard import fail
from badput.recorder import CATEGORY
from badput.values import MAX_STEP, as_count, whole_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Any

    from badput.recorder import Recorder

_now = clock.mono
_OTHER, _DATA = CATEGORY["other"], CATEGORY["data"]
_OWN_ROW = frozenset({"save", "load", "eval"})
_CHECKPOINT = frozenset({"save", "load"})
_PHASE_DATA = lo.PHASE_CATEGORY + _DATA
_QUICK = {n: i for n, i in CATEGORY.items() if n not in _OWN_ROW}
_TURN = lo.SLOT_TURN
_ident = threading.get_ident


class Span:
    """A named interval: a context manager, and ``set`` for attributes known only later.

    Entered again while it is open, it counts once, from the first entry to the last exit.
    """

    __slots__ = (
        "_again", "_background", "_begin", "_own", "_quick", "_rec", "attrs", "base", "child",
        "inside", "name", "phase", "start",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, name: str, attrs: dict[str, Any]) -> None:
        self._rec = recorder
        self.name = name
        self.attrs = attrs
        self.child = self.phase = self.start = self.base = self._again = 0
        """``start``: 0 when it is not open. ``base``: up to here the span below knows of it."""
        self._quick = -1
        self.inside = False

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied span is one that does nothing."""
        return (Nothing, ())

    def set(self, /, **attrs: object) -> None:
        """Add attributes, such as ``step``, ``path``, ``bytes`` and ``durable`` of a save."""
        try:
            self.attrs.update(attrs)
        except Exception as error:  # noqa: BLE001 - guard
            fail("span set", error)

    def __enter__(self) -> Span:
        try:
            if self.start:
                self._again += 1
                return self
            rec = self._rec
            step = rec.step
            quick = _QUICK.get(self.name, -1)
            if quick < 0 or not step.open or _ident() != rec.owner:
                self._enter()
                return self
            self._quick = quick
            self.child = 0
            self.inside = True
            self.phase = phase = lo.PHASE_CATEGORY + quick
            rec.stack.append(self)
            step.slow()
            step.slot = at = step.slot ^ _TURN
            state = rec.spool.state
            self.start = self.base = now = _now()
            state[at + 1] = step.number << 16 | phase
            state[at] = now
        except BaseException as error:  # noqa: BLE001 - guard
            self._cut("span begin", error)
        return self

    def abandon(self) -> None:
        """Take a span off the stack whose begin or end was cut off: it gets no row."""
        self.start = 0
        stack = self._rec.stack
        while self in stack:
            stack.remove(self)

    def _cut(self, what: str, problem: BaseException) -> None:
        try:
            self.abandon()
            fail(what, problem)
        finally:
            del problem  # or it, its traceback and this frame keep the span alive

    def _enter(self) -> None:
        rec = self._rec
        self.child = 0
        self._quick = -1
        self._begin: int | None = None
        self._background = _ident() != rec.owner
        self.inside = bool(rec.step.open) or self._background
        self._own = self._background or not self.inside or self.name in _OWN_ROW
        self.phase = 0 if self._background else rec.phase_of(self.name)
        self.start = self.base = _now()
        if self._own:
            self._begin = rec.append(lo.SPAN_BEGIN, self._payload(self.start))
        if not self._background:
            rec.stack.append(self)
            if rec.step.open:
                rec.step.slow()
            rec.set_phase(self.phase, self.start)

    def _payload(self, start: int) -> dict[str, Any]:
        rec = self._rec
        attrs = {**self.attrs, "background": True} if self._background else self.attrs
        if self.name in _CHECKPOINT and "path" in attrs:
            attrs = {**attrs, "path": whole_path(attrs["path"])}
        head = {"n": self.name, "t": start, "s": rec.step.last}
        return {**head, "i": self.inside, "a": attrs}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            end = _now()
            if self._again:
                self._again -= 1
                return
            rec = self._rec
            stack = rec.stack
            step = rec.step
            start = self.start
            if self._quick < 0 or not step.open or not stack or stack[-1] is not self:
                if start:  # else abandoned
                    self.start = 0
                    self._exit(start, end, kind)
                return
            self.start = 0
            stack.pop()
            step.add(self._quick, end - start - self.child)
            phase = lo.PHASE_STEP
            if stack:
                parent = stack[-1]
                parent.child += end - self.base
                if parent.inside:
                    phase = parent.phase
            step.slot = at = step.slot ^ _TURN
            state = rec.spool.state
            state[at + 1] = step.number << 16 | phase
            state[at] = end
            if rec.trace is not None:
                rec.trace.add(self.name, self.attrs, start, end)
        except BaseException as problem:  # noqa: BLE001 - guard
            self._cut("span end", problem)

    def _exit(self, start: int, end: int, kind: type[BaseException] | None) -> None:
        rec = self._rec
        if self._quick >= 0:
            self._leave(start, end)
            return
        if not self._background:
            self._leave(start, end)
        if self._own:
            more = {
                "b": self._begin,
                "d": end - start,
                "f": None if kind is None else kind.__name__,
            }
            rec.append(lo.SPAN, {**self._payload(start), **more})
        if self.name == "load" and kind is None and not self._background:
            step = as_count("load step", self.attrs.get("step"), MAX_STEP)
            if step is not None and not rec.step.open:
                rec.step.last = step

    def _leave(self, start: int, end: int) -> None:
        """Take the span off the stack and book its own time.

        A span above it is of another task, still open: what it took so far is not this one's,
        and from here on it is time within the span below.
        """
        rec, stack = self._rec, self._rec.stack
        rec.prune()
        if self not in stack:  # the step around it ended first
            return
        at = stack.index(self)
        if at + 1 < len(stack):
            above = stack[at + 1]
            self.child += end - above.base
            above.base = end
        del stack[at]
        if at:
            stack[at - 1].child += end - self.base
        self.book(start, end)
        rec.back_to(end)

    def book(self, start: int, end: int) -> None:
        """Add the span's own time to the step that it is in."""
        rec = self._rec
        if self.inside and rec.step.open:
            rec.step.add(CATEGORY.get(self.name, _OTHER), end - start - self.child)
            if rec.trace is not None:
                rec.trace.add(self.name, self.attrs, start, end)


class Data:
    """An iterable whose waits are measured; everything else is passed on to it."""

    __slots__ = ("__weakref__", "_inner", "_rec")
    _inner: Any

    def __init__(self, recorder: Recorder, inner: Iterable[Any]) -> None:
        object.__setattr__(self, "_rec", recorder)
        object.__setattr__(self, "_inner", inner)

    def __iter__(self) -> Iterator[Any]:
        return DataIterator(self._rec, self._inner)

    # Python looks these up on the class, so __getattr__ does not pass them on. Each does, or
    # raises, what the user's own object does.
    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return bool(self._inner)

    def __getitem__(self, key: Any) -> Any:
        return self._inner[key]

    def __contains__(self, value: object) -> bool:
        return value in self._inner

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied one is the iterable itself."""
        return (_same, (self._inner,))


def _same(value: object) -> object:
    return value


class IteratorData(Data):
    """The same for what is an iterator itself. It may begin anew with each ``iter`` all the same,
    as loaders do whose ``__iter__`` winds them back and returns ``self``."""

    __slots__ = ()

    def __next__(self) -> Any:
        start = _now()
        wait_begins(self._rec, start)
        try:
            return next(self._inner)
        finally:
            wait_ends(self._rec, start)


def measured(recorder: Recorder, iterable: object) -> Any:
    """``iterable`` with its waits measured; what only ``async for`` takes as it is."""
    kind = type(iterable)
    if hasattr(kind, "__aiter__") and not hasattr(kind, "__iter__"):
        return iterable
    inner: Any = iterable
    return (IteratorData if hasattr(kind, "__next__") else Data)(recorder, inner)


class DataIterator:
    """Measures each ``next``. What the user's iterator raises passes through unchanged."""

    __slots__ = ("__weakref__", "_inner", "_rec")

    def __init__(self, recorder: Recorder, inner: Iterable[Any]) -> None:
        self._rec = recorder
        start = _now()
        wait_begins(recorder, start)
        try:
            self._inner = iter(inner)  # a loader starts its workers here
        finally:
            wait_ends(recorder, start)

    def __iter__(self) -> DataIterator:
        return self

    def __next__(self) -> Any:
        start = _now()
        wait_begins(self._rec, start)
        try:
            return next(self._inner)
        finally:
            wait_ends(self._rec, start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied one is the iterator itself."""
        return (_same, (self._inner,))


def wait_begins(rec: Recorder, start: int) -> None:
    try:
        if _ident() == rec.owner:
            rec.set_phase(_PHASE_DATA, start)
    except Exception as error:  # noqa: BLE001 - guard
        fail("data", error)


def wait_ends(rec: Recorder, start: int) -> None:
    try:
        if _ident() != rec.owner:
            return
        end = _now()
        if rec.step.open:
            rec.step.add(_DATA, end - start)
            if rec.stack:
                rec.stack[-1].child += end - start
            if rec.trace is not None:
                rec.trace.add("data", {}, start, end)
        elif not rec.stack:  # inside an out-of-step span the wait is that span's time
            rec.step.wait(end - start)
        rec.back_to(end)
    except Exception as error:  # noqa: BLE001 - guard
        fail("data", error)
