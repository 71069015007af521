"""Compaction: no reader ever sees a row twice or misses one, whenever it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from badput import merge, parts
from badput.cli import main as badput_main
from badput.compact import LockedError, compact_run, lock
from badput.merge import TableCompactor
from badput.schema import arrow_schema

PROCESS = 0x1000


def step(process, seq, **more):
    return {
        "process_id": process, "seq": seq, "rank": process % 8, "step": seq + 1, "n_steps": 1,
        "start_ns": 10**18 + seq * 10**9, "dur_ns": 10**9 - 1, "tokens": 512, "loss": 2.0 + seq,
        **more,
    }  # fmt: skip


def write_steps(run, process, first, count, **more):
    """A part as a drain writes it: named after its first record."""
    rows = [step(process, first + i, **more) for i in range(count)]
    return parts.write_rows(run, "steps", f"{process:016x}-{first:012d}", rows)


def write_end(run, process, seq=1_000_000):
    row = {"process_id": process, "seq": seq, "time_ns": 10**18, "kind": "end", "attrs": "{}"}
    parts.write_rows(run, "events", f"{process:016x}-{seq:012d}-end", [row])


def keys(run, table="steps"):
    return sorted((r["process_id"], r["seq"]) for r in parts.read_rows(run, table))


def files(run, table="steps"):
    return sorted(p.name for p in (Path(run) / "facts" / table).iterdir())


class All:
    def part(self, stem):
        return not stem.startswith("foreign")

    def owner(self, owner):
        return True


def compact(run, at_least=2, grace_s=0.0, rights=None, table="steps", **more):
    return TableCompactor(run, table, rights or All()).compact(at_least, grace_s, **more)


@pytest.fixture
def aged(monkeypatch):
    """Compacted parts may be compacted again at once."""
    monkeypatch.setattr(merge, "YOUNG_S", -1.0)


def test_small_parts_become_one_that_holds_the_same_rows_in_order(tmp_path):
    for first in (20, 0, 10):
        write_steps(tmp_path, PROCESS + 1, first, 10)
        write_steps(tmp_path, PROCESS, first, 10)
    before = parts.read_rows(tmp_path, "steps")
    done = compact(tmp_path)
    assert (done.sources, done.made, done.rows, done.unlinked) == (6, 1, 60, 6)
    (one,) = parts.list_parts(tmp_path, "steps")
    after = pq.read_table(one).to_pylist()
    assert [(r["process_id"], r["seq"]) for r in after] == sorted(
        (p, s) for p in (PROCESS, PROCESS + 1) for s in range(30)
    )
    assert sorted(before, key=lambda r: (r["process_id"], r["seq"])) == after
    again = compact(tmp_path)
    assert (again.sources, again.made, again.unlinked) == (0, 0, 0)


def test_between_rename_and_unlink_the_sources_are_no_parts_any_more(tmp_path):
    for first in range(0, 50, 10):
        write_steps(tmp_path, PROCESS, first, 10)
    before = keys(tmp_path)
    assert compact(tmp_path, grace_s=3600).unlinked == 0
    assert len(files(tmp_path)) == 6
    assert len(parts.list_parts(tmp_path, "steps")) == 1
    assert keys(tmp_path) == before
    assert compact(tmp_path, grace_s=3600).sources == 0, "replaced parts are no sources"
    assert compact(tmp_path).unlinked == 5
    assert len(files(tmp_path)) == 1


def test_what_could_not_be_unlinked_stays_replaced_when_its_heir_is_compacted(tmp_path, aged):
    for first in range(0, 50, 10):
        write_steps(tmp_path, PROCESS, first, 10)
    before = keys(tmp_path)
    compact(tmp_path, grace_s=3600)
    write_steps(tmp_path, PROCESS, 50, 30)
    assert compact(tmp_path, at_least=1, grace_s=3600, whole=True).sources == 2
    assert len(files(tmp_path)) == 5 + 1 + 1 + 1
    heir = parts.list_parts(tmp_path, "steps")
    assert len(heir) == 1
    (tmp_path / "facts/steps").joinpath(
        next(n for n in files(tmp_path) if n.startswith("compact-") and n != heir[0].name)
    ).unlink()
    assert keys(tmp_path) == [*before, *((PROCESS, s) for s in range(50, 80))]
    compact(tmp_path)
    assert files(tmp_path) == [heir[0].name]


def test_a_part_that_was_written_anew_with_more_rows_is_read_beside_its_heir(tmp_path):
    for first in (0, 10):
        write_steps(tmp_path, PROCESS, first, 10)
    compact(tmp_path, grace_s=3600)
    write_steps(tmp_path, PROCESS, 10, 400)
    assert set(keys(tmp_path)) == {(PROCESS, s) for s in range(410)}
    compact(tmp_path)
    assert set(keys(tmp_path)) == {(PROCESS, s) for s in range(410)}


def test_rows_that_two_sources_share_are_there_once_afterwards(tmp_path):
    write_steps(tmp_path, PROCESS, 0, 30)
    write_steps(tmp_path, PROCESS, 10, 30)
    compact(tmp_path)
    assert keys(tmp_path) == [(PROCESS, s) for s in range(40)]


def test_foreign_newer_and_damaged_parts_are_left_alone_and_older_ones_get_todays_columns(
    tmp_path,
):
    good = [write_steps(tmp_path, PROCESS, first, 10) for first in (0, 10)]
    folder = good[0].parent
    schema = arrow_schema("steps")
    table = parts.rows_to_table("steps", [step(PROCESS, 20)])
    old = table.select([n for n in schema.names if "small" not in n])
    pq.write_table(old.replace_schema_metadata({}), folder / f"{PROCESS:016x}-{20:012d}.parquet")
    newer = table.replace_schema_metadata({b"badput.schema_version": b"99"})
    wider = table.append_column("later", pa.array([1]))
    void = table.set_column(table.schema.get_field_index("step"), "step", pa.nulls(1, pa.int64()))
    alone = {"3": newer, "4": wider, "5": void}
    for name, data in alone.items():
        pq.write_table(data, folder / f"{PROCESS:016x}-{int(name):012d}.parquet")
    (folder / f"{PROCESS:016x}-{6:012d}.parquet").write_bytes(b"PAR1 not a part")
    (folder / f"{PROCESS:016x}-{7:012d}.parquet").write_bytes(b"")
    write_steps(tmp_path, PROCESS, 0, 1).rename(folder / "foreign-1.parquet")
    good = write_steps(tmp_path, PROCESS, 0, 10)
    done = compact(tmp_path)
    assert (done.sources, done.rows, len(done.left)) == (3, 21, 5)
    assert {n[-9] for n in files(tmp_path) if not n.startswith("compact-")} == set("345671")
    heir = next(p for p in parts.list_parts(tmp_path, "steps") if "compact-" in p.name)
    data = pq.read_table(heir)
    assert data.schema.equals(schema, check_metadata=True)
    assert data.column("grad_norm_small").null_count == 21


def test_a_reader_that_listed_before_lists_again(tmp_path, monkeypatch):
    for first in (0, 10):
        write_steps(tmp_path, PROCESS, first, 10)
    read = parts.read_part

    def late(path):
        monkeypatch.setattr(parts, "read_part", read)
        compact(tmp_path)
        return read(path)

    monkeypatch.setattr(parts, "read_part", late)
    assert keys(tmp_path) == [(PROCESS, s) for s in range(20)]


def test_a_listing_that_missed_both_the_old_and_the_new_part_is_done_again(tmp_path, monkeypatch):
    for first in (0, 10):
        write_steps(tmp_path, PROCESS, first, 10)
    names = parts._names
    calls = []

    def torn(folder):
        calls.append(1)
        if len(calls) == 1:  # the folder changes while it is listed: neither old nor new is seen
            compact(tmp_path)
            return set()
        return names(folder)

    monkeypatch.setattr(parts, "_names", torn)
    assert keys(tmp_path) == [(PROCESS, s) for s in range(20)]


def test_each_row_is_copied_few_times_however_often_new_parts_come(tmp_path, aged):
    copied = 0
    for first in range(0, 6400, 10):
        write_steps(tmp_path, PROCESS, first, 10)
        copied += compact(tmp_path, at_least=8).rows
    assert keys(tmp_path) == [(PROCESS, s) for s in range(6400)]
    assert copied <= 6400 * 12
    assert len(files(tmp_path)) <= 24


def test_only_what_is_ours_is_touched(tmp_path, aged):
    class Mine:
        def part(self, stem):
            return stem.startswith(f"{PROCESS:016x}")

        def owner(self, owner):
            return owner == f"{PROCESS:016x}"

    for process in (PROCESS, PROCESS + 1):
        for first in (0, 10):
            write_steps(tmp_path, process, first, 10)
    others = [n for n in files(tmp_path) if not n.startswith(f"{PROCESS:016x}")]
    assert compact(tmp_path, rights=Mine()).rows == 20
    assert set(others) < set(files(tmp_path))
    compact(tmp_path)  # the other one's: now a compacted part holds rows of both
    both = files(tmp_path)
    write_steps(tmp_path, PROCESS, 20, 10)
    compact(tmp_path, at_least=1, rights=Mine(), whole=True)
    assert set(both) < set(files(tmp_path))


def test_the_command_compacts_what_has_ended_and_says_so(tmp_path, capsys):
    run = tmp_path / "run"
    for process in (PROCESS, PROCESS + 1):
        row = {"process_id": process, "role": "rank", "start_ns": 1, "boot_id": "b", "pid": 1}
        parts.write_rows(run, "processes", f"{process:016x}-{0:012d}", [row])
        for first in (0, 10):
            write_steps(run, process, first, 10)
    write_end(run, PROCESS)
    before = keys(run)
    assert badput_main(["compact", str(run)]) == 0
    out = capsys.readouterr().out
    assert "1 process has not ended" in out
    assert "2 parts became 1, 20 rows" in out
    assert len(files(run)) == 3
    assert badput_main(["compact", str(run)]) == 0
    assert "nothing to compact" in capsys.readouterr().out
    assert badput_main(["compact", "--all", str(run)]) == 0
    assert keys(run) == before
    with lock(run, alone=False), lock(run, alone=False):
        assert badput_main(["compact", str(run)]) == 1
    assert "being compacted by another process" in capsys.readouterr().err


def test_all_is_refused_while_a_process_lives_here(tmp_path, capsys):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    row = {"process_id": 5, "role": "rank", "start_ns": 1, "boot_id": boot, "pid": os.getpid()}
    parts.write_rows(tmp_path, "processes", f"{5:016x}-{0:012d}", [row])
    assert badput_main(["compact", "--all", str(tmp_path)]) == 1
    assert f"pid {os.getpid()} still trains" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_bad_input_of_the_command_is_one_sentence(tmp_path, capsys, what):
    path = tmp_path / "x"
    if what == "file":
        path.write_text("")
    elif what == "empty":
        path.mkdir()
    assert badput_main(["compact", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(path) in err


def test_leftovers_of_dead_writers_under_tmp_go_and_those_of_living_ones_stay(tmp_path):
    write_steps(tmp_path, PROCESS, 0, 1)
    here = parts.writer_id().rpartition(".")[0]
    (tmp_path / "tmp" / f"steps-x-{here}.999999999.parquet").write_text("")
    mine = tmp_path / "tmp" / f"steps-x-{parts.writer_id()}.parquet"
    other = tmp_path / "tmp" / "steps-x-0badb007.1.5.parquet"
    ancient = tmp_path / "tmp" / "steps-y-12345.parquet"
    for path in (mine, other, ancient):
        path.write_text("")
    os.utime(ancient, (1, 1))
    assert merge.clear_tmp(tmp_path) == 2
    assert mine.exists()
    assert other.exists()


# -- kills at random moments --------------------------------------------------------------------
ZYGOTE = """
import os, sys
from badput import merge, parts
merge.YOUNG_S = 0.5
class Some:
    def __init__(self, last): self.last = last
    def part(self, stem): return int(stem[:16], 16) <= self.last
    def owner(self, owner): return int(owner, 16) <= self.last
for line in sys.stdin:
    last = int(line)
    pid = os.fork()
    if pid == 0:
        for table in ("steps", "events"):
            merge.TableCompactor(sys.argv[1], table, Some(last)).compact(2, 0.0, whole=True)
        os._exit(0)
    print(pid, flush=True)
    sys.stdin.readline()  # until then it is a zombie, so that its number is not another's
    print(os.waitpid(pid, 0)[1], flush=True)
"""
READER = """
import sys
from badput import parts
from pathlib import Path
run, expected = sys.argv[1], int(sys.argv[2])
want = None
rounds = 0
while not Path(run, "stop").exists():
    for table in ("steps", "events"):
        found = sorted((r["process_id"], r["seq"]) for r in parts.read_rows(run, table))
        if len(found) != expected or len(set(found)) != expected:
            print("wrong", table, len(found), len(set(found)), flush=True)
            sys.exit(1)
    rounds += 1
print(rounds, flush=True)
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_random_moments_readers_always_see_exactly_the_same_rows(tmp_path, kills):
    random.seed(11)
    for process in range(kills + 2):
        for first in (0, 3):
            write_steps(tmp_path, process, first, 3)
            row = {"process_id": process, "time_ns": 1, "kind": "note"}
            parts.write_rows(
                tmp_path, "events", f"{process:016x}-{first:012d}",
                [{**row, "seq": first + i} for i in range(3)],
            )  # fmt: skip
    total = 6 * (kills + 2)
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, tmp_path, str(total)], stdout=-1, text=True
    )
    zygote = subprocess.Popen(
        [sys.executable, "-c", ZYGOTE, tmp_path], stdin=-1, stdout=-1, text=True
    )

    def turn(last, delay):
        zygote.stdin.write(f"{last}\n")
        zygote.stdin.flush()
        pid = int(zygote.stdout.readline())
        if delay is not None:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        zygote.stdin.write("reap\n")
        zygote.stdin.flush()
        return int(zygote.stdout.readline())

    assert turn(0, None) == 0
    began = time.monotonic()
    assert turn(1, None) == 0
    usual = time.monotonic() - began
    died = sum(turn(last, random.uniform(0, usual)) == 9 for last in range(2, kills + 2))
    assert died > kills // 4, "most must be cut off at work"
    time.sleep(0.6)
    assert turn(kills + 1, None) == 0
    (tmp_path / "stop").touch()
    out, _ = reader.communicate(timeout=60)
    zygote.stdin.close()
    zygote.wait()
    zygote.stdout.close()
    assert reader.returncode == 0, out
    assert int(out) > 0
    merge.clear_tmp(tmp_path)
    for table in ("steps", "events"):
        assert len(keys(tmp_path, table)) == total
        heirs = files(tmp_path, table)
        assert all(n.startswith("compact-") for n in heirs)
        listed = [p.name for p in parts.list_parts(tmp_path, table)]
        assert listed == heirs, "nothing replaced is left"
    assert list((tmp_path / "tmp").glob("*.parquet")) == []


def test_a_run_that_is_locked_is_not_compacted(tmp_path):
    write_steps(tmp_path, PROCESS, 0, 1)
    with lock(tmp_path, alone=True), pytest.raises(LockedError):
        compact_run(tmp_path)


@pytest.mark.parametrize("table", ["events", "processes"])
@pytest.mark.parametrize("name", ["x.parquet", "compact-00000000000000aa.parquet"])
@pytest.mark.parametrize("damage", ["empty", "cut", "foreign", "null", "link", "pipe", "list"])
def test_what_is_no_part_is_left_alone_in_one_go(tmp_path, capsys, table, name, damage):
    """No traceback, and no waiting for what never comes."""
    parts.write_rows(tmp_path, "processes", "p", [{"process_id": 1, "role": "rank", "start_ns": 1}])
    rows = [{"process_id": 1, "seq": n, "time_ns": n, "kind": "note"} for n in range(3)]
    parts.write_rows(tmp_path, "events", "e", rows)
    bad = tmp_path / "facts" / table / name
    if damage == "empty":
        bad.touch()
    elif damage == "cut":
        whole = next((tmp_path / "facts" / table).iterdir()).read_bytes()
        bad.write_bytes(whole[: len(whole) // 2])
    elif damage == "foreign":
        pq.write_table(pa.table({"foo": [1]}), bad)
    elif damage == "null":
        empty = pa.array([None], pa.int64())
        pq.write_table(pa.table({"process_id": empty, "kind": ["end"], "role": ["rank"]}), bad)
    elif damage == "link":
        bad.symlink_to("/nonexistent")
    elif damage == "pipe":
        os.mkfifo(bad)
    else:
        with pq.ParquetWriter(bad, pa.schema([("x", pa.int64())])) as writer:
            writer.add_key_value_metadata({b"badput.replaces": b"[1]", b"badput.owners": b"5"})
    for command in (["compact", str(tmp_path)], ["status", str(tmp_path), "--json"]):
        assert badput_main(command) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err
    assert os.path.lexists(bad)
