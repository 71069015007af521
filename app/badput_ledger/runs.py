"""Find run folders below a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from badput.parts import is_run, list_parts

DEPTH = 3


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run folder and what its first `runs` row says about it."""

    path: Path
    name: str
    source: str


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
    try:
        for part in list_parts(folder, "runs"):
            try:
                table = pq.read_table(part, columns=["name", "source"], partitioning=None)
            except (OSError, pa.ArrowException, ValueError):
                continue
            for row in table.to_pylist():
                return RunRef(folder, str(row["name"] or name), str(row["source"] or source))
    except OSError:
        pass  # a table we may not list: the folder's own name has to do
    return RunRef(folder, name, source)
