# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
"""What the parts of a run folder say of its processes; read anew only where parts are new."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from badput.parts import list_parts, part_rows

if TYPE_CHECKING:
    from pathlib import Path

    from badput.live import Live

STEP_PARTS, STEP_ROWS = 3000, 400_000
"""Parts and rows of steps that are read the first time, newest parts first."""
KEPT, NOW = 200, 20
"""Steps kept of each process, and how many of them are "now"."""
_STEP_COLUMNS = ["process_id", "seq", "step", "n_steps", "start_ns", "dur_ns"]


@dataclass(slots=True)
class Steps:
    """The last steps of one process."""

    seq: int = -1
    step: int = 0
    end_ns: int = 0
    durations: deque[int] = field(default_factory=lambda: deque[int](maxlen=KEPT))
    ends: deque[tuple[int, int]] = field(
        default_factory=lambda: deque[tuple[int, int]](maxlen=KEPT)
    )
    """Step and its end."""

    def add(self, seq: int, step: int, count: int, start: int, dur: int) -> None:
        """Take a row; one that is not newer than the last is known."""
        if seq <= self.seq:
            return
        self.seq, self.step, self.end_ns = seq, step, start + dur
        self.durations.append(dur // max(1, count))
        self.ends.append((step, start + dur))

    def usual(self) -> float | None:
        """Median of the steps kept, s."""
        return median(self.durations) / 1e9 if self.durations else None

    def now(self) -> float | None:
        """Median of the last few steps, s."""
        return median(list(self.durations)[-NOW:]) / 1e9 if self.durations else None


class Seen:
    """The facts of one run folder so far."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.processes: dict[int, dict[str, Any]] = {}
        self.events: dict[tuple[int, int], dict[str, Any]] = {}
        self.checkpoints: dict[tuple[int, int], dict[str, Any]] = {}
        self.steps: dict[int, Steps] = {}
        self.newest_ns = 0
        """When the newest part was written, by the file system's clock."""
        self.unreadable = 0
        self.cut = False
        """True if older parts of steps were left out."""
        self._read: dict[str, set[str]] = {}

    def refresh(self) -> None:
        """Read the parts that are new."""
        for row in self._rows("processes"):
            self.processes[row["process_id"]] = row
        for row in self._rows("events"):
            self.events[row["process_id"], row["seq"]] = row
        for row in self._rows("checkpoints"):
            self.checkpoints[row["process_id"], row["seq"]] = row
        rows = self._rows("steps", _STEP_COLUMNS, STEP_PARTS, STEP_ROWS)
        for row in sorted(rows, key=lambda r: (r["process_id"], r["seq"])):
            steps = self.steps.setdefault(row["process_id"], Steps())
            step = row["step"] or 0
            steps.add(row["seq"], step, row["n_steps"] or 1, row["start_ns"], row["dur_ns"])

    def take(self, here: Live) -> None:
        """Take in what a spool on this node holds beyond the parts; in Parquet it is the same."""
        for row in here.rows.get("events", []):
            self.events[row["process_id"], row["seq"]] = row
        for row in here.rows.get("checkpoints", []):
            self.checkpoints[row["process_id"], row["seq"]] = row
        if here.steps:
            steps = self.steps.setdefault(here.process_id, Steps())
            for seq, step, start, end in here.steps:
                steps.add(seq, step, 1, start, end - start)

    def _rows(
        self, table: str, columns: list[str] | None = None, parts: int = 0, limit: int = 0
    ) -> list[dict[str, Any]]:
        known = self._read.setdefault(table, set())
        new: list[tuple[int, Path]] = []
        for path in list_parts(self.run, table):
            if path.name in known:
                continue
            known.add(path.name)
            try:
                new.append((path.stat().st_mtime_ns, path))
            except OSError:  # compacted away
                continue
        new.sort(key=lambda pair: pair[0], reverse=True)
        self.newest_ns = max([self.newest_ns, *(t for t, _ in new[:1])])
        if parts and len(new) > parts:
            self.cut, new = True, new[:parts]
        rows: list[dict[str, Any]] = []
        for _, path in new:
            if limit and len(rows) > limit:
                self.cut = True
                break
            try:
                rows += part_rows(path, table, columns)
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                self.unreadable += 1
        return rows

    def attrs(self, event: dict[str, Any]) -> dict[str, Any]:
        """The attributes of an event; empty where they make no sense."""
        try:
            found = json.loads(event.get("attrs") or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of some kinds, in order of time."""
        found = [e for e in self.events.values() if e["kind"] in kinds]
        return sorted(found, key=lambda e: (e["time_ns"], e["process_id"], e["seq"]))
