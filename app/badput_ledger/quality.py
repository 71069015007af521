"""What a reader must know before trusting the numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from badput_ledger import store
from badput_ledger.doubtful import doubtful

if TYPE_CHECKING:
    from badput_ledger.books import Books

_ORDER = {"error": 0, "warning": 1, "info": 2}


class _Notes:
    """The list under construction."""

    def __init__(self) -> None:
        self.items: list[dict[str, str]] = []

    def add(self, severity: str, what: str, evidence: str, sql: str | None = None) -> None:
        item = {"severity": severity, "what": what, "evidence": evidence}
        self.items.append(item if sql is None else {**item, "sql": sql})


def build_quality(books: Books, report: dict[str, Any]) -> list[dict[str, str]]:
    """Every caveat, most severe first."""
    notes = _Notes()
    for sentence in books.broken:
        notes.add("error", sentence, "parts")
    waiting = store.waiting_spools(books.path)
    if waiting:
        what = f"{waiting} spools of ranks are not collected yet: badput collect {books.path}"
        notes.add("warning", what, "spools")
    _copies(books, notes)
    for severity, what, evidence in books.facts.notes:
        notes.add(severity, what, evidence)
    said = books.facts.config.get("notes")
    for note in cast("list[object]", said) if isinstance(said, list) else []:
        notes.add("info", str(note), "runs.config")
    _rows(books, notes)
    _sessions(books, notes)
    _survived_hangs(books, notes)
    _checkpoints(books, notes)
    _unknowns(books, report, notes)
    for found in doubtful(books, report):
        notes.add(*found)
    return sorted(_folded(notes.items), key=lambda n: _ORDER[n["severity"]])


_SESSION = re.compile(r"session (s\d+)\b")


def _folded(items: list[dict[str, str]]) -> list[dict[str, str]]:
    """What is said of several sessions in the same words is said once, of all of them."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for item in items:
        key = _SESSION.sub("session", item["what"], 1), item["severity"]
        groups.setdefault(key, []).append(item)
    return [_one(group) for group in groups.values()]


def _one(group: list[dict[str, str]]) -> dict[str, str]:
    named = [m.group(1) for i in group if (m := _SESSION.search(i["what"]))]
    if len(named) < 2:
        return group[0]
    which = ", ".join(named) if len(named) < 4 else f"{named[0]} to {named[-1]}"
    if len(named) >= 4:
        which = f"{which} ({len(named)} sessions)"
    what = _SESSION.sub(f"sessions {which}", group[0]["what"], 1)
    return group[0] | {"what": what}


def _rows(books: Books, notes: _Notes) -> None:
    unknown = books.rows(
        "SELECT name, count(*) AS n, sum(stop_ns - start_ns) / 1e9 AS s FROM span_rows "
        "WHERE NOT known GROUP BY name ORDER BY s DESC LIMIT 5"
    )
    for row in unknown:
        notes.add(
            "info",
            f"span {row['name']!r} ({row['n']} times, {row['s']:.1f} s) has no leaf of its "
            "own: before the first step it is C.model, later U",
            "spans",
        )
    over = books.rows("SELECT coalesce(sum(overbooked), 0) AS n FROM step_sums")[0]["n"]
    if over:
        notes.add(
            "warning",
            f"overbooked: {int(over)} step rows record more time than they lasted; "
            "their whole time is U",
            "steps",
        )
    dropped = books.rows(
        "SELECT coalesce(sum(TRY_CAST(json_extract_string(attrs, '$.count') AS BIGINT)), 0) AS n "
        "FROM events WHERE kind = 'dropped'"
    )[0]["n"]
    said = sum(p.dropped for s in books.facts.sessions for p in s.members)
    if dropped or said:
        notes.add("warning", f"{max(int(dropped), said)} records were dropped", "events")


def _sessions(books: Books, notes: _Notes) -> None:
    for row in books.rows("SELECT * FROM usual WHERE b_ns IS NULL ORDER BY session"):
        notes.add(
            "info",
            f"session {row['session']}: fewer than 20 plain steps, so what a usual step takes "
            "is not known, and neither is its warm-up",
            "steps",
        )
    roots = {
        r["session"]
        for r in books.rows(
            "SELECT session FROM lineage WHERE parent IS NULL AND ord > "
            "(SELECT min(ord) FROM resumes WHERE completed_upto IS NOT NULL)"
        )
    }
    for row in books.rows("SELECT * FROM resumes WHERE outside ORDER BY ord"):
        what = (
            f"session {row['session']} loaded a checkpoint that is none of this run's by its path"
        )
        alone = row["session"] in roots
        if alone:
            what += (
                "; its steps do not go on from an earlier session's either, so nothing connects it "
                "with them and all their steps count as kept: give badput.step() its number=, or "
                "the save and load spans their step="
            )
        notes.add("warning" if alone else "info", what, "checkpoints")
    logged = "SELECT * FROM rank_steps WHERE log_interval > 1 ORDER BY session, rank"
    for row in books.rows(logged):
        what = f"session {row['session']}, rank {row['rank']}: up to {row['log_interval']} steps"
        notes.add("info", f"{what} share one row", "steps")
    guesses = books.rows(
        "SELECT session, parent, because FROM lineage "
        "WHERE parent IS NOT NULL AND because <> 'checkpoint loaded' ORDER BY ord"
    )
    for row in guesses:
        notes.add(
            "info",
            f"session {row['session']} is taken to continue {row['parent']} by the "
            f"{row['because']}, since no checkpoint path links them",
            "lineage",
        )


def _copies(books: Books, notes: _Notes) -> None:
    """Ranks whose records come from a copy alone: their node's spool may hold more."""
    many = books.rows(
        "SELECT count(*) AS n FROM (SELECT process_id FROM events WHERE kind = 'end' "
        "GROUP BY process_id HAVING "
        "bool_and(json_valid(attrs) AND coalesce(json_extract_string("
        "CASE WHEN json_valid(attrs) THEN attrs END, '$.copy') = 'true', false)))"
    )[0]["n"]
    if many:
        what = (
            f"the records of {many} processes that did not close come from copies in the run "
            "folder: some 10 s more may lie in the spools of their nodes (badput collect there)"
        )
        notes.add("warning", what, "events")


def _survived_hangs(books: Books, notes: _Notes) -> None:
    """Hangs that the run survived: their time is in the steps or gaps where they were."""
    for row in books.rows(
        "SELECT count(*) AS n, max(ns) AS ns, arg_max(rank, ns) AS rank, "
        "arg_max(step, ns) AS step, arg_max(phase, ns) AS phase FROM (SELECT rank, step, "
        "TRY_CAST(json_extract_string(attrs, '$.duration_ns') AS BIGINT) AS ns, "
        "json_extract_string(attrs, '$.phase') AS phase FROM events WHERE kind = 'hang_end') "
        "HAVING count(*) > 0"
    ):
        longest = ""
        if row["ns"] is not None:
            where = f"rank {row['rank']}, step {row['step']}, phase {row['phase']}"
            longest = f", the longest {row['ns'] / 1e9:.0f} s long ({where})"
        times = "once" if row["n"] == 1 else f"{row['n']} times"
        notes.add("info", f"a rank stood still and moved on by itself {times}{longest}", "events")


def _checkpoints(books: Books, notes: _Notes) -> None:
    risk = "SELECT completed_upto - at_risk_after AS n FROM cuts WHERE at_risk_after IS NOT NULL"
    for row in books.rows(risk):
        what = f"at risk: {row['n']} steps after the last durable checkpoint"
        notes.add("warning", what, "checkpoints")
    unsure = "SELECT session, step FROM saves WHERE NOT durable ORDER BY start_ns LIMIT 5"
    for row in books.rows(unsure):
        notes.add(
            "warning",
            f"the checkpoint of step {row['step']} in session {row['session']} was never "
            "confirmed durable",
            "checkpoints",
        )


def _unknowns(books: Books, report: dict[str, Any], notes: _Notes) -> None:
    for why in report["cost"]["missing"]:
        notes.add("info", f"{why}; what it would cost is NULL", "cost.rates")
    if report["tokens"]["processed"] is None:
        notes.add("info", "no step says how many tokens it took", "steps")
    if books.facts.sessions and books.facts.sessions[-1].vanished:
        what = (
            "how it ended is not known: its processes were gone between two steps, and neither an "
            "exit status nor a failure was seen"
        )
        notes.add("info", what, "events")
    elif not report["run"]["over"]:
        what = (
            "how it ended is not known: nothing says that the run is over, so it is counted up "
            "to its last record"
        )
        notes.add("info", what, "events")
    held = "SELECT count(*) AS n FROM allocations WHERE held = 'unknown'"
    if books.gaps == "unknown" and books.rows(held)[0]["n"]:
        notes.add(
            "info",
            "it is not known whether the places were held between sessions: they are counted as "
            "paid; --gaps released says that they were not, --gaps held that they were",
            "allocations",
        )
    if report["units"] == "rank":
        what = "ranks have no GPU of their own, so hours are rank-hours"
        notes.add("info", what, "processes")
