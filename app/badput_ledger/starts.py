"""What became of each start of a run: which never trained, which never saved, and the cost.

A start costs everything from its first process to that of the next start.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso
from badput_ledger.cost import rounded

if TYPE_CHECKING:
    from badput_ledger.books import Books

OUTCOMES: dict[str, str] = {
    "not begun": "finished no step and loaded no checkpoint",
    "not saved": "loaded a checkpoint or finished steps, and saved nothing durable",
    "saved": "made a checkpoint durable",
}
"""What a start can have come to."""

Part = tuple[str, str, int, int]
"""Session, leaf, slot-nanoseconds, and those of them that were held."""


def build_starts(books: Books) -> dict[str, Any]:
    """Every start with its outcome and cost, and the sums by outcome."""
    rows = books.rows(_STARTS)
    parts = _parts(books, [str(r["session"]) for r in rows])
    costs = [books.costs.of([(s, leaf, held) for s, leaf, _, held in of]) for of in parts]
    found: list[dict[str, Any]] = []
    for row, of, cost in zip(rows, parts, costs, strict=True):
        saved, tried = int(row["saves"] or 0), bool(row["loads"] or row["steps"])
        found.append(
            {
                "session": row["session"],
                "start": iso(int(row["start_ns"])),
                "outcome": "saved" if saved else "not saved" if tried else "not begun",
                "loaded_step": row["loaded"],
                "loads": int(row["loads"] or 0),
                "last_step": row["completed_upto"],
                "saves": saved,
                "gpu_seconds": sum(ns for _, _, ns, _ in of) / 1e9,
                "held_gpu_seconds": sum(held for _, _, _, held in of) / 1e9,
                "cost": rounded(cost),
            }
        )
    by_outcome = [_sum(found, costs, outcome) for outcome in OUTCOMES]
    return {"by_outcome": by_outcome, "starts": found}


_STARTS = """
SELECT s.session, s.start_ns, r.completed_upto, r.completed_upto IS NOT NULL AS steps,
       l.loads, l.loaded, v.saves
FROM sessions s LEFT JOIN resumes r USING (session)
LEFT JOIN (SELECT m.session, count(DISTINCT c.start_ns) AS loads,
                  arg_min(c.step, (c.start_ns, c.step)) AS loaded
           FROM checkpoints c JOIN members m USING (process_id)
           WHERE c.op = 'load' AND coalesce(c.ok, true) GROUP BY m.session) l
    USING (session)
LEFT JOIN (SELECT session, count(DISTINCT step) AS saves FROM saves WHERE durable
           GROUP BY session) v USING (session)
ORDER BY s.ord
"""
_BEFORE = """
SELECT g.session, g.leaf, sum(g.stop_ns - g.start_ns)::HUGEINT AS ns,
       coalesce(sum(g.stop_ns - g.start_ns) FILTER (WHERE g.billed), 0)::HUGEINT AS billed_ns
FROM slot_gaps g JOIN sessions s USING (session)
WHERE g.stop_ns <= s.start_ns GROUP BY g.session, g.leaf
"""


def _parts(books: Books, sessions: list[str]) -> list[list[Part]]:
    """What each start is made of: its session, and the gap up to the next one."""
    before: dict[str, dict[str, tuple[int, int]]] = {}
    for row in books.rows(_BEFORE):
        gap = (int(row["ns"]), int(row["billed_ns"]))
        before.setdefault(str(row["session"]), {})[str(row["leaf"])] = gap
    own: dict[str, list[Part]] = {}
    for row in books.rows("FROM session_leaves WHERE session IS NOT NULL ORDER BY session, leaf"):
        session, leaf = str(row["session"]), str(row["leaf"])
        ns, held = before.get(session, {}).get(leaf, (0, 0))
        part = (session, leaf, int(row["ns"]) - ns, int(row["billed_ns"]) - held)
        own.setdefault(session, []).append(part)
    found: list[list[Part]] = []
    for session, following in zip(sessions, [*sessions[1:], ""][: len(sessions)], strict=True):
        gap = [(following, leaf, *times) for leaf, times in before.get(following, {}).items()]
        found.append(own.get(session, []) + gap)
    return found


def _sum(found: list[dict[str, Any]], costs: list[Fraction | None], outcome: str) -> dict[str, Any]:
    of = [i for i, start in enumerate(found) if start["outcome"] == outcome]
    amounts = [c for c in (costs[i] for i in of) if c is not None]
    return {
        "outcome": outcome,
        "meaning": OUTCOMES[outcome],
        "starts": len(of),
        "gpu_seconds": sum(found[i]["gpu_seconds"] for i in of),
        "held_gpu_seconds": sum(found[i]["held_gpu_seconds"] for i in of),
        "cost": rounded(sum(amounts, Fraction(0))) if len(amounts) == len(of) and of else None,
    }
