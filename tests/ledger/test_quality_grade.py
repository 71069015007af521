"""Doubts about the evidence, the query that shows each, and the grade."""

from __future__ import annotations

import json

import pytest

from badput.parts import write_rows
from badput_ledger.books import open_books
from badput_ledger.grade import build_grade


def report_of(make):
    with open_books(make.write()) as books:
        report = books.report()
        for note in report["quality"]:
            if "sql" in note:
                _, rows = books.query(note["sql"])
                assert rows, f"the query of {note['what']!r} shows nothing"
        return report


def said(report, words):
    return [n for n in report["quality"] if words in n["what"]]


def two_nodes(make, late):
    for rank, host in enumerate(("a", "b")):
        pid = make.process(late * rank, rank=rank, world=2, host=host)
        make.steps(pid, 1, 30, late * rank, 1.0, rank=rank)
        make.end(pid, 30 + late * rank, rank=rank)


def test_a_clock_that_is_off_is_told_by_the_ends_of_equal_steps(make):
    two_nodes(make, 7.0)
    (note,) = said(report_of(make), "the clocks of a and b are about 7.0 s apart")
    assert note["severity"] == "warning"
    assert "sql" in note


def test_nodes_that_end_their_steps_together_have_one_clock(make):
    two_nodes(make, 0.4)
    assert not said(report_of(make), "the clocks of")


def test_steps_without_a_row_are_counted(make):
    pid = make.process(0)
    make.steps(pid, 1, 10, 0, 1)
    make.steps(pid, 14, 30, 13, 1)
    make.end(pid, 30)
    (note,) = said(report_of(make), "3 steps between its first and last have no row")
    assert note["severity"] == "warning"


def test_rows_in_two_parts_count_once_and_are_told(make):
    pid = make.process(0)
    make.steps(pid, 1, 30, 0, 1)
    make.end(pid, 30)
    path = make.write()
    write_rows(path, "steps", "again", make.tables["steps"][:4])
    with open_books(path) as books:
        report = books.report()
    (note,) = said(report, "4 rows of steps are in the parts more than once")
    assert note["severity"] == "info"
    assert report["steps"]["executed"] == 30


def test_ranks_that_tell_different_tokens_are_a_warning(make):
    for rank in range(2):
        pid = make.process(0, rank=rank, world=2, replica=0)
        make.steps(pid, 1, 30, 0, 1, rank=rank, tokens=10 + rank)
        make.end(pid, 30, rank=rank)
    report = report_of(make)
    assert said(report, "ranks of one replica tell different tokens: 300 to 330")
    assert report["grade"]["grade"] == "B"


def test_more_than_the_peak_is_an_error_and_not_clipped(make):
    """1e12 FLOPs a token x 1,800 tokens in 30 s are 60 TFLOP/s on 10."""
    pid = make.process(0)
    make.steps(pid, 1, 30, 0, 1, tokens=60)
    make.end(pid, 30)
    make.add(
        "runs", process_id=pid, time_ns=1, source="t", flops_formula="per_token",
        flops_inputs=json.dumps({"flops_per_token": 1e12}), config=json.dumps({"peak_tflops": 10}),
    )  # fmt: skip
    report = report_of(make)
    assert report["at_peak"]["value"] == pytest.approx(6)
    (note,) = said(report, "compute at 600.0% of the peak cannot be")
    assert note["severity"] == "error"
    assert report["grade"]["grade"] == "C"


def graded(*, notes=(), unknown=0.0, width=0.0, steps=1):
    return build_grade(
        {
            "total_gpu_seconds": 100.0,
            "kept_time": {"value": 0.5, "lo": 0.5 - width, "hi": 0.5},
            "steps": {"executed": steps},
            "leaves": {"U.unaccounted": {"gpu_seconds": unknown}},
            "quality": [{"severity": s, "what": f"a {s}"} for s in notes],
        }
    )


@pytest.mark.parametrize(
    ("grade", "given"),
    [
        ("A", {"notes": ["info"], "unknown": 1.0, "width": 0.005}),
        ("B", {"notes": ["warning"]}),
        ("B", {"unknown": 1.1}),
        ("B", {"width": 0.02}),
        ("C", {"notes": ["warning", "error"]}),
        ("C", {"unknown": 3.1}),
        ("C", {"width": 0.06}),
        ("D", {"unknown": 10.1}),
        ("D", {"width": 0.21}),
        ("D", {"steps": 0}),
    ],
)
def test_the_worst_rule_gives_the_grade(grade, given):
    found = graded(**given)
    assert found["grade"] == grade
    assert found["reason"]
