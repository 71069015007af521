"""What a run with faults tells badput: the facts on disk, before any books are made."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from badput.parts import read_rows

if TYPE_CHECKING:
    from pathlib import Path


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return read_rows(run, table)


@pytest.fixture(scope="module")
def run(killed) -> Path:
    """The run folder, once the collector has seen all seven processes end."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(e["kind"] == "end" for e in rows(killed.folder, "events")) == 7:
            break
        time.sleep(0.2)
    return killed.folder


def test_three_attempts_of_two_ranks_and_their_launcher_are_one_job(run):
    processes = rows(run, "processes")
    ranks = [p for p in processes if p["role"] == "rank"]
    assert sorted((p["attempt"], p["rank"], p["stage"]) for p in ranks) == [
        (attempt, r, r) for attempt in (0, 1, 2) for r in (0, 1)
    ]
    assert len(processes) == 7
    assert len({p["job_id"] for p in processes}) == 1
    assert len({p["endpoint"] for p in ranks}) == 3
    assert {(p["stages"], p["microbatches"], p["schedule"]) for p in ranks} == {(2, 4, "1f1b")}


def test_every_finished_step_of_every_attempt_is_there(run):
    attempts = {p["process_id"]: p["attempt"] for p in rows(run, "processes")}
    seen = sorted((attempts[s["process_id"]], s["rank"], s["step"]) for s in rows(run, "steps"))
    complete = [(0, r, 1) for r in (0, 1)]
    complete += [(1, r, n) for r in (0, 1) for n in range(1, 7)]
    complete += [(2, r, n) for r in (0, 1) for n in range(5, 13)]
    assert seen == sorted(complete)


def test_steps_carry_tokens_loss_and_the_waits_of_a_pipeline(run):
    for step in rows(run, "steps"):
        assert step["tokens"] == 4 * 2 * 16
        assert step["applied"] is True
        assert step["grad_norm"] > 0
        first = step["rank"] == 0
        assert (step["loss"] is None) == first
        assert (step["wait_gradient_ns"] is not None) == first
        assert (step["wait_activation_ns"] is None) == first
        for category in ("forward", "backward", "optimizer", "send"):
            assert step[f"{category}_ns"] > 0
        parts = sum(v or 0 for k, v in step.items() if k.endswith("_ns") and k in IN_STEP)
        assert parts <= step["dur_ns"]


IN_STEP = {
    f"{c}_ns"
    for c in ("forward", "backward", "optimizer", "send", "wait_activation", "wait_gradient")
}


def test_start_up_saves_evaluations_and_the_load_have_spans(run):
    names = [s["name"] for s in rows(run, "spans")]
    for name in ("rendezvous", "model", "data_init"):
        assert names.count(name) == 6
    assert names.count("eval") == 6  # on both ranks: after step 6 twice, after step 12 once
    saves = [(c["op"], c["step"], c["rank"]) for c in rows(run, "checkpoints")]
    expected = [("save", n, r) for n in (4, 8, 12) for r in (0, 1)]
    assert sorted(saves) == sorted(expected + [("load", 4, r) for r in (0, 1)])
    paths = {c["path"] for c in rows(run, "checkpoints") if c["step"] == 4}
    assert len(paths) == 1  # the load names what the save wrote


def test_the_launcher_says_how_each_rank_ended_and_the_ranks_that_they_are_done(run):
    events = rows(run, "events")
    exits = [json.loads(e["attrs"]) for e in events if e["kind"] == "exit"]
    assert len(exits) == 6
    assert [e["rank"] for e in exits if e["signal"] == 9] == [1]
    assert sum(e["exit_code"] == 0 for e in exits) == 2
    assert sum(e["kind"] == "complete" for e in events) == 3
    assert any("fault on purpose" in (e["attrs"] or "") for e in events if e["kind"] == "failure")


def test_the_run_carries_its_settings_and_the_digest_of_its_text(run):
    configs = [json.loads(r["config"]) for r in rows(run, "runs") if r["config"]]
    assert {c["tokens_per_step"] for c in configs} == {128}
    assert {len(c["data"]["sha256"]) for c in configs} == {64}
    assert {len(c["config_hash"]) for c in configs} == {64}
