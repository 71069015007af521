"""What became of each start of a run: which never trained, which never saved, and the cost.

A start costs everything from its first process to that of the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso

if TYPE_CHECKING:
    from badput_ledger.books import Books

OUTCOMES: dict[str, str] = {
    "not begun": "finished no step and loaded no checkpoint",
    "not saved": "loaded a checkpoint or finished steps, and saved nothing durable",
    "saved": "made a checkpoint durable",
}
"""What a start can have come to."""


def build_starts(books: Books) -> dict[str, Any]:
    """Every start with its outcome and cost, and the sums by outcome."""
    rows = books.rows(_STARTS)
    pieces = books.rows(
        "SELECT start_ns, end_ns, billed, count(*) AS places FROM allocations "
        "GROUP BY ALL ORDER BY start_ns, end_ns, billed"
    )
    begins = [int(r["start_ns"]) for r in rows]
    ends = [*begins[1:], max([int(p["end_ns"]) for p in pieces], default=0)]
    found: list[dict[str, Any]] = []
    for row, begin, end in zip(rows, begins, ends, strict=True):
        ns, billed = _held(pieces, begin, end)
        saved, tried = int(row["saves"] or 0), bool(row["loads"] or row["steps"])
        outcome = "saved" if saved else "not saved" if tried else "not begun"
        found.append(
            {
                "session": row["session"],
                "start": iso(begin),
                "outcome": outcome,
                "loaded_step": row["loaded"],
                "loads": int(row["loads"] or 0),
                "last_step": row["completed_upto"],
                "saves": saved,
                "gpu_seconds": ns / 1e9,
                "held_gpu_seconds": billed / 1e9,
                "cost": books.price.of(billed),
            }
        )
    return {"by_outcome": [_sum(books, found, o) for o in OUTCOMES], "starts": found}


_STARTS = """
SELECT s.session, s.start_ns, r.completed_upto, r.completed_upto IS NOT NULL AS steps,
       l.loads, l.loaded, v.saves
FROM sessions s LEFT JOIN resumes r USING (session)
LEFT JOIN (SELECT m.session, count(DISTINCT c.start_ns) AS loads,
                  arg_min(c.step, c.start_ns) AS loaded
           FROM checkpoints c JOIN members m USING (process_id)
           WHERE c.op = 'load' AND coalesce(c.ok, true) GROUP BY m.session) l
    USING (session)
LEFT JOIN (SELECT session, count(DISTINCT step) AS saves FROM saves WHERE durable
           GROUP BY session) v USING (session)
ORDER BY s.ord
"""


def _held(pieces: list[dict[str, Any]], begin: int, end: int) -> tuple[int, int]:
    """Slot-nanoseconds allocated between two instants, and those of them that were paid."""
    total = billed = 0
    for piece in pieces:
        if piece["start_ns"] >= end:
            break
        overlap = min(end, int(piece["end_ns"])) - max(begin, int(piece["start_ns"]))
        if overlap > 0:
            total += overlap * int(piece["places"])
            billed += overlap * int(piece["places"]) if piece["billed"] else 0
    return total, billed


def _sum(books: Books, found: list[dict[str, Any]], outcome: str) -> dict[str, Any]:
    of = [start for start in found if start["outcome"] == outcome]
    costs = [start["cost"] for start in of if start["cost"] is not None]
    return {
        "outcome": outcome,
        "meaning": OUTCOMES[outcome],
        "starts": len(of),
        "gpu_seconds": sum(start["gpu_seconds"] for start in of),
        "held_gpu_seconds": sum(start["held_gpu_seconds"] for start in of),
        "cost": sum(costs) if books.price.per_hour is not None else None,
    }
