"""Compaction among footers that lie, and what killed writers left: no row is lost or hidden."""

from __future__ import annotations

import json
import os
import time

import pytest

from badput import merge, parts
from badput.cli import main as badput_main
from badput.merge import TableCompactor

PROCESS = 0x1000


def step(process, seq):
    return {
        "process_id": process, "seq": seq, "rank": process % 8, "step": seq + 1, "n_steps": 1,
        "start_ns": 10**18 + seq * 10**9, "dur_ns": 10**9 - 1, "tokens": 512,
    }  # fmt: skip


def write_steps(run, process, first, count):
    """A part as a drain writes it: named after its first record."""
    rows = [step(process, first + i) for i in range(count)]
    return parts.write_rows(run, "steps", f"{process:016x}-{first:012d}", rows)


def write_end(run, process, seq=1_000_000):
    row = {"process_id": process, "seq": seq, "time_ns": 10**18, "kind": "end", "attrs": "{}"}
    parts.write_rows(run, "events", f"{process:016x}-{seq:012d}-end", [row])


def keys(run, table="steps"):
    return sorted((r["process_id"], r["seq"]) for r in parts.read_rows(run, table))


def files(run, table):
    return sorted(p.name for p in (run / "facts" / table).iterdir())


class All:
    def part(self, stem):
        return True

    def owner(self, owner):
        return True


def compact(run, at_least):
    return TableCompactor(run, "steps", All()).compact(at_least, 0.0)


# -- footers that make no sense, and what killed writers left ------------------------------------
def forge(run, table, name, rows, *, replaces, ranges=None):
    """A compacted part whose footer says whatever it likes."""
    notes = {parts.REPLACES: json.dumps(replaces).encode()}
    notes[parts.OWNERS] = json.dumps([f"{PROCESS:016x}"]).encode()
    if ranges is not None:
        notes[parts.RANGES] = json.dumps(ranges).encode()
    return parts.write_part(run, table, name, parts.rows_to_table(table, rows), notes)


@pytest.mark.parametrize("ranges", [None, [[PROCESS, 0, 10**6]]])
def test_a_part_is_replaced_only_by_one_that_holds_every_row_of_it(tmp_path, capsys, ranges):
    held, lost = write_steps(tmp_path, PROCESS, 0, 10), write_steps(tmp_path, PROCESS, 10, 10)
    other = write_steps(tmp_path, PROCESS + 1, 0, 10)
    for process in (PROCESS, PROCESS + 1):
        write_end(tmp_path, process)
    listed = {p.stem: p.stat().st_size for p in (held, lost, other)}
    rows = [step(PROCESS, n) for n in (*range(12), 30)]
    heir = forge(
        tmp_path, "steps", "compact-00000000000000aa", rows, replaces=listed, ranges=ranges
    )
    want = sorted(
        {*((PROCESS, n) for n in (*range(20), 30)), *((PROCESS + 1, n) for n in range(10))}
    )
    assert {p.name for p in parts.list_parts(tmp_path, "steps")} == {
        heir.name,
        lost.name,
        other.name,
    }
    assert sorted(set(keys(tmp_path))) == want
    assert compact(tmp_path, at_least=1 << 60).unlinked == 1
    assert lost.exists()
    assert other.exists()
    assert badput_main(["compact", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert f"{lost} is left alone: {heir.name} names it, but does not hold its rows" in err
    assert sorted(set(keys(tmp_path))) == want


def test_telemetry_is_replaced_only_by_a_part_that_holds_it(tmp_path):
    row = {"host": "h", "gpu_uuid": "g"}
    rows = [{**row, "time_ns": n} for n in range(10)]
    small = parts.write_rows(tmp_path, "gpu_samples", f"{1:016x}-{0:012d}", rows)
    listed = {small.stem: small.stat().st_size}
    forge(
        tmp_path, "gpu_samples", "compact-00000000000000aa", [*rows[:5], *rows[6:]], replaces=listed
    )
    assert len(parts.list_parts(tmp_path, "gpu_samples")) == 2
    forge(tmp_path, "gpu_samples", "compact-00000000000000aa", rows, replaces=listed)
    assert len(parts.list_parts(tmp_path, "gpu_samples")) == 1


def test_parts_that_name_each_other_or_themselves_hide_no_row(tmp_path):
    rows = [step(PROCESS, n) for n in range(10)]
    names = [f"compact-{n:016x}" for n in range(3)]
    for _ in range(4):  # the list is part of the size
        sizes = {
            n: p.stat().st_size
            for n in names
            if (p := parts.part_path(tmp_path, "steps", n)).exists()
        }
        for name in names:
            forge(tmp_path, "steps", name, rows, replaces=sizes)
    assert [p.stem for p in parts.list_parts(tmp_path, "steps")] == names[:1]
    compact(tmp_path, at_least=1 << 60)
    assert keys(tmp_path) == [(PROCESS, n) for n in range(10)]


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_not_followed_and_not_waited_for(tmp_path, capsys, what):
    write_steps(tmp_path, PROCESS, 0, 1)
    target, place = tmp_path / "precious", tmp_path / "tmp" / "compact.lock"
    if what == "link":
        place.symlink_to(target)
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    assert badput_main(["compact", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "compact.lock" in err
    assert not target.exists()


def test_a_part_is_not_written_through_a_link_in_its_temporary_place(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    name = f"{PROCESS:016x}-{0:012d}"
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / f"steps-{name}-{parts.writer_id()}.parquet").symlink_to(precious)
    write_steps(tmp_path, PROCESS, 0, 3)
    assert precious.read_text() == "keep"
    assert keys(tmp_path) == [(PROCESS, n) for n in range(3)]


def test_what_is_swept_from_tmp_is_a_writers_own_and_in_no_other_folder(tmp_path):
    write_steps(tmp_path, PROCESS, 0, 1)
    boot = "0badb007.1"
    old = tmp_path / "tmp" / f"steps-x-{boot}.5.parquet"
    late = tmp_path / "tmp" / f"steps-y-{parts.writer_id()}.parquet"  # its number may be another's
    others = [tmp_path / "tmp" / n for n in ("thesis.parquet", "data-1.parquet", "steps.parquet")]
    for path in (old, late, *others):
        path.write_text("")
        os.utime(path, (time.time() - 3700,) * 2)
    assert merge.clear_tmp(tmp_path) == 2
    assert all(p.exists() for p in others)
    (tmp_path / "tmp").rename(tmp_path / "elsewhere")
    (tmp_path / "tmp").symlink_to(tmp_path / "elsewhere")
    old.write_text("")
    os.utime(old, (1, 1))
    with pytest.raises(OSError, match="director"):
        merge.clear_tmp(tmp_path)
    assert old.exists()


def test_telemetry_that_dead_collectors_left_is_compacted_once_it_has_settled(tmp_path, capsys):
    tables = ("gpu_samples", "host_samples", "devices")
    for table in tables:
        for stay in range(3):
            for number in range(2):
                row = {"host": "h", "gpu_uuid": "g", "time_ns": 10 * stay + number}
                row = row if table != "host_samples" else {"host": "h", "time_ns": row["time_ns"]}
                parts.write_rows(tmp_path, table, f"{stay:016x}-{number:012d}", [row])
    assert badput_main(["compact", str(tmp_path)]) == 0
    assert all(len(files(tmp_path, t)) == 6 for t in tables), "its collector may be at it"
    for path in (tmp_path / "facts").rglob("*.parquet"):
        os.utime(path, (time.time() - 300,) * 2)
    assert badput_main(["compact", str(tmp_path)]) == 0
    assert "18 parts became 3, 18 rows" in capsys.readouterr().out
    for table in tables:
        assert len(files(tmp_path, table)) == 1
        found = [r["time_ns"] for r in parts.read_rows(tmp_path, table)]
        assert found == [0, 1, 10, 11, 20, 21]
