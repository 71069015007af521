"""The lines of a torchtitan log: what they look like, and what a file begins with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger.sources.clock import stamp
from badput_ledger.sources.shapes import Fields
from badput_ledger.sources.text import Wanted
from badput_ledger.sources.titan_launch import number

if TYPE_CHECKING:
    from badput_ledger.sources.text import TextLog

LONGEST = 4096
"""Characters of a record or another line that are looked at; real ones have some hundreds."""

_RECORD = re.compile(
    r"\[titan\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - (\S{1,200}) - "
    r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) - "
)
_RANK = re.compile(r"(?:\[(?:rank|default)(\d{1,7})\]|(?<![^\s\]])(\d{1,7})): ?$")
STEP = re.compile(
    # The common step line as a whole: one match instead of one for each key.
    r"(?:\[(?:rank|default)(\d{1,7})\]: ?|(\d{1,7}): ?)?\[titan\] "
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - \S{1,200} - INFO - (?=step:)"
    r"(step: *([\d,]+) +loss: *(\S+) +(?:grad_norm: *(\S+) +)?memory: *\S+ +tps: *(\S+)[^[]*)$"
)
DATED = re.compile(rb"\[titan\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - ")
AGENT = re.compile(
    r"[WEIC](\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d{1,9}) (\d{1,12}) "
    r"\S*torch/distributed/(\S+?):\d+\] ?(.*)"
)
WANTED = Wanted(
    always=(
        b"titan] ",
        b" torch/distributed/",
        b" site-packages/torch/distributed/",
        *(b"\n[" + c for c in (b"M", b"T", b"W", b"F", b"S", b"2")),  # [Mon .. or [2026-..
        b"OUT_DIR=",
        b"Error: ",
        b" Killed ",
    ),
    after={
        b"OUT_DIR=": (b"NGPU=", b"_BS="),
        b"failed (exitcode": (
            b"\n  time  ",
            b"\n  rank  ",
            b"\n  exitcode ",
            b"Root Cause",
            b"Exception: ",
        ),
    },
)
"""What is looked at; every other line costs next to nothing."""

_STEP_GROUPS = {"step": 5, "loss": 6, "grad_norm": 7, "tps": 8, "time": 3}


def _step_fields(text: str) -> dict[str, tuple[int, int]] | None:
    """Where the numbers of a common step line stand."""
    match = STEP.match(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    rank = 1 if match.group(1) else 2
    groups = _STEP_GROUPS | ({"rank": rank} if match.group(rank) else {})
    return {name: match.span(group) for name, group in groups.items() if match.group(group)}


STEP_FIELDS = Fields(
    _step_fields,
    {
        "time": "time",
        "rank": "int",
        "step": "int",
        "loss": "float",
        "grad_norm": "float",
        "tps": "float",
    },
)

ERROR = re.compile(r"\s*(?:\[rank\d+\]: ?)*((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)): (.*)")
KILLED = re.compile(r": line \d+: +(\d{1,12}) Killed ")
REPORT = re.compile(r" +(time|rank|exitcode) +: (\S+)(?:.*\(pid: (\d+)\))?")
SIGTERM = re.compile(r"Sending process (\d{1,12}) closing signal (\w+)")
FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,7}) \(pid: (\d{1,12})\)")
DEATH = re.compile(r"Received (\S+) death signal")
ATTEMPT = re.compile(r"attempt #(\d{1,9})\b", re.IGNORECASE)
ATTEMPT_END = re.compile(
    r"attempt #(\d{1,9})(?: done)? rc=(-?\d{1,9})(?: last_step=(\d{1,15}))?", re.IGNORECASE
)
JOB_END = re.compile(r"\b(end|done|ended|finished|success|reached|stopped|next)\b", re.IGNORECASE)
JOB_START = re.compile(r"\bSTART\b|\bconfig=", re.IGNORECASE)
SETTING = re.compile(r"\b([A-Z_]{1,40})=(\S+)")
FIELD = re.compile(r"(?<!\w)(\w{1,40}):\s*([^\s(%]+)")

_STARTS = ("Building device mesh", "Training starts at step", "torchtitan version")
_ROTATED = re.compile(
    # train.log, train.log.1, train.log-20310501, train.log.2031-05-01, train.log.aa
    r"(.+\.(?:log|txt|out|err))(?:[.-]\d{1,4}|[.-]\d{4}-?\d\d-?\d\d[-_T\d]*|\.[a-z]{2})?(?:\.gz)?"
)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the trainer; the date as it is printed."""

    clock: str
    rank: int
    logger: str
    message: str


def records(text: str) -> list[Record]:
    """All records in a line; a progress bar or another record may stand before one."""
    found: list[tuple[int, int, str, str, int]] = []
    place = text.find("[titan] ")
    while place >= 0:
        after = place + 8
        if match := _RECORD.match(text, place):
            after = match.end()
            before = text[max(0, place - 20) : place]
            ranked = _RANK.search(before) if before.endswith((":", ": ")) else None
            rank = int(ranked.group(1) or ranked.group(2)) if ranked else 0
            begin = place - (len(before) - ranked.start() if ranked else 0)
            found.append((begin, after, match.group(1), match.group(2), rank))
        place = text.find("[titan] ", after)
    ends = [min(begin, len(text)) for begin, *_ in found[1:]] + [len(text)]
    return [
        Record(clock, rank, logger, text[after : min(end, after + LONGEST)].rstrip())
        for (_, after, clock, logger, rank), end in zip(found, ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Opening:
    """What a file begins with."""

    time: int
    """Of its first dated record."""
    step: int | None = None
    """The first step line, if no start of a process stands before it."""
    step_time: int = 0


def opening(log: TextLog) -> Opening | None:
    """The beginning of a file; None if no record in it has a date. Raises OSError."""
    first: int | None = None
    for _, text in log.select(Wanted((b"titan] ",)), 1 << 16):
        for record in records(text):
            time = stamp(record.clock)
            if time is None:
                continue
            first = time if first is None else first
            if record.message.startswith(_STARTS):
                return Opening(first)
            if record.message.startswith("step:"):
                found = FIELD.match(record.message)
                return Opening(first, number(found.group(2)) if found else None, time)
    return None if first is None else Opening(first)


def family(path: str) -> str | None:
    """The name that the parts of a rotated or split log share; None if it is no such name."""
    match = _ROTATED.fullmatch(path)
    return match.group(1) if match else None
