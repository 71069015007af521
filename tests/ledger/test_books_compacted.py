"""The books of a run whose parts are compacted while they are read."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from badput import parts
from badput.compact import compact_run
from badput.merge import TableCompactor
from badput_ledger import store
from badput_ledger.errors import BooksError


class All:
    def part(self, stem):
        return True

    def owner(self, owner):
        return True


def write(run, first, count, process=7):
    rows = [
        {"process_id": process, "seq": first + i, "rank": 0, "step": first + i, "n_steps": 1,
         "start_ns": 10**18 + i, "dur_ns": 5}
        for i in range(count)
    ]  # fmt: skip
    parts.write_rows(run, "steps", f"{process:016x}-{first:012d}", rows)


def count(run):
    con = store.connect()
    try:
        assert store.load(con, run) == ([], [])
        return con.execute("SELECT count(*), count(DISTINCT seq) FROM steps").fetchone()
    finally:
        con.close()


def test_replaced_parts_that_are_still_there_are_not_read(tmp_path):
    for first in (0, 10, 20):
        write(tmp_path, first, 10)
    TableCompactor(tmp_path, "steps", All()).compact(2, 3600.0)
    assert len(list((tmp_path / "facts/steps").iterdir())) == 4
    assert len(store.read_parts(tmp_path, "steps")[0]) == 1
    assert count(tmp_path) == (30, 30)


@pytest.mark.parametrize("when", ["_look_at", "_create", "is_suspect"])
def test_a_table_whose_parts_go_away_while_it_is_read_is_listed_again(tmp_path, monkeypatch, when):
    for first in (0, 10, 20):
        write(tmp_path, first, 10)
    inner = getattr(store, when)

    def late(*args):
        monkeypatch.setattr(store, when, inner)
        compact_run(tmp_path, every=True)
        return inner(*args)

    monkeypatch.setattr(store, when, late)
    assert count(tmp_path) == (30, 30)


def test_parts_that_never_stay_are_one_sentence(tmp_path, monkeypatch):
    write(tmp_path, 0, 1)
    monkeypatch.setattr(store, "live_names", lambda folder: ["gone.parquet"])
    con = store.connect()
    with pytest.raises(BooksError, match="keep going away"):
        store.load(con, tmp_path)
    con.close()


def test_the_key_ranges_of_a_compacted_part_are_exact(tmp_path):
    for process in (3, 9):
        for first in (0, 10):
            write(tmp_path, first, 10, process)
    compact_run(tmp_path, every=True)
    write(tmp_path, 0, 5, process=6)  # between the two, which a row group's statistics span
    found, _ = store.read_parts(tmp_path, "steps")
    assert sorted(k for p in found for k in p.keys) == [(3, 3, 0, 19), (6, 6, 0, 4), (9, 9, 0, 19)]
    assert not store.may_repeat(found)
    write(tmp_path, 15, 10, process=9)  # a round that was done again after a power loss
    assert store.may_repeat(store.read_parts(tmp_path, "steps")[0])
    assert count(tmp_path)[0] == 20 + 25 + 5


def test_compacted_parts_have_notes_that_other_readers_ignore(tmp_path):
    for first in (0, 10):
        write(tmp_path, first, 10)
    compact_run(tmp_path, every=True)
    (one,) = parts.list_parts(tmp_path, "steps")
    assert pq.read_table(one).num_rows == 20
    assert set(parts.footer_notes(one)) >= {parts.REPLACES, parts.RANGES}
