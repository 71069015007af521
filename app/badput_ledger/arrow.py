"""Arrow arrays made of Python numbers without pandas.

pyarrow imports pandas, where it is installed, as soon as it sees a Python value: half a second
that a report has no use for. Buffers are taken as they are.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any

from badput_ledger.store import pyarrow

if TYPE_CHECKING:
    from collections.abc import Sequence


def ints(values: Sequence[int]) -> Any:
    """An int64 array."""
    pa = pyarrow()
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(array("q", values).tobytes())]
    )


def scalar(value: int) -> Any:
    """An int64 scalar."""
    pa = pyarrow()
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("q", value))])[0]


def repeated(value: int | None, rows: int, kind: str) -> Any:
    """An array of one value; ``kind`` is a type of the schema: int64, int32 or bool."""
    pa = pyarrow()
    if value is None:
        return pa.nulls(rows)
    if kind == "bool":
        data = (b"\xff" if value else b"\0") * (-(-rows // 8))
        return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(data)])
    ones = pa.repeat(scalar(value), rows)
    return ones if kind == "int64" else ones.cast(pa.int32())


def numbers(column: Any) -> memoryview:
    """An int64 array without NULL as Python numbers, without a copy."""
    whole = memoryview(column.buffers()[1]).cast("B")
    return whole[column.offset * 8 : (column.offset + len(column)) * 8].cast("q")
