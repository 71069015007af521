"""Made-up runs of any size for benchmarks/books.py: the schema's tables, written by badput's parts.

Three sessions of one job: the first is killed and loses the steps since its last checkpoint, the
second rolls back once and is killed too, the third completes. Every rank saves and evaluates
outside of its steps, waits for data before them, compiles in its first ones, and skips an
update now and then. Same seed, same run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from badput.parts import RANGES, write_part, write_rows
from badput.schema import arrow_schema

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
T0 = 1_800_000_000 * S
SAVE_EVERY, EVAL_EVERY = 1_000, 2_500
SAVE_NS, EVAL_NS, LOAD_NS, MODEL_NS = 12 * S, 30 * S, 40 * S, 25 * S
PART_ROWS = 131_072


@dataclass
class Session:
    """Steps in the order in which they ran (a rollback repeats some), and how it ended."""

    number: int
    steps: np.ndarray
    resumed: int
    rewind_at: int | None
    ended: str


def plan(steps: int) -> list[Session]:
    """Three sessions that execute ``steps`` steps in all."""
    every = max(4, min(SAVE_EVERY, steps // 20))
    a = max(3, int(steps * 0.4))
    back = a // every * every
    b = max(3, int(steps * 0.3))
    second = np.arange(back + 1, back + b + 1)
    turn = b // 2
    undone = min(every // 2, turn)
    second[turn:] -= undone
    end = int(second[-1]) // every * every
    third = np.arange(end + 1, end + steps - a - b + 1)
    return [
        Session(0, np.arange(1, a + 1), 0, None, "killed"),
        Session(1, second, back, turn, "killed"),
        Session(2, third, end, None, "completed"),
    ]


class Maker:
    """Writes one run."""

    def __init__(self, path: Path, ranks: int, steps: int, *, rich: bool, seed: int = 7) -> None:
        self.path, self.ranks, self.rich = path, ranks, rich
        self.every = max(4, min(SAVE_EVERY, steps // 20))
        self.eval_every = max(7, min(EVAL_EVERY, steps // 8))
        self.sessions = plan(steps)
        self.rng = np.random.default_rng(seed)
        self.rows: dict[str, list[dict[str, object]]] = {}
        self.held: list[pa.Table] = []
        self.notes: list[list[int]] = []
        self.parts = 0

    def write(self) -> int:
        """Write everything; returns the number of step rows."""
        boss, start, count = 99, T0, 0
        self._process(boss, None, start - S, "launcher")
        for session in self.sessions:
            ends: list[int] = []
            shared = self._shared(session)
            for rank in range(self.ranks):
                pid = 1_000 + session.number * self.ranks + rank
                end = self._rank(session, rank, pid, start, shared)
                ends.append(end)
                count += len(session.steps)
            last = max(ends)
            for rank in range(self.ranks):
                self._end(boss, session, rank, last)
            start = last + 90 * S
        self._event(boss, None, start, "end", {"reason": "completed"})
        self._flush()
        for table, rows in self.rows.items():
            write_rows(self.path, table, "part", rows)
        return count

    def _shared(self, session: Session) -> tuple[np.ndarray, np.ndarray]:
        """What the ranks have in common: how long each step takes, and how long the loop idles."""
        n = len(session.steps)
        dur = (S * (1 + 0.02 * self.rng.standard_normal(n).clip(-3, 3))).astype(np.int64)
        dur[: min(3, n)] += np.array([60, 8, 2], dtype=np.int64)[: min(3, n)] * S
        slow = self.rng.random(n) < 5e-4
        dur[slow] *= 4
        loop = (3e5 * (1 + self.rng.random(n))).astype(np.int64)
        return dur, loop

    def _rank(
        self,
        session: Session,
        rank: int,
        pid: int,
        start: int,
        shared: tuple[np.ndarray, np.ndarray],
    ) -> int:
        """The facts of one process; returns when it ended."""
        steps, n = session.steps, len(session.steps)
        begun = start + int(self.rng.integers(0, S))
        self._process(pid, rank, begun, "rank")
        jitter = (2e6 * self.rng.random(n)).astype(np.int64)
        wait = (1e6 * self.rng.exponential(2.0, n)).astype(np.int64)
        wait[self.rng.random(n) < 1e-3] += 2 * S
        dur = shared[0] + jitter
        after = np.zeros(n, dtype=np.int64)
        saves, evals = steps % self.every == 0, steps % self.eval_every == 0
        after[saves] += SAVE_NS + 50_000
        after[evals] += EVAL_NS + 50_000
        if session.rewind_at is not None:
            after[session.rewind_at - 1] += LOAD_NS
        before = wait + shared[1]
        first = begun + 20 * S + MODEL_NS + (LOAD_NS if session.resumed else 0)
        ends = np.cumsum(before + dur + after) + first
        starts = ends - after - dur
        # a span's record takes a number of its own
        spans = saves.astype(np.int64) + evals
        seq = 10 + np.arange(n) + np.concatenate([[0], np.cumsum(spans)[:-1]])
        self._steps(session, rank, pid, seq=seq, starts=starts, dur=dur, wait=wait)
        self._start_up(session, rank, pid, begun)
        for i in np.flatnonzero(saves | evals):
            ended = int(starts[i] + dur[i])
            self._loop_spans(
                rank, pid, int(steps[i]), int(seq[i]),
                at=ended, save=bool(saves[i]), evaluate=bool(evals[i]),
            )  # fmt: skip
        if session.rewind_at is not None:
            i = session.rewind_at - 1
            at = int(starts[i] + dur[i] + after[i] - LOAD_NS + 1_000)
            to = {"to_step": int(steps[i + 1]) - 1}
            self._event(pid, rank, at, "rewind", to)
            self._span(pid, rank, 3, "load", at=at, dur=LOAD_NS - 2_000, step=int(steps[i]))
        return int(ends[-1]) + 3 * S

    def _steps(
        self,
        session: Session,
        rank: int,
        pid: int,
        *,
        seq: np.ndarray,
        starts: np.ndarray,
        dur: np.ndarray,
        wait: np.ndarray,
    ) -> None:
        n = len(starts)
        noise = self.rng.standard_normal(n)
        found: dict[str, np.ndarray] = {
            "process_id": np.full(n, pid, np.int64),
            "seq": seq.astype(np.int64),
            "rank": np.full(n, rank, np.int32),
            "step": session.steps.astype(np.int64),
            "n_steps": np.ones(n, np.int32),
            "start_ns": starts,
            "dur_ns": dur,
            "pre_data_ns": wait,
            "tokens": np.full(n, 8 * 4096, np.int64),
            "loss": 2.0 + 8.0 / np.sqrt(session.steps) + 0.02 * noise,
            "grad_norm": np.exp(0.1 * noise),
            "applied": session.steps % 4_999 != 0,
        }
        if self.rich:
            share = self.rng.random(n)
            found["padding"] = (200 * share).astype(np.int64)
            found["data_ns"] = (3e5 * share).astype(np.int64)
            found["comm_ns"] = (dur * 0.08 * share).astype(np.int64)
            found["host_ns"] = (4e5 * share).astype(np.int64)
            found["forward_ns"] = (dur * 0.3).astype(np.int64)
            found["backward_ns"] = (dur * 0.55).astype(np.int64)
        schema = arrow_schema("steps")
        columns = [
            pa.array(found[f.name], f.type) if f.name in found else pa.nulls(n, f.type)
            for f in schema
        ]
        self.held.append(pa.Table.from_arrays(columns, schema=schema))
        self.notes.append([pid, int(seq[0]), int(seq[-1])])
        if sum(t.num_rows for t in self.held) >= PART_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self.held:
            notes = {RANGES: json.dumps(self.notes).encode()}
            data = pa.concat_tables(self.held)
            write_part(self.path, "steps", f"books-{self.parts:06d}", data, notes)
            self.parts += 1
        self.held, self.notes = [], []

    # -- rare rows --------------------------------------------------------------------------
    def _add(self, table: str, **row: object) -> None:
        self.rows.setdefault(table, []).append(row)

    def _process(self, pid: int, rank: int | None, start: int, role: str) -> None:
        self._add(
            "processes", process_id=pid, rank=rank, role=role, start_ns=start,
            init_ns=start + 15 * S, world_size=None if rank is None else self.ranks, job_id="job-1",
            host=None if rank is None else f"node-{rank // 8}",
        )  # fmt: skip

    def _event(self, pid: int, rank: int | None, at: int, kind: str, attrs: object) -> None:
        seq = 10_000_000 + len(self.rows.get("events", ()))
        self._add(
            "events", process_id=pid, seq=seq, rank=rank, time_ns=at, kind=kind,
            attrs=json.dumps(attrs),
        )  # fmt: skip

    def _span(
        self, pid: int, rank: int, seq: int, name: str, *, at: int, dur: int, step: int
    ) -> None:
        self._add(
            "spans", process_id=pid, seq=seq, rank=rank, name=name, start_ns=at, dur_ns=dur,
            step=step, in_step=False,
        )  # fmt: skip

    def _start_up(self, session: Session, rank: int, pid: int, begun: int) -> None:
        at, step = begun + 18 * S, session.resumed
        self._span(pid, rank, 1, "model", at=at, dur=MODEL_NS, step=step)
        if session.resumed:
            self._span(pid, rank, 2, "load", at=at + MODEL_NS, dur=LOAD_NS, step=step)
            self._add(
                "checkpoints", process_id=pid, seq=2, rank=rank, op="load", step=step,
                path=f"/ckpt/step-{step}", start_ns=at + MODEL_NS, dur_ns=LOAD_NS, ok=True,
            )  # fmt: skip

    def _loop_spans(
        self, rank: int, pid: int, step: int, seq: int, *, at: int, save: bool, evaluate: bool
    ) -> None:
        at += 20_000
        if save:
            seq += 1
            self._span(pid, rank, seq, "save", at=at, dur=SAVE_NS, step=step)
            self._add(
                "checkpoints", process_id=pid, seq=seq, rank=rank, op="save", step=step,
                path=f"/ckpt/step-{step}", start_ns=at, dur_ns=SAVE_NS, ok=True,
                durable_ns=at + SAVE_NS,
            )  # fmt: skip
            at += SAVE_NS + 20_000
        if evaluate:
            self._span(pid, rank, seq + 1, "eval", at=at, dur=EVAL_NS, step=step)

    def _end(self, boss: int, session: Session, rank: int, last: int) -> None:
        pid = 1_000 + session.number * self.ranks + rank
        done = session.ended == "completed"
        reason = {"reason": "completed"} if done else {"reason": "killed"}
        self._event(pid, rank, last + rank * 1_000, "end", reason)
        said = {"process_id": pid, "rank": rank, "exit_code": 0 if done else None}
        self._event(boss, None, last + S + rank, "exit", said | {"signal": None if done else 9})
