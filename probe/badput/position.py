"""How far a spool is in Parquet: what is saved of it, whether that can be right, and what if not.

A position names a record: it can be right only if that record begins where the position says, and
not before what the control page knows to be in Parquet. One that cannot be right is found anew:
from the control page, which has the number of the next record, and from the parts in the run
folder, which have the collector's own events. Only names of phases and sources that were defined
in segments which are gone are lost by that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

from badput import layout as lo

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput.reader import SpoolReader

_MOST = 1 << 62


@dataclass(slots=True)
class Position:
    """How far a spool is in Parquet for good, and what must be remembered for the rest."""

    segment: int = 0
    offset: int = lo.SEGMENT_START
    seq: int = 0
    records: int = 0
    damaged: int = 0
    names: dict[str, str] = field(default_factory=dict[str, str])
    """Names that the stream has defined so far, by id."""
    open: dict[str, Any] = field(default_factory=dict[str, Any])
    """Begin records of spans that have not ended, by sequence number."""
    last_step: list[int] | None = None
    """Number, start and end (monotonic ns) of the last finished step."""
    last_sign: int = 0
    """Newest monotonic ns seen in a record."""
    first_step: bool = False
    close: dict[str, Any] | None = None
    uncaught: bool = False
    dropped: int = 0
    """Dropped records that an event has told so far."""
    told: int = 0
    """Events of the collector's own so far."""
    end: dict[str, Any] | None = None
    """The end event, decided but perhaps not yet written."""
    shift: int = 0
    """How far the wall clock had moved from the anchor (ns) when an event last told it."""
    saved: int = 0
    """How often a position was saved: the highest is the newest."""

    def copy(self) -> Position:
        """A copy that can be moved on without touching this one."""
        return Position(**json.loads(self.text()))

    def text(self) -> str:
        """As it is saved."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)})


def parse(text: str) -> Position:
    """A saved position. Raises ValueError if it is none."""
    try:
        found: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    known = {f.name for f in fields(Position)}
    given = {k: v for k, v in record(found).items() if k in known}
    for name, value in given.items():
        if not _SOUND.get(name, _is_count)(value):
            raise ValueError(f"{name} makes no sense")
    position = Position(**given)
    if not lo.SEGMENT_START <= position.offset <= lo.SEGMENT_SIZE:
        raise ValueError("offset makes no sense")
    return position


def _is_int(value: object) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _is_count(value: object) -> bool:
    return _is_int(value) and cast("int", value) >= 0


def _is_step(value: object) -> bool:
    if value is None:
        return True
    numbers = cast("list[object]", value) if isinstance(value, list) else []
    return len(numbers) == 3 and all(map(_is_count, numbers))


def _is_record(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_names(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(v, str) for v in cast("dict[str, object]", value).values()
    )


def _is_open(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    spans = cast("dict[str, object]", value)
    return all(k.isdecimal() and isinstance(v, dict) for k, v in spans.items())


def _is_end(value: object) -> bool:
    if value is None:
        return True
    end = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return _is_int(end.get("time_ns")) and _is_count(end.get("dropped"))


_SOUND: dict[str, Callable[[object], bool]] = {
    "names": _is_names,
    "open": _is_open,
    "last_step": _is_step,
    "close": _is_record,
    "end": _is_end,
    "shift": _is_int,
    "first_step": lambda value: isinstance(value, bool),
    "uncaught": lambda value: isinstance(value, bool),
}
"""What each field may hold; the others are counts."""


def can_be(position: Position, reader: SpoolReader) -> bool:
    """Can ``position`` be right, given the spool? Raises OSError, UnreadableError."""
    page = reader.acknowledged()
    if (position.segment, position.seq) < page:
        return False
    same = (position.segment, position.seq) == page
    first = reader.first_seq(position.segment, position.seq)
    if first is None and reader.has(position.segment):  # nothing in it yet, or no more
        return same or position.offset == lo.SEGMENT_START
    if first is None:  # gone: used again as the next one, or the whole spool was removed
        return same or reader.has(position.segment + 1)
    if first > position.seq:  # past a damaged record, the next one was not written yet
        return same and position.offset == lo.SEGMENT_START
    return find(reader, position.segment, first, position.seq).offset == position.offset


def find(reader: SpoolReader, segment: int, first: int, seq: int) -> Position:
    """Where record ``seq`` begins in ``segment``, whose first record is ``first``.

    The position stands before ``seq`` if the segment ends there or cannot be read so far, and
    knows the names and open spans of what it passed.
    """
    from badput.rows import rare_rows

    position = Position(segment=segment, seq=first)
    batch = reader.read(position, seq - first, only=segment) if seq > first else None
    if batch is not None:
        rare_rows(batch, position, reader.facts)
        if batch.steps:
            last = batch.steps[-1]
            position.last_step = [last[4], last[5], last[6]]
            position.last_sign = max(position.last_sign, last[6])
    return position


def found_anew(reader: SpoolReader, run: str) -> Position:
    """The position, from the control page and the run folder. Raises OSError, UnreadableError."""
    page_segment, page_seq = reader.acknowledged()
    indexes = reader.segments()
    if page_segment in indexes or not indexes:
        segment, seq = page_segment, page_seq
    else:
        segment, seq = min(indexes), 0
    first = reader.first_seq(segment, seq)
    position = Position(segment=segment, seq=seq if first is None else first)
    if first is not None and first < seq:
        position = find(reader, segment, first, seq)
    position.records = position.seq
    _from_parts(position, reader, run)
    return position


def _from_parts(position: Position, reader: SpoolReader, run: str) -> None:
    """What the run folder knows: the collector's own events, whose numbers must stay theirs."""
    from badput.parts import good_rows

    mine = [r for r in good_rows(run, "events") if r["process_id"] == reader.process_id]
    for row in sorted(mine, key=lambda r: -r["seq"]):
        attrs = _attrs(row["attrs"])
        if row["seq"] >= 0:
            continue
        position.told = max(position.told, -row["seq"])
        if row["kind"] == "dropped" and _is_count(attrs.get("count")):
            position.dropped += attrs["count"]
        if row["kind"] == "clock" and _is_int(attrs.get("shift_ns")):
            position.shift = attrs["shift_ns"]


def _attrs(text: str | None) -> dict[str, Any]:
    try:
        return record(json.loads(text or "{}"))
    except ValueError:
        return {}


def record(found: object) -> dict[str, Any]:
    """``found`` if it is a JSON object. Raises ValueError."""
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    raise ValueError("no JSON object")
