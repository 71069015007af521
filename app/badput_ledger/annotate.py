"""From the words of a command to annotations that make sense for a run."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from badput_ledger.allocations import DERIVED
from badput_ledger.annotations import INTERVALS, LEAVES, LONGEST_NOTE, MOST_SPARES, Annotation
from badput_ledger.clock import iso
from badput_ledger.errors import BooksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from badput_ledger.books import Books

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_RELATIVE = re.compile(r"([+-])((?:\d+(?:\.\d+)?[dhms])+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AGAINST = (("stop", "diagnosis"), ("held", "released"))
"""Kinds of which only one can be true at a time."""


def run_window(books: Books) -> tuple[int, int]:
    """First and last instant of the run, ns since the epoch. Raises BooksError if it has none."""
    row = books.rows("SELECT min(start_ns) AS a, max(end_ns) AS b FROM allocations")[0]
    if row["a"] is None or row["b"] <= row["a"]:
        raise BooksError(f"{books.path} holds no time that could be annotated.")
    return int(row["a"]), int(row["b"])


def parse_instant(text: str, window: tuple[int, int]) -> int:
    """An instant in ns: ISO 8601 (without a zone: UTC), ``+1h30m`` from the start of the run or
    ``-10m`` from its end. Raises BooksError."""
    found = _RELATIVE.fullmatch(text.strip())
    if found:
        parts = re.findall(r"(\d+)(?:\.(\d+))?([dhms])", found.group(2))
        ns = sum(_nanos(whole, part, unit) for whole, part, unit in parts)
        return window[0] + ns if found.group(1) == "+" else window[1] - ns
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BooksError(
            f"{text!r} is no time; give one like 2026-05-01T12:30:00Z, +1h30m from the start of "
            "the run, or -10m from its end."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


def _nanos(whole: str, part: str, unit: str) -> int:
    return int(f"{whole}{part[:9].ljust(9, '0')}") * _UNITS[unit]


def parse_interval(text: str, window: tuple[int, int]) -> tuple[int, int]:
    """``A..B``, where an end left out is the run's. Raises BooksError."""
    first, dots, last = text.partition("..")
    if not dots:
        raise BooksError(f"{text!r} is no interval; give A..B, such as +1h..+2h30m.")
    start = parse_instant(first, window) if first.strip() else window[0]
    end = parse_instant(last, window) if last.strip() else window[1]
    if end <= start:
        raise BooksError(f"{text!r} ends at {iso(end)}, which is not after its start {iso(start)}.")
    for at in (start, end):
        _inside(text, at, window)
    return start, end


def _inside(text: str, at: int, window: tuple[int, int]) -> None:
    if not window[0] <= at <= window[1]:
        raise BooksError(
            f"{text!r}: {iso(at) or 'that'} is outside the run, which lasted from "
            f"{iso(window[0])} to {iso(window[1])}."
        )


def parse_said(kind: str, text: str, books: Books, window: tuple[int, int]) -> Annotation:
    """One option of the command as an annotation. Raises BooksError."""
    if kind == "spare":
        count, at, when = text.partition("@")
        places = _whole(count, f"--spare {text}: give a number of places, such as 2 or 2@A..B.")
        if not 1 <= places <= MOST_SPARES:
            raise BooksError(f"--spare {text}: give a number of places from 1 to {MOST_SPARES:,}.")
        start, end = parse_interval(when, window) if at else (None, None)
        return Annotation("", kind, start, end, places=places)
    if kind == "rewind":
        return _rewind(text, books, window)
    start, end = parse_interval(text, window)
    return Annotation("", kind, start, end)


def parse_note(text: str) -> str:
    """A note that can be kept. Raises BooksError."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BooksError("the note is not text that can be written as UTF-8.") from None
    if not text.strip() or len(text) > LONGEST_NOTE:
        raise BooksError(f"a note has 1 to {LONGEST_NOTE:,} characters, this one {len(text):,}.")
    return text.strip()


def _whole(text: str, sentence: str) -> int:
    if not text.strip().isdecimal() or len(text) > 15:
        raise BooksError(sentence)
    return int(text)


def _rewind(text: str, books: Books, window: tuple[int, int]) -> Annotation:
    """A rollback to a step. The books must know steps after it that were given up."""
    number, at, when = text.partition("@")
    step = _whole(number, f"--rewind {text}: give the step that training went back to.")
    found = _rollbacks(books)
    to_it = sorted({r[1] for r in found if r[0] == step})
    if at:
        near = parse_instant(when, window)
        _inside(text, near, window)
        # The moment is when steps were given up: the first rollback from then on, else the last.
        to_it = [next((t for t in to_it if t >= near), to_it[-1])] if to_it else []
    if not to_it:
        have = sorted({r[0] for r in found})
        steps = f"they went back to {_few(have)}" if have else "none was given up"
        raise BooksError(f"--rewind {text}: no steps after {step} were given up; {steps}.")
    if len(to_it) > 1:
        times = " or ".join(f"{step}@{iso(t)}" for t in to_it[:4])
        raise BooksError(f"--rewind {text}: it went back to {step} more than once; give {times}.")
    return Annotation("", "rewind", to_it[0], step=step)


def _few(steps: list[int]) -> str:
    text = ", ".join(str(s) for s in steps[:8])
    return f"{text} and {len(steps) - 8} more" if len(steps) > 8 else text


def _rollbacks(books: Books) -> list[tuple[int, int]]:
    """(step, instant) of every rollback that nobody declared: within a session or into the next.

    The instant is the last of the session, or when the first step came again.
    """
    rows = books.rows(
        "SELECT c.kept_upto AS step, s.end_ns AS at_ns FROM cuts c JOIN sessions s USING (session) "
        "WHERE c.on_path AND c.completed_upto > c.kept_upto AND c.lost_leaf = 'D.recomputed' "
        "UNION SELECT to_step, max(time_ns) FROM rewinds w WHERE NOT declared AND NOT EXISTS ("
        "SELECT 1 FROM rewinds d WHERE d.declared AND d.session = w.session "
        "AND d.to_step = w.to_step) GROUP BY session, to_step ORDER BY at_ns"
    )
    return [(int(r["step"]), int(r["at_ns"])) for r in rows]


def check(said: Sequence[Annotation], before: Sequence[Annotation], books: Books) -> None:
    """Refuse what cannot be true. Raises BooksError."""
    for i, one in enumerate(said):
        _check_effect(one, books)
        for other in (*before, *said[:i]):
            _check_pair(one, other)


def _check_pair(one: Annotation, other: Annotation) -> None:
    named = f"annotation {other.id}" if other.id else "the same command"
    clash = any({one.kind, other.kind} == set(pair) for pair in _AGAINST)
    if one.kind == other.kind == "spare" and one.places != other.places:
        clash = True
    if one.kind == other.kind == "rewind" and one.start_ns == other.start_ns:
        raise BooksError(f"that it was {one.what()} is already said in {named}.")
    if clash and one.overlaps(other):
        raise BooksError(
            f"{one.what()!r} contradicts {other.what()!r} of {named}; take that back first "
            f"(--remove {other.id or 'ID'}) or choose other times."
        )


def _check_effect(one: Annotation, books: Books) -> None:
    if one.kind in ("held", "released"):
        open_ = books.rows(
            "SELECT count(*) AS n FROM allocations WHERE start_ns < $2 AND end_ns > $1 AND "
            "(held = 'unknown' OR list_contains($3, evidence) OR evidence LIKE 'annotation %')",
            [one.start_ns, one.end_ns, list(DERIVED)],
        )[0]["n"]
        if not open_:
            raise BooksError(
                f"--{one.kind}: in that time there is nothing to decide: something ran, or a "
                f"source said whether it was held. {_gaps(books)}"
            )
    if one.kind in ("stop", "diagnosis"):
        gaps = "SELECT start_ns, stop_ns FROM slot_gaps WHERE leaf <> 'A.capacity'"
        ends = "SELECT start_ns, stop_ns FROM tail_segments WHERE leaf <> 'D.partial'"
        query = gaps if one.kind == "stop" else f"{gaps} UNION ALL {ends}"
        touched = books.rows(
            f"SELECT count(*) AS n FROM ({query}) WHERE start_ns < $2 AND stop_ns > $1 "  # noqa: S608 - our own words
            "AND stop_ns > start_ns",
            [one.start_ns, one.end_ns],
        )[0]["n"]
        if not touched:
            what = "no gap between sessions" if one.kind == "stop" else "no gap and no failure"
            raise BooksError(f"--{one.kind}: there is {what} in that time. {_gaps(books)}")


def _gaps(books: Books) -> str:
    """Where the gaps of the run are, for somebody who missed them."""
    sessions = books.facts.sessions
    found = [
        f"{iso(a.window_end_ns)}..{iso(b.start_ns)}"
        for a, b in itertools.pairwise(sessions)
        if b.start_ns > a.window_end_ns
    ]
    if not found:
        return "The run has no gap between sessions."
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"Gaps: {', '.join(found[:3])}{more}."


def kinds() -> Iterable[tuple[str, str, str]]:
    """Option, its placeholder and help, for each kind but notes."""
    about = {
        "stop": "stopped on purpose",
        "diagnosis": "people were looking for the cause",
        "held": "the GPUs were held, and paid, where nothing else says so",
        "released": "the GPUs were given back",
    }
    for kind in INTERVALS:
        if kind != "spare":
            leaf = f" ({LEAVES[kind]})" if kind in LEAVES else ""
            yield kind, "A..B", f"{about[kind]}{leaf}"
    yield "spare", "N[@A..B]", "N places beyond the world were kept ready (A.spare)"
    yield "rewind", "STEP[@TIME]", "training went back to STEP on purpose (D.rewind)"
