"""Whatever happened, the books close, and how rows are spread over parts does not matter."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from badput.parts import write_rows
from badput_ledger.books import open_books
from badput_ledger.fsck import check

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = (
    "eval", "save", "load", "overhead", "data", "compile", "epoch", "failed_step", "rendezvous",
)  # fmt: skip
# Shrinking takes minutes here; a failing run is small enough to read as it is.
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
REASONS = ("completed", "killed", "exception", "unknown")
TABLES = ("processes", "steps", "spans", "events", "checkpoints")

Draw = Any
Rows = dict[str, list[dict[str, Any]]]


@st.composite
def runs(draw: Callable[..., Any]) -> Rows:
    """Rows of a small run: sessions of ranks with steps, spans and ends anywhere in time."""
    rows: Rows = {table: [] for table in TABLES}
    clock = 1_000
    for session in range(draw(st.integers(1, 3))):
        world = draw(st.integers(1, 3))
        first = draw(st.integers(1, 6))
        job = draw(st.sampled_from([None, "a", "b"]))
        last = clock
        for rank in range(draw(st.integers(1, world))):
            key = {"process_id": 100 * (session + 1) + rank, "rank": rank}
            begin = clock + draw(st.integers(0, 40))
            at = begin + draw(st.integers(0, 40))
            stage = draw(st.sampled_from([{}, {"stage": rank, "stages": 2}]))
            more = {"role": "rank", "world_size": world, "job_id": job, "start_ns": begin}
            init = draw(st.sampled_from([None, at]))
            rows["processes"].append(key | more | stage | {"init_ns": init})
            at = add_steps(draw, rows, key, at, first)
            add_rare(draw, rows, key, begin)
            last = max(last, add_events(draw, rows, key, begin, at))
        clock = last + draw(st.integers(-10, 60))
    return rows


def add_steps(draw: Draw, rows: Rows, key: dict[str, Any], at: int, first: int) -> int:
    """A rank's steps, which may repeat, overlap, leave gaps or record too much."""
    step, began = first - 1, 0
    for seq in range(draw(st.integers(0, 8))):
        step += draw(st.sampled_from([1, 1, 1, 2, -1])) if step > 1 else 1
        at = max(at + draw(st.integers(-3, 15)), began + 1)
        began = at
        dur = draw(st.integers(0, 30))
        row = {
            "seq": seq,
            "step": step,
            "n_steps": draw(st.sampled_from([1, 1, 1, 3])),
            "start_ns": at,
            "dur_ns": dur,
            "pre_data_ns": draw(st.none() | st.integers(0, 20)),
            "wait_activation_ns": draw(st.none() | st.integers(0, dur)),
            "comm_ns": draw(st.none() | st.integers(0, 6)),
            "compile_ns": draw(st.none() | st.integers(0, 4)),
            "applied": draw(st.sampled_from([None, True, False])),
            "tokens": draw(st.none() | st.integers(0, 9)),
            "padding": draw(st.none() | st.integers(0, 3)),
        }
        rows["steps"].append(key | row)
        at += dur
    return at


def add_rare(draw: Draw, rows: Rows, key: dict[str, Any], begin: int) -> None:
    """Spans anywhere, and perhaps a checkpoint."""
    for seq in range(100, 100 + draw(st.integers(0, 4))):
        row = {
            "seq": seq,
            "name": draw(st.sampled_from(NAMES)),
            "start_ns": begin + draw(st.integers(0, 150)),
            "dur_ns": draw(st.none() | st.integers(0, 60)),
            "in_step": draw(st.booleans()),
        }
        rows["spans"].append(key | row)
    if draw(st.booleans()):
        row = {
            "seq": 200,
            "op": draw(st.sampled_from(["save", "load"])),
            "step": draw(st.integers(0, 8)),
            "start_ns": begin + draw(st.integers(0, 40)),
            "dur_ns": 1,
            "durable_ns": draw(st.none() | st.just(begin)),
            "ok": True,
        }
        rows["checkpoints"].append(key | row)


def add_events(draw: Draw, rows: Rows, key: dict[str, Any], begin: int, at: int) -> int:
    """Perhaps an end, and perhaps a failure, hang or rollback; returns the last instant."""
    if draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from(["failure", "hang", "rewind"]))
        time = begin + draw(st.integers(0, 150))
        said = json.dumps({"to_step": 2, "what": "x"})
        rows["events"].append(key | {"seq": 301, "time_ns": time, "kind": kind, "attrs": said})
    if draw(st.booleans()):
        return at
    when = at + draw(st.integers(0, 40))
    attrs = {
        "reason": draw(st.sampled_from(REASONS)),
        "phase": draw(st.sampled_from(["step", "loop", "save", "init"])),
        "phase_since_ns": at - draw(st.integers(0, 40)),
        "step": draw(st.none() | st.integers(0, 9)),
        "last_sign_ns": draw(st.none() | st.just(at)),
    }
    said = json.dumps(attrs)
    rows["events"].append(key | {"seq": 300, "time_ns": when, "kind": "end", "attrs": said})
    return when


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in report.items() if k not in ("run", "quality", "verdict")}


@settings(max_examples=12, phases=NO_SHRINK, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables=runs(), parts=st.integers(1, 3), reverse=st.booleans())
def test_every_instant_is_booked_once(
    tables: dict[str, list[dict[str, Any]]], parts: int, reverse: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "run", Path(folder) / "other"
        for table, rows in tables.items():
            write_rows(one, table, "part", rows)
            mixed = rows[::-1] if reverse else rows
            for k in range(parts):
                write_rows(many, table, f"{parts - k}", mixed[k::parts])
            # a row that two parts hold counts once
            write_rows(many, table, "again", mixed[:2])
        with open_books(one) as books:
            report = books.report()
            assert [c for c in check(books) if not c["ok"]] == []
            total = int(report["total_gpu_ns"])
            booked = [int(row["gpu_ns"] or 0) for row in report["leaves"].values()]
            assert min(booked) >= 0
            assert sum(booked) == total
            for row in report["leaves"].values():
                assert row["lo"] <= (row["gpu_seconds"] or 0) <= (row["hi"] or 0)
            line = sum(s.end_ns - s.start_ns for s in books.timeline())
            weights = books.rows("SELECT sum(weight) = count(*) AS plain FROM members")[0]["plain"]
            if weights:
                assert line == total
        with open_books(many) as books:
            assert numbers(books.report()) == numbers(report)
