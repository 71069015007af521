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

pyarrow is imported inside the functions: only the collector and the importers use it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput.schema import TABLES, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

FACTS = "facts"
TMP = "tmp"


def part_path(run: str | os.PathLike[str], table: str, name: str) -> Path:
    """Where the part ``name`` of ``table`` lies in the run folder ``run``."""
    return Path(run) / FACTS / table / f"{name}.parquet"


def list_parts(run: str | os.PathLike[str], table: str) -> list[Path]:
    """The parts of ``table`` in ``run``, by name. A missing table has none."""
    folder = Path(run) / FACTS / table
    try:
        found = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [p for p in found if p.suffix == ".parquet" and not p.name.startswith(".")]


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


def write_part(run: str | os.PathLike[str], table: str, name: str, data: pa.Table) -> Path:
    """Write ``data`` as the part ``name`` of ``table`` and return where it lies.

    Raises OSError (disk full, no permission); then nothing is left in the table's folder.
    """
    import pyarrow.parquet as pq

    target = part_path(run, table, name)
    tmp_dir = Path(run) / TMP
    target.parent.mkdir(parents=True, exist_ok=True)
    tmp_dir.mkdir(parents=True, exist_ok=True)
    tmp = tmp_dir / f"{table}-{name}-{os.getpid()}.parquet"
    try:
        # An open file: as a path, pyarrow takes no name that is not UTF-8.
        with open(tmp, "wb") as handle:
            pq.write_table(data.cast(arrow_schema(table)), handle, **_write_options(data, table))
            handle.flush()
            os.fsync(handle.fileno())
        tmp.replace(target)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    _fsync_dir(target.parent)
    return target


def write_rows(
    run: str | os.PathLike[str], table: str, name: str, rows: Sequence[Mapping[str, Any]]
) -> Path | None:
    """``write_part`` for a list of dicts. No rows, no part: returns None."""
    if not rows:
        return None
    return write_part(run, table, name, rows_to_table(table, rows))


def _write_options(data: pa.Table, table: str) -> dict[str, Any]:
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
