"""Energy by leaf, in joules, kilowatt-hours and CO2, and what it was taken from.

A rank's segments are laid over the energy of its GPU. Inside kept steps, which are shorter than
a sensor's tick, what the steps took together is shared among their leaves by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.energy import COUNTER, KWH, PIECES, POWER
from badput_ledger.price_table import PriceTable
from badput_ledger.rate import compute_shares

if TYPE_CHECKING:
    from badput_ledger.books import Books

LEAST_COVER = 0.9
"""Samples must cover this share of the held time of a leaf, or its energy is not known."""

_QUERY = f"""{PIECES},
best AS (SELECT gpu_uuid, min(source) AS source  -- counter comes before power
         FROM pieces WHERE joules IS NOT NULL AND to_ns > from_ns GROUP BY gpu_uuid),
known AS (
    SELECT p.gpu_uuid, p.source, p.from_ns, p.to_ns, p.joules,
           sum(p.joules) OVER w - p.joules AS before_j,
           sum(p.to_ns - p.from_ns) OVER w - (p.to_ns - p.from_ns) AS before_ns
    FROM pieces p SEMI JOIN best USING (gpu_uuid, source)
    WHERE p.joules IS NOT NULL AND p.to_ns > p.from_ns
    WINDOW w AS (PARTITION BY p.gpu_uuid ORDER BY p.from_ns ROWS UNBOUNDED PRECEDING)
),
gpu AS (SELECT unnest($1::VARCHAR[]) AS session, unnest($2::INTEGER[]) AS rank,
               unnest($3::VARCHAR[]) AS gpu_uuid, unnest($4::INTEGER[]) AS ranks),
seg AS (
    SELECT t.session, t.rank, g.gpu_uuid, g.ranks, t.leaf, t.start_ns, t.end_ns
    FROM timeline t JOIN gpu g USING (session, rank) WHERE t.leaf NOT LIKE 'A.%'
    UNION ALL
    SELECT s.session, s.slot, g.gpu_uuid, g.ranks, s.leaf, s.start_ns, s.stop_ns
    FROM slot_gaps s JOIN gpu g ON g.session = s.session AND g.rank = s.slot
    WHERE s.billed AND s.leaf LIKE 'A.%'
),
edge AS (SELECT gpu_uuid, start_ns AS t FROM seg UNION SELECT gpu_uuid, end_ns FROM seg),
value AS (
    SELECT e.gpu_uuid, e.t, k.source,
           coalesce(k.before_j + k.joules * least(e.t - k.from_ns, k.to_ns - k.from_ns)
                    / (k.to_ns - k.from_ns), 0) AS j,
           coalesce(k.before_ns + least(e.t - k.from_ns, k.to_ns - k.from_ns), 0) AS ns
    FROM edge e ASOF LEFT JOIN known k ON e.gpu_uuid = k.gpu_uuid AND e.t >= k.from_ns
)
SELECT s.session, s.rank, s.leaf, max(b.source) AS source,
       sum((b.j - a.j) / s.ranks) AS joules, sum((b.ns - a.ns)::DOUBLE / s.ranks) AS covered_ns
FROM seg s JOIN value a ON a.gpu_uuid = s.gpu_uuid AND a.t = s.start_ns
JOIN value b ON b.gpu_uuid = s.gpu_uuid AND b.t = s.end_ns
GROUP BY ALL
"""  # noqa: S608 - our own text only


def build_energy(books: Books, kept_tokens: int | None) -> dict[str, Any]:
    """The report's cost.energy; docs/cost.md describes it."""
    table = books.price if isinstance(books.price, PriceTable) else None
    co2, price = books.tariff.co2_g_per_kwh, books.tariff.price_per_kwh
    if table is not None:
        co2 = table.co2_g_per_kwh if co2 is None else co2
        price = table.price_per_kwh if price is None else price
    factors = (None if co2 is None else float(co2), None if price is None else float(price))
    found: dict[str, Any] = {
        "source": None, **_amounts(None, factors), "coverage": None, "joules_per_kept_token": None,
        "co2_g_per_kwh": factors[0], "price_per_kwh": factors[1], "leaves": {},
    }  # fmt: skip
    if not books.rows("SELECT 1 FROM gpu_samples LIMIT 1"):
        return found | {"reason": "no telemetry of GPUs was recorded"}
    ranks = _gpus(books)
    if not ranks:
        return found | {"reason": "no rank says which GPU it had"}
    rows = books.rows(_QUERY, [[r[i] for r in ranks] for i in range(4)])
    joules, covered = _by_leaf(books, rows)
    held = {str(r["leaf"]): int(r["billed_ns"]) for r in books.rows("FROM leaves")}
    for leaf, ns in held.items():
        if ns:
            share = min(1.0, covered.get(leaf, 0.0) / ns)
            known = joules.get(leaf, 0.0) if share >= LEAST_COVER else None
            found["leaves"][leaf] = {**_amounts(known, factors), "coverage": share}
    whole = sum(held.values())
    share = min(1.0, sum(covered.values()) / whole) if whole else 0.0
    sources = {str(r["source"]) for r in rows if r["source"]}
    names = {"counter": COUNTER, "power": POWER}
    found["source"] = (
        "mixed" if len(sources) > 1 else names[next(iter(sources))] if sources else None
    )
    found["coverage"] = share
    if share < LEAST_COVER:
        return found | {"reason": f"samples cover {share:.1%} of the held time; {LEAST_COVER:.0%} "
                                  "are needed"}  # fmt: skip
    total = sum(joules.values())
    per = total / kept_tokens if kept_tokens else None
    return found | _amounts(total, factors) | {"joules_per_kept_token": per}


def _amounts(joules: float | None, factors: tuple[float | None, float | None]) -> dict[str, Any]:
    kwh = None if joules is None else joules / KWH
    co2, price = (None if kwh is None or f is None else kwh * f for f in factors)
    return {"joules": joules, "kwh": kwh, "co2_g": co2, "cost": price}


def _gpus(books: Books) -> list[tuple[str, int, str, int]]:
    """Session, rank, its GPU and how many ranks share that; each of them bears an equal part."""
    found: list[tuple[str, int, str, int]] = []
    for session in books.facts.sessions:
        uuids = [p.gpu_uuid for p in session.members]
        found += [
            (session.id, p.rank or 0, p.gpu_uuid, uuids.count(p.gpu_uuid))
            for p in session.members
            if p.gpu_uuid is not None
        ]
    return found


def _by_leaf(books: Books, rows: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """Joules and covered nanoseconds by leaf, kept steps divided by time."""
    parts: dict[tuple[str, int], dict[str, int]] = {}
    for r in books.rows("SELECT * FROM step_sums WHERE fate = 'kept'"):
        own = parts.setdefault((str(r["session"]), int(r["rank"])), {})
        for name, ns in r.items():
            if name[1:2] == "." and ns:
                own[name] = own.get(name, 0) + int(ns)
    for place, of in compute_shares(books).items():
        parts.setdefault(place, {}).update(of)
    joules: dict[str, float] = {}
    covered: dict[str, float] = {}
    for r in rows:
        own = parts.get((str(r["session"]), int(r["rank"])), {})
        total = sum(own.values())
        shares = {str(r["leaf"]): 1.0}
        if r["leaf"] == "H.productive" and total:
            shares = {leaf: ns / total for leaf, ns in own.items()}
        for leaf, share in shares.items():
            joules[leaf] = joules.get(leaf, 0.0) + float(r["joules"]) * share
            covered[leaf] = covered.get(leaf, 0.0) + float(r["covered_ns"]) * share
    return joules, covered
