"""Step rows while a log is read: columns in bounded memory, whatever their number."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

BLOCK = 1 << 18
"""Rows that are held in memory; more of them go to a file without a name."""
_PENDING = 1024
_ROW = np.dtype(
    [
        ("step", np.int64),
        ("count", np.int64),
        ("start", np.int64),
        ("dur", np.int64),
        ("rate_ns", np.int64),
        ("rate", np.float64),
        ("loss", np.float64),
        ("grad_norm", np.float64),
    ]
)


@dataclass(slots=True)
class Steps:
    """Step rows as columns; times in ns.

    ``rate`` is the printed throughput of the whole job in tokens/s (NaN if none) and
    ``rate_ns`` the time that it was taken over. ``overhead``, ``save`` and ``eval`` have an
    entry only for rows (by index) in which something was seen.
    """

    overhead: dict[int, int] = field(default_factory=dict[int, int])
    save: dict[int, int] = field(default_factory=dict[int, int])
    eval: dict[int, int] = field(default_factory=dict[int, int])
    last_step: int = 0
    """Number of the newest row; 0 if there is none."""
    last_count: int = 0
    total: int = 0
    """Steps that all rows stand for."""
    _size: int = 0
    _pending: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    _kept: list[NDArray[Any]] = field(default_factory=list["NDArray[Any]"])
    _kept_rows: int = 0
    _file: IO[bytes] | None = None
    _filed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Rows, first and last step of each block in the file."""

    def __len__(self) -> int:
        return self._size

    def append(
        self,
        step: int,
        count: int,
        start: int,
        dur: int,
        *,
        rate_ns: int,
        values: tuple[float, float, float],
    ) -> None:
        """Add a row; ``values`` are rate, loss and gradient norm. Raises OSError."""
        self._pending.append((step, count, start, dur, rate_ns, *values))
        self._size += 1
        self.total += count
        self.last_step, self.last_count = step, count
        if len(self._pending) >= _PENDING:
            self._settle()

    def extend(self, **columns: NDArray[Any]) -> None:
        """Add rows, one array a column, each of the same length > 0. Raises OSError."""
        self._settle()
        rows = np.empty(len(columns["step"]), _ROW)
        for name in _ROW.names or ():
            rows[name] = columns[name]
        self._size += len(rows)
        self.total += int(columns["count"].sum())
        self.last_step, self.last_count = int(rows["step"][-1]), int(rows["count"][-1])
        self._keep(rows)

    def has(self, step: int, time: int) -> bool:
        """True if there is a row for ``step`` that ended at ``time``. Raises OSError."""
        for rows in self._blocks(step):
            at = int(np.searchsorted(rows["step"], step))
            if at < len(rows) and rows["step"][at] == step:
                return bool(rows["start"][at] + rows["dur"][at] == time)
        return False

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows in order, as structured arrays of at most some ``BLOCK``. Raises OSError."""
        return self._blocks(None)

    def _blocks(self, step: int | None) -> Iterator[NDArray[Any]]:
        """``step``: leave out what cannot hold it."""
        self._settle()  # first: it may move rows into the file
        at = 0
        for size, low, high in self._filed:
            if self._file is not None and (step is None or low <= step <= high):
                data = os.pread(self._file.fileno(), size * _ROW.itemsize, at)
                yield np.frombuffer(data, _ROW)
            at += size * _ROW.itemsize
        if self._kept:
            self._kept = [np.concatenate(self._kept)]
            yield self._kept[0]

    def _settle(self) -> None:
        if self._pending:
            rows = np.array(self._pending, _ROW)
            self._pending.clear()
            self._keep(rows)

    def _keep(self, rows: NDArray[Any]) -> None:
        self._kept.append(rows)
        self._kept_rows += len(rows)
        if self._kept_rows < BLOCK:
            return
        block = np.concatenate(self._kept)
        if self._file is None:
            # Not /tmp by default: that may be memory.
            large = Path("/var/tmp")  # noqa: S108 -- the file has no name there
            folder = None if os.environ.get("TMPDIR") or not large.is_dir() else large
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- lives as long as this
        self._file.write(block.tobytes())
        self._file.flush()
        self._filed.append((len(block), int(block["step"][0]), int(block["step"][-1])))
        self._kept, self._kept_rows = [], 0
