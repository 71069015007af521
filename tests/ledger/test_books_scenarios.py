"""Hand-worked runs: every leaf of each is written down beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.fsck import check

if TYPE_CHECKING:
    from pathlib import Path


def books_of(path: Path, **options: Any) -> dict[str, Any]:
    """The report of a run, after checking that its books close."""
    with open_books(path, **options) as books:
        report = books.report()
        failed = [c for c in check(books) if not c["ok"]]
        assert not failed, failed
        assert not books.broken
    total = int(report["total_gpu_ns"])
    assert sum(int(row["gpu_ns"] or 0) for row in report["leaves"].values()) == total
    return report


def seconds(report: dict[str, Any]) -> dict[str, float]:
    return {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}


def test_a_clean_run_is_start_up_steps_and_teardown(make: Any) -> None:
    pid = make.process(0, init=5)
    end = make.steps(pid, 1, 30, 20, 2.0, tokens=10)
    make.end(pid, end + 3)
    report = books_of(make.write())
    assert seconds(report) == {"C.launch": 5, "C.model": 15, "H.productive": 60, "B.teardown": 3}
    assert report["steps"] | {"by_fate": 0} == {
        "executed": 30, "kept": 30, "lost": 0, "lost_lo": 0, "lost_hi": 0, "skipped": 0,
        "last": 30, "by_fate": 0,
    }  # fmt: skip
    ledger = ("processed", "kept", "lost", "skipped", "padding")
    assert {name: report["tokens"][name] for name in ledger} == {
        "processed": 300, "kept": 300, "lost": 0, "skipped": 0, "padding": None,
    }  # fmt: skip
    assert report["kept_time"]["value"] == pytest.approx(60 / 83)
    assert report["incidents"] == []
    assert report["sessions"][0]["end_reason"] == "completed"


def test_uncovered_start_up_may_belong_to_any_start_up_leaf(make: Any) -> None:
    pid = make.process(0, init=5)
    make.end(pid, make.steps(pid, 1, 30, 20, 2.0))
    leaves = books_of(make.write())["leaves"]
    assert (leaves["C.model"]["lo"], leaves["C.model"]["hi"]) == (0, 15)
    for other in ("C.data", "C.load", "C.rendezvous"):
        assert (leaves[other]["lo"], leaves[other]["hi"]) == (0, 15)
    assert leaves["H.productive"]["lo"] == leaves["H.productive"]["hi"] == 60


def crashed(make: Any) -> None:
    """Two ranks under a launcher: saved at 20, rank 1 killed 1 s into step 31, again from 21."""
    boss = make.process(0, rank=None, role="launcher", job_id="j", world=2)
    for rank in (0, 1):
        pid = make.process(2, rank=rank, world=2, init=4, job_id="j", pid=10 + rank, stage=None)
        make.span(pid, "model", 4, 3, rank=rank)
        end = make.steps(pid, 1, 20, 7, 1.0, rank=rank, tokens=100)
        make.span(pid, "save", end, 2, rank=rank)
        make.checkpoint(pid, "save", 20, end, 2, rank=rank, path=f"/c/20/{rank}")
        end = make.steps(pid, 21, 30, end + 2, 1.0, rank=rank, tokens=100)
        assert end == 39
    make.end(pid, 40, reason="killed", rank=1, signal=9, phase="step", phase_since_ns=39, step=31)
    make.exit(boss, 40, rank=1, pid=11, signal=9)
    for rank in (0, 1):
        pid = make.process(50, rank=rank, world=2, init=52, job_id="j", pid=20 + rank)
        make.span(pid, "load", 52, 4, rank=rank)
        make.checkpoint(pid, "load", 20, 52, 4, rank=rank, path=f"/c/20/{rank}")
        end = make.steps(pid, 21, 50, 57, 1.0, rank=rank, tokens=100)
        make.end(pid, end, rank=rank)
    make.end(boss, 90, rank=None)


def test_a_crash_costs_the_lost_steps_the_ending_and_the_restart(make: Any) -> None:
    crashed(make)
    # rank 0 of the first life: the launcher saw it go 3 s after rank 1
    first = next(r for r in make.tables["processes"] if r["rank"] == 0)["process_id"]
    make.end(first, 43, reason="signal", rank=0, signal=15)
    report = books_of(make.write(), price=3.6)
    # per rank: launcher 0..2, launch 2..4, model 4..7, steps 7..27, save 27..29, steps 29..39,
    # partial 39..40, teardown 40..43, launch 43..52, load 52..56, model 56..57, steps 57..87,
    # teardown 87..90; the first session's steps 21..30 are lost
    assert seconds(report) == {
        "C.launch": 2 * (2 + 2 + 7 + 2), "C.model": 2 * (3 + 1), "C.load": 8,
        "H.productive": 2 * 50, "E.save": 4, "D.recomputed": 20, "D.partial": 2,
        "B.teardown": 2 * (3 + 3),
    }  # fmt: skip
    assert report["steps"]["executed"] == 60
    assert (report["steps"]["kept"], report["steps"]["lost"]) == (50, 10)
    assert report["tokens"]["lost"] == 2 * 10 * 100
    assert len(report["sessions"]) == 2
    s1, s2 = report["sessions"]
    assert (s1["kept_steps"], s1["lost_steps"], s1["end_reason"]) == (20, 10, "killed")
    assert (s2["resumed_from"], s2["parent"], s2["parent_because"]) == (
        20,
        "s1",
        "checkpoint loaded",
    )
    assert s2["gap_before_s"] == 7
    assert report["cost"]["total"] == pytest.approx(2 * 90 / 1000)
    assert report["leaves"]["D.recomputed"]["cost"] == pytest.approx(0.02)
    (incident,) = report["incidents"]
    assert incident["rank"] == 1
    assert "killed" in incident["cause"]
    assert incident["lost_steps"] == 10
    assert incident["gpu_seconds"] == pytest.approx(20 + 2 + 6 + 2 * (7 + 2) + 8 + 2)


def test_a_restart_exactly_at_a_checkpoint_still_costs_the_gap(make: Any) -> None:
    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 100, 60, 10.0), reason="killed")
    pid = make.process(1060 + 3600)
    make.end(pid, make.steps(pid, 101, 200, 4660 + 60, 10.0))
    report = books_of(make.write())
    assert seconds(report) == {"C.model": 120, "H.productive": 2000, "A.requeue": 3600}
    assert report["kept_time"]["value"] == pytest.approx(2000 / 5720)
    assert report["steps"]["lost"] == 0


def test_a_second_deeper_rollback_takes_back_what_the_first_had_kept(make: Any) -> None:
    for start, first, last in ((0, 1, 100), (200, 91, 120), (300, 51, 150)):
        pid = make.process(start, job_id="j")
        make.checkpoint(pid, "load", first - 1, start, 0) if first > 1 else None
        done = make.steps(pid, first, last, start, 1.0)
        make.end(pid, done, reason="completed" if last == 150 else "killed")
    report = books_of(make.write())
    # the second life started from 90 of the first; the third from 50 of the first
    assert report["steps"]["kept"] == 150
    assert report["steps"]["lost"] == 50 + 30
    assert [s["parent"] for s in report["sessions"]] == [None, "s1", "s1"]
    assert seconds(report) == {"H.productive": 150, "D.recomputed": 80, "C.launch": 100 + 70}


def test_a_crash_loop_without_a_step_cuts_nothing(make: Any) -> None:
    pid = make.process(0, job_id="j")
    make.end(pid, make.steps(pid, 1, 40, 10, 1.0), reason="killed")
    for k in range(5):
        pid = make.process(100 + 20 * k, job_id="j")
        make.end(pid, 110 + 20 * k, reason="exit", exit_code=1)
    pid = make.process(200, job_id="j")
    make.end(pid, make.steps(pid, 41, 80, 210, 1.0))
    report = books_of(make.write())
    assert report["steps"] | {"by_fate": 0} == {
        "executed": 80, "kept": 80, "lost": 0, "lost_lo": 0, "lost_hi": 0, "skipped": 0,
        "last": 80, "by_fate": 0,
    }  # fmt: skip
    # gaps 50..100, then four of 10 s and 190..200
    assert seconds(report) == {
        "H.productive": 80, "C.model": 10 + 50 + 10, "C.launch": 50 + 40 + 10,
    }  # fmt: skip
    assert len(report["incidents"]) == 6


def test_a_fresh_start_of_the_same_job_loses_everything_before(make: Any) -> None:
    for start, job in ((0, "j"), (100, "j")):
        pid = make.process(start, job_id=job)
        make.end(pid, make.steps(pid, 1, 40, start, 1.0), reason="completed" if start else "killed")
    report = books_of(make.write())
    assert (report["steps"]["kept"], report["steps"]["lost"]) == (40, 40)
    assert report["sessions"][1]["parent_because"] == "fresh start of the same job"


def test_a_start_from_nothing_of_another_job_is_a_root_of_its_own(make: Any) -> None:
    for start, job in ((0, "j"), (100, "k")):
        pid = make.process(start, job_id=job)
        make.end(pid, make.steps(pid, 1, 40, start, 1.0))
    report = books_of(make.write())
    assert (report["steps"]["kept"], report["steps"]["lost"]) == (80, 0)
    assert [s["parent"] for s in report["sessions"]] == [None, None]


def test_an_abandoned_branch_that_saved_is_named_so(make: Any) -> None:
    pid = make.process(0, job_id="j")
    make.checkpoint(pid, "save", 20, 20, 0, path="/c/20")
    make.end(pid, make.steps(pid, 1, 40, 0, 1.0), reason="killed")
    pid = make.process(50, job_id="j")
    make.checkpoint(pid, "load", 20, 50, 0, path="/c/20")
    make.checkpoint(pid, "save", 30, 60, 0, path="/c/30")
    make.end(pid, make.steps(pid, 21, 40, 50, 1.0), reason="killed")
    pid = make.process(80, job_id="j")
    make.checkpoint(pid, "load", 20, 80, 0, path="/c/20/")
    make.end(pid, make.steps(pid, 21, 60, 80, 1.0))
    report = books_of(make.write())
    assert report["leaves"]["D.branch"]["gpu_seconds"] == 20
    assert report["leaves"]["D.recomputed"]["gpu_seconds"] == 20
    assert report["steps"]["kept"] == 60


def test_a_run_that_broke_off_loses_the_steps_after_its_last_durable_checkpoint(make: Any) -> None:
    pid = make.process(0)
    make.checkpoint(pid, "save", 30, 30, 0)
    make.checkpoint(pid, "save", 35, 35, 0, durable=False)
    make.end(pid, make.steps(pid, 1, 40, 0, 1.0), reason="killed", signal=9)
    report = books_of(make.write())
    assert report["leaves"]["D.tail"]["gpu_seconds"] == 10
    assert (report["steps"]["kept"], report["steps"]["lost"], report["steps"]["last"]) == (
        30,
        10,
        30,
    )
    assert any("never confirmed durable" in n["what"] for n in report["quality"])


def test_an_unknown_end_leaves_the_tail_kept_and_says_so_in_the_bounds(make: Any) -> None:
    pid = make.process(0)
    make.checkpoint(pid, "save", 30, 30, 0)
    make.steps(pid, 1, 40, 0, 1.0)
    report = books_of(make.write())
    assert report["leaves"]["D.tail"] | {"cost": 0, "tokens": 0, "gpu_ns": 0} == {
        "gpu_seconds": 0, "gpu_ns": 0, "held_gpu_seconds": 0, "lo": 0, "hi": 10, "cost": 0,
        "tokens": 0,
    }  # fmt: skip
    assert report["leaves"]["H.productive"]["lo"] == 30
    assert (report["steps"]["lost"], report["steps"]["lost_hi"]) == (0, 10)
    assert any(n["what"].startswith("at risk: 10 steps") for n in report["quality"])


def test_a_completed_run_has_no_tail(make: Any) -> None:
    pid = make.process(0)
    make.checkpoint(pid, "save", 30, 30, 0)
    make.end(pid, make.steps(pid, 1, 40, 0, 1.0))
    assert books_of(make.write())["leaves"]["D.tail"]["gpu_seconds"] == 0


def test_a_declared_rollback_is_a_rewind(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 40, 0, 1.0)
    make.event(pid, "rewind", at, to_step=25)
    make.end(pid, make.steps(pid, 26, 60, at, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 60, "D.rewind": 15}
    assert (report["steps"]["executed"], report["steps"]["lost"]) == (75, 15)


def test_a_step_number_that_comes_again_is_recomputed(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 40, 0, 1.0)
    make.end(pid, make.steps(pid, 31, 60, at, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 60, "D.recomputed": 10}


def test_a_skipped_step_is_neither_kept_nor_lost(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 10, 0, 1.0, applied=True)
    make.step(pid, 11, at, 1.0, applied=False)
    make.step(pid, 12, at + 1, 1.0, applied=True, committed=False)
    make.end(pid, make.steps(pid, 13, 30, at + 2, 1.0, applied=True))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 28, "F.skipped": 1, "F.uncommitted": 1}
    assert (report["steps"]["executed"], report["steps"]["skipped"]) == (30, 2)


def test_warm_up_is_the_excess_of_the_first_steps_and_of_recompiles(make: Any) -> None:
    pid = make.process(0)
    make.step(pid, 1, 0, 31.0)
    make.step(pid, 2, 31, 3.0)
    at = make.steps(pid, 3, 40, 34, 1.0)
    make.step(pid, 41, at, 5.0, compile_ns=2)
    make.end(pid, make.steps(pid, 42, 50, at + 5, 1.0))
    assert seconds(books_of(make.write())) == {"C.warmup": 30 + 2 + 4, "H.productive": 50}


def test_a_slow_step_that_nothing_explains_is_unaccounted(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 1.0)
    make.step(pid, 31, at, 9.0)
    make.step(pid, 32, at + 9, 2.5)
    make.end(pid, make.steps(pid, 33, 40, at + 11.5, 1.0))
    assert seconds(books_of(make.write())) == {"U.unaccounted": 8, "H.productive": 41.5}


def test_fewer_than_20_steps_have_no_usual_one_and_no_warm_up(make: Any) -> None:
    pid = make.process(0)
    make.step(pid, 1, 0, 31.0)
    make.end(pid, make.steps(pid, 2, 10, 31, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 40}
    assert any("fewer than 20" in n["what"] for n in report["quality"])


def test_loop_time_is_host_and_waits_for_data_are_stalls(make: Any) -> None:
    pid = make.process(0)
    at = 0.0
    for step in range(1, 101):
        stall = 30.0 if step % 10 == 0 else 0.0
        at += stall + 0.5
        make.step(pid, step, at, 10.0, pre_data_ns=stall)
        at += 10.0
    make.end(pid, at)
    report = books_of(make.write())
    # the half second before the very first step is start-up
    assert seconds(report) == {
        "C.model": 0.5, "G.data": 300, "G.host": 49.5, "H.productive": 1000,
    }  # fmt: skip
    assert report["goodput"]["value"] == pytest.approx(1000 / 1350)
    assert report["goodput"]["measured"] == ["G.data", "G.host"]


def test_the_first_wait_for_data_is_data_set_up(make: Any) -> None:
    pid = make.process(0)
    make.step(pid, 1, 1200, 1.0, pre_data_ns=1100)
    make.end(pid, make.steps(pid, 2, 5, 1201, 1.0, pre_data_ns=0))
    assert seconds(books_of(make.write())) == {"C.model": 100, "C.data": 1100, "H.productive": 5}


def test_a_wait_for_data_before_an_evaluation_is_found_before_it(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 10, 0, 1.0, pre_data_ns=0)
    make.span(pid, "eval", at + 4, 7)  # 3 s data, 1 s nothing, 7 s evaluation, 0.25 s loop
    make.step(pid, 11, at + 11.25, 1.0, pre_data_ns=3)
    make.end(pid, make.steps(pid, 12, 20, at + 12.25, 1.0, pre_data_ns=0))
    assert seconds(books_of(make.write())) == {
        "H.productive": 20, "G.data": 3, "U.unaccounted": 1, "E.eval": 7, "G.host": 0.25,
    }  # fmt: skip


def test_an_evaluation_between_lost_steps_stays_an_evaluation(make: Any) -> None:
    pid = make.process(0, job_id="j")
    at = make.steps(pid, 1, 30, 0, 1.0)
    make.span(pid, "eval", at, 5)
    make.end(pid, make.steps(pid, 31, 40, at + 5, 1.0, save_ns=0.25), reason="killed")
    pid = make.process(60, job_id="j")
    make.end(pid, make.steps(pid, 21, 40, 60, 1.0))
    # the in-step saves of lost steps are part of what was lost
    assert seconds(books_of(make.write())) == {
        "H.productive": 40, "E.eval": 5, "D.recomputed": 20, "C.launch": 15,
    }  # fmt: skip


def test_spans_inside_spans_give_their_time_to_the_innermost(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 10, 0, 1.0)
    make.span(pid, "eval", at, 10)
    make.span(pid, "save", at + 2, 3)
    make.span(pid, "my_own", at + 6, 1)
    make.end(pid, make.steps(pid, 11, 20, at + 10, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 20, "E.eval": 6, "E.save": 3, "U.unaccounted": 1}
    assert any("'my_own'" in n["what"] for n in report["quality"])


def test_a_save_that_overlaps_a_logged_step_is_taken_off_it(make: Any) -> None:
    pid = make.process(0)
    for k in range(4):
        make.step(pid, 10 * (k + 1), 10.0 * k, 10.0, n=10)
    make.span(pid, "save", 12, 3)  # inside the second row
    make.span(pid, "save", 28, 4)  # from the third row into the fourth: E comes before H
    make.end(pid, 40)
    assert seconds(books_of(make.write())) == {"H.productive": 33, "E.save": 7}


def test_a_span_of_the_users_own_around_steps_changes_nothing(make: Any) -> None:
    pid = make.process(0)
    make.span(pid, "epoch", 0, 20)
    make.end(pid, make.steps(pid, 1, 20, 0, 1.0))
    assert seconds(books_of(make.write())) == {"H.productive": 20}


def test_padding_takes_its_floor_share_of_what_is_left(make: Any) -> None:
    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 20, 0, 1.0, tokens=3, padding=1, comm_ns=0.25))
    report = books_of(make.write())
    assert int(report["leaves"]["F.padding"]["gpu_ns"]) == 20 * 250_000_000
    assert seconds(report) == {"F.padding": 5, "G.comm": 5, "H.productive": 10}
    assert report["tokens"]["padding"] == 20


def test_a_step_that_records_more_than_it_lasted_is_overbooked(make: Any) -> None:
    pid = make.process(0)
    make.step(pid, 1, 0, 1.0, comm_ns=0.8, data_ns=0.4)
    make.end(pid, make.steps(pid, 2, 20, 1, 1.0, comm_ns=0.2, data_ns=0))
    report = books_of(make.write())
    assert seconds(report)["U.unaccounted"] == 1
    assert any(n["what"].startswith("overbooked: 1 ") for n in report["quality"])


def test_two_hours_of_silence_before_a_kill_are_a_hang(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.end(pid, at + 7200, reason="killed", signal=9)
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 300, "D.partial": 10, "B.hang": 7190}
    assert report["leaves"]["B.hang"]["hi"] == 7200
    assert "hang" in report["verdict"]["why"]


def test_a_watchdog_ends_the_hang_and_teardown_follows(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.event(pid, "hang", at + 600)
    make.end(pid, at + 650, reason="signal", signal=6)
    report = books_of(make.write())
    assert seconds(report) == {
        "H.productive": 300, "D.partial": 10, "B.hang": 590, "B.teardown": 50,
    }  # fmt: skip
    assert [i["kind"] for i in report["incidents"]] == ["hang", "signal"]
    assert sum(i["gpu_seconds"] for i in report["incidents"]) == pytest.approx(650)


def test_a_hang_that_was_trained_past_ends_nothing_and_is_told(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.event(pid, "hang", at + 600)
    make.event(pid, "hang_end", at + 900, duration_ns=900_000_000_000, phase="step")
    at = make.steps(pid, 31, 60, at + 900, 10.0)
    make.event(pid, "hang", at + 600)
    make.end(pid, at + 650, reason="signal", signal=6)
    report = books_of(make.write())
    assert seconds(report)["B.hang"] == 900 + 590
    survived, hang, ended = report["incidents"]
    assert (survived["kind"], survived["gpu_seconds"]) == ("hang", 900)
    assert (hang["kind"], hang["gpu_seconds"]) == ("hang", 590)
    assert ended["kind"] == "signal"
    (note,) = [n for n in report["quality"] if "moved on by itself" in n["what"]]
    assert note["what"].startswith(
        "a rank stood still and moved on by itself once, the longest 900"
    )


def test_a_kill_during_a_save_books_the_save(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 1.0)
    make.end(pid, at + 4, reason="killed", phase="save", phase_since_ns=at, step=30)
    assert seconds(books_of(make.write())) == {"H.productive": 30, "E.save": 4}


def test_a_step_that_not_every_rank_finished_is_partial(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        make.steps(pid, 1, 31 - rank, 0, 1.0, rank=rank)
        make.end(pid, 31.5, reason="killed", rank=rank)
    report = books_of(make.write())
    # rank 0: step 31 and half a second; rank 1: at most one usual step, then silence
    assert seconds(report) == {"H.productive": 60, "D.partial": 1 + 0.5 + 1, "B.hang": 0.5}
    assert report["steps"]["executed"] == 30


def test_a_rank_that_ended_early_waits_in_teardown(make: Any) -> None:
    for rank, gone in ((0, 30), (1, 37)):
        pid = make.process(0, rank=rank, world=2)
        make.steps(pid, 1, 30, 0, 1.0, rank=rank)
        make.end(pid, gone, rank=rank)
    assert seconds(books_of(make.write())) == {"H.productive": 60, "B.teardown": 14}


def test_ranks_that_left_no_rows_are_carried_by_the_lowest_that_did(make: Any) -> None:
    pid = make.process(0, rank=0, world=8)
    make.end(pid, make.steps(pid, 1, 20, 0, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 160}
    assert report["run"]["gpus"] == 8
    assert any("7 of 8 ranks left no rows" in n["what"] for n in report["quality"])


def test_a_smaller_world_leaves_capacity_unused(make: Any) -> None:
    for start, world, first in ((0, 2, 1), (30, 1, 21)):
        for rank in range(world):
            pid = make.process(start, rank=rank, world=world, job_id="j")
            end = make.steps(pid, first, first + 19, start, 1.0, rank=rank)
            make.end(pid, end, rank=rank, reason="killed" if first == 1 else "completed")
    assert seconds(books_of(make.write())) == {
        "H.productive": 60, "C.launch": 20, "A.capacity": 20,
    }  # fmt: skip


def test_a_logged_row_that_the_cut_divides_is_split_by_floor(make: Any) -> None:
    pid = make.process(0, job_id="j")
    for k in range(3):
        make.step(pid, 10 * (k + 1), 10.000000003 * k, 10.000000003, n=10)
    make.end(pid, 30.000000009, reason="killed")
    pid = make.process(40, job_id="j")
    make.step(pid, 30, 40, 7.0, n=7)  # steps 24 .. 30: resumed from 23
    make.end(pid, 47)
    report = books_of(make.write())
    assert (report["steps"]["kept"], report["steps"]["lost"]) == (30, 7)
    assert int(report["leaves"]["D.recomputed"]["gpu_ns"]) == 7_000_000_002
    assert (report["steps"]["lost_lo"], report["steps"]["lost_hi"]) == (7, 7)


def test_logged_steps_may_hide_up_to_an_interval_of_lost_ones(make: Any) -> None:
    pid = make.process(0, job_id="j")
    for k in range(3):
        make.step(pid, 10 * (k + 1), 10.0 * k, 10.0, n=10)
    make.end(pid, 34.5, reason="killed")
    pid = make.process(40, job_id="j")
    make.step(pid, 40, 40, 20.0, n=20)
    make.end(pid, 60)
    steps = books_of(make.write())["steps"]
    assert (steps["lost"], steps["lost_lo"], steps["lost_hi"]) == (10, 10, 14)


def test_given_allocations_decide_the_total_and_what_is_paid(make: Any) -> None:
    pid = make.process(100)
    make.end(pid, make.steps(pid, 1, 20, 100, 1.0), reason="killed")
    pid = make.process(200)
    make.end(pid, make.steps(pid, 21, 40, 200, 1.0))
    zero = make.tables["processes"][0]["start_ns"] - 100 * 10**9
    for start, end, held in ((0, 90, "no"), (90, 150, "yes"), (150, 200, "unknown")):
        make.add(
            "allocations",
            slot=0, start_ns=zero + start * 10**9, end_ns=zero + end * 10**9, held=held,
        )  # fmt: skip
    path = make.write()
    report = books_of(path, price=3600)
    assert seconds(report) == {
        "A.queue": 90, "C.launch": 10 + 30, "A.requeue": 50, "H.productive": 40,
    }  # fmt: skip
    assert report["cost"]["total"] == pytest.approx(130)
    assert report["leaves"]["A.queue"]["cost"] == 0
    assert books_of(path, price=3600, gaps="released")["cost"]["total"] == pytest.approx(80)


def test_a_failure_that_was_caught_does_not_end_the_session(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 10, 0, 1.0)
    make.event(pid, "failure", at, what="out of memory, tried again")
    make.span(pid, "failed_step", at, 2)
    at = make.steps(pid, 11, 30, at + 2, 1.0)
    make.end(pid, at + 0.5, reason="killed")
    assert seconds(books_of(make.write())) == {"H.productive": 30, "D.partial": 2.5}


def test_a_skipped_step_that_a_rollback_repeats_is_kept_the_second_time(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 9, 0, 1.0)
    make.step(pid, 10, at, 1.0, applied=False)
    make.event(pid, "rewind", at + 1, to_step=8)
    make.end(pid, make.steps(pid, 9, 30, at + 1, 1.0, applied=True))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 30, "D.rewind": 2}
    assert report["steps"]["by_fate"] == {"D.rewind": 2, "kept": 30}


def test_a_span_without_an_end_lasts_to_the_next_fact_and_no_further(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 20, 0, 1.0)
    make.span(pid, "save", at, None)
    make.end(pid, make.steps(pid, 21, 30, at + 6, 1.0))
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 30, "E.save": 6}
    assert (report["leaves"]["E.save"]["lo"], report["leaves"]["E.save"]["hi"]) == (0, 6)


def test_two_saves_of_which_one_stage_failed_are_not_durable(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        make.checkpoint(pid, "save", 20, 20, 0, rank=rank)
        make.checkpoint(pid, "save", 25, 25, 0, rank=rank, durable=rank == 0)
        make.end(pid, make.steps(pid, 1, 30, 0, 1.0, rank=rank), reason="killed", rank=rank)
    assert books_of(make.write())["leaves"]["D.tail"]["gpu_seconds"] == 20


def test_a_launcher_that_never_got_a_rank_started_has_empty_books(make: Any) -> None:
    boss = make.process(0, rank=None, role="launcher")
    make.end(boss, 5, rank=None, reason="exit", exit_code=1)
    report = books_of(make.write())
    assert report["total_gpu_ns"] == "0"
    assert report["kept_time"]["value"] is None
    assert report["verdict"]["headline"].startswith("Only a launcher was seen")


def test_a_process_that_never_stepped_is_all_start_up(make: Any) -> None:
    pid = make.process(0, init=4)
    make.span(pid, "rendezvous", 4, 3)
    make.end(pid, 10, reason="exception")
    report = books_of(make.write())
    assert seconds(report) == {"C.launch": 4, "C.rendezvous": 3, "C.model": 3}
    assert report["steps"]["executed"] == 0
    assert report["incidents"][0]["kind"] == "exception"


def test_two_worlds_at_once_are_cut_apart_and_named(make: Any) -> None:
    for start in (0, 15):
        pid = make.process(start)
        make.end(pid, make.steps(pid, 1, 30, start, 1.0))
    report = books_of(make.write())
    assert report["total_gpu_seconds"] == 45
    assert any("still had processes" in n["what"] for n in report["quality"])


def test_one_restart_seen_by_two_nodes_with_different_counts_is_one_session(make: Any) -> None:
    for rank, attempt in ((0, 1), (1, 0)):
        pid = make.process(rank, rank=rank, world=2, attempt=attempt, host=f"node{rank}")
        make.end(pid, make.steps(pid, 1, 30, 2, 1.0, rank=rank), rank=rank)
    assert len(books_of(make.write())["sessions"]) == 1


def test_a_rollback_with_no_step_after_it_takes_the_last_steps_back(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 1.0)
    make.event(pid, "rewind", at, to_step=25)
    make.end(pid, at)
    report = books_of(make.write())
    assert seconds(report) == {"H.productive": 25, "D.rewind": 5}
    assert report["steps"]["last"] == 25


def test_overbooked_steps_before_a_crash_do_not_turn_the_ending_around(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 5, 0, 1.0, comm_ns=3)
    make.span(pid, "save", at, 4)
    make.end(pid, at + 6, reason="killed")
    assert seconds(books_of(make.write())) == {"U.unaccounted": 5, "E.save": 4, "B.hang": 2}


def test_a_span_after_a_first_step_of_no_length_is_in_the_loop(make: Any) -> None:
    pid = make.process(0)
    make.step(pid, 1, 0, 0.0)
    make.span(pid, "save", 1, 1)
    make.end(pid, 2)
    assert seconds(books_of(make.write())) == {"U.unaccounted": 1, "E.save": 1}
