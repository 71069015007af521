# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""Parts: the closed Parquet files a run folder is made of.

``RUN/facts/TABLE/NAME.parquet``. A part is written under ``RUN/tmp/``, closed with
its footer, flushed to disk and only then renamed to its place, so a reader never
sees half a part. Writing the same name again replaces the part as a whole; writers
derive the name from what the part holds, so that doing the same work twice after a
crash leaves one copy of every row.

A compacted part (compact.py) names in its footer the parts whose rows it holds. From the
instant that it has its place, whoever lists a table leaves those out; they are unlinked
afterwards. So a reader must list with ``list_parts`` or ``live_names``, and list again when a
part is gone that it is about to read: ``read_rows`` does.

pyarrow is imported inside the functions: only the collector and the importers use it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from badput import identity
from badput.files import new_file, open_file
from badput.schema import TABLES, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

FACTS = "facts"
TMP = "tmp"
COMPACT = "compact-"
"""How the names of compacted parts begin."""
REPLACES = b"badput.replaces"
"""Footer key: JSON, size in bytes by name (without .parquet) of the parts that it replaces."""
OWNERS = b"badput.owners"
"""Footer key: JSON, whose rows a compacted part holds."""
RANGES = b"badput.ranges"
"""Footer key: JSON, a list of [process_id, lowest seq, highest seq] of what a part holds."""


_TRIES = 100
"""How often a folder is listed again because parts went away: each is gone for good once."""


def keys_of(table: str) -> list[str]:
    """The columns that tell a row of ``table`` from every other one."""
    columns = TABLES[table].columns
    if any(c.name == "seq" for c in columns):
        return [c.name for c in columns if c.name in ("process_id", "seq", "number")]
    return [c.name for c in columns if not c.nullable]


def part_path(run: str | os.PathLike[str], table: str, name: str) -> Path:
    """Where the part ``name`` of ``table`` lies in the run folder ``run``."""
    return Path(run) / FACTS / table / f"{name}.parquet"


def list_parts(run: str | os.PathLike[str], table: str) -> list[Path]:
    """The parts of ``table`` in ``run`` that hold its rows, by name. A missing table has none."""
    folder = Path(run) / FACTS / table
    try:
        return [folder / name for name in live_names(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def live_names(folder: Path) -> list[str]:
    """File names of the parts in a table's folder that no other part replaces. Raises OSError.

    A folder is not listed in one instant: a compaction may put its part where the listing has
    been and unlink the old ones where it has yet to come. So it is listed until no compacted
    part is new. (A compacted part is not replaced within seconds: see compact.YOUNG_S.)
    """
    from badput.heirs import look

    names = _names(folder)
    while True:
        found = look(folder, names)
        again = _names(folder)
        if found is not None and not any(n.startswith(COMPACT) for n in again - names):
            return sorted(names - found.by.keys())
        names = again


def _names(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {e.name for e in entries if e.name.endswith(".parquet") and e.name[0] != "."}


def open_part(path: Path) -> IO[bytes]:
    """Open a part. Raises ValueError for what is no file, such as a pipe or a link to nowhere."""
    try:
        return os.fdopen(open_file(path, os.O_RDONLY, follow=True), "rb")
    except FileNotFoundError:
        if path.is_symlink():
            raise ValueError(f"{path} is not a file") from None
        raise
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EISDIR, errno.ELOOP):
            raise ValueError(f"{path} is not a file") from error
        raise


def footer_notes(path: Path) -> dict[bytes, bytes]:
    """The key-value metadata of a part, its lists of a form that may be relied on.

    Raises OSError, and ValueError if it is no part, or one whose lists make no sense.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_part(path) as handle:
            notes: dict[bytes, bytes] = pq.read_metadata(handle).metadata or {}
        replaces = json.loads(notes.get(REPLACES, b"{}"))
        owners = json.loads(notes.get(OWNERS, b"[]"))
    except (pa.ArrowException, RecursionError) as error:
        raise ValueError(f"{path} is not a complete Parquet file of badput") from error
    sound = isinstance(replaces, dict) and isinstance(owners, list)
    if not sound or not all(isinstance(o, str) for o in cast("list[object]", owners)):
        raise ValueError(f"{path} has lists that make no sense")
    return notes


def read_part(path: Path) -> tuple[int, pa.Table]:
    """Size in bytes and rows of one part. Raises OSError and pyarrow's errors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # In one piece and with one thread: small parts are read three times as fast so.
    with open_part(path) as handle:
        data = handle.read()
    return len(data), pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def read_rows(run: str | os.PathLike[str], table: str) -> list[dict[str, Any]]:
    """All rows of ``table``, each part read once whatever is compacted meanwhile.

    Raises OSError and pyarrow's errors for a part that cannot be read.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            found = [read_part(path)[1] for path in list_parts(run, table)]
            return [row for data in found for row in data.to_pylist()]
    raise FileNotFoundError(f"parts of {table} keep going away")


def good_rows(run: str | os.PathLike[str], table: str) -> list[dict[str, Any]]:
    """The same, but what is damaged or no part of the table is left out. Raises OSError."""
    for _ in range(_TRIES):
        rows: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            for path in list_parts(run, table):
                with contextlib.suppress(ValueError):
                    rows += part_rows(path, table)
            return rows
    raise FileNotFoundError(f"parts of {table} keep going away")


def part_rows(path: Path, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of one part of ``table`` as dicts, with the schema's columns or some of them.

    Raises OSError, and ValueError where it is damaged, or is no part of that table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from badput.rows import in_form

    schema = arrow_schema(table)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    try:
        with open_part(path) as handle:
            data = pq.read_table(handle, columns=None if columns is None else list(columns))
        return in_form(schema, data).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a part of {table}") from error


def is_run(path: str | os.PathLike[str]) -> bool:
    """True if ``path`` is a run folder: it has at least one table of facts."""
    facts = Path(path) / FACTS
    return any((facts / t).is_dir() for t in TABLES)


def rows_to_table(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows (dicts by column name) as an Arrow table; missing columns become NULL.

    Raises KeyError for a column that the schema does not have: a typo must not be lost.
    """
    import pyarrow as pa

    schema = arrow_schema(table)
    known = set(schema.names)
    for row in rows:
        if not known.issuperset(row):
            unknown = sorted(set(row) - known)
            raise KeyError(f"table {table} has no column {unknown[0]!r}")
    columns = [pa.array([row.get(f.name) for row in rows], type=f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def write_part(
    run: str | os.PathLike[str],
    table: str,
    name: str,
    data: pa.Table,
    notes: Mapping[bytes, bytes] | None = None,
) -> Path:
    """Write ``data`` as the part ``name`` of ``table`` and return where it lies.

    ``notes`` go into the footer. Raises OSError (disk full, no permission); then nothing is left
    in the table's folder.
    """
    import pyarrow.parquet as pq

    target = part_path(run, table, name)
    tmp_dir = Path(run) / TMP
    target.parent.mkdir(parents=True, exist_ok=True)
    tmp_dir.mkdir(parents=True, exist_ok=True)
    tmp = tmp_dir / f"{table}-{name}-{writer_id()}.parquet"
    try:
        # An open file: as a path, pyarrow takes no name that is not UTF-8.
        with new_file(tmp) as handle:
            data = data.cast(arrow_schema(table))
            with pq.ParquetWriter(handle, data.schema, **_write_options(table)) as writer:
                writer.write_table(data)
                writer.add_key_value_metadata(dict(notes or {}))
            handle.flush()
            os.fsync(handle.fileno())
        tmp.replace(target)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    _fsync_dir(target.parent)
    return target


def writer_id() -> str:
    """Who writes: boot, pid namespace and pid, so that what a dead writer left can be told."""
    boot = (identity.boot_id() or "unknown")[:8]
    space = (identity.pid_namespace() or "0").strip("pid:[]")
    return f"{boot}.{space}.{os.getpid()}"


def write_rows(
    run: str | os.PathLike[str], table: str, name: str, rows: Sequence[Mapping[str, Any]]
) -> Path | None:
    """``write_part`` for a list of dicts. No rows, no part: returns None."""
    if not rows:
        return None
    return write_part(run, table, name, rows_to_table(table, rows))


def _write_options(table: str) -> dict[str, Any]:
    """Encodings that measured smallest: delta for integers, byte-stream-split for floats."""
    encoding: dict[str, str] = {}
    dictionary: list[str] = []
    constant = {"process_id", "rank", "n_steps"}
    for column in TABLES[table].columns:
        if column.type in ("int64", "int32") and column.name not in constant:
            encoding[column.name] = "DELTA_BINARY_PACKED"
        elif column.type == "float64":
            encoding[column.name] = "BYTE_STREAM_SPLIT"
        elif column.type != "bool":
            dictionary.append(column.name)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": encoding,
        "version": "2.6",
    }


def _fsync_dir(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse to sync a folder
    finally:
        os.close(fd)
