"""What an importer makes of a log: attempts, and the runs that they belong to.

A format module reads lines and fills ``Attempt`` objects; everything behind that is the
same for every format (``facts.py`` turns attempts into the tables of a run folder).
All times are integer nanoseconds since the epoch.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from badput_ledger.sources.text import excerpt

NAN = math.nan
SECOND = 1_000_000_000


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


@dataclass(frozen=True, slots=True)
class Unread:
    """Something in the input that was not understood or not used."""

    file: str
    line: int | None
    what: str


@dataclass(slots=True)
class Steps:
    """Step rows as columns, so that millions of them fit in memory.

    ``rate`` is the printed throughput of the whole job in tokens/s (NaN if none) and
    ``rate_ns`` the time that it was taken over. -1 in ``overhead``, ``save`` and ``eval``
    means that nothing was seen in the step.
    """

    step: array[int] = field(default_factory=lambda: array("q"))
    count: array[int] = field(default_factory=lambda: array("q"))
    start: array[int] = field(default_factory=lambda: array("q"))
    dur: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    rate_ns: array[int] = field(default_factory=lambda: array("q"))
    overhead: array[int] = field(default_factory=lambda: array("q"))
    save: array[int] = field(default_factory=lambda: array("q"))
    eval: array[int] = field(default_factory=lambda: array("q"))
    rate: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    grad_norm: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.step)


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


@dataclass(slots=True)
class Run:
    """Attempts that write one history of steps."""

    name: str
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    home: str | None = None
    notes: list[str] = field(default_factory=list[str])
    elsewhere: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When another run of the same logs was running."""


@dataclass(slots=True)
class Parsed:
    """What a format module returns."""

    runs: list[Run]
    unread: list[Unread]


def inside(path: str, folder: str) -> bool:
    """True if ``path`` lies in ``folder`` (or below)."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def split_runs(attempts: list[Attempt], fallback: str) -> list[Run]:
    """Attempts in their order, divided into runs.

    The same output folder is the same run, with one exception: an attempt that begins at
    step 1 without loading from its own checkpoints starts a new run if an earlier attempt
    had completed or the settings differ, since nothing of the earlier steps is in its
    model. Attempts that never trained go with the next attempt of their job that did.
    ``fallback`` names runs whose folder is not known.
    """
    runs: list[Run] = []
    newest: dict[str | None, Run] = {}
    for index, attempt in enumerate(attempts):
        run = newest.get(attempt.home)
        if run is None and attempt.home is None and runs:
            run = runs[-1]  # it died before it said where it writes
        if run is None or _begins_anew(run, _deciding(attempts, index)):
            run = Run(_name(attempt.home, fallback, runs), home=attempt.home)
            runs.append(run)
            newest[attempt.home] = run
        run.attempts.append(attempt)
    for run in runs:
        run.elsewhere = [(a.start, a.last) for r in runs if r is not run for a in r.attempts]
    return runs


def _deciding(attempts: list[Attempt], index: int) -> Attempt:
    """The attempt whose start decides about attempt ``index``: the next one that trained."""
    attempt = attempts[index]
    for later in attempts[index:]:
        if later.job is not attempt.job or later.home != attempt.home:
            break
        if later.first_step is not None or later.loaded is not None:
            return later
    return attempt


def _begins_anew(run: Run, attempt: Attempt) -> bool:
    if attempt.first_step != 1:
        return False
    loaded, folder = attempt.loaded, attempt.folder
    if loaded is not None and folder is not None and inside(loaded, folder):
        return False
    before = [a for a in run.attempts if len(a.steps)]
    if not before or (before[-1].job is attempt.job and attempt.job.dated):
        return False
    return any(a.completed for a in before) or _settings(before[-1]) != _settings(attempt)


def _settings(attempt: Attempt) -> dict[str, Any]:
    keys = ("steps", "global_batch", "local_batch", "seq_len", "mesh")
    return {key: attempt.config.get(key) for key in keys}


def _name(home: str | None, fallback: str, runs: list[Run]) -> str:
    """The last part of the output folder; a second run of that name gets a number."""
    parts = [p for p in (home or "").split("/") if p]
    base = name = parts[-1] if parts else fallback
    count = 1
    while any(run.name == name for run in runs):
        count += 1
        name = f"{base} ({count})"
    return name
