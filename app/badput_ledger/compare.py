"""Two runs side by side: the difference of every bucket, and what must not be compared.

Every measure is compared in whole numbers (ns, and billionths of money), rounded so that each
run's rows sum to its total: the signed rows then sum to the total difference exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from badput_ledger.errors import BooksError
from badput_ledger.paths import shown
from badput_ledger.taxonomy import BY_ID, COMPUTE, LEAF_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from badput_ledger.books import Books

SCHEMA = "badput.compare/1"
NANO = 1_000_000_000
MILLION = 1_000_000
KEPT = "H.productive"

TIME, COST, TIME_PER, COST_PER = (
    "gpu_ns",
    "cost_nano",
    "gpu_ns_per_mtok",
    "cost_nano_per_mtok",
)
"""Measures: slot-ns, billionths of money, and both for a million kept tokens."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: its report, and what decides whether it can be compared."""

    label: str
    path: str
    report: dict[str, Any]
    gpu_types: tuple[str, ...]
    formula: str | None
    inputs: str | None

    @property
    def name(self) -> str:
        """Such as ``B (llama-7b)``."""
        return f"{self.label} ({self.report['run']['name']})"

    @property
    def tokens(self) -> int | None:
        """Kept tokens; None if unknown or none."""
        return self.report["tokens"]["kept"] or None


def side_of(label: str, books: Books) -> Side:
    """What the comparison needs of a run whose books are open."""
    facts = books.facts
    types = {p.gpu_type for s in facts.sessions for p in s.members if p.gpu_type}
    said = facts.config.get("gpu_type")
    if not types and isinstance(said, str):
        types = {said}
    formula, inputs = facts.run.get("flops_formula"), facts.run.get("flops_inputs")
    return Side(
        label,
        shown(books.path),
        books.report(),
        tuple(sorted(types)),
        str(formula) if formula else None,
        str(inputs) if inputs else None,
    )


def compare(a: Side, b: Side, *, so_far: bool = False) -> dict[str, Any]:
    """The comparison as plain values. Raises BooksError if the runs cannot be compared at all.

    ``so_far`` compares runs that are still going as they stand.
    """
    from badput_ledger.compare_words import verdict

    _check_whole(a, b, so_far=so_far)
    refused, notes = _refusals(a, b), _notes(a, b)
    groups = _groups(a, b, rated=all(r["what"] != "at_peak" for r in refused))
    measures = _measures(a, b, {r["what"] for r in refused})
    rows = _rows(a, b, groups, measures)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "a": _about(a),
        "b": _about(b),
        "currency": a.report["cost"]["currency"] if COST in measures else None,
        "units": a.report["units"],
        "measures": list(measures),
        "rows": rows,
        "total": _total(a, b, measures),
        "kept_time": _pair(a.report["kept_time"], b.report["kept_time"]),
        "goodput": None
        if any(r["what"] == "goodput" for r in refused)
        else {
            **_pair(a.report["goodput"], b.report["goodput"]),
            "measured": sorted(a.report["goodput"]["measured"]),
        },
        "at_peak": None
        if a.formula is None or any(r["what"] == "at_peak" for r in refused)
        else {
            **_pair(a.report["at_peak"], b.report["at_peak"]),
            "formula": a.formula,
        },
        "refused": refused,
        "notes": notes,
    }
    found["verdict"] = verdict(found, a, b)
    return found


def _check_whole(a: Side, b: Side, *, so_far: bool) -> None:
    for side in (a, b):
        if side.report["kept_time"]["value"] is None:
            raise BooksError(f"{side.name} has no booked time, so there is nothing to compare.")
        if not side.report["run"]["over"] and not so_far:
            raise BooksError(
                f"nothing says that {side.name} is over, so its totals may still grow; wait until "
                "it is, or compare what there is with --so-far."
            )
    if a.report["units"] != b.report["units"]:
        raise BooksError(
            f"{a.name} is booked in {a.report['units']}-hours and {b.name} in "
            f"{b.report['units']}-hours; an hour of the one is not an hour of the other."
        )
    if a.gpu_types and b.gpu_types and a.gpu_types != b.gpu_types:
        kinds = f"{a.name} ran on {' and '.join(a.gpu_types)}, {b.name} on "
        kinds += " and ".join(b.gpu_types)
        if _money_refusal(a, b):
            raise BooksError(
                f"{kinds}: their hours are not alike, and without a price of each in one currency "
                "there is nothing to compare them by; give --price-a and --price-b."
            )


def _money_refusal(a: Side, b: Side) -> str | None:
    """Why the two runs' money cannot be compared; None if it can."""
    for side in (a, b):
        if side.report["cost"]["total"] is None:
            flag = f"--price-{side.label.lower()}"
            return f"no price is known for {side.name}; give {flag} or --price"
    mine, other = (s.report["cost"]["currency"] for s in (a, b))
    if mine != other:
        return f"{a.name} is priced in {mine} and {b.name} in {other}; give both in one currency"
    return None


def _refusals(a: Side, b: Side) -> list[dict[str, str]]:
    """Parts that are left out, each with the reason."""
    found: list[dict[str, str]] = []

    def refuse(what: str, why: str) -> None:
        found.append({"what": what, "why": why})

    if money := _money_refusal(a, b):
        refuse("cost", money)
    without = [s.name for s in (a, b) if s.tokens is None]
    if without:
        refuse("per kept token", f"no kept token is known of {' and '.join(without)}")
    # the rate of compute is inside goodput, measured or not
    sets = [set(s.report["goodput"]["measured"]) - {*COMPUTE} for s in (a, b)]
    if sets[0] != sets[1]:
        only = [
            f"only {s.name} measured {', '.join(sorted(more))}"
            for s, more in ((a, sets[0] - sets[1]), (b, sets[1] - sets[0]))
            if more
        ]
        refuse(
            "goodput",
            f"{'; '.join(only)}. Less evidence would score better, so kept time is compared alone",
        )
    if why := _peak_refusal(a, b):
        refuse("at_peak", why)
    return found


def _peak_refusal(a: Side, b: Side) -> str | None:
    """Why the shares at the peak rate cannot be compared; None if they can."""
    if a.formula != b.formula:
        what = [f"{s.name}: {s.formula or 'no formula'}" for s in (a, b)]
        return f"FLOPs are counted by different formulas ({'; '.join(what)})"
    for side in (a, b):
        if a.formula and side.report["at_peak"]["value"] is None:
            return f"it is not known of {side.name}: {side.report['at_peak']['reason']}"
    return None


def _notes(a: Side, b: Side) -> list[str]:
    """What a reader must know beside the numbers."""
    notes: list[str] = []
    if a.gpu_types != b.gpu_types:
        if a.gpu_types and b.gpu_types:
            notes.append(
                f"the GPUs differ ({', '.join(a.gpu_types)} and {', '.join(b.gpu_types)}): hours "
                "stand beside each other, only money compares them"
            )
        else:
            which = a if not a.gpu_types else b
            notes.append(
                f"the type of GPU of {which.name} is not known: an hour of it counts as one "
                "of the other's"
            )
    if a.formula == b.formula and a.inputs != b.inputs:
        notes.append("the inputs of the FLOP formula differ: a token is not the same work in both")
    worlds = [s.report["run"]["world_size"] for s in (a, b)]
    if worlds[0] != worlds[1]:
        notes.append(f"the worlds differ: {worlds[0]} ranks in A, {worlds[1]} in B")
    notes += [
        f"{s.name} is not known to be over: its figures are those so far"
        for s in (a, b)
        if not s.report["run"]["over"]
    ]
    for leaf in LEAF_IDS:
        known = [s for s in (a, b) if s.report["leaves"][leaf]["gpu_ns"] is not None]
        if len(known) == 1 and not _folds(leaf) and known[0].report["leaves"][leaf]["gpu_seconds"]:
            other = b if known[0] is a else a
            why = other.report["leaves"][leaf].get("reason") or "not measured"
            notes.append(f"{leaf} is not known in {other.name}: {why}")
    return notes


def _folds(leaf: str) -> bool:
    """Is the time of this leaf, where nothing measured it, inside the kept steps' rest?"""
    return leaf[0] in "GF"


def _groups(a: Side, b: Side, *, rated: bool) -> dict[str, list[str]]:
    """Row by row the leaves in it: what only one run measured is put back where the other has it.

    Else the run with less evidence would have the larger H and nothing to explain it. The same
    holds for the rate of compute unless both have it by one formula (``rated``).
    """
    groups: dict[str, list[str]] = {leaf: [leaf] for leaf in LEAF_IDS}
    for leaf in LEAF_IDS:
        known = [s.report["leaves"][leaf]["gpu_ns"] is not None for s in (a, b)]
        apart = leaf in COMPUTE and leaf != KEPT and any(known) and not rated
        if _folds(leaf) and (known[0] != known[1] or apart):
            groups[KEPT].append(groups.pop(leaf)[0])
    return groups


def _measures(a: Side, b: Side, refused: set[str]) -> dict[str, tuple[dict[str, int], ...]]:
    """Each measure's whole numbers by leaf, for both runs; only what can be compared."""
    found = {TIME: tuple(_time(s) for s in (a, b))}
    money, tokens = "cost" not in refused, "per kept token" not in refused
    if money:
        found[COST] = tuple(whole_parts(_cost(s)) for s in (a, b))
    if tokens:
        found[TIME_PER] = tuple(
            whole_parts({k: Fraction(ns) for k, ns in _time(s).items()}, s.tokens) for s in (a, b)
        )
    if money and tokens:
        found[COST_PER] = tuple(whole_parts(_cost(s), s.tokens) for s in (a, b))
    return found


def _time(side: Side) -> dict[str, int]:
    return {leaf: int(row["gpu_ns"] or 0) for leaf, row in side.report["leaves"].items()}


def _cost(side: Side) -> dict[str, Fraction]:
    return {k: Fraction(row["cost"] or 0.0) * NANO for k, row in side.report["leaves"].items()}


def whole_parts(values: Mapping[str, Fraction], tokens: int | None = None) -> dict[str, int]:
    """``values`` (a million tokens' share of them, if ``tokens`` is given) as whole numbers that
    sum to the rounded sum: what rounding leaves over goes to the largest remainders."""
    exact = {k: v * MILLION / tokens if tokens else v for k, v in values.items()}
    floors = {k: v.numerator // v.denominator for k, v in exact.items()}
    left = round(sum(exact.values())) - sum(floors.values())
    for key in sorted(exact, key=lambda k: (floors[k] - exact[k], k))[:left]:
        floors[key] += 1
    return floors


def _rows(
    a: Side,
    b: Side,
    groups: Mapping[str, list[str]],
    measures: Mapping[str, tuple[dict[str, int], ...]],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for leaf, members in groups.items():
        if not any(side[m] for m in members for side in measures[TIME]):
            continue
        sides = [
            {name: sum(values[i][m] for m in members) for name, values in measures.items()}
            for i in (0, 1)
        ]
        row = _row(sides, [s.report["total_gpu_ns"] for s in (a, b)])
        with_ = members[1:]
        rows.append({"leaf": leaf, "title": BY_ID[leaf].title, "with": with_, **row})
    return rows


def _row(sides: list[dict[str, int]], totals: list[str]) -> dict[str, Any]:
    """Both sides and B - A, with whole numbers as text and readable ones beside them."""
    shares = [s[TIME] / int(t) for s, t in zip(sides, totals, strict=True)]
    diff = {name: sides[1][name] - sides[0][name] for name in sides[0]}
    return {
        "a": _said(sides[0], shares[0]),
        "b": _said(sides[1], shares[1]),
        "diff": _said(diff, shares[1] - shares[0]),
    }


def _said(numbers: Mapping[str, int], share: float) -> dict[str, Any]:
    said: dict[str, Any] = {name: str(value) for name, value in numbers.items()}
    said["gpu_hours"] = numbers[TIME] / NANO / 3600
    said["share"] = share
    said["cost"] = _money(numbers.get(COST))
    said["gpu_seconds_per_mtok"] = _money(numbers.get(TIME_PER))
    said["cost_per_mtok"] = _money(numbers.get(COST_PER))
    return said


def _money(nano: int | None) -> float | None:
    return None if nano is None else nano / NANO


def _total(a: Side, b: Side, measures: Mapping[str, tuple[dict[str, int], ...]]) -> dict[str, Any]:
    sides = [{n: sum(values[i].values()) for n, values in measures.items()} for i in (0, 1)]
    return _row(sides, [s.report["total_gpu_ns"] for s in (a, b)])


def _pair(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("value", "lo", "hi")
    apart = a["hi"] < b["lo"] or b["hi"] < a["lo"]
    return {
        "a": {k: a[k] for k in keys},
        "b": {k: b[k] for k in keys},
        "diff": b["value"] - a["value"],
        "certain": apart,
    }


def _about(side: Side) -> dict[str, Any]:
    report = side.report
    return {
        "path": side.path,
        "name": report["run"]["name"],
        "id": report["run"]["id"],
        "start": report["run"]["start"],
        "end": report["run"]["end"],
        "over": report["run"]["over"],
        "gpu_types": list(side.gpu_types),
        "world_size": report["run"]["world_size"],
        "flops_formula": side.formula,
        "price_per_gpu_hour": report["cost"]["price_per_gpu_hour"],
        "currency": report["cost"]["currency"],
        "total_gpu_ns": report["total_gpu_ns"],
        "kept_tokens": side.tokens,
        "kept_steps": report["steps"]["kept"],
    }
