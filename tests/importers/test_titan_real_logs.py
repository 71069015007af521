"""Real torchtitan logs, read against an independent reading of the same files."""

from __future__ import annotations

import contextlib
import io
import json
from itertools import pairwise

import pytest

from badput_ledger.books import open_books
from badput_ledger.sources.cli import main


@pytest.fixture(scope="module")
def titan_logs(shared_logs):
    return shared_logs / "torchtitan"


@pytest.fixture(scope="module")
def read(titan_logs, tmp_path_factory, outcome):
    """Import files of the folder once and keep the outcome for the whole module."""
    kept = {}

    def run(*names):
        if names not in kept:
            out = io.StringIO()
            args = [
                *(str(titan_logs / n) for n in names),
                "-o",
                str(tmp_path_factory.mktemp("out")),
            ]
            with contextlib.redirect_stdout(out):
                code = main([*args, "--json"])
            kept[names] = outcome(code, out.getvalue(), "", json.loads(out.getvalue()))
        return kept[names]

    return run


def seconds(rows):
    return sum(r["dur_ns"] for r in rows) / 1e9


def test_the_crash_and_its_restart_lose_79_steps(titan_logs, read):
    log = titan_logs / "tt_fsdp8_447m_cublas_crash_restart.log"
    done = read(log.name)
    run = done.run
    assert done.code == 0
    assert run.ranges() == [(1, 1329), (1251, 2500)]
    assert run.relapsed() == 79
    (restart,) = run.claims("restart")
    assert restart["file"] == str(log)
    assert restart["line"] == 1627
    assert [c["line"] for c in run.claims("resumed_from")] == [154, 1778]
    assert [c["step"] for c in run.claims("resumed_from")] == [0, 1250]
    assert all(p["world_size"] == 8 and "RTX 5090" in p["gpu_type"] for p in run.attempts)


def test_the_crash_has_nine_saves_of_326_6_seconds_and_one_told_by_its_neighbours(read):
    run = read("tt_fsdp8_447m_cublas_crash_restart.log").run
    saves = sorted((c for c in run.checkpoints if c["op"] == "save"), key=lambda c: c["step"])
    assert [c["step"] for c in saves] == list(range(250, 2501, 250))
    assert seconds(saves[:-1]) == pytest.approx(326.6, abs=0.06)
    assert saves[-1]["dur_ns"] / 1e9 == pytest.approx(70.9, abs=0.1)
    assert saves[-1]["ok"] is True
    assert len(run.claims("save")) == 10
    loads = sorted((c for c in run.checkpoints if c["op"] == "load"), key=lambda c: c["start_ns"])
    assert [round(c["dur_ns"] / 1e9, 2) for c in loads] == [1.75, 8.22]
    # The first load is another run's step 12500: it must not pass for a step of this run.
    assert loads[0]["step"] is None
    assert loads[0]["path"].endswith("step-12500")
    assert loads[1]["step"] == 1250


def test_the_crash_is_told_with_its_cause_and_the_run_ends_with_rc_0(read):
    run = read("tt_fsdp8_447m_cublas_crash_restart.log").run
    (failure,) = [e for e in run.of("events", 0) if e["kind"] == "failure"]
    assert "CUBLAS_STATUS_INTERNAL_ERROR" in failure["attrs"]["what"]
    assert failure["attrs"]["rank"] == 7
    last_line = max(r["start_ns"] + r["dur_ns"] for r in run.of("steps", 0))
    assert last_line <= failure["time_ns"] < last_line + 1_300_000_000
    (exit_,) = [e for e in run.of("events", 0) if e["kind"] == "exit"]
    assert exit_["attrs"] == {"rank": 7, "pid": 703107, "exit_code": -6, "signal": 6}
    end = run.end(0)["attrs"]
    assert (end["reason"], end["signal"], end["exit_code"], end["step"]) == ("signal", 6, 1, 1330)
    assert run.end(1)["attrs"]["reason"] == "completed"
    assert run.end(1)["attrs"]["exit_code"] == 0
    assert {a["slot"] for a in run.allocations} == set(range(8))
    (interval,) = {(a["start_ns"], a["end_ns"], a["held"]) for a in run.allocations}
    assert (interval[1] - interval[0]) / 3600e9 == pytest.approx(1.752, abs=0.001)
    assert interval[2] == "yes"


def test_tokens_come_from_the_throughput_where_it_contradicts_batch_times_length(read):
    crash = read("tt_fsdp8_447m_cublas_crash_restart.log").run
    # 128 samples of 260 were configured, 258 of each are trained.
    assert crash.config["tokens_per_step"] == 128 * 258
    assert crash.config["tokens_precision"] < 0.002
    assert any("33280" in note for note in crash.config["notes"])
    clean = read("tt_lm447m_base_clean.log").run
    assert clean.config["tokens_per_step"] == 96 * 2048
    assert clean.config["tokens_precision"] is None


def test_the_clean_run_has_no_restart(read):
    run = read("tt_lm447m_base_clean.log").run
    assert run.ranges() == [(8001, 12500)]
    assert not run.claims("restart")
    assert run.config["log_interval"] == 10
    assert run.end(0)["attrs"]["reason"] == "completed"
    assert not [e for e in run.events if e["kind"] == "failure"]
    evals = [s for s in run.spans if s["name"] == "eval"]
    assert [s["step"] for s in evals] == [9000, 10000, 11000, 12000]


def test_three_files_of_one_run_are_ordered_by_time_and_lose_460_logged_steps(titan_logs, read):
    files = sorted(titan_logs.glob("tt_kimi436m_*"))
    done = read(*(f.name for f in reversed(files)))
    run = done.run
    assert run.ranges() == [(1, 12500), (12501, 12960), (12501, 14020)]
    assert run.relapsed() == 460
    assert [c["file"] for c in run.claims("restart")] == [str(f) for f in files[1:]]
    assert [run.end(i)["attrs"]["reason"] for i in range(3)] == [
        "completed",
        "exception",
        "unknown",
    ]
    assert "client has been closed" in next(
        e["attrs"]["what"] for e in run.events if e["kind"] == "failure"
    )
    assert max(c["step"] for c in run.checkpoints if c["op"] == "save") == 14000
    assert all(p["world_size"] == 4 for p in run.attempts)


def test_stage_2_loses_steps_at_five_restarts_and_has_two_starts_without_a_step(read):
    run = read("tt_stage2_continuation_5restarts.log").run
    assert run.ranges() == [
        (5001, 5650),
        (5501, 5731),
        (5501, 5531),
        None,
        None,
        (5501, 6150),
        (6001, 6650),
        (6501, 7000),
    ]
    assert run.relapsed() == 150 + 231 + 31 + 150 + 150
    # Step 5531 is printed after the next wrapper start, by the process that still trains.
    assert run.of("steps", 3) == []
    assert run.end(3)["attrs"]["reason"] == "killed"
    assert run.end(4)["attrs"]["phase"] == "load"
    assert {a["held"] for a in run.allocations} == {"yes", "unknown"}


def test_allocations_of_a_slot_neither_overlap_nor_leave_holes(read):
    run = read("tt_stage2_continuation_5restarts.log").run
    rows = sorted((a["start_ns"], a["end_ns"]) for a in run.allocations if a["slot"] == 3)
    assert all(a[1] == b[0] for a, b in pairwise(rows))


def test_a_job_that_begins_anew_at_step_1_is_another_run(read):
    first, second = read("tt_sft_orchestrator_8restarts.log").runs
    assert first.ranges() == [(1, 130), (101, 230), (201, 330), (301, 400)]
    assert first.relapsed() == 90
    assert second.ranges() == [(1, 130), (101, 230), (201, 330), (301, 430), (401, 490)]
    assert second.relapsed() == 120
    assert {p["rank"] for p in first.processes} == {4}
    assert {p["world_size"] for p in first.processes} == {8}
    assert first.runs[0]["name"] != second.runs[0]["name"]


def test_the_crash_loop_is_one_run_for_each_output_folder(read):
    done = read("tt_tiers_crashloop.log")
    assert len(done.runs) == 14
    assert sum(len(r.attempts) for r in done.runs) == 17
    assert sum(r["n_steps"] for run in done.runs for r in run.steps) == 150
    twice = next(r for r in done.runs if r.path.name.startswith("8gpu_b0_fsdp8_tier_b"))
    assert twice.ranges() == [None, (1, 50)]
    assert twice.end(0)["attrs"]["signal"] == 15
    assert all(p["world_size"] == 8 for run in done.runs for p in run.processes)


def test_the_vision_run_is_clean(read):
    run = read("tt_vlm447m_pretrain.log").run
    assert run.ranges() == [(6501, 7500)]
    assert not run.claims("restart")


@pytest.mark.parametrize(
    "name", ["fsdp8_447m_cublas_crash_restart", "kimi436m_1_original_to_12500"]
)
def test_steps_saves_and_evaluations_never_overlap(read, name):
    run = read(f"tt_{name}.log").run
    for index in range(len(run.attempts)):
        pieces = [(s["start_ns"], s["dur_ns"]) for s in run.of("steps", index)]
        pieces += [(s["start_ns"], s["dur_ns"]) for s in run.of("spans", index) if not s["in_step"]]
        pieces.sort()
        for (start, dur), (after, _) in pairwise(pieces):
            assert start + dur <= after


def causes(run):
    with open_books(run.path) as books:
        return [i["cause"].partition(":")[0] for i in books.report()["incidents"]]


def test_the_rank_that_failed_first_is_named_with_its_own_exit_code(titan_logs, read):
    files = sorted(f.name for f in titan_logs.glob("tt_kimi436m_*"))
    # The log says: failed (exitcode: 1) local_rank: 1; ranks 0, 2 and 3 only got SIGTERM.
    # The last file just stops, so nothing says that its attempt failed.
    assert causes(read(*reversed(files)).run) == ["rank 1 ended with an exception (exit code 1)"]
    _, second = read("tt_sft_orchestrator_8restarts.log").runs
    assert causes(second) == ["rank 0 was ended by signal 6"] * 4
    tiers = read("tt_tiers_crashloop.log").runs
    twice = next(r for r in tiers if r.path.name.startswith("8gpu_a2_fsdp2_pp4_tier_b"))
    assert causes(twice) == [
        "the launcher was killed (signal 9)",
        "rank 1 ended with an exception (exit code 1)",
    ]


def test_time_in_which_other_runs_had_the_gpus_is_not_held(read):
    tiers = read("tt_tiers_crashloop.log").runs
    twice = next(r for r in tiers if r.path.name.startswith("8gpu_a2_fsdp2_pp4_tier_b"))
    rows = sorted((a["start_ns"], a) for a in twice.allocations if a["slot"] == 0)
    assert [a["held"] for _, a in rows][:2] == ["yes", "no"]
    assert "other runs of the same log" in rows[1][1]["evidence"]
    with open_books(twice.path, price=2.5) as books:
        report = books.report()
    # 21 s and 127 s of eight GPUs; the 48 minutes in between were other runs'.
    assert report["held_gpu_seconds"] == pytest.approx(8 * 148, abs=1)
    assert report["cost"]["total"] == pytest.approx(0.82, abs=0.005)
    verdict = report["verdict"]
    assert "nothing was trained" in verdict["headline"]
    assert "0.329 GPU-hours" in verdict["headline"]
    assert "not held" in verdict["headline"]
    assert "--gaps" not in verdict["next"]
    assert verdict["next"].startswith("Fix this cause: rank 1 ended with an exception")


def test_the_start_of_the_kimi_restart_is_quoted_with_words(titan_logs, read):
    files = sorted(f.name for f in titan_logs.glob("tt_kimi436m_*"))
    restarts = read(*reversed(files)).run.claims("restart")
    assert all("Setting OMP_NUM_THREADS" in r["text"] for r in restarts)
