"""From billed dollars to learning: each stage a share of the one before."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from badput_ledger.cost import rounded
from badput_ledger.definitions.flops import UnknownError, work_of
from badput_ledger.definitions.summary import summarize
from badput_ledger.tokens import at_risk

if TYPE_CHECKING:
    from badput_ledger.books import Books
    from badput_ledger.figures import LeafSum

STAGES: tuple[tuple[str, str, str], ...] = (
    ("allocated", "", "held and paid"),
    ("running", "A", "processes of the run lived on it"),
    ("in_the_loop", "BC", "after start-up, before the end"),
    ("kept", "DEFU", "in steps that the final model keeps"),
    ("computing", "G", "without waits that were measured"),
)
"""Name, the groups of leaves that go on the way to it, and what is left."""
STILL = ("G.recompute", "G.kernel")
"""Leaves of G that are computing: what they cost is the rate, not a wait."""


def build_waterfall(books: Books, report: dict[str, Any], leaves: list[LeafSum]) -> dict[str, Any]:
    """The stages with held GPU-seconds, money and shares; NULL ones with their reason."""
    held = {leaf.id: leaf.billed_ns for leaf in leaves}
    left = sum(held.values())
    stages: list[dict[str, Any]] = []
    gone: set[str] = set()
    before: int | None = None
    for name, groups, about in STAGES:
        minus = [x for x in held if x[0] in groups and x not in STILL]
        gone.update(minus)
        left -= sum(held[x] for x in minus)
        costs = [books.costs.leaf(x) for x in held if x not in gone]
        known = [c for c in costs if c is not None]
        stages.append(
            {
                "stage": name,
                "about": about,
                "gpu_seconds": left / 1e9,
                "share_of_previous": left / before if before else None,
                "share_of_allocated": None,
                "cost": rounded(sum(known, Fraction(0))) if len(known) == len(costs) else None,
                "minus": {x: held[x] / 1e9 for x in minus if held[x]},
            }
        )
        before = left
    stages.append(_at_peak(report, stages[-1]))
    stages.append(_learning(report, stages))
    whole = stages[0]["gpu_seconds"]
    for stage in stages:
        if whole and stage["gpu_seconds"] is not None:
            stage["share_of_allocated"] = stage["gpu_seconds"] / whole
    unmeasured = [x.id for x in leaves if x.ns is None and x.id[0] == "G" and x.id not in STILL]
    if unmeasured:
        stages[4]["note"] = f"not measured, so not taken off: {', '.join(unmeasured)}"
    return {"unit": report["units"], "stages": stages}


def build_at_peak(books: Books) -> dict[str, Any]:
    """Time that the kept FLOPs would take at the peak, as a share of the total; or why not."""
    summary = summarize(books)
    try:
        work = work_of(summary)
    except UnknownError as error:
        return {"value": None, "reason": str(error)}
    value = work.ideal_ns / summary.total if summary.total else None
    kept = books.rows("SELECT sum(steps) AS n FROM step_counts WHERE fate = 'kept'")[0]["n"] or 0
    risk = at_risk(books)["steps"] or 0
    safe = Fraction(max(0, int(kept) - risk), int(kept)) if kept else Fraction(1)
    return {
        "value": rounded(value),
        "lo": None if value is None else rounded(value * safe),
        "hi": rounded(value),
        "formula": work.formula,
        "flops_per_token": float(work.per_token),
        "peak_tflops": float(work.peak),
        "peak_source": work.peak_source,
    }


def _at_peak(report: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    peak = report["at_peak"]
    value, reason = peak["value"], peak.get("reason")
    seconds = None if value is None else value * report["total_gpu_seconds"]
    return _factor(
        "at_peak",
        "time that the kept FLOPs would take at the peak rate",
        None if seconds is None or not before["gpu_seconds"] else seconds / before["gpu_seconds"],
        before,
        reason,
    )


def _learning(report: dict[str, Any], stages: list[dict[str, Any]]) -> dict[str, Any]:
    learning = report["learning"]
    last = next(s for s in reversed(stages) if s["gpu_seconds"] is not None)
    about = "its share that taught as much as the reference's tokens, or as the first batch's"
    stage = _factor("learning", about, learning["efficiency"], last, learning.get("reason"))
    if stage["gpu_seconds"] is not None and last is not stages[-1]:
        stage["note"] = f"a share of {last['stage']}, as {stages[-1]['stage']} is not known"
    return stage


def _factor(
    name: str, about: str, share: float | None, before: dict[str, Any], reason: str | None
) -> dict[str, Any]:
    known = share is not None
    cost = before["cost"] * share if known and before["cost"] is not None else None
    return {
        "stage": name,
        "about": about,
        "gpu_seconds": before["gpu_seconds"] * share if known else None,
        "share_of_previous": share,
        "share_of_allocated": None,
        "cost": cost,
        "minus": {},
        **({} if known else {"reason": reason or "not known"}),
    }
