"""The verdict and the incidents: the sentences somebody on call reads first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from badput_ledger.books import open_books


def report_of(path: Any, **given: Any) -> dict[str, Any]:
    with open_books(path, **given) as books:
        return books.report()


def twice(make: Any, *, save: float = 1.0, named_rank: int | None = None) -> dict[str, Any]:
    """One rank writes for four: 40 steps, a failure, again from 21 after a minute."""
    pid = make.process(0, world=4, job_id="j")
    end = make.steps(pid, 1, 20, 10, 1.0)
    make.span(pid, "save", end, save)
    make.checkpoint(pid, "save", 20, end, save, path="/c/20")
    end = make.steps(pid, 21, 40, end + save, 1.0)
    attrs: dict[str, Any] = {"what": "RuntimeError: lost device"}
    if named_rank is not None:
        attrs["rank"] = named_rank
    make.event(pid, "failure", end + 0.5)
    make.tables["events"][-1]["attrs"] = json.dumps(attrs)
    make.end(pid, end + 1, reason="signal", signal=6)
    make.add(
        "evidence", claim="cause", process_id=pid, file="a.log", line=7, text="RuntimeError: lost"
    )
    pid = make.process(end + 61, world=4, job_id="j")
    make.checkpoint(pid, "load", 20, end + 62, path="/c/20")
    make.end(pid, make.steps(pid, 21, 60, end + 70, 1.0))
    return report_of(make.write(), price=3.6)


def test_failures_outweigh_each_single_leaf_and_are_named(make: Any) -> None:
    report = twice(make)
    verdict = report["verdict"]
    (incident,) = report["incidents"]
    share = incident["gpu_seconds"] / report["total_gpu_seconds"]
    assert f"One failure cost {share:.1%} of the time" in verdict["why"]
    assert "20 lost steps" in verdict["why"]
    assert "a.log:7" in verdict["why"]
    assert verdict["next"]


def test_a_leaf_that_outweighs_the_failures_is_named_instead(make: Any) -> None:
    verdict = twice(make, save=500.0)["verdict"]
    assert "E.save" in verdict["why"]
    assert "One failure cost" in verdict["why"]
    assert "asynchronously" in verdict["next"]


def test_the_rank_that_a_log_names_is_the_one_that_failed(make: Any) -> None:
    (incident,) = twice(make, named_rank=3)["incidents"]
    assert incident["rank"] == 3
    assert incident["cause"] == "rank 3 was ended by signal 6: RuntimeError: lost device"
    assert {"file": "a.log", "line": 7, "text": "RuntimeError: lost"} in incident["evidence"]


def test_the_headline_tells_kept_steps_from_their_compute(make: Any) -> None:
    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 100, 0, 1.0, data_ns=0.25))
    report = report_of(make.write(), price=36.0)
    assert report["verdict"]["headline"] == (
        "100.0% of 100 GPU-seconds went into steps that the final model keeps, 75.0% into "
        "their compute alone; $0.250 of $1.00 bought no progress."
    )
    assert report["cost"]["wasted"] == pytest.approx(0.25)


def test_what_an_importer_noted_is_told(make: Any) -> None:
    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 5, 0, 1.0))
    make.add(
        "runs",
        process_id=pid,
        time_ns=1,
        source="made up",
        config=json.dumps({"notes": ["the log does not say how many GPUs there were"]}),
    )
    report = report_of(make.write())
    assert any("how many GPUs" in note["what"] for note in report["quality"])


def test_the_time_of_one_restart_is_not_spread_over_all_starts(make: Any) -> None:
    """The first start took no time to load; the one after the failure took 100 s on each rank."""
    ends = []
    for rank in range(2):
        pid = make.process(0, rank=rank, world=2)
        ends.append((pid, make.steps(pid, 1, 20, 1, 1.0, rank=rank)))
    for rank, (pid, end) in enumerate(ends):
        make.end(pid, end, rank=rank, reason="signal", signal=6)
    for rank in range(2):
        pid = make.process(22, rank=rank, world=2)
        make.checkpoint(pid, "load", 20, 22, 100.0, rank=rank, path="/c/20")
        make.span(pid, "load", 22, 100.0, rank=rank)
        make.end(pid, make.steps(pid, 21, 40, 122, 1.0, rank=rank), rank=rank)
    verdict = report_of(make.write())["verdict"]
    assert verdict["short"].startswith("1 failure"), verdict
    assert verdict["next"].endswith("it took 100.0 s a start."), verdict


def test_steps_that_were_given_up_on_purpose_are_no_reason_to_save_more(make: Any) -> None:
    """30 steps of 10 s, then back to step 10 by declaration: saves would have kept nothing."""
    pid = make.process(0, init=0)
    make.steps(pid, 1, 30, 0, 10)
    make.event(pid, "rewind", 300, to_step=10)
    make.end(pid, make.steps(pid, 11, 20, 300, 10))
    report = report_of(make.write())
    assert report["steps"]["by_fate"] == {"D.rewind": 20, "kept": 20}
    assert "D.rewind" in report["verdict"]["why"]
    assert "oftener" not in report["verdict"]["next"]
    assert "more saves would not have kept these steps" in report["verdict"]["next"]
