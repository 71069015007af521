"""Energy of the GPUs of a run in a window of time, in joules, and what it was taken from.

Differences of the GPU's own counter where it has one, else power over time. Samples of one GPU
are one series however many samplers took them, so nothing counts twice; a MIG instance has no
energy of its own. What was not measured is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger import store

if TYPE_CHECKING:
    import duckdb

COUNTER, POWER = "counter", "power_integral"
LEAST_NS = 1_000_000_000
"""Counters tick some ten times a second and power is a mean over one: below this, no claim."""
MAX_GAP_NS = 60_000_000_000
"""Between two samples of power further apart than this, power is not known."""
KWH = 3_600_000.0
"""Joules in a kilowatt-hour."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one GPU."""

    gpu_uuid: str
    joules: float | None
    source: str | None
    """counter or power_integral."""
    covered_ns: int
    """Time of the window that samples cover."""
    reason: str | None = None
    """Why it is None: not_measured or window_too_short."""


def gpu_energy(con: duckdb.DuckDBPyConnection, begin_ns: int, end_ns: int) -> list[Energy]:
    """Energy of each GPU that has samples, between two instants (ns since the epoch).

    ``con`` has the tables gpu_samples and devices. A counter's difference is spread evenly
    between its two samples, so a window's ends need not be samples.
    """
    found: list[Energy] = []
    for row in store.rows(con, _QUERY, [begin_ns, end_ns]):
        counted, metered = row["counter_ns"] or 0, row["power_ns"] or 0
        source = COUNTER if counted else POWER if metered else None
        reason = None if source else "not_measured"
        if source and end_ns - begin_ns < LEAST_NS:
            source, reason = None, "window_too_short"
        joules = row["counter_j"] if source == COUNTER else row["power_j"]
        covered = int(counted if source == COUNTER else metered if source else 0)
        found.append(
            Energy(str(row["gpu_uuid"]), float(joules) if source else None, source, covered, reason)
        )
    return found


def total_energy(found: list[Energy]) -> float | None:
    """Joules of all GPUs; None if that of any is not known, since a part is not the whole."""
    known = [e.joules for e in found if e.joules is not None]
    return sum(known) if known and len(known) == len(found) else None


# a number of our own only
PIECES = f"""
WITH whole AS (
    -- no reading: what no sensor can mean, NaN (which sorts above every number) included
    SELECT gpu_uuid, time_ns, max(energy_j) FILTER (WHERE energy_j BETWEEN 0 AND 1e15) AS energy_j,
           max(power_w) FILTER (WHERE power_w BETWEEN 0 AND 1e6) AS power_w
    FROM gpu_samples
    WHERE gpu_uuid NOT IN (SELECT gpu_uuid FROM devices WHERE parent_uuid IS NOT NULL)
    GROUP BY gpu_uuid, time_ns
),
counted AS (
    SELECT gpu_uuid, lag(time_ns) OVER w AS from_ns, time_ns AS to_ns,
           energy_j - lag(energy_j) OVER w AS joules,
           (power_w + lag(power_w) OVER w) / 2 * (time_ns - lag(time_ns) OVER w) / 1e9 AS instead,
           time_ns - lag(time_ns) OVER w <= {MAX_GAP_NS} AS near
    FROM whole WHERE energy_j IS NOT NULL
    WINDOW w AS (PARTITION BY gpu_uuid ORDER BY time_ns)
),
metered AS (
    SELECT gpu_uuid, lag(time_ns) OVER w AS from_ns, time_ns AS to_ns,
           (power_w + lag(power_w) OVER w) / 2 * (time_ns - lag(time_ns) OVER w) / 1e9 AS joules
    FROM whole WHERE power_w IS NOT NULL
    WINDOW w AS (PARTITION BY gpu_uuid ORDER BY time_ns)
),
pieces AS (
    -- a counter that began anew says nothing about that interval, but power may
    SELECT gpu_uuid, 'counter' AS source, from_ns, to_ns,
           CASE WHEN joules >= 0 THEN joules WHEN near THEN instead END AS joules
    FROM counted
    UNION ALL
    SELECT gpu_uuid, 'power', from_ns, to_ns, joules FROM metered
    WHERE to_ns - from_ns <= {MAX_GAP_NS}
)
"""  # noqa: S608
"""CTEs that end with `pieces`: joules between two samples of a GPU, by source."""

_QUERY = f"""{PIECES},
cut AS (
    SELECT gpu_uuid, source, joules, to_ns - from_ns AS dur_ns,
           least(to_ns, $2) - greatest(from_ns, $1) AS in_ns
    FROM pieces
    WHERE joules IS NOT NULL AND to_ns > from_ns AND to_ns > $1 AND from_ns < $2
)
SELECT gpu_uuid,
       sum(joules * in_ns / dur_ns) FILTER (WHERE source = 'counter') AS counter_j,
       sum(in_ns) FILTER (WHERE source = 'counter') AS counter_ns,
       sum(joules * in_ns / dur_ns) FILTER (WHERE source = 'power') AS power_j,
       sum(in_ns) FILTER (WHERE source = 'power') AS power_ns
FROM (SELECT DISTINCT gpu_uuid FROM whole) LEFT JOIN cut USING (gpu_uuid)
GROUP BY gpu_uuid ORDER BY gpu_uuid
"""  # noqa: S608 - see PIECES
