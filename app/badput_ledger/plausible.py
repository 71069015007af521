"""What a row must hold to be booked: its keys, and numbers that sums can bear.

A damaged or foreign part must cost its own rows, not the run. The limits are far above
what any run reaches, and low enough that no sum over a run leaves 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput.columns import Column, Table

_LIMITS: dict[str, tuple[int, int]] = {
    "ns since epoch": (0, 1 << 62),  # until the year 2116
    "ns": (-(1 << 58), 1 << 58),  # nine years
    "count": (-(1 << 40), 1 << 40),
    "tokens": (0, 1 << 40),
    "samples": (0, 1 << 40),
    "bytes": (0, 1 << 50),  # a petabyte a rank
}
"""Least and greatest value of an int64 column, by its unit."""


def _limits(column: Column) -> tuple[int, int] | None:
    if column.type != "int64" or column.name == "seq":
        return None
    return _LIMITS.get(column.unit)


def row_tests(table: Table) -> dict[str, str]:
    """For each column that can spoil a row, the SQL that holds for a good one."""
    tests: dict[str, str] = {}
    for column in table.columns:
        limits = _limits(column)
        parts: list[str] = []
        if not column.nullable:
            parts.append(f'"{column.name}" IS NOT NULL')
        if limits:
            parts.append(f'coalesce("{column.name}" BETWEEN {limits[0]} AND {limits[1]}, true)')
        if parts:
            tests[column.name] = f"({' AND '.join(parts)})"
    return tests


def is_suspect(meta: Any, names: list[str], table: Table) -> bool:
    """Could rows of this part fail a test? Told by the statistics of its footer alone."""
    for column in table.columns:
        limits = _limits(column)
        if column.name not in names or (column.nullable and not limits):
            continue
        at = names.index(column.name)
        for group in range(meta.num_row_groups):
            stats = meta.row_group(group).column(at).statistics
            if stats is None or (not column.nullable and stats.null_count != 0):
                return True
            if not limits or stats.null_count == meta.row_group(group).num_rows:
                continue
            if not stats.has_min_max or stats.min < limits[0] or stats.max > limits[1]:
                return True
    return False
