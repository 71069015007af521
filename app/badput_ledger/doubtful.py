"""Checks of the evidence itself, each with the query that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger import store

if TYPE_CHECKING:
    from badput_ledger.books import Books

SKEW_NS = 1_000_000_000
"""Clocks of two nodes further apart than this are told."""
LOOKED_AT = 200
"""Steps a session from which skew is estimated, and parts of which footers are counted."""

Found = tuple[str, str, str, str | None]
"""Severity, what, evidence and the SELECT that shows it."""


def doubtful(books: Books, report: dict[str, Any]) -> list[Found]:
    """Everything found, in no order."""
    return [*_skew(books), *_missing_steps(books), *_doubled(books), *_tokens(report),
            *_peak(report)]  # fmt: skip


_SKEW = """
WITH chosen AS (
    SELECT session, greatest(max(step) // {n}, 1) AS every FROM step_rows GROUP BY session
),
ends AS (
    SELECT r.session, r.step, p.host, median(r.stop_ns)::BIGINT AS at_ns, median(r.dur_ns) AS dur_ns
    FROM step_rows r JOIN chosen USING (session) JOIN processes p USING (process_id)
    WHERE r.n_steps = 1 AND r.step % every = 0 AND p.host IS NOT NULL GROUP BY ALL
),
apart AS (
    SELECT host, dur_ns, at_ns - median(at_ns) OVER (PARTITION BY session, step) AS ns,
           count(*) OVER (PARTITION BY session, step) AS hosts
    FROM ends
)
SELECT host, median(ns)::BIGINT AS ns, median(dur_ns)::BIGINT AS step_ns, count(*) AS steps
FROM apart WHERE hosts > 1 GROUP BY host ORDER BY ns
"""


def _skew(books: Books) -> list[Found]:
    """Nodes of one world finish a step together, so the ends of equal steps compare clocks."""
    if len({p.host for s in books.facts.sessions for p in s.members}) < 2:
        return []
    query = _SKEW.format(n=LOOKED_AT)
    rows = books.rows(query)
    if len(rows) < 2:
        return []
    low, high = rows[0], rows[-1]
    apart = int(high["ns"]) - int(low["ns"])
    if apart <= max(SKEW_NS, int(high["step_ns"]) // 2):
        return []
    what = (
        f"the clocks of {low['host']} and {high['host']} are about {apart / 1e9:.1f} s apart, "
        f"by the ends of {min(int(low['steps']), int(high['steps']))} steps; nothing is corrected"
    )
    return [("warning", what, "steps", " ".join(query.split()))]


def _missing_steps(books: Books) -> list[Found]:
    query = (
        "SELECT session, rank, last_step - before_first - steps AS missing FROM rank_steps "
        "WHERE NOT repeats AND last_step - before_first > steps ORDER BY missing DESC"
    )
    rows = books.rows(query)
    if not rows:
        return []
    most = rows[0]
    others = f", and of {len(rows) - 1} more ranks" if len(rows) > 1 else ""
    what = (
        f"session {most['session']}, rank {most['rank']}: {most['missing']} steps between its "
        f"first and last have no row{others}; their time is in the gaps"
    )
    return [("warning", what, "steps", query)]


def _doubled(books: Books) -> list[Found]:
    """Rows that several parts hold. They count once, so this is no error."""
    found: list[Found] = []
    for table in ("steps", "spans", "events"):
        try:
            parts, broken = store.read_parts(books.path, table)
        except store.GoneError:
            continue
        if broken or books.broken or len(parts) > LOOKED_AT or any(p.suspect for p in parts):
            continue
        held = books.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"]  # noqa: S608 - three names
        doubled = sum(p.rows for p in parts) - int(held)
        if doubled > 0:
            what = f"{doubled} rows of {table} are in the parts more than once; they count once"
            found.append(("info", what, f"facts/{table}", None))
    return found


_TOLD = (
    "SELECT session, replica, rank, fate, tokens FROM step_sums WHERE fate <> 'D.partial' "
    "ORDER BY session, replica, fate, rank"
)


def _tokens(report: dict[str, Any]) -> list[Found]:
    tokens = report["tokens"]
    found: list[Found] = []
    if tokens["processed"] is not None and tokens["lo"] != tokens["processed"]:
        what = (
            f"ranks of one replica tell different tokens: {tokens['lo']:,} to "
            f"{tokens['processed']:,} were processed, and the greater counts"
        )
        found.append(("warning", what, "step_sums", _TOLD))
    if tokens["processed"] is not None and not tokens["complete"]:
        what = f"tokens: {tokens['reason']}, so there may be more"
        found.append(("warning", what, "step_sums", _TOLD))
    return found


def _peak(report: dict[str, Any]) -> list[Found]:
    value = report["at_peak"]["value"] if report["at_peak"] else None
    if value is None or report["waterfall"]["stages"][5]["share_of_previous"] is None:
        return []
    share = report["waterfall"]["stages"][5]["share_of_previous"]
    if share <= 1:
        return []
    what = (
        f"compute at {share:.1%} of the peak cannot be: the FLOP formula "
        f"({report['at_peak']['formula']}), the tokens or the peak "
        f"({report['at_peak']['peak_tflops']:g} TFLOP/s) is wrong"
    )
    return [("error", what, "runs", "SELECT flops_formula, flops_inputs, config FROM runs")]
