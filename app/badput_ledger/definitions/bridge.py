"""From kept time to another definition, leaf by leaf, exactly.

Ours is K / T, with K = G + H and T the total. Theirs is N / D. Then::

    N/D - K/T  =  sum over the terms of  (a + N/D * b) / T

where a term's ``a`` is what it adds to the numerator (their N instead of our K) and ``b`` is
what it takes out of the denominator (their D instead of our T). Everything is a fraction of
integers, so that the terms sum to the difference without a rounding error.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Term:
    """One leaf that the two definitions count differently, in slot-nanoseconds."""

    leaf: str
    """A leaf of the taxonomy, or what else it is."""
    what: str
    numerator: Fraction = Fraction(0)
    denominator: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class Bridge:
    """The way from K / T to N / D."""

    kept: Fraction
    total: Fraction
    good: Fraction
    base: Fraction
    terms: tuple[Term, ...]

    @property
    def ours(self) -> Fraction:
        """Kept time."""
        return self.kept / self.total

    @property
    def value(self) -> Fraction:
        """Their figure."""
        return self.good / self.base

    def effect(self, term: Term) -> Fraction:
        """What a term does to the ratio."""
        return (term.numerator + self.value * term.denominator) / self.total

    @property
    def open(self) -> Fraction:
        """What the terms do not explain: 0, or a definition is wrong."""
        return self.value - self.ours - sum(map(self.effect, self.terms), Fraction(0))

    def rows(self) -> list[dict[str, Any]]:
        """The terms for a person and for JSON; ``exact`` sums without rounding."""
        found: list[dict[str, Any]] = []
        for term in self.terms:
            effect = self.effect(term)
            moved = term.numerator or term.denominator
            found.append(
                {
                    "leaf": term.leaf,
                    "what": term.what,
                    "gpu_seconds": float(moved / 10**9),
                    "effect": float(effect),
                    "exact": f"{effect.numerator}/{effect.denominator}",
                }
            )
        return found


def of_leaves(
    leaves: Mapping[str, int],
    good: Callable[[str], bool],
    left_out: Callable[[str], bool],
) -> Bridge | None:
    """The bridge to a definition that only sorts leaves; None where nothing is left to count.

    ``good``: leaves of their numerator; ``left_out``: leaves that their denominator lacks.
    """
    terms: list[Term] = []
    for leaf, ns in leaves.items():
        if not ns:
            continue
        a = Fraction(ns * (good(leaf) - (leaf[0] in "GH")))
        b = Fraction(ns if left_out(leaf) else 0)
        if a or b:
            terms.append(Term(leaf, _what(a, b), a, b))
    n = sum(ns for leaf, ns in leaves.items() if good(leaf))
    d = sum(ns for leaf, ns in leaves.items() if not left_out(leaf))
    return between(leaves, Fraction(n), Fraction(d), terms)


def between(
    leaves: Mapping[str, int], good: Fraction, base: Fraction, terms: Iterable[Term]
) -> Bridge | None:
    """The bridge to ``good`` / ``base``; None where either total is nothing."""
    total = sum(leaves.values())
    if total <= 0 or base <= 0:
        return None
    kept = Fraction(sum(ns for leaf, ns in leaves.items() if leaf[0] in "GH"))
    used = tuple(t for t in terms if t.numerator or t.denominator)
    return Bridge(kept, Fraction(total), good, base, used)


def _what(a: Fraction, b: Fraction) -> str:
    if a < 0:
        return "kept here, not good there" + (", nor in their total" if b else "")
    if a > 0:
        return "good there, not kept here"
    return "not in their total"
