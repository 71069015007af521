"""What an importer makes of a log: attempts, and the runs that they belong to.

A format module reads lines and fills ``Attempt`` objects; everything behind that is the
same for every format (``facts.py`` turns attempts into the tables of a run folder).
All times are integer nanoseconds since the epoch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from badput_ledger.sources.step_rows import Steps
from badput_ledger.sources.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

NAN = math.nan
SECOND = 1_000_000_000
MOST_ATTEMPTS = 100_000
"""More starts than this in one log are no training: a bound on memory."""
MOST_RUNS = 10_000
MOST_GPUS = 1 << 18
LONGEST_STEP = 1e6
"""Seconds; a longer step time is a slip of the hand."""
LARGEST = 1 << 53
"""Numbers from a log are below this, or they are damage."""


class BadLogError(Exception):
    """Bad input; the message is one sentence for the user."""


def reason(error: OSError) -> str:
    """What the system says about ``error``, to stand after a name."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of a log: what a claim rests on."""

    file: str
    line: int
    text: str


@dataclass(slots=True)
class Said:
    """A record's text before anybody claims anything from it: cheap, unlike a ``Mark``."""

    file: str
    line: int
    text: str

    def mark(self) -> Mark:
        """The record as evidence."""
        return Mark(self.file, self.line, excerpt(self.text))


@dataclass(frozen=True, slots=True)
class Options:
    """What the user knows and the log may not say; None where nothing was given."""

    gpus: int | None = None
    gpu_type: str | None = None
    tokens_per_step: int | None = None
    price: float | None = None
    name: str | None = None
    step_time: float | None = None
    """Seconds of a step without any disturbance, where a definition needs a reference."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Something in the input that was not understood or not used."""

    file: str
    line: int | None
    what: str


@dataclass(slots=True)
class Span:
    """An interval, out of steps unless ``in_step``. ``end`` None: its end was never seen."""

    name: str
    start: int
    end: int | None
    step: int | None = None
    in_step: bool = False
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Checkpoint:
    """A save or load. ``dur`` is what the log prints, else what its neighbours show."""

    op: str
    start: int
    mark: Mark
    step: int | None = None
    step_range: tuple[int, int | None] | None = None
    """Bounds of the step where the log does not name it."""
    path: str | None = None
    dur: int | None = None
    end: int | None = None
    ok: bool | None = None


@dataclass(slots=True)
class Event:
    """An instant; ``attrs`` as the schema says for its kind."""

    time: int
    kind: str
    step: int | None = None
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Job:
    """One start of the wrapper script. Only a job that a wrapper line showed is ``dated``."""

    start: int
    mark: Mark | None = None
    dated: bool = False
    end: int | None = None
    end_mark: Mark | None = None


@dataclass(slots=True)
class Attempt:
    """One life of the training processes, from launch to exit."""

    start: int
    mark: Mark
    job: Job
    stream: str = ""
    """The log (one file, or several that are parts of one) in which it was seen."""
    number: int | None = None
    rank: int = 0
    world_size: int | None = None
    gpu_type: str | None = None
    home: str | None = None
    """Output folder: what makes attempts one run."""
    folder: str | None = None
    """Where its checkpoints go."""
    loaded: str | None = None
    first_step: int | None = None
    """First step that it trains; None if it never got there."""
    last: int = 0
    """Last sign of life."""
    completed: bool = False
    steps: Steps = field(default_factory=Steps)
    spans: list[Span] = field(default_factory=list[Span])
    checkpoints: list[Checkpoint] = field(default_factory=list[Checkpoint])
    events: list[Event] = field(default_factory=list[Event])
    evidence: list[tuple[str, int | None, Mark]] = field(
        default_factory=list[tuple[str, int | None, Mark]]
    )
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    def claim(self, what: str, mark: Mark, step: int | None = None) -> None:
        """Write down what a claim rests on."""
        self.evidence.append((what, step, mark))

    def restate(self, what: str, old: Mark, new: Mark) -> None:
        """Rest a claim on a line that says more than the one that it was made from."""
        self.evidence = [
            (claim, step, new if claim == what and mark is old else mark)
            for claim, step, mark in self.evidence
        ]


@dataclass(slots=True)
class Run:
    """Attempts that write one history of steps."""

    name: str
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    home: str | None = None
    notes: list[str] = field(default_factory=list[str])
    places: int | None = None
    """Requested places, where the log shows more than any attempt filled."""
    submitted: int | None = None
    """When it was asked for, where the log says so."""
    others: list[Lives] = field(default_factory=list["Lives"])
    """When the runs of each of its logs, this one and others, were running."""


class Lives:
    """Intervals in which the runs of one set of logs were running."""

    def __init__(self, runs: Sequence[Run]) -> None:
        found = [(a.start, a.last, id(r)) for r in runs for a in r.attempts]
        found.sort()
        self._lives = found
        self._ends = list(accumulate((last for _, last, _ in found), max))

    def another(self, run: Run, start: int, end: int) -> bool:
        """True if a run other than ``run`` was running at some time in ``start``..``end``."""
        at = bisect_left(self._lives, (end,)) - 1
        while at >= 0 and self._ends[at] > start:
            _, last, owner = self._lives[at]
            if last > start and owner != id(run):
                return True
            at -= 1
        return False


@dataclass(slots=True)
class Parsed:
    """What a format module returns."""

    runs: list[Run]
    unread: list[Unread]
    refused: list[str] = field(default_factory=list[str])
    """One sentence for each file that could not be read, in whole or in part."""


def inside(path: str, folder: str) -> bool:
    """True if ``path`` lies in ``folder`` (or below)."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
