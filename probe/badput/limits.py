"""How long a phase may last before it counts as a hang, and which ranks the others wait for.

A step is held against the rank's own usual step. What has no usual length (the first step,
compiling, evaluation, checkpoints, start-up, spans of the user's own) gets a generous limit of
its own, which grows with the longest time that it was seen to last.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from badput.schema import STEP_CATEGORIES
from badput.stacks import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SLOW_S = 1800.0
"""Default of BADPUT_HANG_SLOW_S: the same for phases without a usual length."""
FACTOR = 10
"""A phase may last this many times its usual or longest length."""
BETWEEN = 2
"""Waiting for data between steps may take this many times as long as a step: an epoch begins."""
STEPS_KEPT = 21

WAITING = frozenset({"comm", "send", "wait_activation", "wait_gradient"})
"""Phases in which a rank waits for others."""
_IN_STEP = frozenset(STEP_CATEGORIES) - {"eval", "save", "snapshot", "compile", "overhead"}


def base_limits(facts: Mapping[str, Any]) -> tuple[float, float] | None:
    """Seconds that a step and a slow phase may last; None if the watch is switched off (0)."""
    given: Mapping[str, Any] = facts.get("watch") or {}
    hang = _seconds(given.get("hang_s"), HANG_S)
    return None if hang <= 0 else (hang, max(hang, _seconds(given.get("slow_s"), SLOW_S)))


def _seconds(value: object, default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value < 1e9:
        return default
    return float(value)


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a phase may last, and why just so long."""

    ns: int
    rule: str


@dataclass(slots=True)
class Pace:
    """What one rank's steps and phases usually take, as far as the collector saw them."""

    hang_s: float
    slow_s: float
    steps: deque[int] = field(default_factory=lambda: deque[int](maxlen=STEPS_KEPT))
    longest: dict[str, int] = field(default_factory=dict[str, int])
    _last: tuple[int, ...] | None = None

    def saw_step(self, last_step: Sequence[int] | None) -> None:
        """Note the last finished step: number, start and end."""
        if last_step is None or tuple(last_step) == self._last:
            return
        self._last = tuple(last_step)
        self.steps.append(max(0, last_step[2] - last_step[1]))

    def saw_phase(self, name: str, ns: int) -> None:
        """Note how long a phase lasted."""
        self.longest[name] = max(ns, self.longest.get(name, 0))

    def usual(self) -> int | None:
        """Median duration of the steps seen, ns; None before the first."""
        return int(median(self.steps)) if self.steps else None

    def limit(self, name: str, in_step: bool) -> Limit:
        """How long the phase ``name`` may last now."""
        usual, base = self.usual(), int(self.hang_s * 1e9)
        slow, longest = int(self.slow_s * 1e9), self.longest.get(name, 0)
        if usual is None:
            return Limit(slow, f"before the end of the first step: {self.slow_s:g} s")
        if in_step and (name == "step" or name in _IN_STEP):
            text = f"{self.hang_s:g} s, or {FACTOR} times the usual step of {usual / 1e9:.3g} s"
            return Limit(max(base, FACTOR * usual), text)
        if name == "data":
            least, what = max(BETWEEN * base, FACTOR * usual), f"{BETWEEN * self.hang_s:g} s"
        else:
            least, what = max(slow, FACTOR * usual), f"{self.slow_s:g} s"
        seen = f", or {FACTOR} times the longest {name} of {longest / 1e9:.3g} s" if longest else ""
        return Limit(max(least, FACTOR * longest), f"{what}{seen}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is."""

    rank: int
    step: int
    phase: str


def excused(me: Place, limit: Limit, others: Iterable[tuple[Place, Limit]]) -> bool:
    """May a rank wait longer than ``limit``, because another one does what takes its time?

    ``others`` are in time themselves. One of them that is not ahead, in a phase that may last
    longer (a checkpoint of rank 0, an evaluation, compiling), is perhaps what this one waits for:
    then the limit of that phase counts, and this rank's begins anew when it ends.
    """
    return any(
        there.rank != me.rank and there.step <= me.step and more.ns > limit.ns
        for there, more in others
    )


def behind(places: Sequence[Place]) -> list[int]:
    """The ranks that the others seem to wait for: fewest steps, else not waiting, else alone.

    Empty where nothing tells the ranks apart.
    """
    if len(places) < 2:
        return []
    least = min(p.step for p in places)
    if least < max(p.step for p in places):
        return sorted(p.rank for p in places if p.step == least)
    free = [p.rank for p in places if p.phase not in WAITING]
    if free and len(free) < len(places):
        return sorted(free)
    counts = Counter(p.phase for p in places)
    (common, many), *rest = counts.most_common()
    if rest and 2 * many > len(places):
        return sorted(p.rank for p in places if p.phase != common)
    return []
