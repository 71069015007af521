"""Every fault on purpose, with real processes and signals, and what the run ends with.

Microbatch 27 is the third of step 7; checkpoints are written after steps 4, 8 and 12.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from badput.parts import read_rows
from badput_trainer import data, model
from badput_trainer.config import ModelConfig
from badput_trainer.optim import BETA1, Optimizer, rule_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


def starts(out: str) -> list[int]:
    """The first step of each attempt."""
    return [int(n) for n in re.findall(r"^starting at step (\d+) of", out, re.MULTILINE)]


SAME_WEIGHTS = {
    "term": ("1:27:term", [], [1, 9], "stopped after step 8: rank 1 got SIGTERM"),
    "stop": ("1:27:stop", ["--timeout", "8"], [1, 5], "rank 1 ended with signal 9"),
    "truncate": ("1:38:truncate", [], [1, 5], "rank 1 ended with signal 9"),
    "missing": ("0:38:missing", [], [1, 5], "rank 0 ended with signal 9"),
    "kill-save": ("1:27:kill-save", [], [1, 5], "rank 1 ended with signal 9"),
    "kill twice": ("1:27:kill=2", [], [1, 5, 5], "2 restarts left"),
    "slow data": ("0:9:slow-data=0.05x8", [], [1], ""),
    "background": ("0:41:kill", ["--save", "background"], [1, 9], "rank 0 ended with signal 9"),
    "background kill-save": (
        "1:27:kill-save", ["--save", "background"], [1, 5], "rank 1 ended with signal 9",
    ),
}  # fmt: skip
"""Fault, flags, first step of each attempt, and a line that says it did happen."""


@pytest.mark.parametrize("name", SAME_WEIGHTS)
def test_a_fault_ends_with_the_weights_of_the_uninterrupted_run(trainer, plain, name):
    fault, flags, attempts, line = SAME_WEIGHTS[name]
    outcome = trainer.run(name, "--fault", fault, *flags)
    assert outcome.code == 0, outcome.err
    assert starts(outcome.out) == attempts
    assert line in outcome.out
    assert outcome.digests == plain.digests
    assert "Traceback" not in outcome.err
    assert list(outcome.checkpoints.glob("fired-*"))
    assert not list(outcome.checkpoints.glob("step-*/.*"))  # nothing half written stays


def test_lanes_change_no_bit(trainer, plain):
    outcome = trainer.run("lanes", "--lanes")
    assert outcome.code == 0, outcome.err
    assert outcome.digests == plain.digests


def reference(
    text: Path, batches: Sequence[int], skipped: Collection[int] = (), stages: int = 2
) -> list[str]:
    """Digests by stage after one process trained on ``batches``, without updates ``skipped``."""
    torch.set_num_threads(1)
    shape = ModelConfig(layers=2, width=16, heads=2, context=16)
    corpus = data.split(text.read_bytes(), 16)
    whole = model.build(shape, 0, 1, seed=0)
    weights = dict(whole.named_parameters())
    rules = {n: rule_of("adamw", n, w, momentum=BETA1) for n, w in weights.items()}
    optimizer = Optimizer(rules, weight_decay=0.1)
    for number in batches:
        x, y = data.batch(corpus.train, seed=0, step=number, sequences=8, context=16)
        for k in range(4):
            rows = slice(2 * k, 2 * k + 2)
            logits = whole(torch.from_numpy(x[rows]))
            (model.loss_of(logits, torch.from_numpy(y[rows])) / 4).backward()
        if number not in skipped:
            now = [w.detach() for w in weights.values()]
            new = optimizer.step(now, [w.grad for w in weights.values()], 3e-3)
            for old, value in zip(now, new, strict=True):
                old.copy_(value)
        whole.zero_grad()
    cuts = [model.StageModel(shape, r, stages).state_dict().keys() for r in range(stages)]
    return [model.weights_digest({name: weights[name] for name in names}) for names in cuts]


def test_a_gradient_that_is_no_number_costs_one_update(trainer, plain):
    """Not the uninterrupted run's weights: one update is missing, and only that."""
    outcome = trainer.run("nan", "--fault", "1:27:nan", probe=True)
    assert outcome.code == 0, outcome.err
    assert "rank 1: step 7 left out, its gradient is no number" in outcome.out
    assert "rank 0: step 7 left out, its gradient is no number" in outcome.out
    assert outcome.digests != plain.digests
    assert outcome.digests == reference(trainer.text, range(1, 13), skipped=[7])
    wait_for_ends(outcome.folder, 3)
    left_out = [(s["step"], s["rank"]) for s in rows(outcome.folder, "steps") if not s["applied"]]
    assert sorted(left_out) == [(7, 0), (7, 1)]


def test_a_gradient_that_is_no_number_on_the_first_stage_costs_that_stage_alone(trainer, plain):
    outcome = trainer.run("nan0", "--fault", "0:47:nan")
    assert outcome.code == 0, outcome.err
    assert re.findall(r"rank (\d): step (\d+) left out", outcome.out) == [("0", "12")]
    assert outcome.digests[0] == reference(trainer.text, range(1, 12))[0]
    assert outcome.digests[1] == plain.digests[1]


def test_a_loss_spike_is_answered_by_a_declared_rewind_that_skips_the_data(trainer):
    """Not the uninterrupted run's weights: batches 13 to 16 are left out, 25 to 28 come in."""
    flags = ("--fault", "1:61:spike", "--rewind-above", "1.1", "--fault", "0:75:kill")
    outcome = trainer.run("spike", *flags, probe=True, steps=24)
    assert outcome.code == 0, outcome.err
    assert "rewound to step 12: loss" in outcome.out
    assert "batches 13 to 16 are left out" in outcome.out
    # Killed in step 19, after the rewind: the place in the data is part of the checkpoint.
    assert starts(outcome.out) == [1, 17]
    batches = [*range(1, 13), *range(17, 29)]
    assert outcome.digests == reference(trainer.text, batches)
    wait_for_ends(outcome.folder, 5)
    rewinds = [e for e in rows(outcome.folder, "events") if e["kind"] == "rewind"]
    assert sorted((e["rank"], json.loads(e["attrs"])["to_step"]) for e in rewinds) == [
        (0, 12),
        (1, 12),
    ]
    loads = [c["step"] for c in rows(outcome.folder, "checkpoints") if c["op"] == "load"]
    assert sorted(loads) == [12, 12, 16, 16]


def test_a_background_save_is_durable_only_when_it_is_written(trainer, plain):
    outcome = trainer.run("recorded", "--save", "background", probe=True)
    assert outcome.code == 0, outcome.err
    assert outcome.digests == plain.digests
    wait_for_ends(outcome.folder, 3)
    saves = [c for c in rows(outcome.folder, "checkpoints") if c["op"] == "save"]
    for step in (4, 8, 12):
        for rank in (0, 1):
            mine = [c for c in saves if (c["step"], c["rank"]) == (step, rank)]
            blocking = [c for c in mine if c["durable_ns"] is None]
            written = [c for c in mine if c["durable_ns"] is not None]
            assert (len(blocking), len(written)) == (1, 1)
            assert blocking[0]["dur_ns"] > 0
            assert written[0]["dur_ns"] == 0  # takes nothing from the training thread
            assert written[0]["bytes"] > 0
            assert written[0]["durable_ns"] > blocking[0]["start_ns"] + blocking[0]["dur_ns"]


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return read_rows(run, table)


def wait_for_ends(run: Path, processes: int) -> None:
    """Until the collector has seen so many processes end, and so written all they recorded."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sum(e["kind"] == "end" for e in rows(run, "events")) >= processes:
            return
        time.sleep(0.2)
    raise AssertionError(f"the collector is not done with {run}")


def torchrun(
    trainer: Any, name: str, *flags: str, ranks: int = 2, extra: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """A run under torchrun on this machine."""
    command = trainer.command(name, *flags)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command[command.index("--run")] = "-o"
    command[1:3] = [*launcher, *extra, "-m", "badput_trainer.train"]
    env = trainer.env() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=env, check=False
    )


@pytest.mark.parametrize("own_store", [False, True], ids=["prefix", "store of its own"])
def test_torchrun_restarts_a_killed_rank(trainer, plain, own_store, monkeypatch):
    if own_store:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    name = f"torchrun{own_store:d}"
    done = torchrun(trainer, name, "--fault", "1:27:kill", extra=["--max-restarts", "1"])
    assert done.returncode == 0, done.stderr
    assert starts(done.stdout) == [1, 5]
    digests = re.findall(r"^stage \d+ weights sha256 (\w+)$", done.stdout, re.MULTILINE)
    assert digests == plain.digests


def test_too_few_ranks_are_one_sentence_before_any_group(trainer):
    env = {**trainer.env(), "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # nothing listens there
    done = subprocess.run(
        trainer.command("few"), capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "badput train: --stages 2 needs 2 ranks, one for each stage, but torchrun started 1; "
        "use --nproc-per-node 2.\n"
    )
    assert not (trainer.folder / "few").exists()


def test_under_torchrun_a_run_needs_a_name(trainer):
    env = {**trainer.env(), "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "badput_trainer.train", "--no-probe"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=60, check=False,
        cwd=trainer.folder,
    )  # fmt: skip
    assert done.returncode == 2
    assert "-o DIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_checkpoint_of_another_run_is_refused(trainer, plain):
    place = ["--checkpoint-dir", str(plain.checkpoints)]
    refused = trainer.run("other", *place)
    assert refused.code == 2
    assert refused.err == (
        f"badput train: {plain.checkpoints} holds checkpoints of another run, plain, not of "
        f"other; use another --checkpoint-dir.\n"
    )


def test_a_run_that_is_resumed_with_other_settings_hears_which(trainer, plain):
    refused = trainer.run("plain", lr=0.5)
    assert refused.code == 2
    assert "(lr is 0.003 there and 0.5 here)" in refused.err
    assert refused.err.count("\n") == 1


def test_a_stopped_launcher_saves_first_and_the_run_goes_on_where_it_was(trainer, plain):
    command = trainer.command("preempted", "--fault", "0:25:slow=30x8", checkpoint_every=12)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=trainer.env())
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step      6"):
            process.terminate()
            break
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + 15, out
    stopped = re.search(r"stopped after step (\d+): rank \d got SIGTERM", out)
    assert stopped is not None, out
    again = trainer.run("preempted", checkpoint_every=12)
    assert again.code == 0, again.err
    assert starts(again.out) == [int(stopped[1]) + 1]
    assert again.digests == plain.digests
