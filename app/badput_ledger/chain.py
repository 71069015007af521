"""Run the chain of SQL views over the assembled facts.

Each file of ``sql/`` holds one SELECT; its name without the number is the view's, its
first comment says what it is for. Views marked ``rows: many`` have a row a step and are
kept as tables only where that is small; the others always are.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

KEEP_ROWS = 3_000_000
"""Above this many step rows, views with a row a step are not kept in memory."""


@dataclass(frozen=True, slots=True)
class View:
    """One link of the chain."""

    name: str
    about: str
    many: bool
    late: bool
    """Computed only when it is asked for."""
    sql: str


def views() -> list[View]:
    """The views in the order in which they build on each other."""
    found: list[View] = []
    folder = files("badput_ledger").joinpath("sql")
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".sql"):
            continue
        text = entry.read_text(encoding="utf-8")
        about: list[str] = []
        for line in text.splitlines():
            if not line.startswith("--") or line.startswith("-- rows:"):
                break
            about.append(line[2:].strip())
        name = entry.name.removesuffix(".sql").partition("_")[2]
        found.append(
            View(
                name, " ".join(about), "-- rows: many" in text, "-- rows: asked once" in text, text
            )
        )
    return found


def build(con: duckdb.DuckDBPyConnection) -> None:
    """Make every view of the chain in ``con``, which already holds the assembled facts."""
    con.execute(_PART_OF)
    con.execute(_IDEAL)
    keep = int(con.execute("SELECT count(*) FROM loose_steps").fetchall()[0][0]) <= KEEP_ROWS
    for view in views():
        what = "TABLE" if (keep or not view.many) and not view.late else "VIEW"
        con.execute(f"CREATE OR REPLACE {what} {view.name} AS\n{view.sql}")


def rebuild_sums(con: duckdb.DuckDBPyConnection, ideal: list[tuple[str, int, int, int]]) -> None:
    """Make the sums of leaves again, with the FLOPs of each session as slot-ns at the peak rate.

    ``ideal``: session, those ns, and the share of its compute that is recomputed, as a fraction.
    """
    columns = [list(c) for c in zip(*ideal, strict=True)]
    con.execute(
        "INSERT INTO ideal_time SELECT unnest($1::VARCHAR[]), unnest($2::HUGEINT[]), "
        "unnest($3::HUGEINT[]), unnest($4::HUGEINT[])",
        columns,
    )
    for view in views():
        if view.name in _SUMS:
            con.execute(f"CREATE OR REPLACE TABLE {view.name} AS\n{view.sql}")


_SUMS = ("rank_leaves", "session_leaves", "leaves", "slot_totals", "doubts")
_IDEAL = """
CREATE TABLE IF NOT EXISTS ideal_time
    (session VARCHAR, ideal_ns HUGEINT, again_part HUGEINT, again_of HUGEINT)
"""
"""What the FLOPs of a session's kept tokens take at the peak rate; empty where not known."""
_PART_OF = """
CREATE OR REPLACE MACRO part_of(x, from_step, to_step, den) AS
    CASE WHEN den = 1 THEN x
         ELSE (x::HUGEINT * to_step // den - x::HUGEINT * from_step // den)::BIGINT END
"""
