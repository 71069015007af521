"""Logs that are damaged, absurd or meant to do harm: a correct import or one clear sentence."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys

import pytest

from badput_ledger.books import open_books
from badput_ledger.sources import attempts as limits
from badput_ledger.sources import titan_reader
from badput_ledger.sources.cli import main


def outside(tmp_path):
    """Everything that lies outside of the folder for runs."""
    return {p for p in tmp_path.rglob("*") if not p.is_relative_to(tmp_path / "out")}


def told(done):
    return " | ".join(u["what"] for u in done.reply["unread"])


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/",
        "..",
        "./.",
        "/a/..",
        "x" * 1500,
        "x" * 5000,
        "a\x00b/\x00",
        "-rf",
        "~",
        "a b",
        "é",
        "\x1b[31mred\x1b]0;t\x07",
        "\u202egnp",
        "<script>alert(1)</script>",
        "[red]x[/red]",
        "'",
    ],
)
def test_an_output_folder_of_any_name_stays_below_the_folder_given(
    titan, tmp_path, do_import, capsys, name
):
    titan.raw(f"  OUT_DIR={name}").launch(1).steps(1, 3).finish()
    log = titan.write(tmp_path / "a.log")
    before = outside(tmp_path)
    done = do_import(log)
    assert done.code == 0
    assert done.run.path.parent == tmp_path / "out"
    assert len(done.run.path.name) < 100
    assert outside(tmp_path) == before
    assert done.run.runs[0]["name"].isprintable()
    assert main([str(log), "-o", str(tmp_path / "out")]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


_NUMBERS = ["99999999999999999999", "-5", "1e400", "nan", "inf", "9" * 5000]
_NUMBERS += ["١٢", "", "9007199254740993", "1.5"]


@pytest.mark.parametrize("number", _NUMBERS)
def test_an_absurd_number_anywhere_is_no_crash_and_the_books_close(
    titan, tmp_path, do_import, number
):
    titan.launch(1).steps(1, 3)
    titan.wait(1).say(f"step: {number}  loss: 1.0  grad_norm: 1  memory: 1GiB(1%)  tps: 200")
    for key in ("loss", "grad_norm", "tps"):
        text = f"step: {len(titan.lines)}  loss: 1.5  grad_norm: 0.5  memory: 1GiB(1%)  tps: 200"
        value = text.split(f" {key}: ")[1].split(maxsplit=1)[0]
        titan.wait(1).say(text.replace(f" {key}: {value}", f" {key}: {number}"))
    titan.say(f"[GC] Performing periodic GC collection took {number} seconds")
    titan.say("Saving the checkpoint (or staging if async is enabled).").wait(1)
    titan.say(
        f"Finished saving the checkpoint (or staging if async is enabled) in {number} seconds."
    )
    titan.say(f"Saving a full checkpoint at last step, step {number}.")
    titan.say(f"Loading the checkpoint from /x/step-{number}.").say(f"validate step: {number}")
    titan.say(f"Checkpointer is deleting /data/runs/alpha/checkpoint/step-{number}.")
    titan.elastic(f"Sending process {number} closing signal SIGTERM")
    titan.elastic(f"failed (exitcode: {number}) local_rank: {number} (pid: {number}) of x", "E")
    titan.raw("Root Cause (first observed failure):")
    for key in ("time", "rank", "exitcode"):
        titan.raw(f"  {key}      : {number} (local_rank: {number}) (pid: {number})")
    titan.raw(f"train.sh: line 7: {number} Killed python")
    titan.wrapper(f"attempt #{number} rc={number} last_step={number}")
    titan.raw(f"  OUT_DIR=/data/runs/beta NGPU={number} GLOBAL_BS={number} SEQ_LEN={number}")
    titan.say(f"Building device mesh with parallelism: dp_shard={number}, tp={number}")
    titan.say(
        f"Trainer is initialized with local batch size {number}, global batch size {number}, "
        f"gradient accumulation steps {number}, sequence length {number}, total steps {number} (x)"
    )
    titan.say(f"Training starts at step {number}").wait(1).say(f"[rank{number}]:[titan] x")
    titan.lines.append(titan.record("step: 7  loss: 1", rank=0).replace("rank0", f"rank{number}"))
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.code == 0
    assert done.runs[0].ranges()[0][0] == 1
    for run in done.runs:
        books = open_books(run.path)
        report = books.report()
        books.close()
        assert report["total_gpu_seconds"] < 10_000
        json.dumps(report, allow_nan=False)


def test_absurd_gpu_counts_make_no_rows_for_each(titan, tmp_path, do_import):
    titan.wrapper("one START").raw("  OUT_DIR=/data/runs/alpha").raw("  NGPU=999999999")
    titan.gpus = 99_999_999
    titan.launch(1).steps(1, 3)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.attempts[0]["world_size"] == 1
    assert any("1 assumed" in note for note in run.config["notes"])


@pytest.mark.parametrize(
    "date",
    ["9999-99-99 99:99:99", "9999-12-31 23:59:59", "0001-01-01 00:00:00", "2032-13-01 00:00:00"],
)
def test_impossible_dates_are_told_and_cost_only_their_line(titan, tmp_path, do_import, date):
    titan.launch(1).steps(1, 8)
    for number in (4, 6):  # lines from the end
        titan.lines[-number] = titan.lines[-number][:16] + date + titan.lines[-number][35:]
    stamp = f"{date[5:7]}{date[8:10]} {date[11:]}.000000"
    titan.raw(f"[{date}] attempt #1 rc=0").raw(f"W{stamp} 4001 torch/distributed/api.py:80] x")
    done = do_import(titan.write(tmp_path / "a.log"))
    assert [r["step"] for r in done.run.steps] == [1, 2, 4, 6, 7, 8]
    assert "records with an impossible date" in told(done)
    assert len(done.run.attempts) == 1


def test_a_date_far_ahead_of_its_neighbours_is_damage(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 8)
    titan.lines[-4] = titan.lines[-4].replace("[titan] 2031", "[titan] 2131")
    done = do_import(titan.write(tmp_path / "a.log"))
    assert [r["step"] for r in done.run.steps] == [1, 2, 3, 4, 6, 7, 8]
    assert sum(r["dur_ns"] for r in done.run.steps) == 8 * 10**9


def test_a_clock_that_is_set_back_is_read_on_and_told(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 100, each=30).wait(-3600).steps(101, 200, each=30).save(5).finish()
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.run.ranges() == [(1, 200)]
    assert {r["dur_ns"] for r in done.run.steps} == {30 * 10**9}
    assert "the clock goes back here" in told(done)
    rows = sorted(done.run.steps, key=lambda r: r["step"])
    assert rows[-1]["start_ns"] - rows[0]["start_ns"] == 199 * 30 * 10**9


def test_a_clock_that_jumps_to_and_fro_never_overflows(titan, tmp_path, do_import):
    titan.launch(1)
    for number in range(1, 4000):
        titan.wait(59 * 86400 if number % 2 else -59 * 86400 + 60).say(titan.step_text(number, 9))
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.code == 0
    assert max(r["start_ns"] + r["dur_ns"] for r in done.run.steps) < 1 << 63


def test_shuffled_lines_are_no_crash_and_the_books_close(titan, tmp_path, do_import):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 20).save(2).steps(21, 30)
    titan.wait(1).elastic("failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: python", "E")
    titan.wrapper("attempt #1 rc=1 last_step=30").wrapper("attempt #2")
    titan.launch(21, load="/data/runs/alpha/checkpoint/step-20").steps(21, 40).save(1).finish()
    chance = random.Random(3)
    for number in range(5):
        chance.shuffle(titan.lines)
        done = do_import(titan.write(tmp_path / f"{number}.log"), out=tmp_path / f"out{number}")
        assert done.code == 0
        for run in done.runs:
            assert all(r["dur_ns"] is None or r["dur_ns"] >= 0 for r in run.steps + run.spans)
            books = open_books(run.path)
            books.report()
            books.close()


def test_files_joined_in_the_wrong_order_give_the_attempts_in_theirs(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 9)
    first, titan.lines = titan.lines, []
    titan.wait(60).launch(7, load="/data/runs/alpha/checkpoint/step-6").steps(7, 12)
    titan.lines += first
    assert do_import(titan.write(tmp_path / "a.log")).run.ranges() == [(1, 9), (7, 12)]


@pytest.mark.parametrize(
    "piece",
    [
        b"x",
        b"titan] ",
        b"[titan] 2031-12-31 23:40:00,000 - root - INFO - ",
        b"\r titan] 9",
        b"a.aError",
        b"OUT_DIR=",
        b"9",
        b"\x1b]0;",
        b"\x1b[1m",
        b"step: 1 loss: ",
        b"a:",
        b" Killed ",
    ],
)
def test_lines_of_megabytes_take_no_time_and_no_memory(titan, tmp_path, do_import, piece):
    titan.launch(1).steps(1, 5)
    log = titan.write(tmp_path / "a.log")
    long = piece * ((3 << 19) // len(piece))
    starts = (
        b"",
        b"[rank0]:[titan] 2031-12-31 23:40:10,000 - root - INFO - step: 6",
        b"  OUT_DIR=",
    )
    with log.open("ab") as file:
        for start in starts:
            file.write(start + long + b"\n")
    titan.lines.clear()
    titan.steps(6, 9)
    with log.open("a") as file:
        file.write("\n".join(titan.lines) + "\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    done = do_import(log)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 60
    assert done.code == 0
    assert {r["step"] for r in done.runs[0].steps} >= {1, 2, 3, 4, 5}


def test_two_hundred_megabytes_without_a_newline_fit_in_little_memory(titan, tmp_path):
    titan.launch(1).steps(1, 5)
    log = titan.write(tmp_path / "a.log")
    with log.open("ab") as file:
        for _ in range(200):
            file.write(b"step: 6 titan] " + b"0" * (1 << 20))
    script = (
        "import re, sys\n"
        "from badput_ledger.sources.cli import main\n"
        "code = main(sys.argv[1:])\n"
        # not ru_maxrss: that one starts at what the test process itself held at the fork
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
        "print(int(peak) >> 10, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, log, "-o", tmp_path / "out", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stderr) < 500
    reply = json.loads(done.stdout)
    assert reply["runs"][0]["steps"] == 5
    assert any("longer than 1 MiB" in u["what"] for u in reply["unread"])


def test_more_starts_than_a_log_can_have_are_refused(titan, tmp_path, do_import, monkeypatch):
    monkeypatch.setattr(titan_reader, "MOST_ATTEMPTS", 50)
    titan.launch(1).steps(1, 5)
    good = titan.write(tmp_path / "good.log")
    titan.lines.clear()
    for number in range(1, 60):
        titan.wait(1).wrapper(f"attempt #{number}")
    titan.launch(1).steps(1, 5)
    done = do_import(titan.write(tmp_path / "bad.log"), good)
    assert done.code == 2
    assert "more than 50 starts" in done.err
    assert done.run.ranges() == [(1, 5)]


def test_thousands_of_attempts_and_runs_are_grouped_in_linear_time(titan, tmp_path, do_import):
    assert limits.MOST_ATTEMPTS >= 10_000
    titan.wrapper("loop START")
    for number in range(1, 10_001):
        titan.wait(1).wrapper(f"attempt #{number}").wrapper(f"attempt #{number} rc=1")
    titan.wrapper("attempt #10001").launch(1).steps(1, 5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    done = do_import(titan.write(tmp_path / "a.log"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 60
    assert len(done.run.attempts) == 10_001
    assert len(done.run.allocations) == 4
