"""Leaves with their bounds, and the figures made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from badput_ledger.taxonomy import COMPUTE, KERNEL, LEAF_IDS, RECOMPUTE, REST

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_ledger.books import Books
    from badput_ledger.rate import Rate

_MEASURES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "E.save": (("save",), ("save",), "no checkpoint was recorded"),
    "E.snapshot": (("snapshot",), ("snapshot",), "no snapshot was recorded"),
    "E.eval": (("eval",), ("eval",), "no evaluation was recorded"),
    "E.overhead": (("overhead",), ("overhead",), "no overhead was recorded"),
    "F.skipped": (("applied",), (), "no step says whether its update was applied"),
    "F.uncommitted": (("committed",), (), "no step says whether it was committed"),
    "F.padding": (("padding",), (), "padding was not recorded"),
    "G.data": (("data",), ("data",), "waits for data were not recorded"),
    "G.bubble": (("bubble",), (), "waits for activations and gradients were not recorded"),
    "G.comm": (("comm",), (), "communication was not recorded"),
    "G.host": (("host",), (), "loop time between steps was not recorded"),
}
"""Leaf: columns of `measured`, span names that also measure it, and why it is NULL."""
_SAID = {"A.stop": "stop", "A.spare": "spare", "B.diagnosis": "diagnosis"}
"""Leaf: kind of the annotation that alone can book it."""


@dataclass(frozen=True, slots=True)
class LeafSum:
    """Slot-nanoseconds of a leaf; ``ns`` None if nothing measured it."""

    id: str
    ns: int | None
    billed_ns: int
    lo: int
    hi: int | None
    tokens: int | None
    reason: str | None
    moved: tuple[int, int] | None = None
    """Bounds of what it adds to a sum of leaves, where those in the sum exchange time; None:
    ``lo`` and ``hi``."""


def leaf_sums(books: Books) -> list[LeafSum]:
    """Every leaf of the taxonomy, in its order."""
    booked = {str(r["leaf"]): r for r in books.rows("FROM leaves")}
    down: dict[str, int] = {}
    up: dict[str, int] = {}
    for row in books.rows("FROM doubts"):
        leaf = str(row["leaf"])
        down[leaf] = down.get(leaf, 0) + int(row["down"])
        up[leaf] = up.get(leaf, 0) + int(row["up"])
    tokens = books.tokens.by_leaf()
    reasons = null_reasons(books)
    found: list[LeafSum] = []
    for leaf in LEAF_IDS:
        row = booked.get(leaf)
        ns = int(row["ns"]) if row else 0
        billed = int(row["billed_ns"]) if row else 0
        more = up.get(leaf, 0)
        reason = reasons.get(leaf)
        if ns == 0 and reason:
            hi = more or None
            found.append(LeafSum(leaf, None, 0, 0, hi, tokens.get(leaf), reason))
            continue
        low = max(0, ns - down.get(leaf, 0))
        found.append(LeafSum(leaf, ns, billed, low, ns + more, tokens.get(leaf), None))
    return _rated(found, books.rate, down.get(REST, 0), up.get(REST, 0))


def _rated(leaves: list[LeafSum], rate: Rate, down: int, up: int) -> list[LeafSum]:
    """Bounds of H, G.recompute and G.kernel where FLOPs divide the compute between them.

    The FLOPs fix H: what compute turns out longer is G. How fast recomputed work ran is not
    known: all that is not H may be either, but no more is recomputed than compute allows, and no
    less than it takes at the peak. In sums the three are one, since no figure parts them.
    """
    if not rate.known:
        return leaves
    of = {leaf.id: leaf for leaf in leaves if leaf.id in COMPUTE}
    ideal, slow = of[REST].ns or 0, sum(of[x].ns or 0 for x in (RECOMPUTE, KERNEL))
    factor = rate.factor
    least = 0 if factor is None else int(ideal * (factor - 1))
    most = slow if factor != 1 else 0
    whole = (max(0, ideal + slow - down), ideal + slow + up)
    new = {
        REST: replace(of[REST], lo=max(0, ideal - down), hi=ideal, moved=whole),
        KERNEL: replace(
            of[KERNEL], lo=max(0, slow - most - down), hi=slow - least + up, moved=(0, 0)
        ),
    }
    if RECOMPUTE not in rate.reasons:
        most_up = most + up if most else 0
        new[RECOMPUTE] = replace(of[RECOMPUTE], lo=max(0, least - down), hi=most_up, moved=(0, 0))
    return [new.get(leaf.id, leaf) for leaf in leaves]


def null_reasons(books: Books) -> dict[str, str]:
    """Leaves that nothing measured, with the reason."""
    measured = books.rows("FROM measured")[0]
    spans = {str(r["name"]) for r in books.rows("SELECT DISTINCT name FROM spans")}
    reasons: dict[str, str] = dict(books.rate.reasons)
    kinds = {a.kind for a in books.facts.said}
    for leaf, kind in _SAID.items():
        if kind not in kinds:
            reasons[leaf] = f"only a person knows: badput annotate RUN --{kind}"
    reasons["A.queue"] = "nothing says when the run was submitted"
    for leaf, (columns, names, why) in _MEASURES.items():
        if not any(measured[c] for c in columns) and not spans.intersection(names):
            reasons[leaf] = why
    reasons |= _slowed(books)
    if not books.rows("SELECT 1 FROM excess WHERE piped LIMIT 1") and not books.rows(
        "SELECT 1 FROM met LIMIT 1"
    ):
        reasons["G.straggler"] = (
            "a slow rank shows only with pipeline stages recorded, one rank a stage, "
            "or with times of collectives"
        )
    return reasons


def _slowed(books: Books) -> dict[str, str]:
    """Why nothing is known of writes beside the steps, or of clocks that were held down."""
    row = books.rows(
        "SELECT EXISTS (FROM writes) AS writes, EXISTS (FROM gpu_samples s SEMI JOIN members m "
        "USING (gpu_uuid) WHERE s.throttle_names IS NOT NULL) AS samples, "
        "(SELECT count(*) FROM effects WHERE NOT known AND cause = 'E.interference') AS beside, "
        "(SELECT count(*) FROM effects WHERE NOT known AND cause = 'G.throttle') AS held"
    )[0]
    few = "fewer than 20 steps without it to compare with"
    reasons: dict[str, str] = {}
    if not row["writes"] or row["beside"]:
        reasons["E.interference"] = few if row["beside"] else "no save beside the training was seen"
    if not row["samples"] or row["held"]:
        reasons["G.throttle"] = few if row["held"] else "no sample says what held the clocks down"
    return reasons


def ratio(
    leaves: list[LeafSum], counts: Callable[[str], bool], total: int
) -> dict[str, float | None]:
    """Share of the leaves that count in the total, with bounds; NULL without a total."""
    if total <= 0:
        return {"value": None, "lo": None, "hi": None}
    chosen = [leaf for leaf in leaves if counts(leaf.id)]
    value = sum(leaf.ns or 0 for leaf in chosen)
    low = sum(leaf.moved[0] if leaf.moved else leaf.lo for leaf in chosen)
    high = sum(leaf.moved[1] if leaf.moved else leaf.hi or 0 for leaf in chosen)
    return {"value": value / total, "lo": low / total, "hi": min(total, high) / total}


def kept_time(leaves: list[LeafSum], total: int) -> dict[str, float | None]:
    """(G + H) / total; with planned stops also ``without_stops``, over the total without them."""
    found = ratio(leaves, lambda leaf: leaf[0] in "GH", total)
    stopped = next((leaf.ns or 0 for leaf in leaves if leaf.id == "A.stop"), 0)
    if stopped and found["value"] is not None:
        rest = total - stopped
        found["without_stops"] = found["value"] * total / rest if rest > 0 else None
    return found


def goodput(leaves: list[LeafSum], total: int) -> dict[str, Any]:
    """(H + G.recompute + G.kernel) / total, with the G leaves that were measured."""
    measured = [leaf.id for leaf in leaves if leaf.id[0] == "G" and leaf.ns is not None]
    return {**ratio(leaves, lambda leaf: leaf in COMPUTE, total), "measured": measured}
