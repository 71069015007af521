"""The tools that the suite scores, and what a tool must be to be scored.

A tool is an object with ``name``, ``version`` and ``score(timeline, folder)``. It gets the
timeline and an empty folder of its own, makes of it whatever its library reads, and says what
that library answers: see ``Score``. ``python -m benchmarks.conformance --tool MODULE:NAME`` calls
NAME of MODULE without arguments for one more tool.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from benchmarks.conformance import facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction
    from pathlib import Path

    from benchmarks.conformance.timeline import Timeline


@dataclass(slots=True)
class Score:
    """What a tool says of a timeline. Unknown is None, never 0."""

    goodput: float | Fraction | None
    """Time in kept, productive steps over all time, 0..1, as the tool defines it."""
    buckets: dict[str, float] = field(default_factory=dict[str, float])
    """The tool's own split of the time, in GPU-seconds or as it counts, by its own names."""
    why_not: str | None = None
    """Why goodput is None: what the tool cannot express or compute."""
    steps: dict[str, int] = field(default_factory=dict[str, int])
    """Counts of executed, kept, lost and skipped steps, if it gives them."""


class Tool(Protocol):
    """What the suite asks of a tool."""

    name: str
    version: str

    def score(self, timeline: Timeline, folder: Path) -> Score:
        """The tool's answer to a timeline; ``folder`` is empty and its own."""
        ...


class Badput:
    """badput itself, from a run folder of real parts."""

    name = "badput"

    def __init__(self) -> None:
        from badput import __version__

        self.version = __version__

    def score(self, timeline: Timeline, folder: Path) -> Score:
        """Goodput and leaves of the books."""
        from badput_ledger.books import open_books

        with open_books(facts.write(timeline, folder / "run")) as books:
            report = books.report()
        leaves = {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}
        counts = {k: report["steps"][k] for k in ("executed", "kept", "lost", "skipped")}
        return Score(report["goodput"]["value"], leaves, steps=counts)


TOOLS: dict[str, str] = {
    "badput": "benchmarks.conformance.tools:Badput",
    "ml-goodput-measurement": "benchmarks.conformance.google_ml_goodput:GoogleMlGoodput",
}
"""Name: MODULE:NAME of what makes the tool. Add yours here, or give it with --tool."""


def load(where: str) -> Tool:
    """The tool that MODULE:NAME makes. Raises ImportError with a sentence if it cannot."""
    module, _, name = where.partition(":")
    make: Callable[[], Tool] = getattr(importlib.import_module(module), name)
    return make()
