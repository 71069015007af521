"""Who ended a session first, and what is said where nothing tells."""

from __future__ import annotations

import json
from typing import Any

from badput_ledger.books import open_books


def report_of(path: Any, **given: Any) -> dict[str, Any]:
    with open_books(path, **given) as books:
        return books.report()


def logged(make: Any, *, rank: int = 0, code: int = 1, end: str = "exception") -> dict[str, Any]:
    """An imported log: one rank writes, rank 1 fails, the launcher ends the other three."""
    pid = make.process(0, world=4, rank=rank)
    at = make.steps(pid, 1, 20, 1, 1.0, rank=rank)
    what = {"what": "RuntimeError: lost", "signature": "RuntimeError", "rank": 1}
    tell(make, pid, "failure", at + 1, exit_code=code, **what)
    make.event(pid, "signal", at + 2, rank=rank, signal="SIGTERM", pids=[70, 72, 73])
    for other in (0, 2, 3):
        tell(make, pid, "exit", at + 3, rank=other, pid=70 + other, exit_code=-15, signal=15)
    signal = -code if code < 0 else None
    tell(make, pid, "exit", at + 3.5, rank=1, pid=71, exit_code=code, signal=signal)
    make.end(pid, at + 4, reason=end, rank=rank, phase="step")
    return report_of(make.write())


def tell(make: Any, writer: int, kind: str, time: float, **said: Any) -> None:
    """An event in which one process tells of another rank."""
    make.event(writer, kind, time)
    make.tables["events"][-1]["attrs"] = json.dumps(said)


def test_the_rank_that_failed_is_blamed_and_not_one_that_the_launcher_ended(make: Any) -> None:
    report = logged(make)
    (incident,) = report["incidents"]
    assert incident["cause"] == "rank 1 ended with an exception (exit code 1): RuntimeError: lost"
    assert (incident["rank"], incident["kind"]) == (1, "exception")
    assert report["sessions"][0]["end_reason"] == "exception"
    assert "ended with an exception (exit code 1)" in report["verdict"]["why"]


def test_an_exit_code_below_zero_is_the_signal_of_the_rank_that_failed(make: Any) -> None:
    report = logged(make, rank=2, code=-6, end="signal")
    (incident,) = report["incidents"]
    assert incident["cause"] == "rank 1 was ended by signal 6: RuntimeError: lost"
    assert report["sessions"][0]["end_reason"] == "signal"


def test_a_later_attempt_says_nothing_about_the_end_of_an_earlier_one(make: Any) -> None:
    first = make.process(0, world=4, rank=3)
    make.end(first, 10, reason="killed", rank=3, signal=9, who="launcher")
    second = make.process(20, world=4, rank=0)
    make.steps(second, 1, 5, 21, 1.0)
    tell(make, second, "exit", 27, rank=3, pid=73, exit_code=-15, signal=15)
    tell(make, second, "exit", 26, rank=1, pid=71, exit_code=1, signal=None)
    make.end(second, 28, reason="exception", phase="step")
    report = report_of(make.write())
    one, two = report["incidents"]
    assert (one["cause"], one["rank"]) == ("the launcher was killed (signal 9)", None)
    assert two["cause"] == "rank 1 exited with code 1"
    assert [s["end_reason"] for s in report["sessions"]] == ["killed", "exit"]


def test_a_rank_that_left_no_rows_is_blamed_by_the_launchers_word(make: Any) -> None:
    boss = make.process(0, rank=None, role="launcher")
    pid = make.process(1, world=2, pid=70)
    at = make.steps(pid, 1, 5, 2, 1.0)
    make.end(pid, at + 2, reason="exception")
    make.exit(boss, at + 1, rank=1, pid=71, exit_code=3)
    make.exit(boss, at + 3, rank=0, pid=70, exit_code=1)
    make.end(boss, at + 4)
    (incident,) = report_of(make.write())["incidents"]
    assert incident["cause"] == "rank 1 exited with code 3"


def test_a_last_session_that_only_vanished_between_steps_is_no_failure(make: Any) -> None:
    pid = make.process(0)
    make.checkpoint(pid, "save", 30, 30, 0)
    at = make.steps(pid, 1, 40, 0, 1.0)
    make.end(pid, at + 5, reason="unknown", phase="loop", step=40, closed=False)
    report = report_of(make.write())
    assert report["incidents"] == []
    leaves = {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}
    assert leaves == {"H.productive": 40, "U.unaccounted": 5}
    assert (report["steps"]["lost"], report["steps"]["lost_hi"]) == (0, 10)
    assert any("how it ended is not known" in n["what"] for n in report["quality"])
    assert "failure" not in report["verdict"]["why"]


def test_a_process_that_vanished_inside_a_step_broke_off(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 40, 0, 1.0)
    make.end(pid, at + 5, reason="unknown", phase="step", step=41, closed=False)
    report = report_of(make.write())
    assert [i["cause"] for i in report["incidents"]] == ["rank 0 ended without saying why"]


def test_a_log_that_just_stops_tells_no_end(make: Any) -> None:
    pid = make.process(0)
    at = make.steps(pid, 1, 40, 0, 1.0)
    make.end(pid, at + 5, reason="unknown", phase="step", step=41, seen=False)
    report = report_of(make.write())
    assert report["incidents"] == []
    assert report["leaves"]["U.unaccounted"]["gpu_seconds"] == 5
    assert report["leaves"]["B.hang"]["gpu_seconds"] == 0
    assert report["run"]["over"] is False
