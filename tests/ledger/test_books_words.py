"""The report in words: units, money, advice that can be followed, repeats said once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from badput_ledger.books import BooksError, open_books
from badput_ledger.text import render


def report_of(path: Any, **given: Any) -> dict[str, Any]:
    with open_books(path, **given) as books:
        return books.report()


def with_a_gap(make: Any, gap: float = 1000.0) -> Any:
    """40 steps, a crash, a long gap in which nobody knows who held the GPU, 40 more."""
    pid = make.process(0)
    make.checkpoint(pid, "save", 20, 30, path="/c/20")
    make.end(pid, make.steps(pid, 1, 40, 10, 1.0) + 1, reason="killed", signal=9)
    pid = make.process(51 + gap)
    make.checkpoint(pid, "load", 20, 52 + gap, path="/c/20")
    make.end(pid, make.steps(pid, 21, 60, 55 + gap, 1.0))
    return make.write()


def test_released_time_is_left_out_of_the_verdict_and_its_advice(make: Any) -> None:
    run = with_a_gap(make)
    unknown, held, released = (
        report_of(run, price=3600.0, gaps=gaps) for gaps in ("unknown", "held", "released")
    )
    assert "say so (--gaps released)" in unknown["verdict"]["next"]
    assert "--gaps" not in held["verdict"]["next"]
    assert "--gaps" in " ".join(n["what"] for n in unknown["quality"])
    assert "--gaps" not in " ".join(n["what"] for n in held["quality"])
    words = released["verdict"]
    # 95 of 1095 s were paid, 60 of them are kept steps
    assert released["held_gpu_seconds"] == pytest.approx(95)
    assert words["headline"].startswith("63.2% of 1.58 held GPU-minutes went into steps")
    assert "Another 16.7 GPU-minutes between its sessions were not held." in words["headline"]
    assert "of the held time" in words["why"]
    assert "A.requeue" not in words["why"]
    assert "--gaps" not in words["next"]
    (incident,) = released["incidents"]
    assert incident["held_gpu_seconds"] == pytest.approx(incident["gpu_seconds"] - 1000)
    assert "63.16% of the held time" in render(released)


def test_a_run_that_never_trained_says_so_and_names_the_cause(make: Any) -> None:
    pid = make.process(0, world=8)
    make.event(pid, "failure", 9)
    attrs = {"what": "RuntimeError: meshes", "signature": "RuntimeError", "rank": 2, "exit_code": 1}
    make.tables["events"][-1]["attrs"] = json.dumps(attrs)
    make.end(pid, 10, reason="exception", phase="init")
    verdict = report_of(make.write(), price=36.0)["verdict"]
    assert verdict == {
        "headline": "It ended before the first step: nothing was trained, and 80.0 GPU-seconds, "
        "$0.800, were spent.",
        "why": "Rank 2 ended with an exception (exit code 1): RuntimeError: meshes in session s1.",
        "next": "Fix this cause: rank 2 ended with an exception (exit code 1): "
        "RuntimeError: meshes",
        "short": "ended before the first step: rank 2 ended with an exception (exit code 1): "
        "RuntimeError: meshes",
    }


def test_a_run_that_has_not_stepped_yet_is_no_failure(make: Any) -> None:
    pid = make.process(0)
    make.span(pid, "model", 1, 60)
    verdict = report_of(make.write())["verdict"]
    assert verdict["headline"].startswith("No step has finished: 61.0 GPU-seconds")


def test_a_short_run_is_shown_in_seconds_with_money_that_is_not_zero(make: Any) -> None:
    pid = make.process(0)
    make.span(pid, "model", 0, 2)
    make.end(pid, make.steps(pid, 1, 40, 2, 0.2, data_ns=0.05))
    report = report_of(make.write(), price=2.5)
    text = render(report)
    assert "GPU-seconds" in text
    assert "GPU-hours" not in text
    assert "$0.0028 of $0.0069 bought no progress" in report["verdict"]["headline"]
    assert "0.00000" not in text
    row = next(line for line in text.splitlines() if line.startswith("  model"))
    assert row.split()[1] == "2.000"


def test_the_same_said_of_many_sessions_is_said_once(make: Any) -> None:
    at = 0.0
    for attempt in range(5):
        pid = make.process(at, world=8, job_id="j")
        end = make.steps(pid, attempt * 3 + 1, attempt * 3 + 3, at + 1, 1.0)
        make.end(pid, end, reason="killed", signal=9)
        at = end + 5
    notes = [n["what"] for n in report_of(make.write())["quality"]]
    assert [n for n in notes if "left no rows" in n] == [
        "sessions s1 to s5 (5 sessions): 7 of 8 ranks left no rows; rank 0 stands for them"
    ]


def test_a_table_that_is_not_there_is_told_with_those_that_are_near(make: Any) -> None:
    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 5, 0, 1.0))
    with open_books(make.write()) as books:
        with pytest.raises(BooksError, match="Did you mean step_rows"):
            books.query("SELECT * FROM step_row")
        with pytest.raises(BooksError, match=r"`badput sql RUN` without a query lists them"):
            books.query("SELECT * FROM nope")


def test_options_may_stand_anywhere(make: Any, capsys: Any) -> None:
    from badput_ledger.cli import report_main, sql_main

    pid = make.process(0)
    make.end(pid, make.steps(pid, 1, 5, 0, 1.0))
    run = str(make.write())
    query = "SELECT count(*) AS n FROM step_rows"
    for argv in ([run, "--format", "csv", query], ["--format", "csv", run, query]):
        assert sql_main(argv) == 0
        assert capsys.readouterr().out == "n\n5\n"
    assert report_main(["--price", "2", run, "--json"]) == 0
