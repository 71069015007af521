"""A long run is booked by sums where its rows are alike: to the same nanosecond."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from badput.parts import write_rows
from badput_ledger import store, stretch
from badput_ledger.books import open_books

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VIEWS = ("leaves", "doubts", "rank_leaves", "step_counts", "token_counts", "usual", "measured",
         "slot_totals", "at_risk", "timeline")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def short_is_long() -> Iterator[None]:
    """Stretches of few rows, so that small runs have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "SHORT", 4)
        patch.setattr(stretch, "EDGE", 1)
        patch.setattr(stretch, "LONGEST", 5)
        yield


def told(run: Path) -> dict[str, Any]:
    """All that the books say of a run in figures."""
    with open_books(run, price=2.0) as books:
        found: dict[str, Any] = {"report": books.report()}
        for view in VIEWS:
            found[view] = sorted(map(str, books.rows(f"FROM {view}")))
        found["stretches"] = books.rows("SELECT count(*) AS n FROM stretches")[0]["n"]
    return found


def both(run: Path) -> int:
    """Number of stretches of the long way, whose books must be those of the short one."""
    short = told(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "LONG_ROWS", 0)
        long = told(run)
    assert short.pop("stretches") == 0
    stretches = int(long.pop("stretches"))
    assert long == short
    return stretches


def a_run(make: Any, *, steps: int = 60, **more: Any) -> tuple[int, float]:
    """One rank that waits for data before each step; returns its process and when it ended."""
    pid = make.process(0, init=2)
    at = 10.0
    for step in range(1, steps + 1):
        make.step(pid, step, at, 1.0, pre_data_ns=0.1, tokens=100, padding=7, **more)
        at += 1.25
    return pid, at


def test_alike_rows_are_summed(make: Any) -> None:
    pid, at = a_run(make, comm_ns=0.2, data_ns=0.01)
    make.end(pid, at)
    assert both(make.write()) > 8


def test_spans_in_the_loop_are_looked_at(make: Any) -> None:
    pid, at = a_run(make)
    make.span(pid, "eval", 10 + 20 * 1.25 - 0.2, 0.1)  # in a gap
    make.span(pid, "save", 10 + 30 * 1.25 + 0.5, 3.0)  # over steps
    make.span(pid, "epoch", 10 + 40 * 1.25 - 0.2, 5.0)  # a user's own, around steps
    make.span(pid, "mine", 10 + 50 * 1.25 - 0.2, 0.05)
    make.span(pid, "overhead", 10 + 55 * 1.25 - 0.2, None)
    make.end(pid, at)
    assert both(make.write()) > 2


def test_a_slow_step_and_a_skipped_one_are_looked_at(make: Any) -> None:
    for rank in (0, 1):
        pid, at = make.process(0, rank=rank, world=2, init=2), 10.0
        for step in range(1, 61):
            slow = 5.0 if step == 30 else 1.0
            said = False if (rank, step) == (1, 40) else None
            make.step(pid, step, at, slow, rank=rank, applied=said, tokens=10)
            at += slow + 0.2
        make.end(pid, at, rank=rank)
    assert both(make.write()) > 4


def test_lost_steps_and_a_rollback(make: Any) -> None:
    pid, at = a_run(make, steps=40)
    make.checkpoint(pid, "save", 23, 10 + 23 * 1.25 - 0.2, 0.01)
    make.end(pid, at, reason="killed")
    pid = make.process(at + 10, init=at + 11)
    make.checkpoint(pid, "load", 23, at + 12, 0.5)
    at = make.steps(pid, 24, 60, at + 20, 1.0)
    make.event(pid, "rewind", at + 0.5, to_step=41)
    at = make.steps(pid, 42, 70, at + 1, 1.0)
    make.end(pid, at)
    assert both(make.write()) > 6


def test_rows_out_of_order_and_over_parts(make: Any) -> None:
    pid, at = a_run(make)
    make.end(pid, at)
    run = make.write()
    rows = make.tables["steps"]
    (run / "facts" / "steps" / "part.parquet").unlink()
    write_rows(run, "steps", "b", rows[:25])
    write_rows(run, "steps", "a", rows[25:][::-1])
    both(run)


@st.composite
def plain_runs(draw: Callable[..., Any]) -> dict[str, list[dict[str, Any]]]:
    """Ranks with many steps alike, and a few things that are not, anywhere."""
    rows: dict[str, list[dict[str, Any]]] = {
        t: [] for t in ("processes", "steps", "spans", "events")
    }
    world, clock = draw(st.integers(1, 2)), 1_000
    for session in range(draw(st.integers(1, 2))):
        first, last = draw(st.integers(1, 20)), clock
        for rank in range(world):
            key = {"process_id": 100 * (session + 1) + rank, "rank": rank}
            rows["processes"].append(
                key | {"role": "rank", "world_size": world, "start_ns": clock, "job_id": "a"}
            )
            at, step = clock + 50, first
            for seq in range(draw(st.integers(10, 40))):
                odd = draw(st.sampled_from([0] * 25 + [-30, -4, 20, 60]))
                dur = 20 + draw(st.integers(0, 3)) + max(odd, 0)
                more = {"step": step, "n_steps": 1, "start_ns": at, "dur_ns": dur}
                more |= {"pre_data_ns": draw(st.integers(0, 4)), "comm_ns": draw(st.integers(0, 2))}
                rows["steps"].append(key | more | {"seq": 10 * seq, "tokens": 9, "padding": 2})
                at += dur + 4 + odd
                step += 1 if odd != -30 or step < 6 else -4
            for i in range(draw(st.integers(0, 2))):
                begin = draw(st.integers(clock, at))
                name = draw(st.sampled_from(["eval", "save", "data", "mine"]))
                dur = draw(st.sampled_from([None, 0, 2, 5, 70]))
                more = {"seq": 1001 + i, "name": name, "in_step": False}
                rows["spans"].append(key | more | {"start_ns": begin, "dur_ns": dur})
            said = draw(st.sampled_from(['{"reason": "killed"}', '{"reason": "completed"}']))
            end = {"seq": 2001, "time_ns": at + 5, "kind": "end", "attrs": said}
            rows["events"].append(key | end)
            last = max(last, at)
        clock = last + draw(st.integers(-10, 60))
    return rows


@settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)  # fmt: skip
@given(tables=plain_runs())
def test_any_run_comes_out_the_same_both_ways(tables: dict[str, list[dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for table, rows in tables.items():
            write_rows(run, table, "part", rows)
        both(run)
