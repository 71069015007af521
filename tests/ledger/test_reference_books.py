"""The SQL books against the slow ones, over made-up timelines, and what must not matter."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from badput.parts import write_rows
from badput_ledger import store, stretch
from badput_ledger.books import open_books

_SPEC = importlib.util.spec_from_file_location(
    "reference_books", Path(__file__).with_name("reference_books.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)

sys.modules["reference_books"] = reference  # dataclasses look their module up
_SPEC.loader.exec_module(reference)

TABLES = ("processes", "steps", "spans", "events", "checkpoints")
NAMES = ("eval", "save", "load", "overhead", "data", "compile", "epoch", "rendezvous", "model")
Rows = dict[str, list[dict[str, Any]]]


def timeline(seed: int) -> Rows:
    """A run of up to three sessions. A seed, not drawn values: a run has thousands of them."""
    dice = random.Random(seed)
    rows: Rows = {table: [] for table in TABLES}
    clock, done = 1_000, 0
    for session in range(1, dice.randint(1, 3) + 1):
        world = dice.randint(1, 3)
        present = sorted(dice.sample(range(world), dice.randint(1, world)))
        job = dice.choice([None, "a", "b"])
        resumed = dice.choice([0, done, max(done - dice.randint(0, 9), 0)])
        loads = resumed > 0 and dice.random() < 0.7
        count = dice.choice([0, 3, 12, 25, 32])
        begin, last = clock + dice.randint(0, 60), clock
        broken = dice.random() < 0.6
        for rank in present:
            key = {"process_id": 100 * session + rank, "rank": rank}
            last = max(
                last,
                _rank(
                    dice,
                    rows,
                    key,
                    world=world,
                    job=job,
                    begin=begin,
                    resumed=resumed,
                    loads=loads,
                    count=count,
                    broken=broken,
                ),
            )
        done = resumed + count
        clock = last + 1
    return rows


def _rank(
    dice: random.Random, rows: Rows, key: dict[str, Any], *, world: int, job: str | None,
    begin: int, resumed: int, loads: bool, count: int, broken: bool,
) -> int:  # fmt: skip
    """One rank's life; returns its last instant."""
    start = begin + dice.randint(0, 5)
    # without a record after the others' start a rank would be a session of its own
    init = begin + dice.randint(6, 12)
    init = None if count > 1 and dice.random() < 0.5 else init
    more = {"role": "rank", "world_size": world, "job_id": job, "start_ns": start}
    rows["processes"].append(key | more | {"init_ns": init})
    at = start + 12 + dice.randint(0, 30)
    if loads:
        said = {"op": "load", "step": resumed, "path": f"/c/{resumed}", "ok": True}
        rows["checkpoints"].append(
            key | said | {"seq": 900, "start_ns": at - 1, "dur_ns": 1, "durable_ns": None}
        )
    usual = dice.choice([10, 20])
    for step in range(resumed + 1, resumed + count - (dice.random() < 0.2) + 1):
        at += dice.choice([0, 0, 0, 3, 11])
        dur = dice.choice([usual, usual, usual, usual + 3, 2 * usual, 5 * usual])
        row = {
            "seq": step, "step": step, "n_steps": 1, "start_ns": at, "dur_ns": dur,
            "pre_data_ns": dice.choice([None, 0, 2, 8]),
            "tokens": dice.choice([None, 8]), "padding": dice.choice([None, 0, 3]),
            "applied": dice.choice([None, True, True, False]),
            "comm_ns": dice.choice([None, 0, 2]), "host_ns": dice.choice([None, 1]),
            "data_ns": dice.choice([None, 0, 1]),
            "compile_ns": dice.choice([None, None, 0, 0, 0, 0, 4]),
            "save_ns": dice.choice([None, 0, 0, 0, 0, 2]),
            "wait_activation_ns": dice.choice([None, 0, usual]) if dice.random() < 0.1 else None,
        }  # fmt: skip
        rows["steps"].append(key | row)
        at += dur
        if dice.random() < 0.08:
            said = {"op": "save", "step": step, "path": f"/c/{step}", "ok": True}
            sure = dice.choice([None, at])
            rows["checkpoints"].append(
                key | said | {"seq": 1000 + step, "start_ns": at, "dur_ns": 1, "durable_ns": sure}
            )
    for seq in range(2000, 2000 + dice.randint(0, 6)):
        rows["spans"].append(
            key
            | {"seq": seq, "name": dice.choice(NAMES), "start_ns": dice.randint(start, at)}
            | {"dur_ns": dice.choice([None, 0, 5, 30, 90]), "in_step": False}
        )
    if dice.random() < 0.15:
        said = json.dumps({"to_step": dice.randint(resumed, resumed + count)})
        when = dice.randint(start, at)
        rows["events"].append(key | {"seq": 3001, "time_ns": when, "kind": "rewind", "attrs": said})
    if dice.random() < 0.85:
        reason = dice.choice(["killed", "exception"]) if broken else "completed"
        code = {"signal": 9} if reason == "killed" else {"exit_code": int(broken)}
        at += dice.choice([0, 4, 70])
        said = json.dumps({"reason": reason} | code)
        rows["events"].append(key | {"seq": 3000, "time_ns": at, "kind": "end", "attrs": said})
    ends = [
        r["start_ns"] + (r["dur_ns"] or 0)
        for r in rows["spans"]
        if r["process_id"] == key["process_id"]
    ]
    return max([at + 1, *ends])


def report_of(rows: Rows, shuffle: int | None = None, twice: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for table, some in rows.items():
            mixed = random.Random(shuffle).sample(some, len(some)) if shuffle else some
            write_rows(run, table, "b", mixed[::2])
            write_rows(run, table, "a", mixed[1::2])
            if twice:
                write_rows(run, table, "again", mixed[: len(mixed) // 2])
        with open_books(run) as books:
            return books.report()


def leaves(report: dict[str, Any]) -> dict[str, int]:
    return {k: int(v["gpu_ns"]) for k, v in report["leaves"].items() if int(v["gpu_ns"] or 0)}


def agree(seed: int) -> None:
    rows = timeline(seed)
    report = report_of(rows)
    found = leaves(report)
    assert found == reference.book(rows), f"seed {seed}"
    assert sum(found.values()) == int(report["total_gpu_ns"])
    assert min(found.values(), default=0) >= 0
    for name, row in report["leaves"].items():
        assert row["lo"] <= (row["gpu_seconds"] or 0) <= (row["hi"] or 0), (seed, name)


@settings(
    max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(seed=st.integers(0, 1 << 30))
def test_the_slow_books_agree_to_the_nanosecond(seed: int) -> None:
    agree(seed)


@settings(
    max_examples=6,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 1 << 30))
def test_they_agree_where_a_long_run_is_summed_in_stretches(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "LONG_ROWS", 0)
        patch.setattr(stretch, "SHORT", 3)
        agree(seed)


@pytest.mark.slow
@settings(
    max_examples=400, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(seed=st.integers(0, 1 << 30))
def test_the_slow_books_agree_often(seed: int) -> None:
    agree(seed)


FEW = settings(
    max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip


@FEW
@given(seed=st.integers(0, 1 << 30))
def test_late_and_duplicate_parts_in_any_order_change_nothing(seed: int) -> None:
    rows = timeline(seed)
    plain = report_of(rows)
    mixed = report_of(rows, shuffle=seed + 1, twice=True)
    for table in ("leaves", "steps", "tokens", "sessions", "incidents", "kept_time"):
        assert mixed[table] == plain[table], (seed, table)


@FEW
@given(seed=st.integers(0, 1 << 30))
def test_every_rank_twice_is_every_leaf_twice(seed: int) -> None:
    rows = timeline(seed)
    double: Rows = {table: [] for table in TABLES}
    for table, some in rows.items():
        for row in some:
            session, rank = divmod(row["process_id"], 100)
            for twin in (2 * rank, 2 * rank + 1):
                new = row | {"process_id": 100 * session + twin, "rank": twin}
                if table == "processes":
                    new["world_size"] = 2 * row["world_size"]
                double[table].append(new)
    found = leaves(report_of(double))
    assert found == {leaf: 2 * ns for leaf, ns in leaves(report_of(rows)).items()}, seed
    assert found == reference.book(double), seed


@FEW
@given(seed=st.integers(0, 1 << 30))
def test_a_span_in_two_halves_is_the_same_span(seed: int) -> None:
    rows = timeline(seed)
    halves: list[dict[str, Any]] = []
    for row in rows["spans"]:
        a, z = row["start_ns"], row["start_ns"] + (row["dur_ns"] or 0)
        others = [
            o for t in ("steps", "spans") for o in rows[t]
            if o is not row and o["process_id"] == row["process_id"]
            and o["start_ns"] < z and o["start_ns"] + (o["dur_ns"] or 0) >= a
        ]  # fmt: skip
        if z - a < 2 or others or row["name"] == "epoch":
            halves.append(row)  # what another interval lies in or across has no place to be cut
            continue
        half = (z - a) // 2
        halves.append(row | {"dur_ns": half})
        halves.append(row | {"seq": row["seq"] + 500, "start_ns": a + half, "dur_ns": z - a - half})
    assert leaves(report_of(rows | {"spans": halves})) == leaves(report_of(rows)), seed


def silence(marks: list[dict[str, Any]], **said: Any) -> dict[str, Any]:
    """The report of 40 steps of 10, then 700 of silence, then a kill; with more evidence."""
    key = {"process_id": 100, "rank": 0}
    rows: Rows = {table: [] for table in TABLES}
    rows["processes"] = [key | {"role": "rank", "world_size": 1, "start_ns": 1000, "init_ns": 1000}]
    rows["steps"] = [
        key | {"seq": k, "step": k, "n_steps": 1, "start_ns": 990 + 10 * k, "dur_ns": 10}
        for k in range(1, 41)
    ]
    end = json.dumps({"reason": "killed", "signal": 9} | said)
    rows["events"] = [key | {"seq": 50, "time_ns": 2100, "kind": "end", "attrs": end}]
    rows["events"] += [key | {"seq": 60 + i} | mark for i, mark in enumerate(marks)]
    return report_of(rows)


def widths(report: dict[str, Any]) -> dict[str, float]:
    return {k: (v["hi"] or 0) - v["lo"] for k, v in report["leaves"].items()}


@FEW
@given(after=st.integers(1, 699))
def test_a_mark_of_the_failure_narrows_the_bounds_and_widens_none(after: int) -> None:
    mark = {"time_ns": 1400 + after, "kind": "failure", "attrs": json.dumps({"what": "x"})}
    before, known = widths(silence([])), widths(silence([mark]))
    assert all(known[leaf] <= before[leaf] + 1e-12 for leaf in known)
    assert known["B.hang"] < before["B.hang"]


def test_an_end_that_was_seen_widens_no_bound() -> None:
    key = {"process_id": 100, "rank": 0}
    rows = timeline(3)
    rows["processes"] = [key | {"role": "rank", "world_size": 1, "start_ns": 1000, "init_ns": 1000}]
    rows["steps"] = [
        key | {"seq": k, "step": k, "n_steps": 1, "start_ns": 990 + 10 * k, "dur_ns": 10}
        for k in range(1, 41)
    ]
    said = {"op": "save", "step": 30, "path": "/c", "ok": True, "start_ns": 1300}
    rows["checkpoints"] = [key | said | {"seq": 70, "dur_ns": 0, "durable_ns": 1300}]
    rows["spans"], rows["events"] = [], []
    open_end = widths(report_of(rows))
    end = json.dumps({"reason": "killed", "signal": 9})
    rows["events"] = [key | {"seq": 50, "time_ns": 1400, "kind": "end", "attrs": end}]
    seen = widths(report_of(rows))
    assert open_end["D.tail"] > 0
    assert all(seen[leaf] <= open_end[leaf] + 1e-12 for leaf in seen)
    assert seen["D.tail"] == 0
