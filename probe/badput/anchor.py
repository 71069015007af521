"""The clock watch: a duty that tells when the wall clock has moved against the monotonic one.

All times of a process come from its monotonic clock and the one pair of readings that it took at
its start, so nothing on its time line moves when somebody sets the clock, and no duration ever
changes. That the calendar says something else by now is told as an event ``clock``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput import clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from badput.collector import Tended

MOVED_NS = 50_000_000
"""How far the clock has moved since it was last told, for it to be told again."""
LOOK_S = 1.0
_CLOSE_NS = 1_000_000
"""Readings further apart than this say nothing: somebody else had the processor in between."""


def offsets() -> tuple[int, int] | None:
    """Wall and boot time minus monotonic time, in ns; None if they could not be read at once."""
    before = clock.mono()
    wall, boot = clock.wall(), clock.boot()
    after = clock.mono()
    if after - before > _CLOSE_NS:
        return None
    middle = (before + after) // 2
    return wall - middle, boot - middle


class ClockWatch:
    """Compares the clocks with the anchor of each process of this boot."""

    name = "clock"

    def __init__(self) -> None:
        self._due = 0.0
        self._boot: dict[str, int] = {}
        """Boot time minus monotonic time when a process began, or was first seen."""
        self._told: dict[str, int] = {}

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Look once a second."""
        if now < self._due:
            return
        self._due = now + LOOK_S
        found = offsets()
        if found is None:
            self._due = now
            return
        for gone in self._told.keys() - tended.keys():
            del self._told[gone], self._boot[gone]
        for name, one in tended.items():
            if one.drain.here and not one.over():
                self._compare(name, one, *found)

    def _compare(self, name: str, one: Tended, wall: int, boot: int) -> None:
        facts: Mapping[str, Any] = one.drain.facts
        anchor = int(facts["anchor_mono_ns"])
        if name not in self._told:
            self._told[name] = one.drain.position.shift
            began = facts.get("anchor_boot_ns")
            self._boot[name] = boot if began is None else int(began) - anchor
        shift = wall - (int(facts["anchor_wall_ns"]) - anchor)
        step = shift - self._told[name]
        if abs(step) <= MOVED_NS:
            return
        slept = boot - self._boot[name]
        attrs = {"shift_ns": shift, "step_ns": step, "boot_shift_ns": slept}
        one.drain.tell("clock", one.drain.now(), attrs)
        self._told[name] = shift

    def close(self) -> None:
        """Nothing is held."""
