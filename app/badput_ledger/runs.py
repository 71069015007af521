"""Find run folders below a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from badput.parts import is_run, list_parts

DEPTH = 3
MOST_PARTS = 4
"""Parts of `runs` that are read to list a run."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run folder and what its first `runs` row says about it."""

    path: Path
    name: str
    source: str
    start_ns: int | None = None
    """When it began, by the first of its `runs` rows that were read; None if unknown."""


def find_runs(root: str | os.PathLike[str]) -> list[RunRef]:
    """``root`` itself if it is a run, else the runs at most three folders below it, by path.

    Folders that cannot be read are passed over.
    """
    found: list[RunRef] = []
    _walk(Path(root), DEPTH, found)
    return found


def _walk(folder: Path, depth: int, found: list[RunRef]) -> None:
    try:
        if is_run(folder):
            found.append(_ref(folder))
            return
        below = sorted(e.path for e in os.scandir(folder) if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    if depth > 0:
        for path in below:
            if not Path(path).name.startswith("."):
                _walk(Path(path), depth - 1, found)


def _ref(folder: Path) -> RunRef:
    from badput_ledger.store import pyarrow

    pa, pq = pyarrow(), pyarrow("parquet")
    name, source = folder.resolve().name, "unknown"
    rows: list[tuple[int, str | None, str | None]] = []
    try:
        for part in _oldest(list_parts(folder, "runs")):
            try:
                table = pq.read_table(
                    part, columns=["time_ns", "name", "source"], partitioning=None
                )
            except (OSError, pa.ArrowException, ValueError):
                continue
            rows += [(int(r["time_ns"] or 0), r["name"], r["source"]) for r in table.to_pylist()]
    except OSError:
        pass  # a table we may not list: the folder's own name has to do
    if not rows:
        return RunRef(folder, name, source)
    rows.sort(key=lambda row: row[0])
    said = next((str(r[1]) for r in rows if r[1]), name)
    kind = next((str(r[2]) for r in rows if r[2]), source)
    start = next((r[0] for r in rows if r[0] > 0), None)
    return RunRef(folder, said, kind, start)


def _oldest(parts: list[Path]) -> list[Path]:
    """A few parts, the oldest files: every process writes one, and the first ones say enough."""
    if len(parts) <= MOST_PARTS:
        return parts
    return sorted(parts, key=lambda p: p.stat().st_mtime_ns)[:MOST_PARTS]
