"""The report of a run: one dict of plain values, the JSON contract of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.annotations import LEAVES
from badput_ledger.clock import iso
from badput_ledger.cost import build_cost, rounded
from badput_ledger.definitions import definitions
from badput_ledger.figures import LeafSum, goodput, kept_time, leaf_sums
from badput_ledger.grade import build_grade
from badput_ledger.incidents import build_incidents
from badput_ledger.learning import build_learning
from badput_ledger.paths import shown
from badput_ledger.pipeline import build_pipeline
from badput_ledger.quality import build_quality
from badput_ledger.starts import build_starts
from badput_ledger.tokens import build_tokens
from badput_ledger.verdict import build_verdict
from badput_ledger.waterfall import build_at_peak, build_waterfall

if TYPE_CHECKING:
    from badput_ledger.books import Books

SCHEMA = "badput.report/1"


def build_report(books: Books) -> dict[str, Any]:
    """Everything that the books of a run say."""
    leaves = leaf_sums(books)
    total = int(
        books.rows("SELECT coalesce(sum(end_ns - start_ns), 0) AS ns FROM allocations")[0]["ns"]
    )
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "run": _run(books),
        "units": units(books),
        "total_gpu_seconds": total / 1e9,
        "total_gpu_ns": str(total),
        "held_gpu_seconds": sum(leaf.billed_ns for leaf in leaves) / 1e9,
        "gaps": books.gaps,
        "leaves": {leaf.id: _leaf(books, leaf) for leaf in leaves},
        "kept_time": kept_time(leaves, total),
        "goodput": goodput(leaves, total),
        "at_peak": build_at_peak(books),
        "steps": _steps(books),
        "tokens": build_tokens(books),
        "sessions": _sessions(books),
        "pipeline": build_pipeline(books),
        "learning": build_learning(books, books.reference),
        "checkpoints": _checkpoints(books),
        "incidents": build_incidents(books),
        "annotations": [a.plain() for a in books.facts.said],
        "starts": build_starts(books),
    }
    report["definitions"] = definitions(books, report["learning"])
    report["cost"] = build_cost(books, report)
    report["waterfall"] = build_waterfall(books, report, leaves)
    report["quality"] = build_quality(books, report)
    report["grade"] = build_grade(report)
    report["verdict"] = build_verdict(books, report)
    return report


def units(books: Books) -> str:
    """What one place is: a GPU, a rank where ranks have no GPU of their own, or a node where a
    log counts nodes and says nothing of their GPUs."""
    if books.facts.config.get("place") == "node":
        return "node"
    members = [p for s in books.facts.sessions for p in s.members]
    types = {p.gpu_type for p in members if p.gpu_type}
    if types and types <= {"cpu"}:
        return "rank"
    for session in books.facts.sessions:
        uuids = [p.gpu_uuid for p in session.members if p.gpu_uuid]
        if len(uuids) != len(set(uuids)):
            return "rank"
    return "GPU"


def _run(books: Books) -> dict[str, Any]:
    facts = books.facts
    ends = books.rows("SELECT min(start_ns) AS a, max(end_ns) AS b FROM allocations")[0]
    types = [p.gpu_type for s in facts.sessions for p in s.members if p.gpu_type]
    said = facts.config.get("gpu_type")
    folder = shown(books.path.resolve().name)
    first = facts.run.get("process_id")
    if first is None and facts.sessions:
        first = facts.sessions[0].members[0].process_id
    return {
        "id": f"{int(first):016x}" if first is not None else folder,
        "name": str(facts.run.get("name") or folder),
        "source": str(facts.run.get("source") or "unknown"),
        "world_size": facts.sessions[-1].world_size if facts.sessions else None,
        "gpus": facts.slots if units(books) == "GPU" else None,
        "gpu_type": types[0] if types else said if isinstance(said, str) else None,
        "start": iso(ends["a"]),
        "end": iso(ends["b"]),
        "over": facts.over,
    }


def _leaf(books: Books, leaf: LeafSum) -> dict[str, Any]:
    known = leaf.ns is not None
    row: dict[str, Any] = {
        "gpu_seconds": leaf.ns / 1e9 if leaf.ns is not None else None,
        "gpu_ns": str(leaf.ns) if known else None,
        "held_gpu_seconds": leaf.billed_ns / 1e9 if known else None,
        "lo": leaf.lo / 1e9,
        "hi": leaf.hi / 1e9 if leaf.hi is not None else None,
        "cost": rounded(books.costs.leaf(leaf.id)) if known else None,
        "tokens": leaf.tokens,
    }
    if leaf.reason:
        row["reason"] = leaf.reason
    elif leaf.ns and any(LEAVES.get(a.kind) == leaf.id for a in books.facts.said):
        row["evidence"] = "annotation"
    return row


def _steps(books: Books) -> dict[str, Any]:
    by_fate: dict[str, int] = {}
    for row in books.rows("FROM step_counts"):
        by_fate[str(row["fate"])] = by_fate.get(str(row["fate"]), 0) + int(row["steps"])
    lost = sum(n for fate, n in by_fate.items() if fate.startswith("D."))
    skipped = sum(n for fate, n in by_fate.items() if fate.startswith("F."))
    more = books.rows("SELECT coalesce(sum(greatest(extra, 0)), 0) AS n FROM log_gaps")[0]["n"]
    risk = books.rows(
        "SELECT coalesce(sum(completed_upto - at_risk_after), 0) AS n FROM cuts "
        "WHERE at_risk_after IS NOT NULL"
    )[0]["n"]
    last = books.rows("SELECT arg_max(kept_upto, ord) AS n FROM cuts WHERE on_path")[0]["n"]
    kept = by_fate.get("kept", 0)
    return {
        "executed": kept + lost + skipped,
        "kept": kept,
        "lost": lost,
        "lost_lo": lost,
        "lost_hi": lost + int(more) + int(risk),
        "skipped": skipped,
        "last": last,
        "by_fate": dict(sorted(by_fate.items())),
    }


def _sessions(books: Books) -> list[dict[str, Any]]:
    cuts = {str(r["session"]): r for r in books.rows("FROM cuts")}
    counts: dict[str, dict[str, int]] = {}
    for row in books.rows("FROM step_counts"):
        counts.setdefault(str(row["session"]), {})[str(row["fate"])] = int(row["steps"])
    found: list[dict[str, Any]] = []
    before: int | None = None
    for session in books.facts.sessions:
        cut, steps = cuts[session.id], counts.get(session.id, {})
        gap = None if before is None else (session.start_ns - before) / 1e9
        found.append(
            {
                "id": session.id,
                "start": iso(session.start_ns),
                "end": iso(session.window_end_ns),
                "end_reason": session.end_reason,
                "first_step": cut["first_step"],
                "last_step": cut["completed_upto"],
                "resumed_from": cut["resumed_from"],
                "kept_steps": steps.get("kept", 0),
                "lost_steps": sum(n for fate, n in steps.items() if fate.startswith("D.")),
                "gap_before_s": gap,
                "parent": cut["parent"],
                "parent_because": cut["because"],
                "world_size": session.world_size,
                "ranks_seen": len(session.members),
            }
        )
        before = session.window_end_ns
    return found


def _checkpoints(books: Books) -> list[dict[str, Any]]:
    saves = [
        {
            "op": "save",
            "session": r["session"],
            "step": r["step"],
            "start": iso(int(r["start_ns"])),
            "durable": bool(r["durable"]),
            "durable_at": iso(r["durable_ns"]),
            "blocked_s": None if r["blocked_ns"] is None else r["blocked_ns"] / 1e9,
            "bytes": r["bytes"],
            "paths": sorted(r["paths"] or []),
            "ranks": r["ranks"],
        }
        for r in books.rows("FROM saves ORDER BY start_ns, step, session")
    ]
    loads = [
        {
            "op": "load",
            "session": r["session"],
            "step": r["step"],
            "start": iso(int(r["start_ns"])),
            "blocked_s": None if r["blocked_ns"] is None else r["blocked_ns"] / 1e9,
            "bytes": r["bytes"],
            "paths": sorted(r["paths"] or []),
            "ranks": r["ranks"],
        }
        for r in books.rows(
            "SELECT m.session, c.step, min(c.start_ns) AS start_ns, max(c.dur_ns) AS blocked_ns, "
            "sum(c.bytes)::BIGINT AS bytes, count(DISTINCT m.rank) AS ranks, "
            "list(DISTINCT c.path) FILTER (WHERE c.path IS NOT NULL) AS paths "
            "FROM checkpoints c JOIN members m USING (process_id) WHERE c.op = 'load' "
            "GROUP BY m.session, c.step ORDER BY start_ns, c.step, m.session"
        )
    ]
    return sorted(saves + loads, key=lambda c: str(c["start"]))
