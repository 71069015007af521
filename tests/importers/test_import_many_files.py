"""Several files in one import: nothing of one may get into another without evidence."""

from __future__ import annotations

import gzip
import itertools
import random

import pytest

from badput.schema import TABLES


def facts(run):
    """Every row of a run, table by table, in no order."""
    return {table: sorted(map(repr, getattr(run, table))) for table in TABLES}


def by_id(outcome):
    assert outcome.code == 0
    return {run.path.name: facts(run) for run in outcome.runs}


@pytest.fixture
def titan_at(titan):
    """A maker of further logs, which begin ``hours`` after the usual start."""
    maker = type(titan)

    def make(folder, hours=0.0):
        return maker(folder=folder, agent=titan.agent + int(hours * 100)).wait(hours * 3600)

    return make


def test_the_real_logs_give_the_same_runs_together_in_any_order_and_one_by_one(
    shared_logs, do_import, tmp_path
):
    files = sorted((shared_logs / "torchtitan").glob("*.log"))
    assert len(files) == 9
    kimi = [f for f in files if "kimi" in f.name]
    groups = [[f] for f in files if f not in kimi] + [kimi]
    alone = {}
    for number, group in enumerate(groups):
        alone |= by_id(do_import(*group, out=tmp_path / f"alone{number}"))
    assert len(alone) == 21
    together = do_import(*files, out=tmp_path / "all")
    assert by_id(together) == alone
    launches = [s["dur_ns"] for r in together.runs for s in r.spans if s["name"] == "launch"]
    assert max(launches) < 120 * 10**9
    random.Random(5).shuffle(files)
    assert by_id(do_import(*files, out=tmp_path / "mixed")) == alone


def test_an_attempt_announced_at_the_end_of_a_file_is_not_the_next_files(
    titan_at, tmp_path, do_import
):
    one = titan_at("/data/runs/one").wrapper("one START").wrapper("attempt #1").launch(1)
    one.steps(1, 4).wait(2).wrapper("attempt #1 rc=1 last_step=4").wrapper("attempt #2")
    two = titan_at("/data/runs/two", hours=60).launch(1).steps(1, 5).finish()
    a, b = one.write(tmp_path / "a.log"), two.write(tmp_path / "b.log")
    alone = by_id(do_import(a, out=tmp_path / "x")) | by_id(do_import(b, out=tmp_path / "y"))
    assert by_id(do_import(b, a)) == alone
    second = do_import(a, b).runs[1]
    (launch,) = [s for s in second.spans if s["name"] == "launch"]
    assert launch["dur_ns"] == 2_000_000_000
    assert second.allocations == []


def test_what_hangs_over_at_the_end_of_a_file_stays_there(titan_at, tmp_path, do_import):
    endings = {
        "banner": lambda t: t.wrapper("copying data"),
        "start": lambda t: t.wrapper("next one START").raw("  OUT_DIR=/data/runs/ghost"),
        "report": lambda t: t.elastic("failed (exitcode: 1) local_rank: 0 (pid: 9) of x", "E").raw(
            "Root Cause (first observed failure):"
        ),
        "sizes": lambda t: t.raw("  OUT_DIR=/data/runs/one").raw("  NGPU=64 GLOBAL_BS=999"),
    }
    two = titan_at("/data/runs/two", hours=3).say("Training starts at step 1").steps(1, 5).wait(1)
    two.raw("[rank0]: made.up.ProblemError: of the second file").finish()
    second = two.write(tmp_path / "b.log")
    alone = by_id(do_import(second, out=tmp_path / "alone"))
    for name, end in endings.items():
        one = titan_at("/data/runs/one").wrapper("one START").wrapper("attempt #7").launch(1)
        end(one.steps(1, 4))
        both = by_id(do_import(one.write(tmp_path / f"{name}.log"), second, out=tmp_path / name))
        assert alone.items() <= both.items(), name


def test_equal_process_numbers_in_two_files_are_two_processes(titan_at, tmp_path, do_import):
    one = titan_at("/data/runs/one").launch(1).steps(1, 4)
    two = titan_at("/data/runs/two", hours=1)
    two.agent = one.agent - 1
    two.launch(1).steps(1, 5).raw(f"train.sh: line 7: {one.agent} Killed python")
    files = [one.write(tmp_path / "a.log"), two.write(tmp_path / "b.log")]
    first, second = do_import(*files).runs
    assert first.end(0)["attrs"]["reason"] == "unknown"
    assert second.end(0)["attrs"]["reason"] == "killed"


def test_a_gap_is_not_explained_by_a_run_of_another_log(titan_at, tmp_path, do_import):
    one = titan_at("/data/runs/one")
    for start, load in ((1, None), (4, "/data/runs/one/checkpoint/step-3")):
        one.wrapper("one START").wrapper("attempt #1").launch(start, load).steps(start, start + 2)
        one.wait(3600)
    two = titan_at("/data/runs/two", hours=0.4).launch(1).steps(1, 5)
    files = [one.write(tmp_path / "a.log"), two.write(tmp_path / "b.log")]
    first = do_import(*files).runs[0]
    assert {a["held"] for a in first.allocations} == {"yes", "unknown"}


def test_folders_of_the_same_last_name_keep_their_ids_and_names(titan_at, tmp_path, do_import):
    files = [
        titan_at(f"/data/{user}/model", hours=n).launch(1).steps(1, 5).write(tmp_path / f"{n}.log")
        for n, user in enumerate(("ann", "bob"))
    ]
    done = do_import(*files)
    assert [r.runs[0]["name"] for r in done.runs] == ["model", "model"]
    assert len({r.path for r in done.runs}) == 2
    assert by_id(do_import(files[1], out=tmp_path / "x")).items() <= by_id(done).items()


def test_logs_without_a_folder_are_named_after_themselves(titan_at, tmp_path, do_import):
    files = []
    for n, name in enumerate(("b.log", "a.log")):
        log = titan_at("", hours=n).say("Training starts at step 1").steps(1, 5)
        files.append(log.write(tmp_path / name))
    for order in itertools.permutations(files):
        done = do_import(*order)
        assert sorted(r.runs[0]["name"] for r in done.runs) == ["a", "b"]


@pytest.mark.parametrize("folder", ["/data/runs/one", "./outputs"])
def test_a_second_file_that_resumes_in_the_folder_of_the_first_is_its_run(
    titan_at, tmp_path, do_import, folder
):
    one = titan_at(folder).launch(1).steps(1, 9)
    two = titan_at(folder, hours=1).launch(7, load=f"{folder}/checkpoint/step-6").steps(7, 12)
    files = [two.write(tmp_path / "b.log"), one.write(tmp_path / "a.log")]
    run = do_import(*files).run
    assert run.ranges() == [(1, 9), (7, 12)]
    assert {a["held"] for a in run.allocations} == {"yes", "unknown"}


def test_a_relative_folder_alone_does_not_join_two_logs(titan_at, tmp_path, do_import):
    files = [
        titan_at("./outputs", hours=n).launch(1).steps(1, 5).write(tmp_path / f"{n}.log")
        for n in range(2)
    ]
    assert [r.ranges() for r in do_import(*files).runs] == [[(1, 5)], [(1, 5)]]


def test_a_wrapper_that_counts_on_in_the_next_file_is_one_job(titan_at, tmp_path, do_import):
    one = titan_at("/data/runs/one").wrapper("one START").wrapper("attempt #1").launch(1)
    one.steps(1, 4).save(1).wrapper("attempt #1 rc=1 last_step=4")
    two = titan_at("/data/runs/one", hours=0.1).wrapper("attempt #2")
    two.launch(5, load="/data/runs/one/checkpoint/step-4").steps(5, 9)
    two.wrapper("attempt #2 rc=1 last_step=9").wait(30).wrapper("attempt #3")
    two.launch(5, load="/data/runs/one/checkpoint/step-4").steps(5, 11)
    run = do_import(two.write(tmp_path / "b.log"), one.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 4), (5, 9), (5, 11)]
    assert {a["held"] for a in run.allocations} == {"yes"}


def test_rotated_parts_give_the_attempts_of_the_whole_log(titan, tmp_path, do_import):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 20).save(2).steps(21, 30)
    titan.wrapper("attempt #1 rc=1 last_step=30").wait(9).wrapper("attempt #2")
    titan.launch(21, load="/data/runs/alpha/checkpoint/step-20").steps(21, 40).finish()
    whole = titan.write(tmp_path / "whole.log")
    expected = do_import(whole).run
    chance = random.Random(11)
    for number in range(6):
        folder = tmp_path / f"parts{number}"
        folder.mkdir()
        cuts = sorted(chance.sample(range(8, len(titan.lines)), 2))
        pieces = [titan.lines[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        for name, piece in zip(("t.log.2.gz", "t.log.1", "t.log"), pieces, strict=True):
            data = ("\n".join(piece) + "\n").encode()
            (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        done = do_import(folder, out=folder / "out")
        if all(any("[titan] " in line for line in piece) for piece in pieces):
            assert done.run.ranges() == expected.ranges(), cuts
            assert done.run.relapsed() == 10
            ends = [done.run.end(i)["time_ns"] for i in range(2)]
            assert ends == [expected.end(i)["time_ns"] for i in range(2)]


def test_parts_of_any_name_are_joined_where_the_steps_go_on(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 30, every=5)
    half = len(titan.lines)
    titan.steps(31, 60, every=5).finish()
    whole = titan.lines
    for name, titan.lines in (("monday.log", whole[:half]), ("tuesday.log", whole[half:])):
        titan.write(tmp_path / name)
    other = type(titan)(folder="/data/runs/other").launch(1).steps(1, 12)
    done = do_import(
        tmp_path / "tuesday.log", other.write(tmp_path / "x.log"), tmp_path / "monday.log"
    )
    assert sorted(r.ranges() for r in done.runs) == [[(1, 12)], [(1, 60)]]
    assert do_import(tmp_path / "tuesday.log", out=tmp_path / "y").run.ranges() == [(36, 60)]


def test_a_file_that_begins_far_ahead_of_another_is_no_part_of_it(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 10)
    first = titan.write(tmp_path / "a.log")
    titan.lines.clear()
    titan.wait(3600).steps(5001, 5010)
    done = do_import(first, titan.write(tmp_path / "b.log"))
    assert [r.ranges() for r in done.runs] == [[(1, 10)], [(5002, 5010)]]


def test_copies_packed_or_cut_at_either_end_count_once(titan, tmp_path, do_import):
    titan.wrapper("attempt #1").launch(1).steps(1, 20).save(2).steps(21, 30)
    titan.wait(9).wrapper("attempt #1 rc=1 last_step=30").wrapper("attempt #2")
    titan.launch(21, load="/data/runs/alpha/checkpoint/step-20").steps(21, 40).save(3).finish()
    data = titan.write(tmp_path / "a.log").read_bytes()
    expected = do_import(tmp_path / "a.log").run
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(data))
    lines = data.splitlines(keepends=True)
    for name, part in (("c.log", lines[:30]), ("d.log", lines[12:]), ("e.log", lines[-15:])):
        (tmp_path / name).write_bytes(b"".join(part))
    copies = [tmp_path / n for n in ("b.log.gz", "c.log", "d.log", "e.log")]
    for copy in copies:
        for order in ((tmp_path / "a.log", copy), (copy, tmp_path / "a.log")):
            run = do_import(*order).run
            assert run.ranges() == expected.ranges() == [(1, 30), (21, 40)], copy.name
            for table in ("steps", "checkpoints", "spans"):
                assert len(getattr(run, table)) == len(getattr(expected, table)), copy.name
    assert do_import(tmp_path / "a.log", *copies).run.ranges() == expected.ranges()


def test_the_logs_of_two_ranks_are_one_attempt(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 10).finish()
    other = type(titan)(rank=1, agent=titan.agent - 1).wait(0.3).launch(1).wait(10).finish()
    done = do_import(other.write(tmp_path / "rank1.log"), titan.write(tmp_path / "rank0.log"))
    assert done.run.ranges() == [(1, 10)]
    assert "counted once" in done.reply["unread"][0]["what"]
