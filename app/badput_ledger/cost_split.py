"""Held time by session, leaf, GPU type and price period, in whole nanoseconds.

Without a change of price inside the run and with one GPU type these are the sums of the books
themselves. Otherwise segments are cut at the instant of the change, and so is the one step
that it falls into: what each leaf takes of that step is shared out in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from badput_ledger.rate import compute_shares
from badput_ledger.taxonomy import LEAF_IDS, REST

if TYPE_CHECKING:
    from badput_ledger.books import Books

ALWAYS = 1 << 62
"""After every instant that the books can hold."""


@dataclass(frozen=True, slots=True)
class Held:
    """Held slot-nanoseconds of one leaf in one session, all at one GPU type and period."""

    session: str | None
    leaf: str
    gpu_type: str | None
    begin_ns: int
    """Begin of its price period: any rate that holds then holds for all of it."""
    ns: int


def held_parts(books: Books, changes: list[int]) -> list[Held]:
    """Everything that was held, split by GPU type and at the instants in ``changes``."""
    span = books.rows("SELECT min(start_ns) AS a, max(end_ns) AS b FROM allocations")[0]
    if span["a"] is None:
        return []
    first, last = int(span["a"]), int(span["b"])
    cuts = [first, *(c for c in changes if first < c < last)]
    types = _types(books)
    kinds = {kind for _, _, kind in types}
    if len(cuts) == 1 and len(kinds) <= 1:
        kind = next(iter(kinds), _fallback(books))
        return [
            Held(row["session"], str(row["leaf"]), kind, first, int(row["billed_ns"]))
            for row in books.rows("FROM session_leaves WHERE billed_ns <> 0")
        ]
    return _split(books, cuts, types)


def _fallback(books: Books) -> str | None:
    said = books.facts.config.get("gpu_type")
    return said if isinstance(said, str) else None


def _types(books: Books) -> list[tuple[str, int, str | None]]:
    """(session, rank, GPU type) of every process; the run's configuration fills gaps."""
    other = _fallback(books)
    return [
        (s.id, p.rank or 0, p.gpu_type or other) for s in books.facts.sessions for p in s.members
    ]


def _split(books: Books, cuts: list[int], types: list[tuple[str, int, str | None]]) -> list[Held]:
    by_rank = {(session, rank): kind for session, rank, kind in types}
    weights = {
        (str(r["session"]), int(r["rank"])): int(r["weight"])
        for r in books.rows("SELECT session, rank, weight FROM members")
    }
    sums: dict[tuple[str | None, str, str | None, int], int] = {}

    def add(session: str | None, leaf: str, kind: str | None, begin: int, ns: int) -> None:
        key = (session, leaf, kind, begin)
        sums[key] = sums.get(key, 0) + ns

    for row in [*_segments(books, cuts), *_rated(books, _steps(books, cuts))]:
        place = str(row["session"]), int(row["rank"])
        ns = int(row["ns"]) * weights[place]
        add(place[0], str(row["leaf"]), by_rank[place], cuts[int(row["period"])], ns)
    kinds = _slot_kinds(books, by_rank)
    for row in _gaps(books, cuts):
        session = row["session"]
        kind = kinds.get((session, int(row["slot"])), kinds.get((None, int(row["slot"]))))
        add(session, str(row["leaf"]), kind or _fallback(books), cuts[int(row["period"])],
            int(row["ns"]))  # fmt: skip
    return [Held(*key, ns) for key, ns in sorted(sums.items(), key=str) if ns]


def _rated(books: Books, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute in kept steps, which ``rows`` have as H: its shares by rate, in each period alike."""
    shares = compute_shares(books) if books.rate.known else {}
    found = [r for r in rows if r["leaf"] != REST or (r["session"], r["rank"]) not in shares]
    periods: dict[tuple[str, int], dict[int, int]] = {}
    for r in rows:
        key = str(r["session"]), int(r["rank"])
        if r["leaf"] == REST and key in shares:
            own = periods.setdefault(key, {})
            own[int(r["period"])] = own.get(int(r["period"]), 0) + int(r["ns"])
    for (session, rank), own in periods.items():
        parts = apportion(shares[session, rank], list(own.values()))
        found += [
            {"session": session, "rank": rank, "leaf": leaf, "period": period, "ns": ns}
            for period, share in zip(own, parts, strict=True)
            for leaf, ns in share.items()
        ]
    return found


def _periods(cuts: list[int]) -> str:
    """The price periods as an SQL VALUES list: number, begin, end."""
    ends = [*cuts[1:], ALWAYS]
    rows = ", ".join(f"({i}, {0 if i == 0 else a}, {b})" for i, (a, b) in
                     enumerate(zip(cuts, ends, strict=True)))  # fmt: skip
    return f"(VALUES {rows}) p(period, a, b)"


def _segments(books: Books, cuts: list[int]) -> list[dict[str, Any]]:
    """Everything of the ranks but their steps, cut at the changes."""
    return books.rows(
        # numbers of our own only
        "SELECT session, rank, leaf, p.period, "  # noqa: S608
        "sum(least(stop_ns, p.b) - greatest(start_ns, p.a))::HUGEINT AS ns "
        f"FROM rank_segments JOIN {_periods(cuts)} ON start_ns < p.b AND stop_ns > p.a "
        "GROUP BY ALL"
    )


def _gaps(books: Books, cuts: list[int]) -> list[dict[str, Any]]:
    """Held time of places outside sessions, and of those that a session left empty."""
    return books.rows(
        "SELECT session, slot, leaf, p.period, "  # noqa: S608 - numbers of our own only
        "sum(least(stop_ns, p.b) - greatest(start_ns, p.a))::HUGEINT AS ns "
        f"FROM slot_gaps JOIN {_periods(cuts)} ON start_ns < p.b AND stop_ns > p.a "
        "WHERE billed GROUP BY ALL"
    )


def _slot_kinds(
    books: Books, by_rank: dict[tuple[str, int], str | None]
) -> dict[tuple[str | None, int], str | None]:
    """GPU type of each place in each session; under session None, of its latest one."""
    found: dict[tuple[str | None, int], str | None] = {}
    for row in books.rows(
        "SELECT session, slot, p.rank FROM slots p JOIN sessions USING (session) "
        "WHERE p.rank IS NOT NULL ORDER BY ord, slot"
    ):
        slot, session = int(row["slot"]), str(row["session"])
        kind = by_rank.get((session, int(row["rank"])))
        found[session, slot] = found[None, slot] = kind
    return found


def _leaf_columns(books: Books) -> list[str]:
    """The columns of `divided` that are leaves: level 2 of the books."""
    names = {str(r["column_name"]) for r in books.rows("DESCRIBE divided")}
    return [leaf for leaf in LEAF_IDS if leaf in names]


def _steps(books: Books, cuts: list[int]) -> list[dict[str, Any]]:
    """What the leaves took of steps, by the period in which each step began."""
    books.divide_at(cuts[1:])
    torn = _torn(books, cuts)
    columns = _leaf_columns(books)
    sums = ", ".join(f'sum("{c}") AS "{c}"' for c in columns)
    names = ", ".join(f'"{c}"' for c in columns)
    period = " + ".join(["0", *(f"(start_ns >= {c})::INTEGER" for c in cuts[1:])])
    ids, seqs = [pid for pid, _ in torn], [seq for _, seq in torn]
    # Names and numbers of our own only.
    query = (
        "WITH whole AS (SELECT d.* FROM divided d ANTI JOIN "  # noqa: S608
        "(SELECT unnest($1::BIGINT[]) AS process_id, unnest($2::BIGINT[]) AS seq) "
        "USING (process_id, seq)), "
        f"summed AS (SELECT session, rank, fate, {period} AS period, {sums}, "
        'sum(rest_ns - "F.padding") AS rest_ns FROM whole GROUP BY ALL) '
        "SELECT session, rank, leaf, period, ns::HUGEINT AS ns FROM summed "
        f"UNPIVOT (ns FOR leaf IN ({names})) WHERE ns <> 0 UNION ALL "
        "SELECT session, rank, CASE fate WHEN 'kept' THEN 'H.productive' ELSE fate END, period, "
        "rest_ns::HUGEINT FROM summed WHERE rest_ns <> 0 UNION ALL "
        f"SELECT session, rank, leaf, {period} AS period, sum(ns)::HUGEINT FROM stretch_leaves "
        "WHERE ns <> 0 GROUP BY ALL"
    )
    return books.rows(query, [ids, seqs]) + _torn_steps(books, cuts, torn, columns)


def _torn(books: Books, cuts: list[int]) -> dict[tuple[int, int], list[int]]:
    """Step rows whose time may lie on both sides of a change: nanoseconds in each period.

    A row's time is its own pieces, the gap before it and a data wait before that, so besides
    the rows around the instant only the first that begins after it can be cut.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for row in books.rows(
        "WITH near AS (SELECT session, rank, process_id, seq FROM step_rows s "  # noqa: S608
        "JOIN (SELECT unnest($1::BIGINT[]) AS t) c ON s.start_ns < c.t AND s.stop_ns > c.t UNION "
        "SELECT session, rank, s.process_id, s.seq FROM step_rows s "
        "JOIN (SELECT session, rank, t, min(start_ns) AS first_ns FROM step_rows "
        "JOIN (SELECT unnest($1::BIGINT[]) AS t) ON start_ns >= t GROUP BY ALL) f "
        "USING (session, rank) WHERE s.start_ns = f.first_ns), "
        "pieces AS (SELECT l.process_id, l.seq, l.stop_ns, CASE WHEN l.before_ns >= "
        "k.first_start_ns THEN l.before_ns ELSE l.start_ns END AS start_ns "
        "FROM line l SEMI JOIN near USING (process_id, seq) JOIN rank_steps k "
        "ON k.session = l.session AND k.rank = l.rank WHERE l.is_step UNION ALL "
        "SELECT g.process_id, g.seq, g.start_ns + g.data_ns, g.start_ns FROM loop_gaps g "
        "SEMI JOIN near USING (process_id, seq) WHERE g.data_ns > 0) "
        "SELECT process_id, seq, p.period, "
        "sum(least(stop_ns, p.b) - greatest(start_ns, p.a))::HUGEINT AS ns "
        f"FROM pieces JOIN {_periods(cuts)} ON start_ns < p.b AND stop_ns > p.a GROUP BY ALL",
        [cuts[1:]],
    ):
        spent = found.setdefault((int(row["process_id"]), int(row["seq"])), [0] * len(cuts))
        spent[int(row["period"])] += int(row["ns"])
    return found


def _torn_steps(
    books: Books,
    cuts: list[int],
    torn: dict[tuple[int, int], list[int]],
    columns: list[str],
) -> list[dict[str, Any]]:
    if not torn:
        return []
    names = ", ".join(f'd."{c}"' for c in columns)
    rows = books.rows(
        f'SELECT session, rank, process_id, seq, fate, {names}, rest_ns - "F.padding" AS rest_ns '  # noqa: S608
        "FROM divided d SEMI JOIN (SELECT unnest($1::BIGINT[]) AS process_id, "
        "unnest($2::BIGINT[]) AS seq) USING (process_id, seq)",
        [[pid for pid, _ in torn], [seq for _, seq in torn]],
    )
    whole: dict[tuple[int, int], tuple[str, int, dict[str, int]]] = {}
    for row in rows:
        key = int(row["process_id"]), int(row["seq"])
        _, _, parts = whole.setdefault(key, (str(row["session"]), int(row["rank"]), {}))
        rest = "H.productive" if row["fate"] == "kept" else str(row["fate"])
        for leaf, ns in [*((c, row[c]) for c in columns), (rest, row["rest_ns"])]:
            parts[leaf] = parts.get(leaf, 0) + int(ns)
    return [
        {"session": session, "rank": rank, "leaf": leaf, "period": period, "ns": ns}
        for key, (session, rank, parts) in whole.items()
        for period, shares in enumerate(apportion(parts, torn[key]))
        for leaf, ns in shares.items()
        if ns
    ]


def apportion(parts: dict[str, int], periods: list[int]) -> list[dict[str, int]]:
    """Share ``parts`` out over ``periods`` in proportion, in whole numbers.

    Both must have the same sum; every part and every period comes out exactly.
    """
    left, total = dict(parts), sum(periods)
    found: list[dict[str, int]] = []
    for taken in periods:
        edges = [0]
        for ns in left.values():
            edges.append(edges[-1] + ns)
        # floors of a growing sum: their differences add up to what was taken
        floors = [edge * taken // total if total else 0 for edge in edges]
        share = {leaf: b - a for leaf, (a, b) in zip(left, pairwise(floors), strict=True)}
        found.append(share)
        left = {leaf: ns - share[leaf] for leaf, ns in left.items()}
        total -= taken
    return found
