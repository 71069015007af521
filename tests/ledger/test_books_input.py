"""Bad input costs one sentence and one part, never the rest and never a traceback."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badput_ledger.books import BooksError, open_books
from badput_ledger.cli import fsck_main, report_main, sql_main
from badput_ledger.fsck import check
from badput_ledger.runs import find_runs


def small(make: Any) -> Path:
    make.add("runs", process_id=1, time_ns=1, name="tiny", source="probe")
    pid = make.process(0, init=2)
    make.end(pid, make.steps(pid, 1, 30, 10, 1.0, tokens=5))
    return make.write()


def one_sentence(capsys: Any, command: str) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"badput {command}: ")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("main", [report_main, fsck_main, sql_main])
def test_a_missing_folder_is_named(main: Any, tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "nope")]) == 2
    assert "no such folder" in one_sentence(capsys, main.__name__.removesuffix("_main"))


def test_a_file_is_not_a_run(tmp_path: Path, capsys: Any) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1")
    assert report_main([str(log)]) == 2
    assert "badput import" in one_sentence(capsys, "report")


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path, capsys: Any) -> None:
    assert report_main([str(tmp_path)]) == 2
    assert "is empty" in one_sentence(capsys, "report")


def test_a_folder_of_another_format_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "events.out.tfevents").write_bytes(b"x")
    assert report_main([str(tmp_path)]) == 2
    assert "not the folder of a run" in one_sentence(capsys, "report")


def test_a_run_of_empty_tables_has_no_books(make: Any, capsys: Any) -> None:
    make.add("runs", process_id=1, time_ns=1, source="probe")
    assert report_main([str(make.write())]) == 2
    assert "no process" in one_sentence(capsys, "report")


@pytest.mark.parametrize("price", ["cheap", "", "-1", "nan", "inf", "1e308", "1,5"])
def test_a_price_that_cannot_be_is_refused(make: Any, capsys: Any, price: str) -> None:
    assert report_main([str(small(make)), "--price=" + price]) == 2
    assert "price" in one_sentence(capsys, "report")


def test_a_price_that_cannot_be_is_refused_by_the_library_too(make: Any) -> None:
    with pytest.raises(BooksError):
        open_books(small(make), price=math.nan)


AS_SOMEBODY_ELSE = """
import os, sys
import duckdb, pyarrow.parquet
from badput_ledger import cli, report
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(cli.report_main([sys.argv[1]]))
"""


@pytest.mark.parametrize("locked", [".", "facts"])
def test_an_unreadable_folder_is_said_in_one_sentence(
    make: Any, tmp_path: Path, locked: str
) -> None:
    path = small(make)
    for folder in [tmp_path, *tmp_path.parents][:4]:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)  # so that only the run itself is shut
    (path / locked).chmod(0)
    command = [sys.executable, "-c", AS_SOMEBODY_ELSE, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    finally:
        (path / locked).chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("badput report: ")
    assert "cannot be read: Permission denied" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def break_parts(path: Path) -> None:
    steps = path / "facts" / "steps"
    whole = (steps / "part.parquet").read_bytes()
    (steps / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (steps / "empty.parquet").write_bytes(b"")
    (steps / "text.parquet").write_text("loss 1.5\n" * 50)
    pq.write_table(pa.table({"a": [1]}), steps / "foreign.parquet")
    wrong = pq.read_table(steps / "part.parquet", partitioning=None)
    at = wrong.schema.get_field_index("dur_ns")
    pq.write_table(
        wrong.set_column(at, "dur_ns", wrong["dur_ns"].cast("string")), steps / "kind.parquet"
    )


def test_bad_parts_cost_themselves_and_are_named(make: Any, capsys: Any) -> None:
    path = small(make)
    with open_books(path) as books:
        before = books.report()["leaves"]
    break_parts(path)
    with open_books(path) as books:
        assert books.report()["leaves"] == before
        assert len(books.broken) == 5
        assert all(c["ok"] for c in check(books))
        assert sum(n["severity"] == "error" for n in books.report()["quality"]) == 5
    assert report_main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert "productive" in out
    assert len(err.strip().splitlines()) == 5
    for name in ("cut", "empty", "text", "foreign", "kind"):
        assert f"{name}.parquet: " in err
    assert fsck_main([str(path)]) == 2


def test_damaged_pages_cost_their_part_only(make: Any) -> None:
    path = small(make)
    good = path / "facts" / "steps" / "part.parquet"
    data = bytearray(good.read_bytes())
    data[8 : len(data) // 3] = bytes(len(data) // 3 - 8)
    (good.parent / "bad.parquet").write_bytes(data)
    with open_books(path) as books:
        assert books.report()["steps"]["kept"] == 30
        assert len(books.broken) == 1
        assert "damaged" in books.broken[0]


def test_a_hidden_or_temporary_file_is_not_a_part(make: Any) -> None:
    path = small(make)
    (path / "facts" / "steps" / ".part.parquet").write_bytes(b"x")
    (path / "facts" / "steps" / "part.parquet.tmp").write_bytes(b"x")
    with open_books(path) as books:
        assert books.broken == []


@pytest.mark.parametrize(
    "name",
    ["run [lr=1e-4]", "it's", "a*b", "why?", "two words", "rank=7", "seed=01", "[0-9]", 'quo"te'],
)
def test_any_folder_name_will_do(make: Any, tmp_path: Path, name: str) -> None:
    path = small(make)
    moved = tmp_path / "rank=99" / name
    moved.parent.mkdir()
    shutil.move(path, moved)
    with open_books(moved) as books:
        assert books.report()["steps"]["kept"] == 30
        assert books.query("SELECT DISTINCT rank FROM steps")[1] == [(0,)]


def test_an_older_part_without_a_column_and_a_newer_one_with_more(make: Any) -> None:
    path = small(make)
    part = path / "facts" / "steps" / "part.parquet"
    rows = pq.read_table(part, partitioning=None)
    old = rows.slice(0, 10).drop_columns(["tokens", "padding"])
    new = rows.slice(10).append_column("mood", pa.array(["fine"] * 20))
    new = new.set_column(new.schema.get_field_index("rank"), "rank", new["rank"].cast("int64"))
    part.unlink()
    pq.write_table(old, part.with_name("old.parquet"))
    pq.write_table(new, part.with_name("new.parquet"))
    with open_books(path) as books:
        report = books.report()
        assert books.broken == []
        assert report["steps"]["kept"] == 30
        assert report["tokens"]["kept"] == 100


def test_a_lost_processes_part_still_leaves_books(make: Any) -> None:
    path = small(make)
    (path / "facts" / "processes" / "part.parquet").unlink()
    with open_books(path) as books:
        assert books.report()["steps"]["kept"] == 30
        assert all(c["ok"] for c in check(books))


def test_without_a_price_every_dollar_is_null(make: Any) -> None:
    with open_books(small(make)) as books:
        report = books.report()
    assert {row["cost"] for row in report["leaves"].values()} == {None}
    assert report["cost"]["total"] is report["cost"]["wasted"] is None
    assert any("--price" in n["what"] for n in report["quality"])


def test_the_runs_own_price_is_used_and_a_given_one_wins(make: Any) -> None:
    said = json.dumps({"price_per_gpu_hour": 3600, "currency": "EUR"})
    make.add("runs", process_id=2, time_ns=2, source="probe", config=said)
    path = small(make)
    with open_books(path) as books:
        cost = books.report()["cost"]
        assert (cost["total"], cost["currency"]) == (40, "EUR")
        assert cost["source"] == "run configuration"
        assert cost["wasted"] == 10
        assert cost["per_kept_token"] == pytest.approx(40 / 150)
    with open_books(path, price=0.0) as books:
        assert books.report()["cost"]["total"] == 0


KEYS = [
    "schema", "run", "total_gpu_seconds", "total_gpu_ns", "leaves", "kept_time", "goodput",
    "at_peak", "steps", "tokens", "sessions", "pipeline", "learning", "checkpoints", "incidents",
    "cost",
    "definitions", "verdict", "quality", "units",
]  # fmt: skip


def test_the_json_report_keeps_its_contract(make: Any, capsys: Any) -> None:
    assert report_main([str(small(make)), "--json", "--price", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(KEYS) <= set(report)
    assert report["schema"] == "badput.report/1"
    run = {"id", "name", "source", "world_size", "gpus", "gpu_type", "start", "end"}
    assert run <= set(report["run"])
    assert report["run"]["start"].endswith("Z")
    for row in report["leaves"].values():
        assert {"gpu_seconds", "gpu_ns", "lo", "hi", "cost", "tokens"} <= set(row)
    assert {"H.productive", "U.unaccounted", "A.queue", "G.kernel"} <= set(report["leaves"])
    session = {
        "id", "start", "end", "end_reason", "first_step", "last_step", "resumed_from", "kept_steps",
        "lost_steps", "gap_before_s",
    }  # fmt: skip
    assert session <= set(report["sessions"][0])
    assert {"headline", "why", "next"} <= set(report["verdict"])


def test_the_text_report_fits_a_terminal_and_starts_with_the_verdict(
    make: Any, capsys: Any
) -> None:
    assert report_main([str(small(make)), "--price", "2"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    lines = out.splitlines()
    assert lines[0].startswith("75.0% of 40.0 GPU-seconds went into steps")
    assert any(line.startswith("Why:  The biggest loss is C.model") for line in lines)
    assert any(line.startswith("Next: ") for line in lines)
    assert "30 executed = 30 kept + 0 lost + 0 skipped" in out
    assert "kept time 75.00%" in out


def test_text_of_a_run_cannot_move_the_cursor(make: Any, capsys: Any) -> None:
    make.add("runs", process_id=2, time_ns=0, name="a\x1b[2Jb", source="probe")
    assert report_main([str(small(make))]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_fsck_prints_a_line_a_check_and_finds_a_hole(make: Any, capsys: Any) -> None:
    path = small(make)
    assert fsck_main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("ok   ") for line in lines)
    with open_books(path) as books:
        books.rows("UPDATE allocations SET end_ns = end_ns + 1")
        wrong = [c["what"] for c in check(books) if not c["ok"]]
    assert len(wrong) == 2


def test_runs_are_found_below_a_folder(make: Any, tmp_path: Path) -> None:
    path = small(make)
    deep = tmp_path / "a" / "b" / "c"
    deep.parent.mkdir(parents=True)
    shutil.copytree(path, deep)
    (tmp_path / "other").mkdir()
    found = find_runs(tmp_path)
    assert [(r.path, r.name, r.source) for r in found] == [
        (deep, "tiny", "probe"),
        (path, "tiny", "probe"),
    ]
    assert [r.path for r in find_runs(path)] == [path]
    assert find_runs(tmp_path / "other") == []
    assert find_runs(tmp_path / "nope") == []
