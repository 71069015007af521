"""Small torchtitan logs made here: every oddity alone."""

from __future__ import annotations

import gzip
import random

import pytest


def test_attempts_of_a_wrapper_become_sessions_of_one_run(titan, tmp_path, do_import):
    titan.wrapper("alpha START", half_day=True).wrapper("attempt #1 (disk: 1GB)", half_day=True)
    titan.launch(1).steps(1, 10).save(3).steps(11, 14)
    titan.wait(0.5).elastic("Sending process 71 closing signal SIGTERM")
    titan.wait(1).elastic("failed (exitcode: -6) local_rank: 2 (pid: 72) of binary: python", "E")
    titan.wait(2).wrapper("attempt #1 rc=1 last_step=14", half_day=True)
    titan.wait(5).wrapper("attempt #2 (disk: 1GB)", half_day=True)
    titan.launch(11, load="/data/runs/alpha/checkpoint/step-10").steps(11, 20).save(2, finish=False)
    titan.say("Sleeping 2 seconds for other ranks to complete").wait(2).finish()
    titan.wait(1).wrapper("attempt #2 rc=0 last_step=20", half_day=True).wrapper(
        "alpha END", half_day=True
    )
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 14), (11, 20)]
    assert [p["attempt"] for p in run.attempts] == [1, 2]
    assert run.attempts[0]["world_size"] == 4
    assert run.attempts[0]["gpu_type"] == "Test Accelerator 9"
    saves = [c for c in run.checkpoints if c["op"] == "save"]
    assert sorted((c["step"], c["dur_ns"]) for c in saves) == [
        (10, 3_000_000_000),
        (20, 2_000_000_000),
    ]
    assert run.end(0)["attrs"]["reason"] == "signal"
    (begin, end) = {(a["start_ns"], a["end_ns"]) for a in run.allocations}.pop()
    assert (end - begin) / 1e9 == pytest.approx(51.5, abs=1)
    assert len(run.allocations) == 4


def test_a_year_less_line_after_new_year_gets_the_next_year(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 21, each=60).wait(1)  # begins at 23:40 of 31 December
    titan.elastic("failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: python", "E")
    run = do_import(titan.write(tmp_path / "a.log")).run
    (failure,) = [e for e in run.events if e["kind"] == "failure"]
    assert failure["time_ns"] == int(titan.now.timestamp() * 1000) * 1_000_000


def test_one_launch_without_wrapper_lines_leaves_its_allocation_to_the_books(
    titan, tmp_path, do_import
):
    titan.launch(1).steps(1, 8)
    assert do_import(titan.write(tmp_path / "a.log")).run.allocations == []


def test_a_gap_in_which_another_run_ran_was_not_held(titan, tmp_path, do_import):
    for folder in ("alpha", "beta", "alpha"):
        titan.folder = f"/data/runs/{folder}"
        titan.wait(5).wrapper(f"config={folder}").raw(f"  OUT_DIR={titan.folder}")
        titan.launch(1).steps(1, 3)
    first, second = do_import(titan.write(tmp_path / "a.log")).runs
    assert {a["held"] for a in first.allocations} == {"yes", "no"}
    assert {a["held"] for a in second.allocations} == {"yes"}


def test_twelve_at_night_is_hour_zero(titan, tmp_path, do_import):
    titan.wait(20 * 60).wrapper("alpha START", half_day=True).wrapper("attempt #1", half_day=True)
    assert "12:00:00 AM" in titan.lines[0]
    titan.launch(1).steps(1, 3).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    (launch,) = [s for s in run.spans if s["name"] == "launch"]
    assert launch["dur_ns"] == 2_000_000_000


def test_colours_between_key_and_value_change_nothing(titan, tmp_path, do_import):
    titan.ansi = True
    titan.launch(1).steps(1, 5).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 5)]
    assert [r["loss"] for r in run.steps] == [2.5] * 5


def test_records_glued_to_a_bar_and_to_each_other_are_all_found(titan, tmp_path, do_import):
    titan.launch(1)
    one = titan.wait(1).record(titan.step_text(1, 200))
    two = titan.wait(1).record(titan.step_text(2, 200))
    titan.raw(f"[rank0]:Loading weights:   0%|     | 0/4 [00:00<?, ?it/s]{one}{two}")
    three = titan.wait(1).record(titan.step_text(3, 200))
    bars = "\r".join(f"  {n}%|##   | step: {n} loss: 9" for n in range(50))
    titan.raw(f"{bars}\r{three}").finish()
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.run.ranges() == [(1, 3)]
    assert len(done.run.steps) == 3
    assert done.run.claims("complete")[0]["line"] == len(titan.lines)


def test_a_line_cut_at_the_end_is_held_back_and_told(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 5)
    titan.wait(1).raw(titan.record(titan.step_text(6, 200, loss="1.23"))[:-40])
    done = do_import(titan.write(tmp_path / "a.log", tail=""))
    assert done.run.ranges() == [(1, 5)]
    (told,) = done.reply["unread"]
    assert told["line"] == len(titan.lines)
    assert "held back" in told["what"]


def test_any_cut_of_a_log_gives_whole_steps_or_one_sentence(titan, tmp_path, do_import):
    titan.wrapper("attempt #1").launch(1).steps(1, 6).save(2).steps(7, 9).finish()
    whole = titan.write(tmp_path / "whole.log").read_bytes()
    chance = random.Random(7)
    for number in range(25):
        part = tmp_path / f"cut{number}.log"
        part.write_bytes(whole[: chance.randrange(1, len(whole))])
        done = do_import(part)
        assert done.code in (0, 2)
        for run in done.runs:
            steps = [r["step"] for r in run.steps]
            assert steps == list(range(1, len(steps) + 1))
            assert {r["loss"] for r in run.steps} <= {2.5}


def test_a_gzip_log_is_read_and_a_cut_one_says_so(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 400).finish()
    plain = titan.write(tmp_path / "a.log").read_bytes()
    packed = tmp_path / "b.log.gz"
    packed.write_bytes(gzip.compress(plain[:5000]) + gzip.compress(plain[5000:]))
    assert do_import(packed).run.ranges() == [(1, 400)]
    cut = tmp_path / "c.log.gz"
    cut.write_bytes(gzip.compress(plain)[:2500])
    done = do_import(cut)
    assert 1 < len(done.run.steps) < 400
    assert any("cut" in u["what"] for u in done.reply["unread"])
    fake = tmp_path / "d.log.gz"
    fake.write_bytes(plain)
    assert do_import(fake).run.ranges() == [(1, 400)]


def test_broken_utf8_and_nuls_are_counted_and_cost_no_step(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 4).finish()
    log = titan.write(tmp_path / "a.log")
    data = (
        log.read_bytes().replace(b"memory:", b"m\xffemory:", 1).replace(b"loss:", b"\0\0loss:", 1)
    )
    log.write_bytes(data)
    done = do_import(log)
    assert done.run.ranges() == [(1, 4)]
    told = " ".join(u["what"] for u in done.reply["unread"])
    assert "1 lines with broken UTF-8" in told
    assert "2 NUL" in told


def test_a_validation_line_is_an_evaluation_and_no_step(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 10)
    titan.wait(7).say("validate step: 10  loss: 2.6  memory: 1.00GiB(10.00%)  tps: 900")
    titan.steps(11, 12).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert [r["step"] for r in run.steps] == list(range(1, 13))
    (span,) = [s for s in run.spans if s["name"] == "eval"]
    assert span["dur_ns"] == 7_000_000_000
    assert {r["dur_ns"] for r in run.steps} == {1_000_000_000}


def test_thousands_commas_in_step_and_rate(titan, tmp_path, do_import):
    titan.launch(1201, load="/data/runs/alpha/checkpoint/step-1200")
    titan.steps(1201, 1230, tokens=800_000).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1201, 1230)]
    assert run.config["tokens_per_step"] == pytest.approx(800_000, rel=1e-4)


def test_logged_every_ten_steps_a_row_covers_the_steps_since_the_last(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 34, every=10).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert [(r["step"], r["n_steps"], r["dur_ns"] // 10**9) for r in run.steps] == [
        (10, 10, 10),
        (20, 10, 10),
        (30, 10, 10),
    ]
    assert run.config["log_interval"] == 10
    assert run.steps[0]["tokens"] == 8000


def test_a_save_between_two_logged_steps_lies_inside_their_row(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 24, every=10).save(5).steps(25, 30, every=10)
    titan.say("Checkpointer is deleting /data/runs/alpha/checkpoint/step-24.").finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    (span,) = [s for s in run.spans if s["name"] == "save"]
    assert span["in_step"] is True
    assert [r["save_ns"] for r in run.steps] == [None, None, 5_000_000_000]
    (save,) = run.checkpoints
    assert save["step"] == 24  # no line says so but the folder that is deleted later


def test_without_wrapper_lines_a_new_agent_is_a_restart_and_the_gap_is_nobodys(
    titan, tmp_path, do_import
):
    titan.launch(1).steps(1, 8).save(1).steps(9, 11).wait(60)
    titan.launch(9, load="/data/runs/alpha/checkpoint/step-8").steps(9, 12)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 11), (9, 12)]
    gaps = [a for a in run.allocations if a["held"] != "yes"]
    assert {(a["held"], (a["end_ns"] - a["start_ns"]) // 10**9) for a in gaps} == {("unknown", 60)}
    assert [run.end(i)["attrs"]["reason"] for i in range(2)] == ["unknown", "unknown"]
    assert run.end(1)["attrs"]["phase"] == "step"
    assert len(run.claims("last_sign")) == 2


def test_a_smaller_step_alone_is_no_restart(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 8).steps(3, 4).steps(9, 10).finish()
    done = do_import(titan.write(tmp_path / "a.log"))
    assert len(done.run.attempts) == 1
    assert [r["step"] for r in done.run.steps] == list(range(1, 11))
    assert "without a sign of a restart" in done.reply["unread"][0]["what"]


def test_a_restart_inside_the_agent_is_seen_at_the_new_mesh(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 6).save(1).steps(7, 8)
    titan.wait(3).say("Building device mesh with parallelism: pp=1, dp_shard=4, tp=1")
    titan.wait(1).say("Loading the checkpoint from /data/runs/alpha/checkpoint/step-6.")
    titan.wait(1).say("Finished loading the checkpoint in 1.00 seconds.")
    titan.say("Training starts at step 7").steps(7, 9).finish()
    assert do_import(titan.write(tmp_path / "a.log")).run.ranges() == [(1, 8), (7, 9)]


def test_two_folders_in_one_file_are_two_runs(titan, tmp_path, do_import):
    titan.wrapper("attempt #1").launch(1).steps(1, 5).finish()
    titan.folder = "/data/runs/beta"
    titan.wait(9).wrapper("attempt #1").launch(1).steps(1, 7).finish()
    done = do_import(titan.write(tmp_path / "a.log"))
    assert [r.runs[0]["name"] for r in done.runs] == ["alpha", "beta"]
    assert [r.ranges() for r in done.runs] == [[(1, 5)], [(1, 7)]]


def test_after_a_finished_job_step_1_in_the_same_folder_is_a_new_run(titan, tmp_path, do_import):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 5).finish()
    titan.wait(9).wrapper("two START").wrapper("attempt #1").launch(1).steps(1, 7).finish()
    done = do_import(titan.write(tmp_path / "a.log"))
    assert [r.ranges() for r in done.runs] == [[(1, 5)], [(1, 7)]]


def test_a_restart_from_step_1_in_the_same_job_stays_one_run(titan, tmp_path, do_import):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 5)
    titan.wait(9).wrapper("attempt #1 rc=1 last_step=5").wrapper("attempt #2").launch(1).steps(1, 7)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 5), (1, 7)]
    assert len({p["job_id"] for p in run.processes}) == 1


def test_a_process_that_still_speaks_after_the_next_start_keeps_its_step(
    titan, tmp_path, do_import
):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 5)
    titan.wait(0.5).wrapper("two START").wrapper("attempt #1").steps(6, 6)
    titan.wait(2).launch(1).steps(1, 3)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 6), (1, 3)]
    first_end = run.end(0)["time_ns"]
    assert run.attempts[1]["start_ns"] >= first_end


def test_only_one_rank_is_followed_where_all_ranks_print(titan, tmp_path, do_import):
    titan.launch(1)
    for number in range(1, 6):
        titan.wait(1)
        for rank in (2, 0, 1):
            titan.say(titan.step_text(number, 200), rank)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert [r["step"] for r in run.steps] == [1, 2, 3, 4, 5]


def test_a_log_that_begins_inside_the_training_counts_from_its_first_line(
    titan, tmp_path, do_import
):
    titan.steps(501, 510).finish()
    done = do_import(titan.write(tmp_path / "a.log"), extra=("--gpus", "16"))
    assert done.run.ranges() == [(502, 510)]
    assert done.run.attempts[0]["world_size"] == 16
    assert "begins inside" in done.reply["unread"][0]["what"]


def test_an_unknown_number_of_gpus_is_said(titan, tmp_path, do_import):
    titan.say("Training starts at step 1").steps(1, 5).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.attempts[0]["world_size"] == 1
    assert any("1 assumed" in note for note in run.config["notes"])


def test_the_settings_of_a_wrapper_give_the_gpus(titan, tmp_path, do_import):
    titan.wrapper("config=small").raw("  OUT_DIR=/data/runs/gamma")
    titan.raw("  mesh: NGPU=24 FSDP=24").raw("  recipe: STEPS=9 GLOBAL_BS=8 SEQ_LEN=100")
    titan.wait(4).wrapper("[ERROR] small failed; continuing")
    titan.wait(1).wrapper("config=large").raw("  OUT_DIR=/data/runs/delta").raw("  mesh: NGPU=24")
    titan.launch(1).steps(1, 3).finish()
    first, second = do_import(titan.write(tmp_path / "a.log"), extra=("--gpus", "2")).runs
    assert first.attempts[0]["world_size"] == 24
    assert first.config["global_batch"] == 8
    assert first.end(0)["attrs"]["reason"] == "exit"
    assert second.runs[0]["name"] == "delta"


def test_garbage_collection_is_overhead_of_its_step(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 4)
    titan.say("[GC] Performing periodic GC collection took 0.25 seconds").steps(5, 6).finish()
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert [r["overhead_ns"] for r in run.steps] == [0, 0, 0, 0, 250_000_000, 0]


def test_nan_loss_and_unreadable_steps_do_not_stop_the_import(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 3)
    titan.wait(1).say(titan.step_text(4, 200, loss="nan")).say("step: many  loss: 1").steps(5, 5)
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.run.ranges() == [(1, 5)]
    assert "not understood" in done.reply["unread"][0]["what"]


def test_the_cause_comes_from_the_root_of_the_report(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 3)
    titan.raw("[rank0]:[rank0]: ValueError: only a symptom").wait(0.4)
    titan.elastic("Sending process 70 closing signal SIGTERM").wait(1)
    titan.elastic("failed (exitcode: 1) local_rank: 3 (pid: 73) of binary: python", "E")
    stamp = titan.now.strftime("%Y-%m-%d_%H:%M:%S")
    for root, rank, code, pid in ((False, 0, -15, 70), (True, 3, 1, 73)):
        if root:
            titan.raw("Root Cause (first observed failure):")
        titan.raw(f"[{rank}]:").raw(f"  time      : {stamp}")
        titan.raw(f"  rank      : {rank} (local_rank: {rank})").raw(
            f"  exitcode  : {code} (pid: {pid})"
        )
        if root:
            titan.raw("  made.up.DataError: the shard is gone")
    run = do_import(titan.write(tmp_path / "a.log")).run
    (failure,) = [e for e in run.events if e["kind"] == "failure"]
    assert failure["attrs"]["what"] == "made.up.DataError: the shard is gone"
    assert failure["attrs"]["rank"] == 3
    exits = {e["attrs"]["rank"]: e["attrs"] for e in run.events if e["kind"] == "exit"}
    assert exits[0]["signal"] == 15
    assert exits[3]["exit_code"] == 1
    assert run.end(0)["attrs"]["reason"] == "exception"


def test_a_dated_line_in_the_middle_announces_no_attempt(titan, tmp_path, do_import):
    titan.wrapper("attempt #1").launch(1).steps(1, 3).wrapper("gpu temperature 61 C").steps(4, 6)
    titan.wait(100).launch(5, load="/data/runs/alpha/checkpoint/step-4").steps(5, 7)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.attempts[1]["start_ns"] > run.end(0)["time_ns"]
    assert run.attempts[1]["start_ns"] - run.end(0)["time_ns"] == 100 * 10**9


def test_what_was_announced_days_ago_in_the_same_file_came_to_nothing(titan, tmp_path, do_import):
    titan.wrapper("one START").wrapper("attempt #1").launch(1).steps(1, 6).wait(1)
    titan.wrapper("attempt #1 rc=1 last_step=6").wrapper("attempt #2").wait(3 * 86400)
    titan.launch(5, load="/data/runs/alpha/checkpoint/step-4").steps(5, 9)
    titan.wait(60).wrapper("copying data").wait(86400)
    titan.launch(8, load="/data/runs/alpha/checkpoint/step-7").steps(8, 12)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [(1, 6), None, (5, 9), (8, 12)]
    assert max(s["dur_ns"] for s in run.spans if s["name"] == "launch") == 2 * 10**9
    held = sum(a["end_ns"] - a["start_ns"] for a in run.allocations if a["held"] == "yes")
    assert held / 4 / 1e9 < 100


def test_settings_of_the_next_launch_are_not_given_to_the_one_before(titan, tmp_path, do_import):
    titan.raw("  OUT_DIR=/data/runs/alpha").say("Training starts at step 1").steps(1, 3)
    titan.raw("  NGPU=64 GLOBAL_BS=999 SEQ_LEN=7")
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.attempts[0]["world_size"] == 1
    assert "global_batch" not in run.config


def test_the_settings_of_a_run_are_known_though_its_first_attempt_died_early(
    titan, tmp_path, do_import
):
    titan.wrapper("one START").wrapper("attempt #1").raw("  OUT_DIR=/data/runs/alpha").wait(2)
    titan.wrapper("attempt #1 rc=1").wrapper("attempt #2").launch(1).steps(1, 5)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [None, (1, 5)]
    assert run.config["global_batch"] == 8


def test_an_attempt_that_died_before_it_said_where_it_writes_is_of_its_jobs_run(
    titan, tmp_path, do_import
):
    titan.wrapper("one START").wrapper("attempt #1").wait(2).wrapper("attempt #1 rc=1")
    titan.wrapper("attempt #2").launch(1).steps(1, 5)
    run = do_import(titan.write(tmp_path / "a.log")).run
    assert run.ranges() == [None, (1, 5)]
    assert run.runs[0]["name"] == "alpha"


def test_a_line_printed_a_little_late_still_counts_its_step(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 5).save(3).wait(-0.05).steps(6, 6, each=0.01).steps(7, 8)
    done = do_import(titan.write(tmp_path / "a.log"))
    assert done.run.ranges() == [(1, 8)]
    assert len(done.run.steps) == 8
    assert done.reply["unread"] == []


def test_a_start_without_a_word_is_quoted_by_the_next_line_that_has_some(
    titan, tmp_path, do_import
):
    titan.launch(1).steps(1, 3).wait(5).launch(4).steps(4, 6).finish()
    at = [i for i, line in enumerate(titan.lines) if line.endswith("run.py:80] ")][1]
    head = titan.lines[at]
    titan.lines[at + 1 : at + 1] = [head + "*****", head + "Setting OMP_NUM_THREADS for each"]
    run = do_import(titan.write(tmp_path / "a.log")).run
    (restart,) = run.claims("restart")
    assert restart["text"] == head + "Setting OMP_NUM_THREADS for each"
    assert restart["line"] == at + 3
