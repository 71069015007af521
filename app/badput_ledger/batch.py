"""Step rows of a few parts, read with what their footers make unnecessary left out.

A column that holds nothing, or the same value in every row, is not read at all: the footer says
so, and the books need the value once and not a million times.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput.parts import open_part
from badput.schema import TABLES
from badput_ledger import store
from badput_ledger.arrow import repeated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from badput_ledger.store import Part

NEVER_READ = frozenset(("rank", "n_steps", "tokens", "padding", "applied", "committed"))
"""Columns that are left out where every row has the same value; any is where it holds nothing."""

Same = dict[str, "int | None"]
"""The one value of a column that was not read; None: it holds nothing."""


class Rows:
    """Step rows: an arrow table of the columns that were read, and the one value of the others."""

    __slots__ = ("columns", "same", "table")

    def __init__(self, table: Any, same: Same, columns: tuple[str, ...]) -> None:
        self.table, self.same, self.columns = table, same, columns

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def known(self, name: str) -> int:
        """In how many rows a column holds something."""
        if name in self.same:
            return 0 if self.same[name] is None else len(self)
        return len(self) - int(self.table.column(name).null_count)

    def column(self, name: str) -> Any:
        """A column as a single array."""
        if name in self.same:
            return repeated(self.same[name], len(self), _TYPES[name])
        return self.table.column(name).chunk(0)

    def slice(self, begin: int, rows: int) -> Rows:
        """Some rows that follow each other."""
        return Rows(self.table.slice(begin, rows), self.same, self.columns)

    def take(self, rows: Any) -> Rows:
        """The rows with these numbers (an int64 array)."""
        return Rows(self.table.take(rows), self.same, self.columns)

    def whole(self) -> Any:
        """An arrow table with every column. Those that hold nothing have no type."""
        read = self.table
        found = [read.column(n) if n not in self.same else self.column(n) for n in self.columns]
        return store.pyarrow().table(found, names=list(self.columns))


def read(batch: list[Part], columns: tuple[str, ...]) -> Rows:
    """The rows of some parts, each column in one piece. Raises store.GoneError."""
    files = [(part, _open(part)) for part in batch]
    try:
        told = [_one_value(part, file.metadata, columns) for part, file in files]
        same = {n: v for n, v in told[0].items() if all(n in t and t[n] == v for t in told)}
        left = [n for n in columns if n not in same]
        tables = [
            _read_part(part, file, left, empty)
            for (part, file), empty in zip(files, told, strict=True)
        ]
    finally:
        for _, file in files:
            file.close(force=True)
    return Rows(joined(tables).combine_chunks(), same, columns)


def joined(tables: list[Any]) -> Any:
    """Tables below each other. Columns that hold nothing have no type and take no memory."""
    return store.pyarrow().concat_tables(tables, promote_options="default")


def _open(part: Part) -> Any:
    try:
        return store.pyarrow("parquet").ParquetFile(open_part(Path(part.path)))
    except FileNotFoundError as error:
        raise store.GoneError(part.path) from error


def _read_part(part: Part, file: Any, names: list[str], told: Same) -> Any:
    pa = store.pyarrow()
    there = [n for n in names if n in part.columns and told.get(n, 0) is not None]
    data = file.read(columns=there, use_threads=False)
    found = [
        _as_type(data.column(n), _TYPES[n]) if n in there else pa.nulls(part.rows) for n in names
    ]
    return pa.table(found, names=names)


def _as_type(column: Any, kind: str) -> Any:
    wanted = store.arrow_type(kind)
    return column if column.type == wanted else column.cast(wanted)


def _one_value(part: Part, meta: Any, names: Iterable[str]) -> Same:
    """Columns that hold one value, or nothing (None), by the footer of a part."""
    places = {meta.schema.column(i).path: i for i in range(meta.num_columns)}
    groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
    found: Same = {}
    for name in names:
        if name not in part.columns:
            found[name] = None
            continue
        values: set[int | None] = set()
        for group in groups:
            stats = group.column(places[name]).statistics
            if stats is None:
                break
            if stats.null_count == group.num_rows:
                values.add(None)
            elif name in NEVER_READ and _is_one(stats):
                values.add(int(stats.min))
            else:
                break
        else:
            if len(values) == 1:
                found[name] = values.pop()
    return found


def _is_one(stats: Any) -> bool:
    return bool(stats.null_count == 0 and stats.has_min_max and stats.min == stats.max)


_TYPES = {c.name: c.type for c in TABLES["steps"].columns}
