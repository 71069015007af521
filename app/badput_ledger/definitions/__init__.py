"""Published definitions of goodput, MFU and their kind, all from the same books.

``results(summary)`` computes every one of them; each says its formula, source, inputs and the
bridge from kept time to it, leaf by leaf. docs/definitions.md compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.definitions import counted, flops
from badput_ledger.definitions.shares import SHARES
from badput_ledger.definitions.summary import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_ledger.books import Books
    from badput_ledger.definitions.result import Result

__all__ = ["Summary", "definitions", "results", "summarize"]

_OTHERS: tuple[Callable[[Summary], Result], ...] = (
    counted.google_resiliency,
    flops.ml_productivity,
    counted.expected_ettr,
    counted.megascale,
    flops.aws,
    flops.mfu,
    flops.hfu,
    counted.pollux,
)


def results(summary: Summary) -> list[Result]:
    """Every definition, in the order of docs/definitions.md."""
    found = [share.compute(summary) for share in SHARES]
    found += [compute(summary) for compute in _OTHERS]
    place = {name: i for i, name in enumerate(ORDER)}
    return sorted(found, key=lambda r: place[r.name])


ORDER = (
    "ml-goodput-measurement",
    "google-resiliency",
    "ML Productivity Goodput",
    "ETTR with queue wait",
    "ETTR without queue wait",
    "expected ETTR",
    "Llama 3 effective training time",
    "MegaScale effective training time",
    "NVIDIA cluster-readiness-engine",
    "AWS goodput",
    "MLPerf Storage accelerator utilisation",
    "MFU",
    "HFU",
    "Pollux",
)


def definitions(books: Books, learning: dict[str, Any] | None = None) -> dict[str, Any]:
    """The report's ``definitions``: plain values by name."""
    summary = summarize(books, learning=learning)
    return {result.name: result.plain() for result in results(summary)}
