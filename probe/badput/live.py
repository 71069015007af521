"""What the spools of this node say of their processes right now, without taking anything."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput import clock, identity
from badput.copying import is_copy
from badput.drain import BATCH_LIMIT, Drain
from badput.files import read_text
from badput.hang import FILE as HANG_FILE
from badput.limits import Pace, base_limits
from badput.position import Position
from badput.reader import SpoolReader, UnreadableError
from badput.watch import Watch

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Live:
    """One process whose spool lies here. Times are ns since the epoch."""

    process_id: int
    run: str
    rank: int | None
    role: str
    world_size: int | None
    host: str
    pid: int
    start_ns: int
    init_ns: int
    alive: bool
    closed: bool
    step: int | None
    """Step under way, or the last one."""
    phase: str
    since_ns: int | None
    read_ns: int
    """When this was read, on the process's own time line."""
    last_step: tuple[int, int, int] | None
    """Last finished step: number, start, end."""
    hung: bool
    hung_why: str
    waiting_bytes: int
    copy: bool = False
    """What was read is a copy that a thread made, and may be some seconds old."""
    steps: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """Steps that are not in Parquet yet: record number, step, start, end."""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    """Rows that are not in Parquet yet, by table: checkpoints and events."""


TAIL_ROUNDS = 4
"""Rounds of reading what waits in one spool: a quarter of a million records."""


class _Peek(Drain):
    """A drain that drains nothing and holds no lock."""

    def __init__(self, path: Path) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.path = path
        self.reader = SpoolReader(path)
        self.position = self.reader.load_position() or Position()
        self.facts = self.reader.facts

    def tail(self) -> tuple[list[tuple[int, int, int, int]], dict[str, list[dict[str, Any]]]]:
        """What waits behind the position that is in Parquet; it is read, and stays there."""
        from badput.rows import Clock, rare_rows

        position, line = self.position.copy(), Clock(self.facts)
        steps: list[tuple[int, int, int, int]] = []
        rows: dict[str, list[dict[str, Any]]] = {"checkpoints": [], "events": []}
        for _ in range(TAIL_ROUNDS):
            batch = self.reader.read(position, BATCH_LIMIT)
            if not batch.count:
                break
            found = rare_rows(batch, position, self.facts)
            for table in rows:
                rows[table] += found[table]
            if batch.steps:
                last = batch.steps[-1]
                position.last_step = [last[4], last[5], last[6]]
            steps += [(s[3], s[4], line.wall(s[5]), line.wall(s[6])) for s in batch.steps]
        self.position = position
        return steps, rows

    def close(self) -> None:
        """Give the control page back."""
        self.reader.close()


def spool_folders(root: Path) -> list[Path]:
    """Folders below ``root`` that may be spools."""
    with contextlib.suppress(OSError):
        return sorted(p for p in root.iterdir() if len(p.name) == 16 and p.is_dir())
    return []


def live(root: Path) -> list[Live]:
    """Every readable spool below ``root``; the others are left out."""
    found: list[Live] = []
    for path in spool_folders(root):
        with contextlib.suppress(OSError, UnreadableError, KeyError, TypeError, ValueError):
            found.append(_look(path))
    return found


def _look(path: Path) -> Live:
    peek = _Peek(path)
    try:
        facts = peek.facts
        process = facts["process"]
        shift = int(facts["anchor_wall_ns"]) - int(facts["anchor_mono_ns"])
        here = (
            process.get("boot_id") == identity.boot_id()
            and facts.get("pid_namespace") == identity.pid_namespace()
        )
        watch = Watch(facts, peek.reader.control_fd(), here)
        try:
            alive = not watch.dead()
        finally:
            watch.close()
        steps, rows = peek.tail()
        step, phase, since = peek.phase()
        read = clock.mono()
        last = peek.position.last_step
        hung, why = _hang(peek, phase, step, since) if alive else (False, "")
        return Live(
            process_id=peek.reader.process_id, run=str(facts["run"]), rank=process.get("rank"),
            role=str(process.get("role")), world_size=process.get("world_size"),
            host=str(process.get("host")), pid=int(process["pid"]),
            start_ns=int(process["start_ns"]), init_ns=int(process["init_ns"]),
            alive=alive, closed=peek.reader.writer()[2], step=step, phase=phase,
            since_ns=since + shift if since else None, read_ns=read + shift,
            last_step=None if last is None else (last[0], last[1] + shift, last[2] + shift),
            hung=hung, hung_why=why, waiting_bytes=_size(path),
            copy=is_copy(str(path)), steps=steps, rows=rows,
        )  # fmt: skip
    finally:
        peek.close()


def _hang(peek: _Peek, phase: str, step: int | None, since: int) -> tuple[bool, str]:
    """Did the collector tell a hang; where none runs, is the phase too old by its limits?"""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(read_text(peek.path / HANG_FILE))
        return True, str(kept["event"][2]["what"])
    limits = base_limits(peek.facts)
    if limits is None or not since or peek.facts["process"].get("role") != "rank":
        return False, ""
    pace = Pace(*limits)
    pace.saw_step(peek.position.last_step)
    limit = pace.limit(phase, phase == "step")
    age = clock.mono() - since
    if age > 2 * limit.ns:  # a collector would have told it
        return True, f"no progress for {age / 1e9:.0f} s in phase {phase} of step {step}"
    return False, ""


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(p.stat().st_blocks * 512 for p in path.glob("seg-*"))
    return 0
