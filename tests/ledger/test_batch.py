"""Columns that a footer tells are not read, and the rows are the same with and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from badput.parts import write_rows
from badput_ledger import batch, store, stretch
from badput_ledger.books import open_books
from badput_ledger.stretch import NEEDED

if TYPE_CHECKING:
    from pathlib import Path


def rows(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"process_id": 7, "seq": n, "rank": 0, "step": n, "n_steps": 1, "start_ns": 1000 + 100 * n,
         "dur_ns": 90 + n % 3, "pre_data_ns": 2, **more}
        for n in range(first, first + count)
    ]  # fmt: skip


def read(run: Path) -> batch.Rows:
    parts, broken = store.read_parts(run, "steps")
    assert not broken
    return batch.read(parts, NEEDED)


def plain(run: Path) -> dict[str, list[Any]]:
    """The same columns as pyarrow reads them, all of every part."""
    found: dict[str, list[Any]] = {n: [] for n in NEEDED}
    for path in sorted((run / "facts" / "steps").iterdir()):
        for name, column in pq.read_table(path).select(list(NEEDED)).to_pydict().items():
            found[name] += column
    return found


@pytest.mark.parametrize(
    ("one", "two", "left_out"),
    [
        ({"tokens": 5, "applied": True}, {"tokens": 5, "applied": True}, {"tokens", "applied"}),
        ({"tokens": 5, "applied": False}, {"tokens": 6, "applied": True}, set[str]()),
        ({"tokens": 0, "padding": 0}, {"tokens": 0, "padding": 0}, {"tokens", "padding"}),
        ({"tokens": 5, "committed": True}, {}, set[str]()),
        ({"rank": 3, "n_steps": 2}, {"rank": 3, "n_steps": 2}, {"rank", "n_steps"}),
    ],
)
def test_a_column_is_left_out_where_every_part_says_the_same(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], left_out: set[str]
) -> None:
    write_rows(tmp_path, "steps", "a", rows(1, 20, **one))
    write_rows(tmp_path, "steps", "b", rows(21, 30, **two))
    found = read(tmp_path)
    told = {n for n, v in found.same.items() if v is not None}
    assert told - {"rank", "n_steps"} == left_out - {"rank", "n_steps"}
    assert left_out <= told
    assert found.whole().to_pydict() == plain(tmp_path)
    assert found.slice(3, 5).whole().to_pydict() == {
        n: column[3:8] for n, column in plain(tmp_path).items()
    }
    for name in NEEDED:
        assert found.known(name) == sum(v is not None for v in plain(tmp_path)[name])


def test_a_value_that_is_now_missing_and_now_there_is_read(tmp_path: Path) -> None:
    some = rows(1, 20, tokens=5, applied=True)
    some[4]["tokens"] = some[9]["applied"] = None
    write_rows(tmp_path, "steps", "a", some)
    found = read(tmp_path)
    assert not {"tokens", "applied"} & found.same.keys()
    assert found.whole().to_pydict() == plain(tmp_path)


def test_a_part_that_goes_away_is_told(tmp_path: Path) -> None:
    write_rows(tmp_path, "steps", "a", rows(1, 20))
    parts, _ = store.read_parts(tmp_path, "steps")
    (tmp_path / "facts" / "steps" / "a.parquet").unlink()
    with pytest.raises(store.GoneError):
        batch.read(parts, NEEDED)


@pytest.mark.parametrize(
    "more",
    [
        {"tokens": 100, "padding": 7, "applied": True},
        {"tokens": 100, "padding": 100},
        {"tokens": 0, "padding": 7},
        {"tokens": 64, "applied": False},
        {"tokens": 64, "committed": False},
        {"padding": 7},
    ],
    ids=str,
)
def test_books_with_and_without(
    make: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    pid, at = make.process(0, init=2), 10.0
    for number in range(1, 61):
        make.step(pid, number, at, 1.0 + (4.0 if number == 30 else 0.0), pre_data_ns=0.1, **more)
        at += 1.25 + (4.0 if number == 30 else 0.0)
    make.end(pid, at)
    run = make.write()

    def told() -> tuple[Any, Any, int]:
        with open_books(run, price=2.0) as books:
            leaves = books.rows("SELECT * FROM rank_leaves ORDER BY ALL")
            count = books.rows("SELECT count(*) AS n FROM stretches")[0]["n"]
            return books.report(), leaves, count

    slow = told()
    monkeypatch.setattr(store, "LONG_ROWS", 0)
    monkeypatch.setattr(stretch, "SHORT", 4)
    monkeypatch.setattr(stretch, "EDGE", 1)
    monkeypatch.setattr(stretch, "LONGEST", 5)
    fast = told()
    monkeypatch.setattr(batch, "NEVER_READ", frozenset[str]())
    whole = told()
    assert fast[:2] == slow[:2] == whole[:2]
    refused = False in (more.get("applied"), more.get("committed"))
    assert (fast[2], whole[2]) == ((0, 0) if refused else (whole[2], whole[2]))
    assert refused or fast[2] > 8
