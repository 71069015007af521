"""Facts of a run folder as DuckDB tables.

Every part is looked at before DuckDB sees it: one bad part costs one part, not the
run. Files are given to DuckDB as an explicit list, never as a glob, and every column
is cast to the type of the schema; columns that no part has are NULL, and columns of
a newer writer are ignored. Parts that a compacted one replaces are left out, and when a part
goes away while it is read, because it was compacted, the table is listed again.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb

from badput.parts import FACTS, RANGES, live_names
from badput.schema import TABLES
from badput_ledger.errors import BooksError
from badput_ledger.plausible import is_suspect, row_tests

if TYPE_CHECKING:
    from badput.columns import Column

SQL_TYPES = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
}
MATERIALISE_ROWS = 5_000_000
"""Tables with more rows stay views over the parts."""
LONG_ROWS = 1_000_000
"""With more step rows a run is long: its rows are not all looked at one by one (scan.py)."""
TRIES = 20
"""How often a table is listed again because a part went away."""

_OLD = """SELECT 'TABLE', table_name FROM duckdb_tables() WHERE table_name = $1
UNION ALL SELECT 'VIEW', view_name FROM duckdb_views() WHERE NOT internal AND view_name = $1"""
"""What a first try to make a table left behind."""


class GoneError(Exception):
    """A part went away between the listing and the reading: it was compacted."""


@dataclass(frozen=True, slots=True)
class Part:
    """One readable part: where it lies, its columns, rows and key ranges."""

    path: str
    columns: frozenset[str]
    rows: int
    keys: tuple[tuple[int, int, int, int], ...]
    """(process_id low, high, seq low, high) of each row group; empty if unknown."""
    suspect: bool = False
    """Does the footer allow rows with missing or impossible values?"""


def run_folder(path: str | os.PathLike[str]) -> Path:
    """``path`` as a run folder. Raises BooksError if it is not one that can be read."""
    folder = Path(path)
    try:
        names = {entry.name for entry in folder.iterdir()}
        inside = (folder / FACTS).iterdir() if FACTS in names else ()
        tables = {entry.name for entry in inside}
    except FileNotFoundError:
        raise BooksError(f"{folder}: no such folder; give the folder of a run.") from None
    except NotADirectoryError:
        raise BooksError(
            f"{folder} is a file, not the folder of a run; logs become one with `badput import`."
        ) from None
    except OSError as error:
        raise BooksError(f"{folder} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise BooksError(f"{str(folder)!r} cannot be the name of a folder: {error}.") from None
    if not names:
        raise BooksError(f"{folder} is empty; the folder of a run holds {FACTS}/TABLE/*.parquet.")
    if not tables.intersection(TABLES) and waiting_spools(folder):
        raise BooksError(
            f"{folder} holds spools that are not collected yet; first: badput collect {folder}"
        )
    if not tables.intersection(TABLES):
        raise BooksError(
            f"{folder} is not the folder of a run: it has no {FACTS}/ with tables of badput; "
            "logs become one with `badput import`."
        )
    return folder


def waiting_spools(folder: Path) -> int:
    """Spools that ranks copied into the run folder themselves and nobody made parts of yet."""
    try:
        return sum(len(entry.name) == 16 for entry in (folder / "spools").iterdir())
    except OSError:
        return 0


def read_parts(folder: Path, table: str) -> tuple[list[Part], list[str]]:
    """The good parts of a table and one sentence for each part that is skipped.

    Raises GoneError if one goes away meanwhile.
    """
    where = folder / FACTS / table
    try:
        names = live_names(where)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], [f"{where} cannot be read ({error.strerror}); the table is taken as empty."]
    good: list[Part] = []
    broken: list[str] = []
    for name in names:
        part = _look_at(where / name, table)
        if isinstance(part, str):
            broken.append(f"{where / name}: {part}; the part is skipped.")
        elif part.rows:
            good.append(part)
    return good, broken


def _look_at(path: Path, table: str) -> Part | str:
    """Read the footer. Returns the part, or why it cannot be used."""
    pa, pq = pyarrow(), pyarrow("parquet")
    try:
        if path.stat().st_size == 0:
            return "the file is empty"
        meta = pq.read_metadata(path)
        schema = meta.schema.to_arrow_schema()
    except FileNotFoundError as error:
        raise GoneError(str(path)) from error
    except (OSError, pa.ArrowException, ValueError) as error:
        return _why_not(error)
    types: dict[str, Any] = {field.name: field.type for field in schema}
    wrong = _misfit(table, types)
    if wrong:
        return wrong
    known = frozenset(c.name for c in TABLES[table].columns) & frozenset(types)
    rows, names = int(meta.num_rows), list(schema.names)
    suspect = is_suspect(meta, names, TABLES[table])
    return Part(str(path), known, rows, _key_ranges(meta, names), suspect)


def _why_not(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return f"cannot be read ({os.strerror(error.errno)})"
    if isinstance(error, UnicodeEncodeError):
        return "its path is not UTF-8, which the Parquet reader needs; rename the folder"
    return "not a complete Parquet file (cut off or still being written)"


@functools.cache
def pyarrow(module: str = "") -> Any:
    """pyarrow, which ships no types: what comes from it is Any."""
    return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")


def arrow_type(name: str) -> Any:
    """The arrow type of a column type of the schema."""
    pa = pyarrow()
    return pa.bool_() if name == "bool" else pa.type_for_alias(name)


def _misfit(table: str, types: dict[str, Any]) -> str | None:
    """Why stored columns are not those of the table, or None."""
    for column in TABLES[table].columns:
        if column.name not in types:
            if not column.nullable:
                return f"not a part of table {table} (no column {column.name})"
        elif not _fits(column, types[column.name]):
            return f"column {column.name} is {types[column.name]}, expected {column.type}"
    return None


def _fits(column: Column, kind: Any) -> bool:
    """Can the stored type be read as the schema's without changing a value?"""
    pt = pyarrow("types")
    if pt.is_null(kind):
        return column.nullable
    if column.type in ("int64", "int32"):
        return bool(pt.is_integer(kind))
    if column.type == "float64":
        return bool(pt.is_floating(kind) or pt.is_integer(kind))
    if column.type == "bool":
        return bool(pt.is_boolean(kind))
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind))


def _key_ranges(meta: Any, names: list[str]) -> tuple[tuple[int, int, int, int], ...]:
    if "process_id" not in names or "seq" not in names:
        return ()
    notes = cast(dict[bytes, bytes], meta.metadata or {})
    if RANGES in notes:
        try:
            noted = cast(list[list[int]], json.loads(notes[RANGES]))
            return tuple((int(p), int(p), int(low), int(high)) for p, low, high in noted)
        except (ValueError, TypeError):
            pass  # somebody else's
    at = [names.index("process_id"), names.index("seq")]
    found: list[tuple[int, int, int, int]] = []
    for group in range(meta.num_row_groups):
        stats = [meta.row_group(group).column(i).statistics for i in at]
        if any(s is None or not s.has_min_max for s in stats):
            return ()
        found.append((stats[0].min, stats[0].max, stats[1].min, stats[1].max))
    return tuple(found)


def may_repeat(parts: list[Part]) -> bool:
    """Could two parts hold the same (process_id, seq)? Told by their key ranges alone."""
    boxes: list[tuple[int, int, int, int]] = []
    for part in parts:
        if not part.keys:
            return True
        boxes.extend(part.keys)
    boxes.sort()
    for i, (_, high, seq_low, seq_high) in enumerate(boxes):
        for low2, _, seq_low2, seq_high2 in boxes[i + 1 : i + 65]:
            if low2 > high:
                break
            if seq_low2 <= seq_high and seq_low <= seq_high2:
                return True
    return False


def connect() -> duckdb.DuckDBPyConnection:
    """An in-memory database within half of the memory and the CPUs that we may use."""
    threads = max(1, len(os.sched_getaffinity(0)))
    return duckdb.connect(
        ":memory:", config={"memory_limit": f"{_memory_bytes() // 2}B", "threads": threads}
    )


def _memory_bytes() -> int:
    """The smaller of the machine's memory and the control group's limit, in bytes."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = min(limit, int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # absent, or "max"
    return max(limit, 256 << 20)


def load(con: duckdb.DuckDBPyConnection, folder: Path) -> tuple[list[str], list[Part]]:
    """Make every table of the schema in ``con``: sentences about skipped parts, and `steps`' parts.

    `steps` of a long run whose rows lie once and in order is a view; then there are parts.
    """
    broken: list[str] = []
    long: list[Part] = []
    for table in TABLES:
        for left in reversed(range(TRIES)):
            try:
                said, parts = _load_table(con, folder, table)
                broken += said
                if table == "steps" and is_long(parts):
                    long = parts
                break
            except GoneError as error:
                if not left:
                    raise BooksError(f"{error}: parts keep going away while it is read.") from None
    return broken, long


def is_long(parts: list[Part]) -> bool:
    """Are these the parts of many step rows, each there once, in order and with sound values?"""
    if sum(p.rows for p in parts) <= LONG_ROWS or may_repeat(parts):
        return False
    return not any(p.suspect for p in parts)


def _load_table(
    con: duckdb.DuckDBPyConnection, folder: Path, table: str
) -> tuple[list[str], list[Part]]:
    """Make one table. Raises GoneError if a part goes away meanwhile: list it again then."""
    parts, broken = read_parts(folder, table)
    try:
        parts, bad = _make_table(con, table, parts)
        broken += bad
        for part in parts:
            if part.suspect:
                broken += _lost_rows(con, table, part)
    except duckdb.Error:
        _check_there(parts)
        raise
    return broken, parts


def _check_there(parts: list[Part]) -> None:
    for part in parts:
        if not Path(part.path).exists():
            raise GoneError(part.path) from None


def _make_table(
    con: duckdb.DuckDBPyConnection, table: str, parts: list[Part]
) -> tuple[list[Part], list[str]]:
    """CREATE the table, leaving out parts whose pages turn out to be damaged."""
    try:
        _create(con, table, parts)
    except duckdb.Error:
        _check_there(parts)
        good = [p for p in parts if _readable(con, table, p)]
        lost = [p for p in parts if p not in good]
        if not lost:
            raise
        _create(con, table, good)
        return good, [f"{p.path}: its pages are damaged; the part is skipped." for p in lost]
    return parts, []


def _readable(con: duckdb.DuckDBPyConnection, table: str, part: Part) -> bool:
    try:
        con.execute(
            # a hash reads every page; a count would be answered by the footer
            f"SELECT bit_xor(hash(COLUMNS(*))) FROM ({_select(table, [part])})"  # noqa: S608 - names from the schema
        ).fetchall()
    except duckdb.Error:
        return False
    return True


def _lost_rows(con: duckdb.DuckDBPyConnection, table: str, part: Part) -> list[str]:
    """A sentence about the rows of a part that cannot be booked, if there are any."""
    tests = {n: t for n, t in row_tests(TABLES[table]).items() if n in part.columns}
    counts = [f"count(*) FILTER (WHERE NOT {test})" for test in tests.values()]
    counts.append(f"count(*) FILTER (WHERE NOT ({' AND '.join(tests.values())}))")
    query = f"SELECT {', '.join(counts)} FROM {_read([part])}"  # noqa: S608 - see _select
    found = con.execute(query).fetchall()[0]
    if not found[-1]:
        return []
    columns = ", ".join(n for n, bad in zip(tests, found, strict=False) if bad)
    lost = f"{found[-1]} of {part.rows} rows have no value or an impossible one in {columns}"
    return [f"{part.path}: {lost}; those rows are skipped."]


def _create(con: duckdb.DuckDBPyConnection, table: str, parts: list[Part]) -> None:
    rows = sum(p.rows for p in parts)
    for kind, name in con.execute(_OLD, [table]).fetchall():
        con.execute(f'DROP {kind} "{name}"')
    if not parts:
        columns = ", ".join(f'"{c.name}" {SQL_TYPES[c.type]}' for c in TABLES[table].columns)
        con.execute(f'CREATE TABLE "{table}" ({columns})')
        return
    names = {c.name for c in TABLES[table].columns}
    query = _select(table, parts)
    if {"process_id", "seq"} <= names and (rows < 200_000 or may_repeat(parts)):
        key = "process_id, seq, number" if "number" in names else "process_id, seq"
        query = f"SELECT DISTINCT ON ({key}) * FROM ({query})"  # noqa: S608 - see _select
    elif "seq" not in names:
        query = f"SELECT DISTINCT * FROM ({query})"  # noqa: S608 - see _select
    small = rows <= MATERIALISE_ROWS and not (table == "steps" and is_long(parts))
    what = "TABLE" if small else "VIEW"
    con.execute(f'CREATE {what} "{table}" AS {query}')


def _select(table: str, parts: list[Part]) -> str:
    """A SELECT over an explicit, escaped file list that gives the schema's columns."""
    present: set[str] = set()
    for part in parts:
        present |= part.columns
    columns = [
        f'CAST("{c.name}" AS {SQL_TYPES[c.type]}) AS "{c.name}"'
        if c.name in present
        else f'CAST(NULL AS {SQL_TYPES[c.type]}) AS "{c.name}"'
        for c in TABLES[table].columns
    ]
    tests = {
        name: test
        for name, test in row_tests(TABLES[table]).items()
        if name in present and any(p.suspect for p in parts)
    }
    where = f" WHERE {' AND '.join(tests.values())}" if tests else ""
    # names and types come from the schema, file names are escaped: views take no parameters
    return f"SELECT {', '.join(columns)} FROM {_read(parts)}{where}"  # noqa: S608


def _read(parts: list[Part]) -> str:
    files = ", ".join("'" + p.path.replace("'", "''") + "'" for p in parts)
    return f"read_parquet([{files}], hive_partitioning = false, union_by_name = true)"


def rows(
    con: duckdb.DuckDBPyConnection, query: str, values: list[object] | None = None
) -> list[dict[str, Any]]:
    """The answer of a query, with values for its `?`, as dicts by column name."""
    cursor = con.execute(query) if values is None else con.execute(query, values)
    names = [str(d[0]) for d in cast(list[Any], cursor.description)]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
