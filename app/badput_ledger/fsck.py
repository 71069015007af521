"""Do the books close? Every check compares two ways to the same number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.books import Books


def check(books: Books) -> list[dict[str, Any]]:
    """Each check with whether it holds and what was found."""
    return [
        _total(books),
        _slots(books),
        _negative(books),
        _covered(books),
        _steps(books),
        _bounds(books),
    ]


def _answer(what: str, ok: bool, found: str) -> dict[str, Any]:
    return {"what": what, "ok": ok, "found": found}


def _total(books: Books) -> dict[str, Any]:
    booked = sum(int(r["ns"]) for r in books.rows("FROM leaves"))
    given = sum(int(r["end_ns"]) - int(r["start_ns"]) for r in books.rows("FROM allocations"))
    return _answer(
        "leaves and U add up to the allocated time",
        booked == given,
        f"{booked} ns booked, {given} ns allocated, difference {booked - given}",
    )


def _slots(books: Books) -> dict[str, Any]:
    rows = books.rows(
        "SELECT slot, coalesce(t.booked_ns, 0) AS booked_ns, a.ns AS allocated_ns FROM "
        "(SELECT slot, sum(end_ns - start_ns) AS ns FROM allocations GROUP BY slot) a "
        "LEFT JOIN slot_totals t USING (slot) ORDER BY slot"
    )
    wrong = [r for r in rows if r["booked_ns"] != r["allocated_ns"]]
    found = f"{len(rows)} places"
    if wrong:
        first = wrong[0]
        found = (
            f"{len(wrong)} of {len(rows)} places differ, the first is place {first['slot']}: "
            f"{first['booked_ns']} ns booked, {first['allocated_ns']} ns allocated"
        )
    return _answer("each place's leaves add up to its allocated time", not wrong, found)


def _negative(books: Books) -> dict[str, Any]:
    rows = books.rows("SELECT session, rank, leaf, ns FROM rank_leaves WHERE ns < 0")
    found = "none" if not rows else f"{len(rows)}, such as {rows[0]}"
    return _answer("no leaf is negative, U included", not rows, found)


def _covered(books: Books) -> dict[str, Any]:
    """The time line itself, not its sums: pieces must follow each other without a seam."""
    rows = books.rows(
        "SELECT count(*) AS n FROM (SELECT rank, session, start_ns, "
        "lag(end_ns) OVER (PARTITION BY rank ORDER BY start_ns, end_ns) AS before FROM timeline) "
        "WHERE start_ns < before"
    )
    overlaps = int(rows[0]["n"])
    return _answer("no instant of a rank is booked twice", overlaps == 0, f"{overlaps} overlaps")


def _steps(books: Books) -> dict[str, Any]:
    rows = books.rows("FROM step_counts")
    by = dict.fromkeys("kDF", 0)
    for row in rows:
        by[str(row["fate"])[0]] += int(row["steps"])
    executed = _executed(books)
    return _answer(
        "executed = kept + lost + skipped steps",
        executed == sum(by.values()),
        f"{executed} executed, {by['k']} kept + {by['D']} lost + {by['F']} skipped",
    )


def _executed(books: Books) -> int:
    """Steps that every reporting rank of a session finished, straight from the step rows."""
    rows = books.rows(
        "WITH lead AS (SELECT session, arg_max(rank, (steps, -rank)) AS rank "
        "FROM rank_steps GROUP BY session), "
        "pieces AS (SELECT session, rank, start_ns, step, n_steps FROM step_rows UNION ALL "
        "SELECT session, rank, start_ns, step, steps FROM stretch_rows) "
        "SELECT coalesce(sum(CASE WHEN EXISTS (SELECT 1 FROM rewinds w WHERE "
        "w.session = s.session AND w.rank = s.rank AND w.time_ns > s.start_ns "
        "AND w.to_step < s.step) THEN s.n_steps "
        "ELSE greatest(least(s.step, coalesce(c.completed_upto, s.step - s.n_steps)) "
        "- (s.step - s.n_steps), 0) END), 0)::BIGINT AS n "
        "FROM pieces s JOIN lead l USING (session, rank) JOIN resumes c ON c.session = s.session"
    )
    return int(rows[0]["n"])


def _bounds(books: Books) -> dict[str, Any]:
    report = books.report()
    total = report["total_gpu_seconds"]
    low = sum(row["lo"] for row in report["leaves"].values())
    high = sum(row["hi"] or 0.0 for row in report["leaves"].values())
    near = 1e-6 * max(total, 1.0)
    return _answer(
        "the bounds enclose the total",
        low <= total + near and total <= high + near,
        f"{low:.6f} <= {total:.6f} <= {high:.6f} s",
    )
