"""A small builder of run folders with hand-made facts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from badput.parts import write_rows

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
T0 = 1_800_000_000 * S
"""Every made-up run begins here."""


class RunMaker:
    """Collects rows by table and writes them as parts. Times are seconds after T0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._seq = 0
        self._ids = 1000

    def add(self, table: str, **row: Any) -> None:
        self.tables.setdefault(table, []).append(row)

    def seq(self) -> int:
        self._seq += 1
        return self._seq

    def process(
        self,
        start: float,
        *,
        rank: int | None = 0,
        world: int = 1,
        init: float | None = None,
        **more: Any,
    ) -> int:
        """A process; returns its id."""
        self._ids += 1
        row = {
            "process_id": self._ids,
            "rank": rank,
            "role": "rank",
            "world_size": world,
            "start_ns": ns(start),
            "init_ns": ns(start if init is None else init),
        }
        self.add("processes", **(row | more))
        return self._ids

    def steps(
        self,
        pid: int,
        first: int,
        last: int,
        start: float,
        dur: float,
        *,
        rank: int = 0,
        **more: Any,
    ) -> float:
        """Steps back to back; returns when the last one ended."""
        at = start
        for step in range(first, last + 1):
            self.step(pid, step, at, dur, rank=rank, **more)
            at += dur
        return at

    def step(
        self,
        pid: int,
        step: int,
        start: float,
        dur: float,
        *,
        rank: int = 0,
        n: int = 1,
        **more: Any,
    ) -> None:
        row = {
            "process_id": pid,
            "seq": self.seq(),
            "rank": rank,
            "step": step,
            "n_steps": n,
            "start_ns": ns(start),
            "dur_ns": round(dur * S),
        }
        row |= {k: round(v * S) if k.endswith("_ns") else v for k, v in more.items()}
        self.add("steps", **row)

    def span(
        self,
        pid: int,
        name: str,
        start: float,
        dur: float | None,
        *,
        rank: int = 0,
        in_step: bool = False,
        **attrs: Any,
    ) -> None:
        self.add(
            "spans",
            process_id=pid,
            seq=self.seq(),
            rank=rank,
            name=name,
            start_ns=ns(start),
            dur_ns=None if dur is None else round(dur * S),
            in_step=in_step,
            attrs=json.dumps(attrs) if attrs else None,
        )

    def checkpoint(
        self,
        pid: int,
        op: str,
        step: int | None,
        start: float,
        dur: float = 1.0,
        *,
        rank: int = 0,
        path: str | None = None,
        durable: bool = True,
    ) -> None:
        self.add(
            "checkpoints",
            process_id=pid,
            seq=self.seq(),
            rank=rank,
            op=op,
            step=step,
            path=path,
            start_ns=ns(start),
            dur_ns=round(dur * S),
            durable_ns=ns(start + dur) if op == "save" and durable else None,
            ok=True,
        )

    def event(
        self, pid: int, kind: str, time: float, *, rank: int | None = 0, **attrs: Any
    ) -> None:
        self.add(
            "events",
            process_id=pid,
            seq=self.seq(),
            rank=rank,
            time_ns=ns(time),
            kind=kind,
            attrs=json.dumps(attrs),
        )

    def exit(self, boss: int, time: float, **said: Any) -> None:
        """A launcher says how a rank ended."""
        row = {"process_id": boss, "seq": self.seq(), "time_ns": ns(time), "kind": "exit"}
        self.add("events", **row, attrs=json.dumps({"exit_code": None, "signal": None} | said))

    def end(
        self, pid: int, time: float, *, reason: str = "completed", rank: int | None = 0, **more: Any
    ) -> None:
        said = {k: ns(v) if k.endswith("_ns") else v for k, v in more.items()}
        self.event(pid, "end", time, rank=rank, reason=reason, **said)

    def write(self) -> Path:
        for table, rows in self.tables.items():
            write_rows(self.path, table, "part", rows)
        return self.path


def ns(seconds: float) -> int:
    return T0 + round(seconds * S)


@pytest.fixture
def make(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run")
