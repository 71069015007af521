"""Pipelines: the bubble, the slow stage, and whose time the waiting is."""

from __future__ import annotations

from typing import Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.fsck import check


def seconds(report: dict[str, Any]) -> dict[str, float]:
    return {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}


def report_of(make: Any) -> dict[str, Any]:
    with open_books(make.write()) as books:
        assert all(c["ok"] for c in check(books)), check(books)
        return books.report()


def pipeline(make: Any, slow: int = 0, **more: Any) -> None:
    """Two stages, 40 steps of 1 s: each is busy 0.75 s and waits 0.25 s.

    In the last ``slow`` steps stage 1 is busy for 1.75 s of 2 s, and stage 0 waits for it.
    """
    for rank in (0, 1):
        pid = make.process(
            0,
            rank=rank,
            world=2,
            stage=rank,
            stages=2,
            microbatches=4,
            schedule="1f1b",
            gpu_type="cpu",
        )
        at = make.steps(
            pid, 1, 40 - slow, 0, 1.0, rank=rank, wait_activation_ns=0.25, tokens=8, **more
        )
        wait = 1.25 if rank == 0 else 0.25
        at = make.steps(
            pid, 41 - slow, 40, at, 2.0, rank=rank, wait_activation_ns=wait, tokens=8, **more
        )
        make.end(pid, at, rank=rank)


def test_waits_for_the_neighbour_stage_are_the_bubble(make: Any) -> None:
    pipeline(make)
    report = report_of(make)
    assert seconds(report) == {"H.productive": 60, "G.bubble": 20}
    assert report["pipeline"] == {
        "stages": 2, "microbatches": 4, "schedule": "1f1b",
        "ideal_bubble": 0.2, "actual_bubble": 0.25,
        "by_stage": [
            {"stage": 0, "busy_s": 30, "wait_s": 10, "bubble": 0.25},
            {"stage": 1, "busy_s": 30, "wait_s": 10, "bubble": 0.25},
        ],
    }  # fmt: skip
    assert report["units"] == "rank"


def test_both_stages_of_a_replica_see_the_same_tokens(make: Any) -> None:
    pipeline(make)
    assert report_of(make)["tokens"]["kept"] == 40 * 8


def test_a_slow_stage_takes_its_excess_and_the_others_waiting_for_it(make: Any) -> None:
    pipeline(make, slow=11)
    report = report_of(make)
    # stage 1 is busy 1 s longer in eleven steps; stage 0 waits for exactly that second
    assert seconds(report) == {"H.productive": 60, "G.bubble": 20, "G.straggler": 22}
    assert "rank 1" in report["verdict"]["next"]


def test_the_waiting_that_moves_is_at_most_the_bubble_that_there_is(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2, stage=rank, stages=2)
        at = make.steps(pid, 1, 30, 0, 1.0, rank=rank, wait_gradient_ns=0.25)
        busy = 5.0 if rank else 0.5
        make.step(pid, 31, at, 5.0, rank=rank, wait_gradient_ns=5.0 - busy)
        make.end(pid, at + 5, rank=rank)
    # stage 1: 5 s busy, 4.25 s above its 0.75; stage 0 waited 4.5 s, of which 4.25 s moves
    assert seconds(report_of(make)) == {
        "G.straggler": 8.5, "G.bubble": 15 + 0.25, "H.productive": 45 + 0.75 + 0.5,
    }  # fmt: skip


def test_without_stages_a_slow_rank_is_not_told_and_says_so(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        make.end(pid, make.steps(pid, 1, 30, 0, 1.0, rank=rank), rank=rank)
    row = report_of(make)["leaves"]["G.straggler"]
    assert row["gpu_seconds"] is None
    assert row["gpu_ns"] is None
    assert "stages" in row["reason"]


def test_lost_steps_do_not_show_a_bubble(make: Any) -> None:
    for start, first in ((0, 1), (60, 11)):
        for rank in (0, 1):
            pid = make.process(start, rank=rank, world=2, stage=rank, stages=2, job_id="j")
            end = make.steps(pid, first, 30, start, 1.0, rank=rank, wait_activation_ns=0.5)
            make.end(pid, end, rank=rank, reason="killed" if first == 1 else "completed")
    assert seconds(report_of(make)) == {
        "H.productive": 30, "G.bubble": 30, "D.recomputed": 40, "C.launch": 60,
    }  # fmt: skip


def test_replicas_add_up_their_tokens(make: Any) -> None:
    for rank in range(4):
        pid = make.process(0, rank=rank, world=4, stage=rank % 2, stages=2)
        make.end(pid, make.steps(pid, 1, 5, 0, 1.0, rank=rank, tokens=7), rank=rank)
    assert report_of(make)["tokens"]["processed"] == 2 * 5 * 7


@pytest.mark.parametrize(
    ("schedule", "ideal"), [("gpipe", 0.2), ("2bw", 1 / (40 * 4 + 1)), ("x", None)]
)
def test_the_ideal_bubble_follows_the_schedule(
    make: Any, schedule: str, ideal: float | None
) -> None:
    pipeline(make)
    for row in make.tables["processes"]:
        row["schedule"] = schedule
    assert report_of(make)["pipeline"]["ideal_bubble"] == ideal
