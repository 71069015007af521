"""A row of several steps, as logs print them, whose steps did not all come to the same end."""

from __future__ import annotations

from typing import Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.fsck import check


def test_a_row_that_only_began_before_the_other_rank_stopped_is_lost_and_partial(make: Any) -> None:
    """Rank 1 logs steps 9..11 as one row, rank 0 finished 9; the next session resumed from 4."""
    first, second = make.process(0, world=2), make.process(0, rank=1, world=2)
    make.steps(first, 1, 9, 0, 1.0)
    make.steps(second, 1, 8, 0, 1.0, rank=1)
    make.step(second, 11, 8, 3.0, rank=1, n=3)
    make.end(first, 11, reason="killed")
    make.end(second, 11, rank=1, reason="killed")
    for rank in (0, 1):
        pid = make.process(11, rank=rank, world=2)
        make.span(pid, "load", 11, 0.5, rank=rank, step=4)
        make.end(pid, make.steps(pid, 5, 12, 12, 1.0, rank=rank), rank=rank)
    with open_books(make.write()) as books:
        assert [c for c in check(books) if not c["ok"]] == []
        steps = books.report()["steps"]
        rows = books.rows(
            "SELECT fate, sum(n_steps)::INT AS n, sum(time_ns)::BIGINT AS ns FROM fates "
            "WHERE row_step = 11 AND row_steps = 3 GROUP BY fate ORDER BY fate"
        )
    assert (steps["executed"], steps["kept"], steps["lost"]) == (17, 12, 5)
    assert [(r["fate"], r["n"], r["ns"]) for r in rows] == [
        ("D.partial", 2, 2_000_000_000),
        ("D.recomputed", 1, 1_000_000_000),
    ]


@pytest.mark.parametrize(
    "written",
    ["/c/last.pt.new", "/c/last.new", "/c/tmp-last.pt", "/c/.tmp_last.pt", "/c/last.pt.tmp-7"],
)
def test_a_save_that_was_renamed_into_place_is_the_one_that_was_loaded(
    make: Any, written: str
) -> None:
    """Steps count from 1 again, so only the path connects the sessions."""
    first = make.process(0)
    make.steps(first, 1, 13, 0, 1.0)
    make.checkpoint(first, "save", 10, 10, 0, path=written)
    make.end(first, 13, reason="killed")
    second = make.process(14)
    make.checkpoint(second, "load", None, 14, 0, path="/c/last.pt")
    make.end(second, make.steps(second, 1, 15, 15, 1.0))
    with open_books(make.write()) as books:
        assert [c for c in check(books) if not c["ok"]] == []
        report = books.report()
    assert report["sessions"][1]["parent"] == "s1"
    assert (report["steps"]["executed"], report["steps"]["kept"], report["steps"]["lost"]) == (
        28,
        25,
        3,
    )


def test_a_resume_that_nothing_connects_is_a_warning(make: Any) -> None:
    first = make.process(0)
    make.steps(first, 1, 13, 0, 1.0)
    make.end(first, 13, reason="killed")
    second = make.process(14)
    make.checkpoint(second, "load", None, 14, 0, path="/elsewhere/last.pt")
    make.end(second, make.steps(second, 1, 15, 15, 1.0))
    with open_books(make.write()) as books:
        report = books.report()
    assert report["sessions"][1]["parent"] is None
    (note,) = [q for q in report["quality"] if "by its path" in q["what"]]
    assert note["severity"] == "warning"
    assert "number=" in note["what"]
