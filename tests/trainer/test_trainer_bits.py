"""Whatever happens on the way, the final weights are the same bits.

The oracle has one process and no pipeline: the whole model, one microbatch after the
other, one backward pass through everything.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import torch

from badput_trainer import data, model, optim
from badput_trainer.config import ModelConfig, TrainConfig

if TYPE_CHECKING:
    from pathlib import Path


def oracle(
    text: Path, *, stages: int, layers: int, steps: int = 12, optimizer_name: str = "adamw"
) -> list[str]:
    """Digests by stage of a run without stages, at the settings of the tiny runs."""
    torch.set_num_threads(1)
    shape = ModelConfig(layers=layers, width=16, heads=2, context=16)
    corpus = data.split(text.read_bytes(), 16)
    whole = model.build(shape, 0, 1, seed=0)
    weights = dict(whole.named_parameters())
    optimizer = optim.build(TrainConfig(optimizer=optimizer_name), weights)
    for step in range(1, steps + 1):
        x, y = data.batch(corpus.train, seed=0, step=step, sequences=8, context=16)
        for k in range(4):
            rows = slice(2 * k, 2 * k + 2)
            logits = whole(torch.from_numpy(x[rows]))
            (model.loss_of(logits, torch.from_numpy(y[rows])) / 4).backward()
        grads = [w.grad for w in weights.values() if w.grad is not None]
        new = optimizer.step(list(weights.values()), grads, 3e-3)
        with torch.no_grad():
            for weight, value in zip(weights.values(), new, strict=True):
                weight.copy_(value)
        whole.zero_grad()
    cuts = [model.StageModel(shape, r, stages).state_dict().keys() for r in range(stages)]
    return [model.weights_digest({name: weights[name] for name in names}) for names in cuts]


def test_1f1b_ends_with_the_weights_of_a_single_process(trainer, plain):
    assert plain.digests == oracle(trainer.text, stages=2, layers=2)


def test_the_oracle_notices_one_step_less(trainer, plain):
    assert plain.digests != oracle(trainer.text, stages=2, layers=2, steps=11)


def test_gpipe_ends_with_the_weights_of_a_single_process(trainer, plain):
    outcome = trainer.run("gpipe", schedule="gpipe")
    assert outcome.code == 0, outcome.err
    assert outcome.digests == plain.digests


def test_muon_ends_with_the_weights_of_a_single_process(trainer, plain):
    outcome = trainer.run("muon", optimizer="muon")
    assert outcome.code == 0, outcome.err
    assert outcome.digests == oracle(trainer.text, stages=2, layers=2, optimizer_name="muon")
    assert outcome.digests != plain.digests


def test_four_stages_end_with_the_weights_of_a_single_process(trainer):
    outcome = trainer.run("four", stages=4, layers=4, eval_every=5)
    assert outcome.code == 0, outcome.err
    assert outcome.digests == oracle(trainer.text, stages=4, layers=4)
    assert outcome.out.count("validation loss") == 3


def test_a_run_that_fails_twice_and_restarts_ends_with_the_same_weights(killed, plain):
    outcome = killed
    assert outcome.code == 0, outcome.err
    assert "fault on purpose before microbatch 6" in outcome.err
    assert "rank 1 ended with signal 9" in outcome.out
    starts = [line for line in outcome.out.splitlines() if line.startswith("starting")]
    assert starts == [f"starting at step {n} of 12" for n in (1, 1, 5)]
    assert outcome.digests == plain.digests


def test_a_slow_rank_changes_no_bit(trainer, plain):
    outcome = trainer.run("slow", "--fault", "1:9:slow=4x16")
    assert outcome.code == 0, outcome.err
    assert outcome.digests == plain.digests
    assert (outcome.checkpoints / "fired-1-9-slow").exists()


def test_a_killed_2bw_run_continues_with_both_slots_to_the_same_bits(trainer, plain):
    whole = trainer.run("2bw", schedule="2bw", eval_every=5)
    assert whole.code == 0, whole.err
    assert whole.digests != plain.digests
    killed = trainer.run("2bw-killed", "--fault", "1:27:kill", schedule="2bw", probe=True)
    assert killed.code == 0, killed.err
    assert "starting at step 5 of 12" in killed.out
    assert killed.digests == whole.digests


def test_a_truncated_newest_checkpoint_falls_back_to_the_older_common_one(trainer, plain):
    shutil.copytree(plain.checkpoints, trainer.folder / "cut" / "checkpoints")
    newest = trainer.folder / "cut" / "checkpoints" / "step-00000012" / "stage-1.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    outcome = trainer.run("cut")
    assert outcome.code == 0, outcome.err
    assert "starting at step 9 of 12" in outcome.out
    assert outcome.digests == plain.digests
    assert newest.stat().st_size == json.loads(newest.with_suffix(".json").read_text())["bytes"]


def test_exhausted_restarts_are_a_failure_without_a_traceback(trainer):
    outcome = trainer.run("hopeless", "--fault", "1:5:exception", "--restarts", "0")
    assert outcome.code == 1
    assert outcome.digests == []
    assert "Traceback" not in outcome.err
