# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
"""Compaction: many small parts become few bigger ones, and no reader ever notices.

A compacted part holds the rows of its sources and names them in its footer, with the size of
each. It is written under ``tmp/``, flushed to disk and renamed to its place: from that instant
every listing leaves the sources out. Only then are they unlinked. Killed in between, the next
round unlinks what is left; killed before, nothing has happened.

Whose parts may be touched is for the caller to say (``Rights``): never a part that its writer
could still write again, and never those of another collector.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from badput import heirs, parts
from badput.rows import as_schema, in_order, ranges
from badput.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET_ROWS = 131_072
"""Rows of a full part. It bounds the memory of a compaction to some 100 MiB."""
MAX_SOURCES = 16_384
"""Sources of one part, so that its footer stays small."""
YOUNG_S = 5.0
"""Age below which a compacted part is no source: readers rely on it, see parts.live_names."""
STALE_S = 3600.0
"""Age of a file under tmp/ that nobody finishes any more; one who still does tries again."""
_TEMP = re.compile(r"(?P<table>[a-z_]+)-.+-((?P<where>[0-9a-z]+\.\d+)\.)?(?P<pid>\d+)\.parquet")
_CHUNK = 256
PROBE_PART = re.compile(r"[0-9a-f]{16}-(\d{12})(-end)?$|[0-9a-f]{16}-told-(\d{6})$")
"""Names of the parts that a drain writes: the first record's number, or the event's."""


class Rights(Protocol):
    """What a compaction may touch."""

    def part(self, stem: str) -> bool:
        """May this part (its name without .parquet) go: will nobody write it again?"""
        ...

    def owner(self, owner: str) -> bool:
        """Are we the one who tends this owner's parts?"""
        ...


@dataclass(slots=True)
class Outcome:
    """What a compaction did."""

    sources: int = 0
    """Parts whose rows were moved."""
    made: int = 0
    """Parts that hold them now."""
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unlinked: int = 0
    left: list[str] = field(default_factory=list[str])
    """A sentence for each part that was left alone though it might have been touched."""

    def add(self, other: Outcome) -> None:
        """Add what another compaction did."""
        for name in ("sources", "made", "rows", "bytes_before", "bytes_after", "unlinked"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.left += other.left


@dataclass(slots=True)
class _Source:
    name: str
    size: int
    rows: int = 0
    stamp: heirs.Stamp | None = None
    """What the file was when it was read."""


class TableCompactor:
    """Compacts one table of a run, as far as ``rights`` go. Every method raises OSError."""

    def __init__(self, run: str | os.PathLike[str], table: str, rights: Rights) -> None:
        self.run = run
        self.table = table
        self._rights = rights
        self._folder = Path(run) / parts.FACTS / table
        self.outcome = Outcome()
        self._notes: dict[str, dict[bytes, bytes]] = {}
        self._replaced_by: dict[str, str] = {}

    def compact(self, at_least: int, grace_s: float, whole: bool = False) -> Outcome:
        """Compact if there are ``at_least`` small parts; unlink what has been replaced.

        Sources are unlinked ``grace_s`` after their rows got their new place, in a later call
        if need be. ``whole``: take every compacted part that is not full, not only those that
        are small beside what is new.
        """
        try:
            names = self._look()
        except (FileNotFoundError, NotADirectoryError):
            return self.outcome
        self._unlink_replaced(names, grace_s)
        live = names - self._replaced_by.keys()
        fresh = sorted(
            n for n in live if not n.startswith(parts.COMPACT) and self._rights.part(n[:-8])
        )
        merged = sorted(self._compacted(live), key=lambda s: (s.rows, s.name))
        if len(fresh) + (len(merged) if whole else 0) < max(at_least, 2):
            return self.outcome
        self._merge_all(fresh, merged, whole)
        if grace_s <= 0:
            self._unlink_replaced(self._look(), grace_s)
        return self.outcome

    # -- looking ----------------------------------------------------------------------------
    def _look(self) -> set[str]:
        """Every part there is; notes of the compacted ones, and what they replace."""
        while True:
            names = {e.name for e in os.scandir(self._folder) if e.name.endswith(".parquet")}
            found = heirs.look(self._folder, names)
            if found is not None:
                break
        self._notes.clear()
        for name in sorted(n for n in names if n.startswith(parts.COMPACT)):
            with contextlib.suppress(FileNotFoundError, ValueError):
                self._notes[name] = parts.footer_notes(self._folder / name)
        self._replaced_by = found.by
        for name, by in sorted(found.unproven.items()):
            text = f"{self._folder / name} is left alone: {by} names it, but does not hold its rows"
            if text not in self.outcome.left:
                self.outcome.left.append(text)
        return names

    def _compacted(self, live: set[str]) -> Iterator[_Source]:
        """Compacted parts that are old enough, not full, and hold nothing but what is ours."""
        for name in live & self._notes.keys():
            with contextlib.suppress(FileNotFoundError, ValueError, pa.ArrowException):
                info = (self._folder / name).stat()
                old = abs(time.time() - info.st_mtime) > YOUNG_S
                if not old or not self._ours(name):
                    continue
                rows = pq.read_metadata(self._folder / name).num_rows
                if rows <= TARGET_ROWS // 2:
                    yield _Source(name, info.st_size, rows)

    def _unlink_replaced(self, names: set[str], grace_s: float) -> None:
        for name, by in self._replaced_by.items():
            if name not in names or not self._ours(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                age = time.time() - (self._folder / by).stat().st_mtime
                if grace_s > 0 and age < grace_s:
                    continue
                (self._folder / name).unlink()
                self.outcome.unlinked += 1

    def _ours(self, name: str) -> bool:
        if not name.startswith(parts.COMPACT):
            return self._rights.part(name[:-8])
        owners = json.loads(self._notes.get(name, {}).get(parts.OWNERS, b"[]"))
        return bool(owners) and all(map(self._rights.owner, owners))

    # -- merging ----------------------------------------------------------------------------
    def _merge_all(self, fresh: list[str], merged: list[_Source], whole: bool) -> None:
        taken: list[_Source] = []
        tables: list[pa.Table] = []
        rows = 0
        for name in fresh:
            source, data = self._read(name)
            if source is None or data is None:
                continue
            taken.append(source)
            tables.append(data)
            rows += source.rows
            if len(tables) >= _CHUNK:
                tables = [pa.concat_tables(tables).combine_chunks()]
            if rows >= TARGET_ROWS or len(taken) >= MAX_SOURCES:
                self._write(taken, tables)
                taken, tables, rows = [], [], 0
        for source in merged:
            # Each row is copied again only when its part has doubled, so log2 times at most.
            if rows + source.rows > TARGET_ROWS or (source.rows > 2 * rows and not whole):
                if not whole or rows == 0:
                    break
                self._write(taken, tables)
                taken, tables, rows = [], [], 0
            found, data = self._read(source.name)
            if found is not None and data is not None:
                taken.append(found)
                tables.append(data)
                rows += found.rows
        self._write(taken, tables)

    def _read(self, name: str) -> tuple[_Source, pa.Table] | tuple[None, None]:
        """A source and its rows in the form of the schema; None if it is to be left alone."""
        try:
            if not (self._folder / name).is_file():
                return None, None  # gone, a pipe, or a link to nowhere: no part of ours
            before = heirs.stamp(self._folder / name)
            size, table = parts.read_part(self._folder / name)
            table = as_schema(self.table, table)
        except FileNotFoundError:
            return None, None
        except (pa.ArrowException, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            first = (str(error).splitlines() or [""])[0]
            self.outcome.left.append(f"{self._folder / name} is left alone: {first}")
            return None, None
        return _Source(name, size, table.num_rows, before), table

    def _write(self, taken: list[_Source], tables: list[pa.Table]) -> None:
        if len(taken) < 2:
            return
        data = in_order(self.table, pa.concat_tables(tables))
        replaces = {s.name[:-8]: s.size for s in taken}
        owners: set[str] = set()
        for source in taken:
            if source.name.startswith(parts.COMPACT):
                notes = self._notes[source.name]
                owners.update(json.loads(notes.get(parts.OWNERS, b"[]")))
                # What it replaced and could not be unlinked stays replaced.
                older: dict[str, int] = json.loads(notes.get(parts.REPLACES, b"{}"))
                still = self._replaced_by
                replaces |= {n: size for n, size in older.items() if f"{n}.parquet" in still}
            else:
                owners.add(owner_of(source.name[:-8]))
        notes = {
            parts.REPLACES: _json(replaces),
            parts.OWNERS: _json(sorted(owners)),
            **ranges(data),
        }
        path = parts.write_part(
            self.run, self.table, f"{parts.COMPACT}{os.urandom(8).hex()}", data, notes
        )
        own = heirs.stamp(path)
        for source in taken:
            if source.stamp is not None:
                heirs.prove(own, source.stamp)
        done = self.outcome
        done.sources += len(taken)
        done.made += 1
        done.rows += data.num_rows
        done.bytes_before += sum(s.size for s in taken)
        done.bytes_after += path.stat().st_size


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def owner_of(stem: str) -> str:
    """Of a part's name, what tells whose it is: the process id, or all before the last dash."""
    return stem[:16] if stem[16:17] == "-" else stem.rpartition("-")[0]


def clear_tmp(run: str | os.PathLike[str]) -> int:
    """Remove what writers that died left under ``tmp/``; how many files. Raises OSError.

    Only files that a writer of parts named, and only in a folder that is no link.
    """
    here, _, _ = parts.writer_id().rpartition(".")
    count = 0
    folder = os.open(Path(run) / parts.TMP, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        for entry in os.scandir(folder):
            found = _TEMP.fullmatch(entry.name)
            if found is None or found["table"] not in TABLES:
                continue
            with contextlib.suppress(FileNotFoundError):
                old = time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_S
                dead = found["where"] == here and not Path(f"/proc/{found['pid']}").exists()
                if old or dead:
                    os.unlink(entry.name, dir_fd=folder)
                    count += 1
    finally:
        os.close(folder)
    return count
