"""What the held time of a run cost: by leaf, session, incident and kept token.

Amounts are exact fractions until they are printed: nanoseconds are whole and prices decimal,
so the leaves sum to the total without a remainder. What has no price is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso
from badput_ledger.cost_split import Held, held_parts
from badput_ledger.energy_leaves import build_energy
from badput_ledger.price import NO_PRICE, Rate
from badput_ledger.taxonomy import COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from badput_ledger.books import Books

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Charge:
    """Held time at one rate; without a rate, why."""

    held: Held
    rate: Rate | None
    reason: str | None

    @property
    def cost(self) -> Fraction | None:
        """Money, exactly."""
        if self.rate is None:
            return None
        return Fraction(self.rate.per_hour) * self.held.ns / HOUR_NS


Amounts = dict[Any, "Fraction | None"]


class Costs:
    """Every charge of a run, and its sums."""

    def __init__(self, charges: list[Charge], *, priced: bool) -> None:
        self.charges = charges
        self.priced = priced
        """Does any rate exist? Without one even nothing has no cost."""
        said = list(dict.fromkeys(c.reason for c in charges if c.reason))
        self.reasons: list[str] = said or ([] if priced else [NO_PRICE])
        """Why held time has no price, each said once."""
        self._nothing = Fraction(0) if priced else None
        self._by_leaf: Amounts = {}
        self._by_session: Amounts = {}
        self._by_both: Amounts = {}
        self._ns: dict[object, int] = {}
        for charge in charges:
            session, leaf = charge.held.session, charge.held.leaf
            _add(self._by_leaf, leaf, charge.cost)
            _add(self._by_session, session, charge.cost)
            _add(self._by_both, (session, leaf), charge.cost)
            for key in (leaf, (session, leaf)):
                self._ns[key] = self._ns.get(key, 0) + charge.held.ns

    def total(self) -> Fraction | None:
        """Cost of everything."""
        return self._sum(self._by_leaf, self._by_leaf)

    def known(self) -> Fraction | None:
        """Cost of what has a price; None where nothing has one."""
        found = [c.cost for c in self.charges if c.cost is not None]
        return sum(found, Fraction(0)) if found else self._nothing

    def leaf(self, leaf: str) -> Fraction | None:
        """Cost of one leaf."""
        return self._by_leaf.get(leaf, self._nothing)

    def session(self, session: str | None) -> Fraction | None:
        """Cost of a session with the gap before it; None: of time that belongs to none."""
        return self._by_session.get(session, self._nothing)

    def of(self, parts: Iterable[tuple[str | None, str, int]]) -> Fraction | None:
        """Cost of parts: session, leaf and held nanoseconds, at what that leaf costs there.

        A leaf that the session has not at all (time that belongs to another session but is
        charged to this one) costs what the leaf does on average.
        """
        total = Fraction(0)
        for session, leaf, ns in parts:
            key = session, leaf
            of_session = key in self._by_both
            cost = self._by_both[key] if of_session else self.leaf(leaf)
            held = self._ns.get(key if of_session else leaf, 0)
            if cost is None or not self.priced:
                return None
            total += cost * ns / held if held else 0
        return total if self.priced else None

    def _sum(self, amounts: Amounts, chosen: Iterable[object]) -> Fraction | None:
        """None if any of them has no price: a part is not the whole."""
        found = [amounts.get(key, self._nothing) for key in chosen]
        known = [amount for amount in found if amount is not None]
        return sum(known, Fraction(0)) if self.priced and len(known) == len(found) else None


def _add(amounts: Amounts, key: object, cost: Fraction | None) -> None:
    before = amounts.get(key, Fraction(0))
    amounts[key] = None if before is None or cost is None else before + cost


def build_costs(books: Books) -> Costs:
    """Price everything that was held."""
    pricing = books.price
    charges: list[Charge] = []
    for held in held_parts(books, pricing.changes()):
        rate = pricing.rate(held.gpu_type, held.begin_ns)
        said = rate if isinstance(rate, str) else None
        charges.append(Charge(held, None if isinstance(rate, str) else rate, said))
    priced = pricing.source is not None and (not charges or any(c.rate for c in charges))
    return Costs(charges, priced=priced)


def rounded(value: Fraction | None) -> float | None:
    """The nearest double: the one place where an amount is rounded."""
    return None if value is None else float(value)


def build_cost(books: Books, report: dict[str, Any]) -> dict[str, Any]:
    """The report's cost; docs/cost.md describes it."""
    costs = books.costs
    total = costs.total()
    parts = [costs.leaf(leaf) for leaf in COMPUTE]
    useful = None if None in parts else sum((p for p in parts if p is not None), Fraction(0))
    kept = report["tokens"]["kept"]
    rates = {c.rate.per_hour for c in costs.charges if c.rate is not None}
    unpriced = sum(c.held.ns for c in costs.charges if c.rate is None)
    found: dict[str, Any] = {
        "price_per_gpu_hour": float(next(iter(rates)))
        if len(rates) == 1 and total is not None
        else None,
        "currency": books.price.currency,
        "source": books.price.source,
        "total": rounded(total),
        "wasted": rounded(total - useful) if total is not None and useful is not None else None,
        "per_kept_token": rounded(total / kept) if total is not None and kept else None,
        "known": rounded(costs.known()),
        "unpriced_gpu_seconds": unpriced / 1e9,
        "missing": costs.reasons,
        "rates": _rates(costs),
        "sessions": _sessions(books),
        "energy": build_energy(books, kept),
    }
    if total is None:
        found["reason"] = "; ".join(costs.reasons)
    elif not kept:
        found["reason"] = "per_kept_token: no kept tokens are known"
    return found


def _rates(costs: Costs) -> list[dict[str, Any]]:
    """Each GPU type and rate with the held time that it was applied to."""
    sums: dict[tuple[str | None, Rate], int] = {}
    for charge in costs.charges:
        if charge.rate is not None:
            key = charge.held.gpu_type, charge.rate
            sums[key] = sums.get(key, 0) + charge.held.ns
    return [
        {
            "gpu_type": kind,
            "gpu": rate.gpu,
            "purchase": rate.purchase,
            "per_gpu_hour": float(rate.per_hour),
            "from": iso(rate.from_ns),
            "to": iso(rate.to_ns),
            "held_gpu_seconds": ns / 1e9,
            "cost": float(Fraction(rate.per_hour) * ns / HOUR_NS),
            "note": rate.note,
        }
        for (kind, rate), ns in sorted(sums.items(), key=_by_type_and_time)
    ]


def _by_type_and_time(item: tuple[tuple[str | None, Rate], int]) -> tuple[str, int]:
    (kind, rate), _ = item
    return str(kind), rate.from_ns or 0


def _sessions(books: Books) -> list[dict[str, Any]]:
    """What each session cost, with the gap before it; null is time that none follows."""
    costs = books.costs
    spent: dict[str | None, int] = {s.id: 0 for s in books.facts.sessions}
    for charge in costs.charges:
        spent[charge.held.session] = spent.get(charge.held.session, 0) + charge.held.ns
    return [
        {
            "id": session,
            "held_gpu_seconds": ns / 1e9,
            "cost": rounded(costs.session(session)),
        }
        for session, ns in spent.items()
    ]
