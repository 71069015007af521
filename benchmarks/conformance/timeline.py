"""A scenario: a declarative timeline with its truth, read from TOML.

All numbers in a scenario are seconds or counts; here instants are whole nanoseconds after the
scenario's begin. docs/conformance.md describes the format.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).parent / "scenarios"
S = 1_000_000_000
EVENTS = ("failure", "hang", "hang_end", "rewind", "complete", "note")
"""What an act may do that takes no time."""
_STEP_TIMES = ("data", "comm", "host", "overhead", "eval", "save", "snapshot", "compile")
"""Parts of a step's own duration that an act may name."""
_WAITS = ("wait_activation", "wait_gradient", "send")


class ScenarioError(ValueError):
    """A scenario that cannot be read; its sentence names the file and the entry."""


@dataclass(slots=True)
class Piece:
    """One thing that one rank did: a step, a span, an event or its end."""

    kind: str
    """step, span, event or end."""
    name: str
    """Name of the span, kind of the event, how it ended; `step` for a step."""
    start_ns: int
    stop_ns: int
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """step: step, tokens, parts of the step in ns, ...; the others: what the act said."""


@dataclass(slots=True)
class Rank:
    """One process: from its start to its end, all in order of time."""

    session: int
    rank: int
    start_ns: int
    init_ns: int
    pieces: list[Piece] = field(default_factory=list[Piece])


@dataclass(slots=True)
class Session:
    """One life of the world."""

    world: int
    start_ns: int
    job: str | None
    given: dict[str, Any]
    ranks: list[Rank]

    @property
    def end_ns(self) -> int:
        """Last instant that anything of it is known."""
        return max(p.stop_ns for r in self.ranks for p in r.pieces)


@dataclass(slots=True)
class Timeline:
    """A scenario with its truth."""

    name: str
    title: str
    given: dict[str, Any]
    sessions: list[Session]
    truth: dict[str, Any]

    @property
    def truth_ns(self) -> dict[str, int]:
        """Leaf: nanoseconds over all places."""
        return {leaf: nanos(s) for leaf, s in self.truth["leaves"].items()}

    def share(self, name: str) -> Fraction | None:
        """A figure of the truth, such as kept_time or goodput, as an exact fraction."""
        given = self.truth.get(name)
        return None if given is None else Fraction(str(given).replace(" ", ""))


def nanos(seconds: Any) -> int:
    """Seconds of a scenario as whole nanoseconds. Raises ScenarioError for a part of one."""
    ns = Decimal(seconds) * S
    if ns != int(ns):
        raise ScenarioError(f"{seconds} s is no whole number of nanoseconds")
    return int(ns)


def scenarios(folder: Path = SCENARIOS) -> list[Path]:
    """The files of the suite, in order."""
    return sorted(folder.glob("*.toml"))


def read(path: Path) -> Timeline:
    """Read one scenario. Raises ScenarioError."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        sessions = [_session(i, one) for i, one in enumerate(given["session"])]
        return Timeline(path.stem, given["title"], given, sessions, given["truth"])
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    except KeyError as error:
        raise ScenarioError(f"{path}: the entry {error} is missing") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path} is not TOML: {error}") from None


def _session(number: int, given: dict[str, Any]) -> Session:
    world = int(given.get("world", 1))
    start = nanos(given["start"])
    present = [int(r) for r in given.get("ranks", range(world))]
    ranks = [Rank(number, r, start, start) for r in present]
    clocks = dict.fromkeys(present, start)
    for act in given["acts"]:
        for rank in ranks:
            if rank.rank in act.get("ranks", present):
                clocks[rank.rank] = _act(rank, dict(act), clocks[rank.rank])
    return Session(world, start, given.get("job"), given, ranks)


def _act(rank: Rank, act: dict[str, Any], at: int) -> int:
    """Add what one act makes of a rank's time line; returns when it is over."""
    what = act.pop("do", None)
    act.pop("ranks", None)
    if what is None:
        raise ScenarioError(f"an act without do: {act}")
    if what == "steps":
        return _steps(rank, act, at)
    if what == "end":
        stop = at + nanos(act.pop("s", 0))
        rank.pieces.append(Piece("end", act.pop("how", "completed"), stop, stop, act))
        return stop
    if what in EVENTS:
        when = at + nanos(act.pop("after", 0))
        rank.pieces.append(Piece("event", what, when, when, act))
        return at
    stop = at + nanos(act.pop("s"))
    if what == "launch":
        rank.init_ns = stop
    elif what != "idle":
        for inner in act.pop("inside", []):
            one = {k: v for k, v in inner.items() if k != "at"}
            _act(rank, one, at + nanos(inner["at"]))
        act = {k: nanos(v) if k == "durable_after" else v for k, v in act.items()}
        rank.pieces.append(Piece("span", what, at, stop, act))
    return stop


def _steps(rank: Rank, act: dict[str, Any], at: int) -> int:
    first, last = int(act.pop("first")), int(act.pop("last"))
    size, gap, wait = (nanos(act.pop(k, 0)) for k in ("s", "gap", "wait"))
    many = int(act.pop("n", 1))
    fields: dict[str, Any] = {"n_steps": many}
    if wait or act.pop("waits", False):
        fields["pre_data_ns"] = wait
    for name in (*_STEP_TIMES, *_WAITS):
        if name in act:
            fields[f"{name}_ns"] = nanos(act.pop(name))
    for name in ("tokens", "padding", "samples", "applied", "committed", "source"):
        if name in act:
            fields[name] = act.pop(name)
    meets = [
        {k: nanos(v) if k in ("at", "s") else v for k, v in one.items()}
        for one in act.pop("collectives", [])
    ]
    if act:
        raise ScenarioError(f"steps {first} to {last}: {', '.join(act)} is unknown")
    for step in range(first + many - 1, last + 1, many):
        at += gap + wait
        own = {"step": step, "collectives": meets, **fields}
        rank.pieces.append(Piece("step", "step", at, at + size, own))
        at += size
    return at
