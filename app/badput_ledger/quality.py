"""What a reader must know before trusting the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.books import Books

Note = tuple[str, str, str]
"""severity (error, warning or info), what, evidence."""


def build_quality(books: Books, report: dict[str, Any]) -> list[dict[str, str]]:
    """Every caveat, most severe first."""
    notes: list[Note] = [("error", sentence, "parts") for sentence in books.broken]
    notes += books.facts.notes
    notes += _rows(books)
    notes += _sessions(books)
    notes += _unknowns(books, report)
    order = {"error": 0, "warning": 1, "info": 2}
    notes.sort(key=lambda n: order[n[0]])
    return [{"severity": s, "what": w, "evidence": e} for s, w, e in notes]


def _rows(books: Books) -> list[Note]:
    notes: list[Note] = []
    unknown = books.rows(
        "SELECT name, count(*) AS n, sum(stop_ns - start_ns) / 1e9 AS s FROM span_rows "
        "WHERE NOT known GROUP BY name ORDER BY s DESC LIMIT 5"
    )
    for row in unknown:
        notes.append(
            (
                "info",
                f"span {row['name']!r} ({row['n']} times, {row['s']:.1f} s) has no leaf of its "
                "own: before the first step it is C.model, later U",
                "spans",
            )
        )
    over = books.rows("SELECT coalesce(sum(overbooked), 0) AS n FROM step_sums")[0]["n"]
    if over:
        notes.append(
            (
                "warning",
                f"overbooked: {int(over)} step rows record more time than they lasted; "
                "their whole time is U",
                "steps",
            )
        )
    dropped = books.rows(
        "SELECT coalesce(sum(TRY_CAST(json_extract_string(attrs, '$.count') AS BIGINT)), 0) AS n "
        "FROM events WHERE kind = 'dropped'"
    )[0]["n"]
    said = sum(p.dropped for s in books.facts.sessions for p in s.members)
    if dropped or said:
        notes.append(("warning", f"{max(int(dropped), said)} records were dropped", "events"))
    return notes


def _sessions(books: Books) -> list[Note]:
    notes: list[Note] = []
    for row in books.rows("SELECT * FROM usual WHERE b_ns IS NULL ORDER BY session"):
        notes.append(
            (
                "info",
                f"session {row['session']}: fewer than 20 plain steps, so what a usual step takes "
                "is not known and warm-up is NULL",
                "steps",
            )
        )
    for row in books.rows("SELECT * FROM resumes WHERE outside ORDER BY ord"):
        notes.append(
            (
                "info",
                f"session {row['session']} loaded a checkpoint that this run did not write",
                "checkpoints",
            )
        )
    for row in books.rows("SELECT * FROM rank_steps WHERE log_interval > 1 ORDER BY session, rank"):
        notes.append(
            (
                "info",
                f"session {row['session']}, rank {row['rank']}: up to {row['log_interval']} steps "
                "share one row",
                "steps",
            )
        )
    guesses = books.rows(
        "SELECT session, parent, because FROM lineage "
        "WHERE parent IS NOT NULL AND because <> 'checkpoint loaded' ORDER BY ord"
    )
    for row in guesses:
        notes.append(
            (
                "info",
                f"session {row['session']} is taken to continue {row['parent']} by the "
                f"{row['because']}, since no checkpoint path links them",
                "lineage",
            )
        )
    return notes


def _unknowns(books: Books, report: dict[str, Any]) -> list[Note]:
    notes: list[Note] = []
    if books.price.per_hour is None:
        notes.append(("info", "no price is known, so every cost is NULL; give --price", "runs"))
    if report["tokens"]["processed"] is None:
        notes.append(("info", "no step says how many tokens it took", "steps"))
    if not report["run"]["over"]:
        notes.append(
            (
                "info",
                "nothing says that the run has ended; it is counted up to its last record",
                "events",
            )
        )
    risk = books.rows(
        "SELECT completed_upto - at_risk_after AS n FROM cuts WHERE at_risk_after IS NOT NULL"
    )
    for row in risk:
        notes.append(
            (
                "warning",
                f"at risk: {row['n']} steps after the last durable checkpoint",
                "checkpoints",
            )
        )
    unsure = books.rows("SELECT session, step FROM saves WHERE NOT durable ORDER BY start_ns")
    for row in unsure[:5]:
        notes.append(
            (
                "warning",
                f"the checkpoint of step {row['step']} in session {row['session']} was never "
                "confirmed durable",
                "checkpoints",
            )
        )
    held = books.rows("SELECT count(*) AS n FROM allocations WHERE held = 'unknown'")[0]["n"]
    if held:
        notes.append(
            (
                "info",
                "it is not known whether the places were held between sessions; "
                "--gaps held|released decides whether they cost",
                "allocations",
            )
        )
    if report["units"] == "rank":
        notes.append(
            ("info", "ranks have no GPU of their own, so hours are rank-hours", "processes")
        )
    return notes
