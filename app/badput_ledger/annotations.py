"""What only a person knows about a run, kept beside its facts and never among them.

``RUN/annotations.jsonl`` holds one JSON object a line and is only ever added to: a removal is a
line of its own. It is written anew beside its place and renamed, so a reader sees all or
nothing of a change. Nothing here touches ``facts/``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.clock import iso
from badput_ledger.errors import BooksError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

FILE = "annotations.jsonl"
SCHEMA = "badput.annotation/1"
INTERVALS = ("stop", "diagnosis", "held", "released", "spare")
KINDS = (*INTERVALS, "rewind", "note")
LEAVES = {"stop": "A.stop", "spare": "A.spare", "diagnosis": "B.diagnosis", "rewind": "D.rewind"}
"""Kinds that book time to a leaf of their own."""
LONGEST_NOTE = 2000
MOST_SPARES = 100_000
_LATEST = 1 << 62
"""ns since the epoch: the year 2116, as for every instant of the facts."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One statement. Instants are ns since the epoch; ``rewind`` lies at ``start_ns``."""

    id: str
    kind: str
    start_ns: int | None = None
    end_ns: int | None = None
    places: int | None = None
    step: int | None = None
    note: str | None = None
    by: str | None = None
    written_ns: int = 0

    def covers(self, start: int, end: int) -> bool:
        """Does its interval hold all of another? Without an interval it is the whole run's."""
        since = self.start_ns is None or self.start_ns <= start
        return since and (self.end_ns is None or self.end_ns >= end)

    def overlaps(self, other: Annotation) -> bool:
        """Do the two intervals share time?"""
        starts = [a.start_ns for a in (self, other) if a.start_ns is not None]
        ends = [a.end_ns for a in (self, other) if a.end_ns is not None]
        return max(starts, default=0) < min(ends, default=_LATEST)

    def what(self) -> str:
        """In words, such as ``planned stop, 2026-...Z to 2026-...Z``."""
        head = {
            "stop": "planned stop",
            "diagnosis": "looking for the cause",
            "held": "the GPUs were held",
            "released": "the GPUs were given back",
            "spare": f"{self.places} spare places",
            "rewind": f"rolled back to step {self.step} on purpose",
            "note": "note",
        }[self.kind]
        if self.kind in INTERVALS:
            if self.start_ns is None and self.end_ns is None:
                return f"{head}, the whole run"
            return f"{head}, {iso(self.start_ns) or 'its start'} to {iso(self.end_ns) or 'its end'}"
        return head if self.start_ns is None else f"{head}, at {iso(self.start_ns)}"

    def plain(self) -> dict[str, Any]:
        """As the report and ``--list --json`` give it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "what": self.what(),
            "start": iso(self.start_ns),
            "end": iso(self.end_ns),
            "places": self.places,
            "step": self.step,
            "leaf": LEAVES.get(self.kind),
            "note": self.note,
            "by": self.by,
            "written": iso(self.written_ns),
            "evidence": "annotation",
        }


def read_annotations(folder: Path) -> tuple[list[Annotation], list[str]]:
    """What is said about a run, without what was taken back; and a sentence for each bad line."""
    rows, broken = _read(folder)
    gone = {str(r["removes"]) for r in rows if r.get("removes")}
    return [a for r in rows if (a := _made(r)) is not None and a.id not in gone], broken


def add_annotations(folder: Path, said: Sequence[Annotation]) -> list[Annotation]:
    """Append statements, giving each its id and the time of writing. Raises BooksError."""
    with _writing(folder) as (lines, rows):
        number = _last_number(rows)
        written = time.time_ns()
        made: list[Annotation] = []
        for one in said:
            number += 1
            row: dict[str, Any] = {"schema": SCHEMA, "id": f"a{number}", "written_ns": written}
            fields = ("kind", "start_ns", "end_ns", "places", "step", "note", "by")
            row |= {f: v for f in fields if (v := getattr(one, f)) is not None}
            lines.append(json.dumps(row))
            again = _made(row)
            if again is None:
                raise BooksError(f"this cannot be kept as an annotation: {one.what()}.")
            made.append(again)
    return made


def remove_annotations(folder: Path, ids: Sequence[str], by: str | None) -> None:
    """Append that statements are taken back. Raises BooksError for an id that is not there."""
    with _writing(folder) as (lines, rows):
        gone = {str(r["removes"]) for r in rows if r.get("removes")}
        live = [str(r["id"]) for r in rows if not r.get("removes") and r["id"] not in gone]
        number = _last_number(rows)
        for one in ids:
            if one not in live:
                have = ", ".join(live) or "none"
                raise BooksError(f"there is no annotation {one}; there is: {have}.")
            number += 1
            row = {"schema": SCHEMA, "id": f"a{number}", "written_ns": time.time_ns()}
            lines.append(json.dumps(row | {"removes": one} | ({"by": by} if by else {})))


def _last_number(rows: Iterable[dict[str, Any]]) -> int:
    numbers = [int(n) for r in rows if (n := str(r["id"])[1:]).isdecimal() and len(n) < 12]
    return max(numbers, default=0)


def _read(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    path = folder / FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{path} cannot be read ({error.strerror}); annotations are left out."]
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        row = _parsed(line)
        if row is None:
            broken.append(f"{path}: line {number} is no annotation; the line is skipped.")
        else:
            rows.append(row)
    return rows, broken


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line as a dict if it is a removal or an annotation that makes sense."""
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row = cast("dict[str, Any]", found)
    if not isinstance(row.get("id"), str) or not isinstance(row.get("written_ns"), int):
        return None
    if row.get("removes") is not None:
        return row
    return row if _made(row) is not None else None


def _made(row: dict[str, Any]) -> Annotation | None:
    """The statement of a row; None if it is none, or makes no sense."""
    limits = {
        "start_ns": (0, _LATEST),
        "end_ns": (0, _LATEST),
        "places": (1, MOST_SPARES),
        "step": (0, 1 << 40),
        "written_ns": (0, _LATEST),
    }
    values: dict[str, Any] = {}
    for name, (low, high) in limits.items():
        value = row.get(name)
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        if value is not None and not good:
            return None
        values[name] = value
    for name in ("note", "by"):
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            return None
        values[name] = value
    kind = row.get("kind")
    start, end = values["start_ns"], values["end_ns"]
    needs = {"spare": "places", "rewind": "step", "note": "note"}.get(str(kind), "written_ns")
    backwards = start is not None and end is not None and end <= start
    if kind not in KINDS or values[needs] is None or backwards:
        return None
    if kind in INTERVALS and kind != "spare" and (start is None or end is None):
        return None
    if kind == "rewind" and start is None:
        return None
    return Annotation(id=str(row["id"]), kind=kind, **values)


@contextlib.contextmanager
def _writing(folder: Path) -> Generator[tuple[list[str], list[dict[str, Any]]]]:
    """One writer at a time: add to the list of lines, and the file holds them afterwards."""
    path = folder / FILE
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            rows, _ = _read(folder)
            old = path.read_bytes() if path.exists() else b""
            lines: list[str] = []
            yield lines, rows
            if lines:
                joint = b"\n" if old and not old.endswith(b"\n") else b""
                _replace(path, old + joint + "".join(f"{x}\n" for x in lines).encode())
                os.fsync(handle)
        finally:
            os.close(handle)  # and with it the lock
    except OSError as error:
        raise BooksError(f"{path} cannot be written: {error.strerror or error}.") from None


def _replace(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    number, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=path.parent)
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
