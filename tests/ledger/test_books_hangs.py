"""Hangs: trained past, ended in a kill, noticed or not; and faults of GPUs before an end."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.ledger.conftest import T0, S

from badput_ledger.books import open_books
from badput_ledger.endings import culprit_of
from badput_ledger.fsck import check
from badput_ledger.processes import Process
from badput_ledger.text import render


def report_of(path: Any) -> dict[str, Any]:
    with open_books(path) as books:
        assert [c for c in check(books) if not c["ok"]] == []
        report = books.report()
        assert render(report)
        return report


def seconds(report: dict[str, Any]) -> dict[str, float]:
    return {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}


def at_second(incident: dict[str, Any]) -> float:
    when = datetime.fromisoformat(incident["time"])
    return (when - datetime.fromtimestamp(T0 // S, tz=UTC)).total_seconds()


def hang(make: Any, pid: int, since: float, told: float, moved: float | None, **said: Any) -> None:
    """A hang as the collector tells it; with ``moved``, its end too."""
    rank = said.setdefault("rank", 0)
    more = {"since_ns": T0 + round(since * S), "step": said.pop("step", 31)}
    more |= {"phase": said.pop("phase", "step"), **said}
    more.setdefault("in_step", more["phase"] == "step")
    more.pop("rank")
    what = f"rank {rank} made no progress for {told - since:.0f} s"
    age = round((told - since) * S)
    usual = {"usual_step_ns": 10 * S}
    make.event(pid, "hang", told, rank=rank, what=what, age_ns=age, **usual, **more)
    if moved is not None:
        lasted = round((moved - since) * S)
        make.event(pid, "hang_end", moved, rank=rank, duration_ns=lasted, **more)


def test_a_hang_inside_a_step_that_went_on_is_a_hang_and_not_unexplained(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.step(pid, 31, at, 900)
    hang(make, pid, at, at + 600, at + 900)
    make.end(pid, make.steps(pid, 32, 60, at + 900, 10.0))
    report = report_of(make.write())
    assert seconds(report) == {"H.productive": 590 + 10, "B.hang": 890}
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["gpu_seconds"], incident["duration_s"]) == ("hang", 890, 900)
    assert at_second(incident) == 300
    assert incident["cause"].endswith("600 s; it moved on by itself after 15.0 min")
    assert report["sessions"][0]["end_reason"] == "completed"
    verdict = report["verdict"]
    assert "B.hang" in verdict["why"]
    assert "moved on by itself" in verdict["next"]
    assert "watchdog" not in verdict["next"]


@pytest.mark.parametrize(
    ("category", "phase"),
    [("data_ns", "data"), ("comm_ns", "comm"), ("wait_gradient_ns", "wait_gradient"),
     ("save_ns", "save"), ("host_ns", "host"), ("compile_ns", "compile")],
)  # fmt: skip
def test_a_hang_in_a_category_of_a_step_is_booked_once(
    make: Any, category: str, phase: str
) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.step(pid, 31, at, 900, **{category: 895})
    hang(make, pid, at + 2, at + 600, at + 897, phase=phase, in_step=True)
    make.end(pid, make.steps(pid, 32, 60, at + 900, 10.0))
    report = report_of(make.write())
    booked = seconds(report)
    assert booked["B.hang"] == 885
    assert "U.unaccounted" not in booked


def test_a_hang_in_a_span_or_a_wait_between_steps_is_a_hang_there(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.span(pid, "eval", at, 700)
    hang(make, pid, at + 100, at + 600, at + 700, phase="eval", step=30)
    at = make.steps(pid, 31, 40, at + 700, 10.0)
    make.step(pid, 41, at + 500, 10.0, pre_data_ns=500)
    hang(make, pid, at, at + 400, at + 500, phase="data", step=40)
    make.end(pid, make.steps(pid, 42, 50, at + 510, 10.0))
    report = report_of(make.write())
    assert seconds(report) == {"H.productive": 500, "E.eval": 100, "B.hang": 600 + 500}
    assert [i["gpu_seconds"] for i in report["incidents"]] == [600, 500]


def test_ranks_that_stand_still_together_are_one_incident(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        at = make.steps(pid, 1, 30, 0, 10.0, rank=rank)
        make.step(pid, 31, at, 900, rank=rank)
        hang(make, pid, at + rank, at + 600, at + 900, rank=rank)
        make.end(pid, make.steps(pid, 32, 60, at + 900, 10.0, rank=rank), rank=rank)
    report = report_of(make.write())
    (incident,) = report["incidents"]
    assert incident["gpu_seconds"] == seconds(report)["B.hang"] == 890 + 889
    assert "and 1 more with it" in incident["cause"]


def test_a_step_that_only_crawled_keeps_what_its_phases_recorded(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.step(pid, 31, at, 900, data_ns=890)
    hang(make, pid, at, at + 600, at + 900, whole_step=True)
    make.end(pid, make.steps(pid, 32, 60, at + 900, 10.0))
    report = report_of(make.write())
    assert seconds(report) == {"H.productive": 600, "G.data": 890}
    assert report["incidents"] == []
    assert any("moved on by itself" in n["what"] for n in report["quality"])


def test_a_kill_half_an_hour_after_the_hang_began_with_no_word_is_half_an_hour_of_hang(
    make: Any,
) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    sign = {"phase": "step", "step": 31, "last_sign_ns": at, "phase_since_ns": at}
    make.end(pid, at + 1800, reason="killed", signal=9, **sign)
    report = report_of(make.write())
    assert seconds(report) == {"H.productive": 300, "D.partial": 10, "B.hang": 1790}
    hung, killed = report["incidents"]
    assert (hung["kind"], hung["gpu_seconds"], hung["duration_s"]) == ("hang", 1790, 1800)
    assert at_second(hung) == 300
    assert "no rank made progress for 30.0 min (rank 0: phase step of step 31)" in hung["cause"]
    assert (killed["kind"], killed["gpu_seconds"]) == ("killed", 10)
    assert "Have hangs noticed" in report["verdict"]["next"]


def test_a_hang_that_was_noticed_and_not_killed_says_so(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    hang(make, pid, at, at + 600, None)
    make.end(pid, at + 1800, reason="killed", signal=9, phase="step", step=31, last_sign_ns=at)
    report = report_of(make.write())
    assert seconds(report) == {
        "H.productive": 300, "D.partial": 10, "B.hang": 590, "B.teardown": 1200,
    }  # fmt: skip
    hung, killed = report["incidents"]
    assert (at_second(hung), hung["duration_s"]) == (300, 600)
    assert hung["cause"].endswith("it was noticed after 10.0 min and was over 20.0 min later")
    assert hung["hang"]["until_dead_s"] == 1200
    assert (at_second(killed), killed["duration_s"]) == (900, 1200)
    assert "killed only 20.0 min later" in report["verdict"]["next"]


def test_a_hang_in_a_save_that_ends_in_a_kill_is_no_save(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.span(pid, "save", at, None)
    hang(make, pid, at + 5, at + 605, None, phase="save", step=30)
    make.end(pid, at + 700, reason="killed", signal=9, phase="save", phase_since_ns=at, step=30)
    booked = seconds(report_of(make.write()))
    assert booked == {"H.productive": 300, "E.save": 5, "B.hang": 600, "B.teardown": 95}


def test_a_rank_that_moved_only_because_it_was_told_to_end_did_not_survive(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    hang(make, pid, at, at + 600, at + 1200)
    make.end(pid, at + 1201, reason="exception", exit_code=1, phase="loop", last_sign_ns=at + 1200)
    report = report_of(make.write())
    assert [i["kind"] for i in report["incidents"]] == ["hang", "exception"]
    assert not report["incidents"][0]["hang"]["survived"]


def test_a_hang_that_moved_on_before_a_later_kill_ends_at_its_own_end(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.span(pid, "eval", at, 900)
    hang(make, pid, at, at + 600, at + 900, phase="eval", step=30)
    make.end(pid, at + 1200, reason="killed", signal=9, phase="step", last_sign_ns=at + 900)
    booked = seconds(report_of(make.write()))
    assert booked == {"H.productive": 300, "B.hang": 900 + 290, "D.partial": 10}


# -- who went first --------------------------------------------------------------------------
OWN: list[dict[str, Any]] = [
    {"reason": "signal", "signal": 11}, {"reason": "signal", "signal": 6},
    {"reason": "killed", "signal": 9}, {"reason": "exit", "exit_code": 3},
    {"reason": "exception", "exit_code": 1}, {"reason": "unknown"},
]  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations([0.0, 0.2, 0.4])))
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_of_ends_that_were_seen_together_the_one_that_nobody_asked_for_is_blamed(
    order: tuple[float, ...], own: dict[str, Any], rank: int
) -> None:
    dead = [
        dying(r, order[r], **(own if r == rank else {"reason": "signal", "signal": 15}))
        for r in range(3)
    ]
    dead.sort(key=lambda p: p.end_ns)
    culprit = culprit_of(dead, [], None, set())
    assert culprit is not None
    assert (culprit.rank, culprit.reason) == (rank, own["reason"])


def dying(rank: int, at: float, **how: Any) -> Process:
    names = ("replica", "stage", "stages", "microbatches", "schedule", "host", "pid", "job_id",
             "attempt", "endpoint", "gpu_uuid", "gpu_type")  # fmt: skip
    known: dict[str, Any] = dict.fromkeys(names)
    process = Process(process_id=rank, rank=rank, role="rank", world_size=3, start_ns=0, init_ns=0,
                      last_record_ns=0, **known)  # fmt: skip
    process.death_ns = T0 + round(at * S)
    for name, value in how.items():
        setattr(process, name, value)
    return process


def test_a_rank_that_was_only_told_to_end_is_not_blamed(make: Any) -> None:
    for rank, how in enumerate([{"signal": 15}, {"signal": 11}]):
        pid = make.process(0, rank=rank, world=2)
        at = make.steps(pid, 1, 5, 0, 1.0, rank=rank)
        make.end(pid, at + 1 + rank / 5, rank=rank, reason="signal", **how)
    report = report_of(make.write())
    assert report["incidents"][0]["cause"] == "rank 1 was ended by signal 11"


def test_an_end_that_came_clearly_later_is_not_blamed(make: Any) -> None:
    for rank, (late, how) in enumerate([(0, {"signal": 15}), (30, {"signal": 9})]):
        pid = make.process(0, rank=rank, world=2)
        at = make.steps(pid, 1, 5, 0, 1.0, rank=rank)
        make.end(pid, at + 1 + late, rank=rank, reason="signal", **how)
    assert report_of(make.write())["incidents"][0]["rank"] == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_several_ends_of_a_process_the_best_evidence_counts_once(
    make: Any, order: tuple[int, ...]
) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 1.0)
    said = [
        {"reason": "unknown", "phase": "loop", "found_ns": at},
        {"reason": "exit", "exit_code": 7, "phase": "loop"},
        {"reason": "signal", "signal": 15, "phase": "loop"},
    ]
    for place, which in enumerate(order):
        make.end(pid, at + place, **said[which])
    (incident,) = report_of(make.write())["incidents"]
    assert incident["cause"] == "rank 0 exited with code 7"
    assert len([e for e in incident["evidence"] if e.get("table") == "events"]) == 1


# -- faults of GPUs --------------------------------------------------------------------------
def test_an_xid_before_the_end_is_its_first_sign(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        at = make.steps(pid, 1, 30, 0, 10.0, rank=rank)
        if rank:
            make.event(pid, "xid", at + 3, rank=1, xid=79, gpu_uuid="GPU-abc", source="nvml")
            make.event(pid, "gpu_lost", at + 4, rank=1, gpu_uuid="GPU-abc", reason="lost")
        make.end(pid, at + 20 + 10 * rank, rank=rank, reason="signal", signal=6)
    report = report_of(make.write())
    (incident,) = report["incidents"]
    assert incident["signature"] == "Xid 79 on GPU GPU-abc"
    assert incident["cause"] == (
        "Xid 79 on GPU GPU-abc of rank 1, then 17.0 s later rank 0 was ended by signal 6"
    )
    assert (incident["rank"], at_second(incident)) == (1, 303)
    booked = seconds(report)
    # the step under way ends with the first sign, and nobody noticed before the first abort
    assert (booked["D.partial"], booked["B.hang"], booked["B.teardown"]) == (6, 34, 20)


def test_an_xid_that_was_trained_past_ends_nothing(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.event(pid, "xid", at - 15, xid=31, gpu_uuid="GPU-abc")
    make.end(pid, at + 20, reason="signal", signal=6)
    (incident,) = report_of(make.write())["incidents"]
    assert (incident["cause"], incident["signature"]) == ("rank 0 was ended by signal 6", None)


def test_an_xid_that_only_follows_the_end_of_a_process_is_no_cause(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 30, 0, 10.0)
    make.event(pid, "xid", at + 19, xid=45, gpu_uuid="GPU-abc")
    make.event(pid, "xid", at + 21, xid=13, gpu_uuid="GPU-abc")
    make.end(pid, at + 20, reason="killed", signal=9)
    assert report_of(make.write())["incidents"][0]["signature"] is None


def test_a_gpu_that_was_lost_for_a_whole_node_blames_no_rank_of_it(make: Any) -> None:
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2)
        at = make.steps(pid, 1, 30, 0, 10.0, rank=rank)
        make.event(pid, "gpu_lost", at + 3, rank=rank, gpu_uuid=None, number=5, reason="lost")
        make.end(pid, at + 20, rank=rank, reason="exit", exit_code=1)
    (incident,) = report_of(make.write())["incidents"]
    assert incident["signature"] == "GPU 5 was lost (lost)"
    assert incident["cause"].startswith("GPU 5 was lost (lost), then 17.0 s later rank 0 exited")
