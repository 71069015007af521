"""One letter for how far the numbers can be trusted, and why it is no better one."""

from __future__ import annotations

from typing import Any

GRADES = "ABCD"
UNACCOUNTED = ((0.10, "D"), (0.03, "C"), (0.01, "B"))
"""Share of the total that no fact covers, and the best grade above it."""
WIDTH = ((0.20, "D"), (0.05, "C"), (0.01, "B"))
"""The same for the distance between the bounds of kept time."""


def build_grade(report: dict[str, Any]) -> dict[str, Any]:
    """The worst grade that any rule gives, with every reason of that grade."""
    reasons: list[tuple[str, str]] = []
    total, kept = report["total_gpu_seconds"], report["kept_time"]
    if not total or not report["steps"]["executed"]:
        reasons.append(("D", "no step was recorded"))
    unknown = report["leaves"]["U.unaccounted"]["gpu_seconds"] or 0.0
    if total:
        reasons += _above(unknown / total, UNACCOUNTED, "{:.1%} of the time is unaccounted")
    if kept["value"] is not None:
        width = kept["hi"] - kept["lo"]
        reasons += _above(width, WIDTH, "the bounds of kept time are {:.1%} apart")
    notes = report["quality"]
    errors = [n["what"] for n in notes if n["severity"] == "error"]
    warnings = [n["what"] for n in notes if n["severity"] == "warning"]
    reasons += [("C", what) for what in errors]
    reasons += [("B", what) for what in warnings]
    grade = max((g for g, _ in reasons), default="A")
    why = [reason for g, reason in reasons if g == grade]
    return {
        "grade": grade,
        "reason": why[0]
        if why
        else "no error, no warning, and the bounds of kept time within 1% of the time",
        "reasons": why,
    }


def _above(value: float, limits: tuple[tuple[float, str], ...], text: str) -> list[tuple[str, str]]:
    for least, grade in limits:
        if value > least:
            return [(grade, text.format(value))]
    return []
