"""Runs and figures for the app's tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from badput import parts
from badput_app import state
from badput_ledger.taxonomy import LEAVES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = 1_790_000_000_000_000_000
S = 1_000_000_000

SECONDS = {
    "C.launch": 90.0,
    "C.load": 30.0,
    "C.warmup": 12.0,
    "B.hang": 45.0,
    "B.teardown": 15.0,
    "D.recomputed": 240.0,
    "D.partial": 6.0,
    "E.save": 42.0,
    "E.eval": 120.0,
    "F.skipped": 20.0,
    "G.data": 60.0,
    "G.bubble": 320.0,
    "H.productive": 6140.0,
    "U.unaccounted": 60.0,
}


class Piece(NamedTuple):
    """A segment of the timeline, in the form that the books give it."""

    session: str
    rank: int
    leaf: str
    start_ns: int
    end_ns: int


def leaf(seconds: float, price: float | None) -> dict[str, Any]:
    """A leaf of the report."""
    return {
        "gpu_seconds": seconds,
        "gpu_ns": str(int(seconds * S)),
        "lo": seconds,
        "hi": seconds,
        "cost": None if price is None else seconds / 3600 * price,
        "tokens": None,
    }


def make_report(
    price: float | None = 2.0, units: str = "GPU", scale: float = 1.0
) -> dict[str, Any]:
    """The report of a run that was made up for the charts: 7,200 slot-seconds times scale."""
    leaves = {x.id: leaf(SECONDS.get(x.id, 0.0) * scale, price) for x in LEAVES}
    total = sum(x["gpu_seconds"] for x in leaves.values())
    kept = sum(x["gpu_seconds"] for k, x in leaves.items() if k[0] in "GH")
    cost = None if price is None else total / 3600 * price
    productive = leaves["H.productive"]["gpu_seconds"]
    wasted = None if price is None else (total - productive) / 3600 * price
    return {
        "run": {"id": "made-up", "name": "made-up", "gpus": 2, "world_size": 2},
        "units": units,
        "total_gpu_seconds": total,
        "leaves": leaves,
        "kept_time": {"value": kept / total, "lo": kept / total, "hi": kept / total},
        "cost": {"currency": "USD", "total": cost, "wasted": wasted},
    }


def make_segments(ranks: int = 2, steps: int = 40, sessions: int = 1) -> list[Piece]:
    """Launch, then steps, of which every tenth is followed by a save."""
    out: list[Piece] = []
    for s in range(sessions):
        for rank in range(ranks):
            now = T0 + s * steps * 3 * S
            out.append(Piece(f"s{s + 1}", rank, "C.launch", now, now + 5 * S))
            now += 5 * S
            for step in range(steps):
                out.append(Piece(f"s{s + 1}", rank, "H.productive", now, now + S))
                now += S
                if step % 10 == 9:
                    out.append(Piece(f"s{s + 1}", rank, "E.save", now, now + S // 2))
                    now += S // 2
    return out


@pytest.fixture
def report() -> dict[str, Any]:
    """A priced report of a run on two GPUs."""
    return make_report()


@pytest.fixture
def segments() -> list[Piece]:
    """The segments of a run on two ranks."""
    return make_segments()


def _process(pid: int, rank: int, start: int, attempt: int, config_gpu: str) -> dict[str, Any]:
    return {
        "process_id": pid,
        "rank": rank,
        "role": "rank",
        "world_size": 2,
        "local_rank": rank,
        "replica": 0,
        "stage": rank,
        "stages": 2,
        "microbatches": 4,
        "schedule": "1f1b",
        "start_ns": start,
        "init_ns": start + 2 * S,
        "host": "node0",
        "boot_id": "boot",
        "pid": 1000 + pid,
        "job_id": "job",
        "attempt": attempt,
        "endpoint": "127.0.0.1:29500",
        "gpu_type": config_gpu,
        "version": "0.1.0",
    }


def _steps(pid: int, rank: int, first: int, last: int, start: int) -> list[dict[str, Any]]:
    return [
        {
            "process_id": pid,
            "seq": n - first + 10,
            "rank": rank,
            "step": n,
            "n_steps": 1,
            "start_ns": start + (n - first) * S,
            "dur_ns": S,
            "pre_data_ns": 0,
            "tokens": 1024,
            "loss": 5.0 / n,
            "wait_activation_ns": S // 10,
            "wait_gradient_ns": S // 10,
        }
        for n in range(first, last + 1)
    ]


def _end(pid: int, rank: int, time: int, seq: int, **attrs: Any) -> dict[str, Any]:
    return {
        "process_id": pid,
        "seq": seq,
        "rank": rank,
        "time_ns": time,
        "kind": "end",
        "attrs": json.dumps(attrs),
    }


def _checkpoint(pid: int, rank: int, op: str, step: int, start: int) -> dict[str, Any]:
    return {
        "process_id": pid,
        "seq": 5000 + step + (op == "load"),
        "rank": rank,
        "op": op,
        "step": step,
        "path": f"ckpt/step-{step}",
        "start_ns": start,
        "dur_ns": S // 2,
        "durable_ns": start + S // 2 if op == "save" else None,
        "ok": True,
    }


def write_killed_run(run: Path, *, name: str = "tiny-killed", price: float | None = None) -> Path:
    """A run of two ranks: 30 steps, a checkpoint at 20, rank 1 killed, on from 21 to 50."""
    rows: dict[str, list[dict[str, Any]]] = {
        t: [] for t in ("runs", "processes", "steps", "spans", "checkpoints", "events")
    }
    config = {} if price is None else {"price_per_gpu_hour": price}
    rows["runs"].append(
        {
            "process_id": 11,
            "time_ns": T0,
            "name": name,
            "source": "probe",
            "config": json.dumps(config),
        }
    )
    begin = T0 + 4 * S
    again = begin + 45 * S
    for rank in (0, 1):
        first, second = 11 + rank, 21 + rank
        rows["processes"].append(_process(first, rank, T0, 0, "cpu"))
        rows["processes"].append(_process(second, rank, again - 4 * S, 1, "cpu"))
        rows["steps"] += _steps(first, rank, 1, 30, begin)
        rows["steps"] += _steps(second, rank, 21, 50, again)
        rows["checkpoints"].append(_checkpoint(first, rank, "save", 20, begin + 20 * S - S // 2))
        rows["checkpoints"].append(_checkpoint(second, rank, "load", 20, again - S))
        rows["spans"].append(
            {
                "process_id": second,
                "seq": 2,
                "rank": rank,
                "name": "load",
                "start_ns": again - S,
                "dur_ns": S // 2,
                "in_step": False,
                "attrs": json.dumps({"step": 20, "path": "ckpt/step-20"}),
            }
        )
        killed = {"reason": "killed", "signal": 9} if rank else {"reason": "exit", "exit_code": 1}
        died = begin + 30 * S + (S // 2 if rank else 3 * S)
        attrs = {"phase": "step", "step": 31, "last_sign_ns": died, "records": 30, "closed": False}
        rows["events"].append(_end(first, rank, died, 9000, dropped=0, **killed, **attrs))
        done = again + 31 * S
        attrs = {"phase": "loop", "step": 50, "last_sign_ns": done, "records": 30, "closed": True}
        rows["events"].append(
            _end(second, rank, done, 9000, reason="completed", dropped=0, **attrs)
        )
    for table, entries in rows.items():
        parts.write_rows(run, table, "a", entries)
    return run


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """Writes the run that was killed and restarted into a folder."""
    return write_killed_run


@pytest.fixture
def killed_run(tmp_path: Path) -> Path:
    """A folder of runs with one run that was killed and restarted."""
    write_killed_run(tmp_path / "runs" / "tiny")
    return tmp_path / "runs"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what the app was started with: ``opened(folder, price=2.0)``."""

    def set_settings(*paths: Path, price: float | None = None, example: bool = False) -> None:
        for key, value in state.to_env(state.Settings(paths, price, example)).items():
            monkeypatch.setenv(key, value)

    return set_settings
