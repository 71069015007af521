"""Reading event logs of AI-Hypercomputer/resiliency: one JSON object a line.

Events are kept as columns of numbers, about 30 bytes each, so that the log of a long run of
many nodes fits in memory; the text of the few lines that something is claimed from is read
again at the end. Every line that is not an event is told, with what is wrong with it.
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.sources.attempts import LARGEST, MOST_RUNS, BadLogError, Mark, Unread
from badput_ledger.sources.clock import stamp
from badput_ledger.sources.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from badput_ledger.sources.text import TextLog

SCHEDULED, STARTED, LOADED, SAVED, STOPPED, TERMINATED = range(6)
"""Kinds of events; two at one instant count in this order, as their own calculator has it."""
KINDS = {
    "user_scheduled": SCHEDULED,
    "job_started": STARTED,
    "checkpoint_loaded": LOADED,
    "checkpoint_saved": SAVED,
    "user_terminated": STOPPED,
    "job_terminated": TERMINATED,
}
MOST_EVENTS = 6_000_000
MOST_NODES = 1 << 17
_TOLD = 20
"""Lines told one by one for each log and kind of trouble; the rest is counted."""
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_MARK = re.compile(rb'"event_type"\s*:\s*"(?:' + "|".join(KINDS).encode() + rb')"')


def looks_like(head: bytes) -> bool:
    """True if a line of ``head`` is such an event."""
    return _MARK.search(head) is not None


def _ints() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Events:
    """The events of one job as columns, in the order of the lines; -1 is unknown."""

    time: array[int] = field(default_factory=_ints)
    kind: array[int] = field(default_factory=lambda: array("b"))
    node: array[int] = field(default_factory=lambda: array("i"))
    step: array[int] = field(default_factory=_ints)
    file: array[int] = field(default_factory=lambda: array("i"))
    line: array[int] = field(default_factory=_ints)

    def __len__(self) -> int:
        return len(self.time)

    def in_order(self) -> list[int]:
        """Indices by time; equal times by kind, then by place in the log."""
        keys = [t * 8 + k for t, k in zip(self.time, self.kind, strict=True)]
        return sorted(range(len(keys)), key=keys.__getitem__)


class Reader:
    """Events of any number of logs, by the name of their job ("" where none is given)."""

    def __init__(self) -> None:
        self.jobs: dict[str, Events] = {}
        self.unread: list[Unread] = []
        self.zones: set[bool] = set()
        """Do the dates name a zone? Both, if some do and some do not."""
        self._logs: list[TextLog] = []
        self._count = 0

    def read(self, log: TextLog) -> None:
        """Take in one log. Raises OSError, and BadLogError if it holds more than can be."""
        number = len(self._logs)
        self._logs.append(log)
        trouble: dict[str, list[int]] = {}
        for lines, numbers in _blocks(log):
            at_once = _objects(lines)
            for i, line in enumerate(numbers):
                event = _object(log.clean(lines[i])) if at_once is None else at_once[i]
                what = event if isinstance(event, str) else self._take(event, number, line)
                if what is not None:
                    trouble.setdefault(what, []).append(line)
        for what, lines in trouble.items():
            self._tell(log.name, lines, what)
        if log.held_back is not None:
            what = "the last line has no newline and may be cut: not read"
            self.unread.append(Unread(log.name, log.held_back, what))
        for count, what in (
            (log.bad_utf8, "lines with broken UTF-8, read with replacement characters"),
            (log.nuls, "NUL bytes, left out"),
            (log.long_lines, "lines longer than 1 MiB, cut there"),
        ):
            if count:
                self.unread.append(Unread(log.name, None, f"{count} {what}"))

    def repeated(self, events: Events, indices: Sequence[int], what: str) -> None:
        """Tell events that were left out after they had been read."""
        by_file: dict[int, list[int]] = {}
        for index in indices:
            by_file.setdefault(events.file[index], []).append(events.line[index])
        for number, lines in by_file.items():
            self._tell(self._logs[number].name, lines, what)

    def marks(self, events: Events, indices: Iterable[int]) -> dict[int, Mark]:
        """File, line and text of some events, read from the logs a second time."""
        wanted: dict[int, dict[int, int]] = {}
        for index in indices:
            wanted.setdefault(events.file[index], {})[events.line[index]] = index
        found: dict[int, Mark] = {}
        for number, lines in wanted.items():
            log = self._logs[number]
            for line, index in lines.items():
                found[index] = Mark(log.name, line, "")
            hook, log.on_bytes = log.on_bytes, None
            try:
                for line, raw in _picked(log, sorted(lines)):
                    found[lines[line]] = Mark(log.name, line, excerpt(log.clean(raw)))
            except OSError:
                pass  # it went away meanwhile: file and line still stand
            log.on_bytes = hook
        return found

    def _tell(self, name: str, lines: list[int], what: str) -> None:
        self.unread += [Unread(name, line, what) for line in lines[:_TOLD]]
        if len(lines) > _TOLD:
            more = f"and {len(lines) - _TOLD} more lines: {what}"
            self.unread.append(Unread(name, None, more))

    def _take(self, event: dict[str, Any], number: int, line: int) -> str | None:
        """Keep the event of a line; else say what is wrong with it."""
        said = event.get("event_type")
        kind = KINDS.get(said) if isinstance(said, str) else None
        time = None if kind is None else self._time(event.get("timestamp"))
        node, step = _whole(event.get("node_rank")), _whole(event.get("step"))
        job = event.get("job_name", "")
        if kind is None:
            what = "no event_type that is known"
        elif time is None:
            what = "timestamp is no date such as 2031-05-06T07:08:09.123456"
        elif "node_rank" in event and (node is None or node >= MOST_NODES):
            what = "node_rank is no whole number that a node can have"
        elif kind in (LOADED, SAVED) and step is None:
            what = "a checkpoint without a step that is a whole number"
        elif not isinstance(job, str):
            what = "job_name is no text"
        else:
            self._keep(job, (time, kind, -1 if node is None else node, step or 0, number, line))
            return None
        return what

    def _keep(self, job: str, row: tuple[int, int, int, int, int, int]) -> None:
        events = self.jobs.get(job)
        if events is None:
            if len(self.jobs) >= MOST_RUNS:
                raise BadLogError(f"more than {MOST_RUNS} job names; import fewer logs at once")
            events = self.jobs[job] = Events()
        self._count += 1
        if self._count > MOST_EVENTS:
            raise BadLogError(f"more than {MOST_EVENTS:,} events; import fewer logs at once")
        events.time.append(row[0])
        events.kind.append(row[1])
        events.node.append(row[2])
        events.step.append(row[3])
        events.file.append(row[4])
        events.line.append(row[5])

    def _time(self, value: object) -> int | None:
        """Nanoseconds since the epoch; a date without a zone is read as UTC."""
        if not isinstance(value, str) or len(value) > 40:
            return None
        match = _TIME.fullmatch(value)
        time = None if match is None else stamp(match.group(1))
        if match is None or time is None:
            return None
        zone = match.group(2)
        self.zones.add(zone is not None)
        if zone is None or zone == "Z":
            return time
        sign, digits = zone[0], zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if hours > 15 or minutes > 59:
            return None
        offset = (hours * 60 + minutes) * 60_000_000_000
        return time - offset if sign == "+" else time + offset


def _object(text: str) -> dict[str, Any] | str:
    """The JSON object that a line is, or what it is instead."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON object, perhaps cut"
    if not isinstance(value, dict):
        return "JSON, but no object"
    return cast("dict[str, Any]", value)


def _whole(value: object) -> int | None:
    """A whole number from 0 that a log may hold, also written as 12.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < LARGEST and value == int(value) else None


def _objects(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """The objects of many lines, parsed at once; None if one of them is none, or is odd."""
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        return None
    try:
        values: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    fits = len(values) == len(lines) and all(type(v) is dict for v in values)
    return cast("list[dict[str, Any]]", values) if fits else None


def _blocks(log: TextLog) -> Iterator[tuple[list[bytes], list[int]]]:
    """Lines that are not blank and their numbers, as many as were read together.

    Raises OSError.
    """
    for first, block in log.blocks():
        lines = block.split(b"\n")
        numbers = [n for n, raw in enumerate(lines, first) if raw and not raw.isspace()]
        yield [lines[n - first].strip() for n in numbers], numbers


def _picked(log: TextLog, wanted: list[int]) -> Iterator[tuple[int, bytes]]:
    """Raw text of the lines with these numbers, which are in order. Raises OSError."""
    at = 0
    for first, block in log.blocks():
        lines = block.split(b"\n")
        while at < len(wanted) and wanted[at] < first + len(lines) - 1:
            if wanted[at] >= first:
                yield wanted[at], lines[wanted[at] - first]
            at += 1
