"""The pipeline's bubble beside the schedule's ideal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.books import Books
    from badput_ledger.processes import Process


def build_pipeline(books: Books) -> dict[str, Any] | None:
    """Stages with their busy and waiting time in kept steps; None for a run without stages."""
    members = [p for s in books.facts.sessions for p in s.members if p.stages and p.stages > 1]
    if not members:
        return None
    last: Process = members[-1]
    rows = books.rows(
        "SELECT stage, sum(busy_ns) AS busy, sum(wait_ns) AS wait, sum(time_ns) AS time, "
        "sum(steps)::BIGINT AS steps FROM step_sums "
        "WHERE fate = 'kept' AND stage IS NOT NULL GROUP BY stage ORDER BY stage"
    )
    waits = bool(books.rows("FROM measured")[0]["bubble"])
    stages = [
        {
            "stage": int(r["stage"]),
            "busy_s": int(r["busy"]) / 1e9 if waits else None,
            "wait_s": int(r["wait"]) / 1e9 if waits else None,
            "bubble": int(r["wait"]) / int(r["time"]) if waits and r["time"] else None,
        }
        for r in rows
    ]
    time = sum(int(r["time"]) for r in rows)
    wait = sum(int(r["wait"]) for r in rows)
    steps = max((int(r["steps"]) for r in rows), default=0)
    return {
        "stages": last.stages,
        "microbatches": last.microbatches,
        "schedule": last.schedule,
        "ideal_bubble": _ideal(last, steps),
        "actual_bubble": wait / time if waits and time else None,
        "by_stage": stages,
    }


def _ideal(process: Process, steps: int) -> float | None:
    """(p - 1) / (m + p - 1); a schedule that never drains pays it once in all its steps."""
    p, m = process.stages, process.microbatches
    if not p or not m:
        return None
    if process.schedule == "2bw":
        return (p - 1) / (steps * m + p - 1)
    if process.schedule in ("gpipe", "1f1b", None):
        return (p - 1) / (m + p - 1)
    return None
