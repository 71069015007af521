"""Bounds on a run's figures, for CI: what passes, what fails, and how certain that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput_ledger.errors import BooksError
from badput_ledger.taxonomy import COMPUTE, LEAF_IDS
from badput_ledger.units import amount, money

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEMA = "badput.gate/1"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a report with its bounds; value None with the reason."""

    value: float | None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure that can be bounded: its option without --min- or --max-, and what it is."""

    name: str
    least: bool
    """Is the bound the least that passes (--min-), or the most?"""
    kind: str
    """share, count or money."""
    about: str
    find: Callable[[dict[str, Any]], Figure]

    @property
    def option(self) -> str:
        """Such as --min-goodput."""
        return f"--{'min' if self.least else 'max'}-{self.name}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A gate with the bound that was asked for; ``leaf`` where it is about a single leaf."""

    gate: Gate
    bound: float


def parse_bound(gate: Gate, text: str) -> float:
    """The bound given as text: 0.9 or 90% for a share. Raises BooksError."""
    percent = gate.kind == "share" and text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%") if percent else text)
    except ValueError:
        value = math.nan
    value = value / 100 if percent else value
    if not math.isfinite(value) or value < 0:
        example = {"share": "0.90 or 90%", "count": "3", "money": "0.25"}[gate.kind]
        raise BooksError(f"{gate.option} {text}: give a number from 0, such as {example}.")
    if gate.kind == "share" and value > 1:
        raise BooksError(f"{gate.option} {text}: it is a share, from 0 to 1 or 0% to 100%.")
    return value


def leaf_gate(leaf: str) -> Gate:
    """The gate on one leaf's share of the total. Raises BooksError for an unknown leaf."""
    if leaf not in LEAF_IDS:
        raise BooksError(f"--max-leaf {leaf}: there is no such leaf; one is D.recomputed.")
    return Gate(f"leaf {leaf}", False, "share", leaf, lambda r: _share(r, (leaf,)))


def parse_measured(text: str) -> set[str]:
    """The G leaves named in --measured, with or without their G. Raises BooksError."""
    names = {n.strip() for n in text.split(",")} - {"", "none"}
    found = {n if n.startswith("G.") else f"G.{n}" for n in names}
    unknown = sorted(found - {leaf for leaf in LEAF_IDS if leaf[0] == "G"})
    if unknown:
        raise BooksError(f"--measured {text}: {unknown[0]} is no leaf inside steps (group G).")
    return found


def judge(
    report: dict[str, Any],
    bounds: Sequence[Bound],
    *,
    measured: set[str] | None = None,
    certain: bool = False,
) -> dict[str, Any]:
    """Every bound held against the report.

    ``measured``: the G leaves that goodput must have been measured by. ``certain``: what passes
    must pass wherever in its bounds the truth lies.
    """
    checks = [_check(report, b, measured, certain) for b in bounds]
    return {
        "schema": SCHEMA,
        "run": {k: report["run"][k] for k in ("id", "name", "over")},
        "ok": all(c["ok"] for c in checks),
        "checks": checks,
    }


def _check(
    report: dict[str, Any], asked: Bound, measured: set[str] | None, certain: bool
) -> dict[str, Any]:
    gate = asked.gate
    found = gate.find(report)
    if gate.name == "goodput" and measured is not None and found.value is not None:
        # Goodput holds the rate of compute either way, so only who names it asks for it.
        have = set(report["goodput"]["measured"]) - ({*COMPUTE} - measured)
        if have != measured:
            found = Figure(None, reason=_not_as_told(have, measured))
    said = {
        "figure": gate.about,
        "option": gate.option,
        "bound": asked.bound,
        "value": found.value,
        "lo": found.lo,
        "hi": found.hi,
    }
    if found.value is None:
        why = found.reason or "it is not known"
        sentence = f"{gate.about} cannot pass {gate.option}: {why}"
        return said | {"ok": False, "certain": True, "sentence": f"{sentence.rstrip('.')}."}
    lo = found.value if found.lo is None else found.lo
    hi = found.value if found.hi is None else found.hi
    passes = [_holds(gate, x, asked.bound) for x in (found.value, lo, hi)]
    ok = all(passes) if certain else passes[0]
    sure = all(passes) if passes[0] else not any(passes)
    return said | {"ok": ok, "certain": sure, "sentence": _sentence(report, asked, found, ok, sure)}


def _not_as_told(have: set[str], told: set[str]) -> str:
    parts: list[str] = []
    if missing := sorted(told - have):
        parts.append(f"{', '.join(missing)} was not measured")
    if more := sorted(have - told):
        parts.append(f"{', '.join(more)} was measured too")
    return f"its measured set is not as told: {' and '.join(parts)}"


def _holds(gate: Gate, value: float, bound: float) -> bool:
    return value >= bound if gate.least else value <= bound


def _sentence(report: dict[str, Any], asked: Bound, found: Figure, ok: bool, sure: bool) -> str:
    gate = asked.gate
    assert found.value is not None
    digits = _digits(found.value, asked.bound)

    def say(value: float) -> str:
        if gate.kind == "share":
            return f"{value:.{digits}%}"
        if gate.kind == "money":
            return money(value, report["cost"]["currency"])
        return (
            f"{value:,.0f}" if not math.isfinite(value) or value == round(value) else amount(value)
        )

    side = ("at least" if gate.least else "at most") + f" {say(asked.bound)}"
    text = f"{gate.about} is {say(found.value)}, and {side} is asked for"
    if found.lo is not None and found.hi is not None and found.hi > found.lo:
        inside = "on either side of it" if not sure else "on one side of it"
        text += f"; its bounds are {say(found.lo)} to {say(found.hi)}, {inside}"
    if not sure:
        text += ": it may pass" if not _holds(gate, found.value, asked.bound) else ": it may fail"
    elif not ok:
        text += ": it fails for certain"
    return f"{text}."


def _digits(value: float, bound: float) -> int:
    """Decimals of a percentage: no rounding may hide on which side of the bound it lies."""
    for digits in range(2, 13):
        if value == bound or f"{value:.{digits}%}" != f"{bound:.{digits}%}":
            return digits
    return 15


def _ratio(key: str) -> Callable[[dict[str, Any]], Figure]:
    def find(report: dict[str, Any]) -> Figure:
        found = report[key]
        if found is None or found["value"] is None:
            why = "no time is booked" if report["total_gpu_seconds"] == 0 else None
            if key == "at_peak":
                why = found["reason"] if found else "the FLOPs of a token are not known"
            return Figure(None, reason=why)
        return Figure(found["value"], found["lo"], found["hi"])

    return find


def _unstopped(report: dict[str, Any]) -> Figure:
    """Kept time over the total without A.stop; the same as kept time if nobody said that it was."""
    kept = _ratio("kept_time")(report)
    stopped = report["leaves"]["A.stop"]["gpu_seconds"] or 0.0
    rest = report["total_gpu_seconds"] - stopped
    if kept.value is None or rest <= 0:
        return Figure(None, reason=kept.reason or "all of its time was a planned stop")
    bounds = [min(1.0, (x or 0.0) * report["total_gpu_seconds"] / rest) for x in (kept.lo, kept.hi)]
    return Figure(kept.value * report["total_gpu_seconds"] / rest, bounds[0], bounds[1])


def _group(letters: str) -> Callable[[dict[str, Any]], Figure]:
    leaves = tuple(leaf for leaf in LEAF_IDS if leaf[0] in letters)
    return lambda report: _share(report, leaves)


def _share(report: dict[str, Any], leaves: tuple[str, ...]) -> Figure:
    """Share of some leaves in the total. Known if any of them is; else the first one's reason."""
    total = report["total_gpu_seconds"]
    rows = [report["leaves"][leaf] for leaf in leaves]
    known = [r for r in rows if r["gpu_seconds"] is not None]
    if total <= 0:
        return Figure(None, reason="no time is booked")
    if not known:
        return Figure(None, reason=rows[0].get("reason"))
    value = sum(int(r["gpu_ns"]) for r in known) / int(report["total_gpu_ns"])
    low = sum(r["lo"] for r in rows) / total
    high = sum(r["hi"] or 0.0 for r in rows) / total
    return Figure(value, min(low, value), max(value, min(1.0, high)))


def _lost_steps(report: dict[str, Any]) -> Figure:
    steps = report["steps"]
    return Figure(steps["lost"], steps["lost_lo"], steps["lost_hi"])


def _incidents(report: dict[str, Any]) -> Figure:
    return Figure(len(report["incidents"]))


def _cost(report: dict[str, Any]) -> Figure:
    total = report["cost"]["total"]
    return Figure(total) if total is not None else Figure(None, reason=_UNPRICED)


_UNPRICED = "no price is known; give --price"


def _per_mtok(report: dict[str, Any]) -> Figure:
    per, steps = report["cost"]["per_kept_token"], report["steps"]
    if per is None:
        priced = report["cost"]["total"] is not None
        return Figure(None, reason="no kept token is known" if priced else _UNPRICED)
    value = per * 1e6
    left = steps["kept"] - (steps["lost_hi"] - steps["lost"])
    # If nothing is left of the kept steps, a token costs any amount.
    return Figure(value, value, value * steps["kept"] / left if left > 0 else math.inf)


GATES: tuple[Gate, ...] = (
    Gate("kept-time", True, "share", "kept time", _ratio("kept_time")),
    Gate("kept-time-without-stops", True, "share", "kept time without planned stops", _unstopped),
    Gate("goodput", True, "share", "goodput", _ratio("goodput")),
    Gate("at-peak", True, "share", "time at peak", _ratio("at_peak")),
    Gate("lost", False, "share", "lost work (D) as a share of the time", _group("D")),
    Gate("restart", False, "share", "failure and restart (B + C) as a share", _group("BC")),
    Gate("idle", False, "share", "time not running (A) as a share", _group("A")),
    Gate("unaccounted", False, "share", "unaccounted time (U) as a share", _group("U")),
    Gate("lost-steps", False, "count", "the number of lost steps", _lost_steps),
    Gate("incidents", False, "count", "the number of incidents", _incidents),
    Gate("cost", False, "money", "the cost of the run", _cost),
    Gate("cost-per-mtok", False, "money", "the cost of a million kept tokens", _per_mtok),
)
"""What can be gated, in the order of the help."""
