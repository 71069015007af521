"""Rows that no run can hold cost themselves, are named, and hang or crash nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badput_ledger.books import BooksError, open_books
from badput_ledger.cli import report_main


def small(make: Any) -> int:
    pid = make.process(0, init=2)
    make.end(pid, make.steps(pid, 1, 30, 10, 1.0, tokens=5), exit_code=0)
    return pid


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("dur_ns", 2**62),
        ("dur_ns", 2**63 - 1),
        ("start_ns", 2**63 - 1),
        ("start_ns", -(2**63)),
        ("step", -(2**63)),
        ("tokens", 2**63 - 1),
        ("eval_ns", 2**62),
    ],
)
def test_a_row_with_an_impossible_number_costs_itself(make: Any, column: str, value: int) -> None:
    small(make)
    make.tables["steps"][7][column] = value
    with open_books(make.write()) as books:
        assert books.report()["steps"]["executed"] == 29
        (said,) = books.broken
    assert "1 of 30 rows" in said
    assert column in said


def test_a_row_without_its_key_is_named(make: Any) -> None:
    small(make)
    part = make.write() / "facts" / "steps" / "part.parquet"
    table = pq.read_table(part, partitioning=None)
    loose = pa.schema([pa.field(f.name, f.type) for f in table.schema])
    rows = table.to_pylist()
    rows[3]["step"] = rows[4]["rank"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=loose), part)
    with open_books(make.path) as books:
        assert books.report()["steps"]["executed"] == 28
        assert ["2 of 30 rows" in s and "rank, step" in s for s in books.broken] == [True]


@pytest.mark.parametrize("column", ["rank", "world_size"])
def test_two_thousand_million_ranks_are_a_damaged_table(make: Any, column: str) -> None:
    small(make)
    make.tables["processes"][0][column] = 2**31 - 1
    with pytest.raises(BooksError, match="ranks, and the books hold at most"):
        open_books(make.write())


def test_an_allocation_of_an_impossible_place_is_named(make: Any) -> None:
    small(make)
    for slot in (-4, 0, 2**31 - 1):
        make.add("allocations", slot=slot, start_ns=0, end_ns=10**9, held="yes")
    with open_books(make.write()) as books:
        report = books.report()
    assert any("2 allocations of impossible places" in q["what"] for q in report["quality"])


@pytest.mark.parametrize(
    "attrs",
    [
        '{"reason": ["x"], "phase_since_ns": 1e400, "last_sign_ns": 9' + "9" * 30 + "}",
        '{"reason": "exit", "exit_code": NaN, "signal": -1e400, "phase": {"a": 1}}',
        "[" * 100_000,
    ],
)
def test_attrs_of_an_end_may_hold_anything(make: Any, attrs: str) -> None:
    small(make)
    make.tables["events"][0]["attrs"] = attrs
    with open_books(make.write()) as books:
        assert books.report()["steps"]["kept"] == 30


@pytest.mark.parametrize("price", ["9" * 400, "1e400", "NaN", "-1"])
def test_a_price_of_the_run_that_cannot_be_counts_as_unknown(make: Any, price: str) -> None:
    pid = small(make)
    config = '{"price_per_gpu_hour": ' + price + "}"
    make.add("runs", process_id=pid, time_ns=1, source="probe", config=config)
    with open_books(make.write()) as books:
        assert books.report()["cost"]["total"] is None


@pytest.mark.parametrize("currency", ["x" * 40, "a\u202eb", 5, ["USD"]])
def test_a_price_in_an_impossible_currency_counts_as_unknown(make: Any, currency: Any) -> None:
    pid = small(make)
    config = json.dumps({"price_per_gpu_hour": 2.0, "currency": currency})
    make.add("runs", process_id=pid, time_ns=1, source="probe", config=config)
    with open_books(make.write()) as books:
        assert books.report()["cost"]["total"] is None


@pytest.mark.parametrize("table", ["steps", "processes", "events"])
def test_a_part_with_a_damaged_first_page_costs_itself(make: Any, table: str) -> None:
    small(make)
    part = make.write() / "facts" / table / "part.parquet"
    damaged = bytearray(part.read_bytes())
    damaged[4:60] = bytes(b ^ 0xFF for b in damaged[4:60])
    (part.parent / "zz.parquet").write_bytes(bytes(damaged))
    with open_books(make.path) as books:
        assert books.report()["steps"]["kept"] == 30
        assert ["pages are damaged" in s for s in books.broken] == [True]


def test_a_path_that_is_not_utf8_is_a_run_like_others(make: Any, tmp_path: Path, capsys) -> None:
    small(make)
    odd = tmp_path / "odd\udcff"
    with open_books(make.write()) as books:
        steps = books.report()["steps"]
    shutil.copytree(make.write(), odd)
    with open_books(odd) as books:
        assert books.report()["steps"] == steps
    assert report_main([str(odd)]) == 0
    assert "75.0% of 40.0 GPU-seconds" in capsys.readouterr().out


def test_a_path_with_a_null_byte_is_no_folder(capsys: Any) -> None:
    assert report_main(["a\0b"]) == 2
    assert "cannot be the name of a folder" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["report"], ["report", "--json"], ["fsck"], ["sql"]])
def test_a_full_disk_is_one_sentence(make: Any, words: list[str]) -> None:
    small(make)
    command = [sys.executable, "-m", "badput.cli", words[0], str(make.write()), *words[1:]]
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"badput {words[0]}: the output: No space left on device.\n"


def test_a_reader_that_goes_away_early_is_no_failure(make: Any) -> None:
    small(make)
    command = [sys.executable, "-m", "badput.cli", "report", str(make.write()), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout
        assert reader.stderr
        reader.stdout.close()
        said = reader.stderr.read()
    assert (reader.returncode, said) == (0, b"")
