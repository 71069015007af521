# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""Which parts of a table are replaced by a compacted one: those whose every row it holds.

A compacted part says in its footer what it replaces. That alone is not believed: a part is left
out by readers, and unlinked by a compaction, only if the keys of all its rows are found in the
part that names it. So a footer that makes no sense hides nothing and costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput import parts
from badput.schema import TABLES, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    Stamp = tuple[int, int, int, int]

_MOST_PROVEN = 200_000
_proven: dict[tuple[Stamp, Stamp], bool] = {}
"""By heir and part, as they were: does it hold all rows? Looked at again only once a change."""


@dataclass(slots=True)
class Heirs:
    """What the compacted parts of one table replace."""

    by: dict[str, str] = field(default_factory=dict[str, str])
    """Of each replaced part, the one that holds its rows."""
    unproven: dict[str, str] = field(default_factory=dict[str, str])
    """Parts that one names though it does not hold all their rows."""


def stamp(path: Path) -> Stamp:
    """What tells a file from one that was written later under its name. Raises OSError."""
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def prove(heir: Stamp, part: Stamp) -> None:
    """Note that ``heir`` holds all rows of ``part``: whoever has just written it knows."""
    if len(_proven) >= _MOST_PROVEN:
        _proven.clear()
    _proven[heir, part] = True


def look(folder: Path, names: set[str]) -> Heirs | None:
    """Which of ``names`` are replaced; None if a compacted one of them has gone. Raises OSError.

    A part counts only if it still has the size that it had then: one that was written anew
    holds more. Of parts that name each other, one stays.
    """
    found = Heirs()
    edges: dict[str, list[str]] = {}
    for name in sorted(n for n in names if n.startswith(parts.COMPACT)):
        try:
            notes = parts.footer_notes(folder / name)
            listed: dict[str, Any] = json.loads(notes.get(parts.REPLACES, b"{}"))
            mine = [
                other
                for stem, size in listed.items()
                if (other := f"{stem}.parquet") in names
                and other != name
                and _size(folder / other) in (size, None)
            ]
            held = _held(folder, name, mine) if mine else set()
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            continue  # damaged: whoever reads it says so
        edges[name] = sorted(held)
        found.unproven |= {other: name for other in mine if other not in held}
    _inherit(edges, found.by)
    for other in found.by:
        found.unproven.pop(other, None)
    return found


def _inherit(edges: dict[str, list[str]], by: dict[str, str]) -> None:
    """Follow the compacted parts that nobody replaces; of a ring, its first one stays."""
    named = {other for others in edges.values() for other in others}
    for root in [*(n for n in edges if n not in named), *edges]:
        if root in by:
            continue
        todo = [root]
        while todo:
            heir = todo.pop()
            for other in edges.get(heir, ()):
                if other != root and other not in by:
                    by[other] = heir
                    todo.append(other)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _held(folder: Path, heir: str, others: Iterable[str]) -> set[str]:
    """Those of ``others`` whose every row ``heir`` holds; one that has gone needs no place.

    Raises OSError, ValueError for an heir that cannot be read.
    """
    held: set[str] = set()
    unknown: list[tuple[str, Stamp]] = []
    own = stamp(folder / heir)
    for other in others:
        try:
            its = stamp(folder / other)
        except FileNotFoundError:
            held.add(other)
            continue
        known = _proven.get((own, its))
        if known is None:
            unknown.append((other, its))
        elif known:
            held.add(other)
    if unknown:
        missing = _missing(folder, heir, [other for other, _ in unknown])
        for other, its in unknown:
            if other not in missing:
                held.add(other)
                prove(own, its)
            elif len(_proven) < _MOST_PROVEN:
                _proven[own, its] = False
    return held


def _missing(folder: Path, heir: str, others: list[str]) -> set[str]:
    """Those of ``others`` that have a row whose key ``heir`` has not, or cannot be read."""
    import pyarrow as pa

    keys = parts.keys_of(folder.name) if folder.name in TABLES else []
    if not keys:
        return set(others)
    whole = _keys(folder / heir, keys)
    missing: set[str] = set()
    tables: list[pa.Table] = []
    for number, other in enumerate(others):
        with contextlib.suppress(FileNotFoundError):
            try:
                table = _keys(folder / other, keys)
            except FileNotFoundError:
                raise
            except (OSError, ValueError):
                missing.add(other)
            else:
                row = pa.array([number] * table.num_rows, pa.int64())
                tables.append(table.append_column("part of badput", row))
    if tables:
        lost = pa.concat_tables(tables).join(
            whole, keys=keys, join_type="left anti", use_threads=False
        )
        missing |= {others[n] for n in lost.column("part of badput").unique().to_pylist()}
    return missing


def _keys(path: Path, keys: list[str]) -> pa.Table:
    """The key columns of a part. Raises OSError and ValueError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from badput.files import open_file
    from badput.rows import in_form

    schema = arrow_schema(path.parent.name)
    form = pa.schema([schema.field(name) for name in keys])
    try:
        with os.fdopen(open_file(path, os.O_RDONLY, follow=True), "rb") as handle:
            data = pq.read_table(handle, columns=keys, use_threads=False)
        if set(keys) - set(data.schema.names):
            raise ValueError(f"{path} has no {' and '.join(keys)}")
        return in_form(form, data)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a complete Parquet file of badput") from error
