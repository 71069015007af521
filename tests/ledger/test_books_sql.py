"""The console answers one SELECT and nothing else."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger import chain
from badput_ledger.books import BooksError, open_books
from badput_ledger.cli import sql_main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(make: Any) -> Path:
    pid = make.process(0, init=2, host="=cmd()")
    make.end(pid, make.steps(pid, 1, 30, 10, 1.0))
    return make.write()


def test_a_select_over_facts_and_views_is_answered(run: Path, capsys: Any) -> None:
    assert sql_main([str(run), "SELECT count(*) AS n, max(step) AS last FROM steps"]) == 0
    assert capsys.readouterr().out.splitlines() == ["n   last", "--  ----", "30  30"]
    assert sql_main([str(run), "FROM leaves ORDER BY ns DESC LIMIT 1", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["leaf"], row["ns"]) == ("H.productive", "30000000000")


def test_the_examples_of_the_help_run_as_they_stand(run: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        sql_main(["--help"])
    text = capsys.readouterr().out
    examples = [line.strip() for line in text.splitlines() if line.startswith("  badput sql RUN")]
    assert len(examples) == 3
    for example in examples:
        words = shlex.split(example)[2:]
        assert sql_main([str(run), *words[1:]]) == 0, example
        assert len(capsys.readouterr().out.splitlines()) > 1, example


def test_rows_are_limited(run: Path, capsys: Any) -> None:
    assert sql_main([str(run), "SELECT step FROM steps", "--limit", "3", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_csv_cell_is_no_formula(run: Path, capsys: Any) -> None:
    assert sql_main([str(run), "SELECT host, -1 AS n FROM processes", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "'=cmd(),-1"


def test_without_a_query_the_views_are_listed(run: Path, capsys: Any) -> None:
    assert sql_main([str(run)]) == 0
    out = capsys.readouterr().out
    for view in chain.views():
        assert view.about, f"{view.name} has no comment"
        assert f"  {view.name}" in out
    assert "  steps" in out


ATTACKS = [
    "SELECT 1; SELECT 2",
    "DROP TABLE steps",
    "CREATE TABLE x AS SELECT 1",
    "INSERT INTO steps SELECT * FROM steps",
    "UPDATE steps SET step = 0",
    "DELETE FROM steps",
    "COPY steps TO '{path}/stolen.csv'",
    "COPY (SELECT 1) TO '{path}/stolen.csv'",
    "ATTACH '{path}/x.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "EXPORT DATABASE '{path}'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM read_parquet('{path}/facts/steps/part.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM query('COPY steps TO ''{path}/stolen.csv''')",
    "SELEC 1",
    "SELECT nothing FROM steps",
    "",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_everything_else_is_refused_in_one_sentence(run: Path, attack: str, capsys: Any) -> None:
    assert sql_main([str(run), attack.format(path=run)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("badput sql: ")
    assert len(err.strip().splitlines()) == 1
    assert sorted(p.name for p in run.iterdir()) == ["facts", "tmp"]


def test_a_query_that_never_ends_is_interrupted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("badput_ledger.books.QUERY_SECONDS", 0.3)
    with open_books(run) as books, pytest.raises(BooksError, match="longer than"):
        books.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")


def test_the_report_still_works_after_a_query(run: Path) -> None:
    with open_books(run) as books:
        books.query("SELECT 1")
        assert books.report()["steps"]["kept"] == 30
        assert books.query("SELECT count(*) FROM timeline")[1][0][0] > 0


def test_the_page_about_the_books_lists_every_view_as_it_is(root: Path) -> None:
    page = (root / "docs" / "ledger.md").read_text(encoding="utf-8")
    for view in chain.views():
        assert f"| `{view.name}` | {view.about} |" in page, f"docs/ledger.md: {view.name}"


@pytest.mark.parametrize(
    "query",
    [
        "WITH x AS (DELETE FROM steps RETURNING *) SELECT count(*) FROM x",
        "WITH x AS (UPDATE leaves SET ns = 0 RETURNING *) SELECT count(*) FROM x",
        "WITH x AS (INSERT INTO slots VALUES ('z', 1, 1) RETURNING *) SELECT 1 FROM x",
    ],
)
def test_a_select_that_writes_is_refused_and_changes_nothing(make: Any, query: str) -> None:
    pid = make.process(0, init=2)
    make.end(pid, make.steps(pid, 1, 30, 10, 1.0))
    state = "SELECT (SELECT count(*) FROM steps), (SELECT sum(ns) FROM leaves), count(*) FROM slots"
    with open_books(make.write()) as books:
        before = books.query(state)
        with pytest.raises(BooksError, match="only reads"):
            books.query(query)
        assert books.query(state) == before


def test_a_query_that_is_not_unicode_is_refused_in_one_sentence(make: Any) -> None:
    pid = make.process(0, init=2)
    make.end(pid, make.steps(pid, 1, 30, 10, 1.0))
    with open_books(make.write()) as books, pytest.raises(BooksError, match="UTF-8"):
        books.query("SELECT '\ud800'")
