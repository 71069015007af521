"""Trace windows: the single in-step spans of some steps, for a timeline.

Outside a window a span only adds to its step's accumulators, and ``Recorder.trace`` is None, so
that nothing here is called. Inside one it is kept as well, and written when its step is done.
"""

from __future__ import annotations

from badput import layout as lo
from badput.guard import say
from badput.values import MAX_STEP, as_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from badput.recorder import Recorder

MAX_SPANS = 2000
"""Spans kept of one step; those beyond are counted and told by an event."""
_MAX_NAME = 80
_VARIABLE = "BADPUT_TRACE"


class Tracer:
    """The window of steps to keep, and the spans of the step under way."""

    __slots__ = ("_at", "_every", "_last", "_lost", "_rec", "_rows", "_start")

    def __init__(self, recorder: Recorder, start: int, steps: int, every: int) -> None:
        """Keep ``steps`` steps from number ``start`` on: each, or every ``every``-th."""
        self._rec = recorder
        self._start, self._every = start, every
        self._last = start + (steps - 1) * every
        self._at = self._lost = 0
        self._rows: list[tuple[str, int, int, int, int | None]] = []

    def add(self, name: str, attrs: dict[str, Any], start: int, end: int) -> None:
        """Keep a span that ended inside the step under way, if that step is in the window."""
        number = self._rec.step.number
        if number < self._start or number > self._last or (number - self._start) % self._every:
            return
        if number != self._at:
            self._rows.clear()
            self._at, self._lost = number, 0
        if len(self._rows) >= MAX_SPANS:
            self._lost += 1
            return
        depth = sum(span.inside for span in self._rec.stack)
        microbatch = attrs.get("microbatch")
        if microbatch is not None:
            microbatch = as_count("microbatch", microbatch, 1 << 31)
        self._rows.append((name[:_MAX_NAME], start, end - start, depth, microbatch))

    def flush(self) -> None:
        """Write the spans of the step that has just ended, whether or not it finished."""
        rec, rows, lost = self._rec, self._rows, self._lost
        number = rec.step.number
        if rows and self._at == number:
            self._rows, self._at, self._lost = [], 0, 0
            for at in range(0, len(rows), lo.MAX_ROWS):
                lists = [list(column) for column in zip(*rows[at : at + lo.MAX_ROWS], strict=True)]
                payload = dict(zip(("n", "t", "d", "l", "m"), lists, strict=True))
                rec.append(lo.TRACE, {"s": number, **payload})
            if lost:
                text = f"trace of step {number}: {lost} spans beyond the first {MAX_SPANS} left out"
                rec.event("note", {"step": number, "text": text, "lost_spans": lost})
        if number >= self._last:
            rec.trace = None


def from_environment(recorder: Recorder, text: str) -> None:
    """Open the window that BADPUT_TRACE describes, or say why not."""
    given = _read(text)
    if given is None:
        say(
            "trace",
            f"{_VARIABLE}={text[:60]!r} is none of START:COUNT, steps=N and every=K,steps=N with "
            f"whole numbers below 2**47, K above 0; nothing is traced",
        )
        return
    window(recorder, given["steps"], given.get("every", 1), given.get("start"))


def _read(text: str) -> dict[str, int] | None:
    given: dict[str, int] = {}
    try:
        if ":" in text:
            start, steps = text.split(":")
            given = {"start": int(start), "steps": int(steps)}
        else:
            for part in text.split(","):
                key, number = part.split("=")
                given[key.strip()] = int(number)
    except ValueError:
        return None
    known = "steps" in given and given.keys() <= {"start", "steps", "every"}
    sound = all(0 <= n < MAX_STEP for n in given.values()) and given.get("every", 1) > 0
    return given if known and sound else None


def window(recorder: Recorder, steps: object, every: object = 1, start: object = None) -> None:
    """Open a window of ``steps`` steps, from the next one or ``start`` on; 0 closes it."""
    step = recorder.step
    following = (step.number if step.open else step.last) + 1
    count = as_count("trace steps", steps, MAX_STEP)
    gap = as_count("trace every", every, MAX_STEP)
    first = following if start is None else as_count("trace start", start, MAX_STEP)
    if count is None or not gap or first is None:
        say("trace", "trace() wants whole numbers: steps=N, every=K above 0, start=the first one")
        return
    recorder.trace = Tracer(recorder, first, count, gap) if count else None
