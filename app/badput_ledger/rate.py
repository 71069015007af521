"""Compute below the peak rate: what of it is recomputed activations, and what is inefficiency.

The FLOPs of a session's kept tokens take ``ideal`` at the GPUs' peak, its kept steps computed for
``C``. H becomes ``ideal``. If the GPUs do ``f`` times the useful FLOPs, G.recompute is
C x (f - 1) / f, as recomputed and other work are taken to run at one rate, and G.kernel the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from badput_ledger import chain
from badput_ledger.definitions.flops import UnknownError, Work, work_of
from badput_ledger.definitions.summary import summarize
from badput_ledger.taxonomy import COMPUTE, KERNEL, RECOMPUTE

if TYPE_CHECKING:
    from badput_ledger.books import Books

_NO_FACTOR = "nothing says whether activations are recomputed (recompute), so it is in G.kernel"


@dataclass(frozen=True, slots=True)
class Rate:
    """What is known of the rate of compute, over the run."""

    reasons: dict[str, str]
    """Leaves that are NULL, and why."""
    formula: str | None = None
    inputs: dict[str, str] | None = None
    factor: Fraction | None = None
    """Executed over useful FLOPs; None where nothing says."""

    @property
    def known(self) -> bool:
        """Is G.kernel known?"""
        return KERNEL not in self.reasons


def settle_rate(books: Books) -> Rate:
    """Split the compute of every session, if the FLOPs of all are known."""
    if not books.facts.run.get("flops_formula"):
        return _unknown("the run does not say its FLOPs (badput.init(flops=...))")
    try:
        summary = summarize(books)
        work = work_of(summary)
    except UnknownError as error:
        return _unknown(str(error))
    ideal, took = _times(books, work)
    factor, reasons = work.hardware_factor, dict[str, str]()
    above = [s for s, ns in ideal.items() if ns > took.get(s, 0)]
    if above:
        return _unknown(
            f"the FLOPs of session {above[0]} take longer at the peak rate than its kept steps "
            "computed: FLOPs or peak are wrong"
        )
    if factor is None:
        reasons[RECOMPUTE] = _NO_FACTOR
    elif any(ns * factor > took[s] for s, ns in ideal.items()):
        reasons[RECOMPUTE] = (
            "with recomputed activations the FLOPs take longer at the peak rate than the kept "
            "steps computed: recompute, FLOPs or peak are wrong"
        )
        factor = None
    again = Fraction(0) if factor is None else 1 - 1 / factor
    rows = [
        (s, ns.numerator // ns.denominator, again.numerator, again.denominator)
        for s, ns in ideal.items()
    ]
    chain.rebuild_sums(books.cursor(), rows)
    inputs = {k: str(v) for k, v in sorted(summary.formula_inputs.items())}
    return Rate(reasons, work.formula, inputs, factor)


def _times(books: Books, work: Work) -> tuple[dict[str, Fraction], dict[str, int]]:
    """Slot-ns by session: at the peak rate, and in fact."""
    ideal: dict[str, Fraction] = {}
    each = work.per_token * 10**9 / (work.peak * 10**12)
    for row in books.rows("FROM token_counts WHERE fate = 'kept' ORDER BY session"):
        tokens = int(row["tokens"]) - int(row["padding"] or 0)
        ideal[str(row["session"])] = tokens * each
    took = {
        str(row["session"]): int(row["ns"])
        for row in books.rows(
            "SELECT session, sum(ns * weight)::HUGEINT AS ns FROM rank_leaves "
            "JOIN members USING (session, rank) WHERE leaf = 'H.productive' GROUP BY session"
        )
    }
    return ideal, took


def _unknown(why: str) -> Rate:
    return Rate({RECOMPUTE: why, KERNEL: why})


def compute_shares(books: Books) -> dict[tuple[str, int], dict[str, int]]:
    """Nanoseconds of compute in kept steps by session and rank, and by leaf."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    names = ", ".join(f"'{leaf}'" for leaf in COMPUTE)
    for row in books.rows(f"FROM rank_leaves WHERE leaf IN ({names})"):
        own = found.setdefault((str(row["session"]), int(row["rank"])), {})
        own[str(row["leaf"])] = int(row["ns"])
    return found
