"""The pipeline against the oracle, bit by bit; `make proof` has all of it, with processes."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.trainer.pipeline import STEPS, TEXT, Player, config_of, played

from badput_trainer import data, proof
from badput_trainer.mutants import MUTANTS
from badput_trainer.oracle import Oracle, differences
from badput_trainer.stage import EMPTY, Slot, Stage

CORPUS = data.Corpus(TEXT, TEXT)
MODES = [("gpipe", 0.0), ("1f1b", 0.0), ("2bw", 0.0), ("2bw", 1.0)]


def oracle_of(config, **how) -> Oracle:
    torch.set_num_threads(1)
    oracle = Oracle(config, CORPUS, **how)
    oracle.train(STEPS)
    return oracle


def wrong(oracle: Oracle, stages: list[Stage]) -> list[str]:
    pairs = enumerate(stages)
    return [d for r, s in pairs for d in differences(oracle.state(r, len(stages)), s.state())]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("schedule", "alpha"), MODES)
def test_stages_in_any_order_hold_what_the_oracle_holds(schedule, alpha, optimizer):
    for microbatches in (4, 8):
        settings = {"optimizer": optimizer, "correction": alpha, "microbatches": microbatches}
        oracle = oracle_of(config_of(schedule, **settings))
        for stages in (2, 4):
            config = config_of(schedule, stages=stages, **settings)
            assert wrong(oracle, played(config, seed=stages)) == []


def test_delay_0_in_two_slots_is_the_synchronous_run():
    config = config_of("1f1b")
    stages = [Stage(config, r) for r in range(4)]
    for stage in stages:
        stage._slots.append(Slot(copy.deepcopy(stage._slots[0].module), EMPTY))
    Player(config, stages).play()
    assert [s.digest() for s in stages] == [s.digest() for s in played(config)]
    late = config_of("2bw")
    on_time = oracle_of(late, delay=0)
    assert differences(on_time.versions, oracle_of(config).versions) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_refused_by_an_assertion_or_ends_with_other_bits(name):
    config = config_of("2bw", correction=1.0)
    oracle = oracle_of(config)
    assert wrong(oracle, played(config)) == []
    stages = [MUTANTS[name](config, r) for r in range(4)]
    refused = False
    try:
        Player(config, stages).play()
    except AssertionError:  # the stage's own check of versions saw it
        refused = True
    if refused:
        assert name != "a_{t-1} for u_{t-1}"
    else:
        assert wrong(oracle, stages)


def test_a_difference_of_one_bit_is_seen_and_of_none_is_not():
    one = {"a": [torch.tensor([1.0, 0.0])], "n": 3}
    assert differences(one, copy.deepcopy(one)) == []
    for other in ([1.0, -0.0], [1.0, 1e-45], [float("nan"), 0.0]):
        found = differences(one, {"a": [torch.tensor(other)], "n": 3})
        assert len(found) == 1
        assert found[0].startswith("/a/0: other bits")
    nan = {"a": torch.tensor([float("nan")])}
    assert differences(nan, copy.deepcopy(nan)) == []
    assert differences(one, {"a": one["a"], "n": 4}) == ["/n: 4, expected 3"]
    assert differences(one, {"a": one["a"]}) == [": only one of the two has n"]


def test_real_processes_with_random_sleeps_end_with_the_bits_of_the_oracle():
    modes = {(c.schedule, c.correction) for c in proof.grid()}
    assert modes == set(MODES)
    assert len({c.to_json() for c in proof.grid()}) == 64
    judge = proof.Judge()
    config = replace(proof.base(), microbatches=4, jitter=proof.JITTER_MS, optimizer="muon")
    try:
        assert judge.differences(replace(config, schedule="2bw", correction=1.0)) == []
        assert judge.differences(replace(config, schedule="1f1b")) == []
        assert judge.differences(replace(config, schedule="1f1b", jitter=0.0), "peer") == []
    finally:
        judge.close()


def test_prove_says_equal_and_ends_with_0_even_after_a_kill(trainer):
    outcome = trainer.run(
        "proven", "--prove", "--fault", "1:27:kill", schedule="2bw", optimizer="muon", correction=1
    )
    assert outcome.code == 0, outcome.err
    assert "proof: 12 steps of 2bw on 2 stages are bitwise equal to the oracle" in outcome.out
    for stage in (0, 1):
        line = f"stage {stage}: equal to the bit; delay in updates 0 on 4, 1 on 44 microbatches"
        assert line in outcome.out


def test_prove_says_where_a_run_differs_and_ends_with_1(trainer, plain):
    config = proof.TrainConfig(
        model=proof.ModelConfig(layers=2, width=16, heads=2, context=16),
        data=proof.DataConfig(str(trainer.text), data.digest(trainer.text.read_bytes())),
        checkpoint_dir=str(plain.checkpoints),
        steps=12,
        microbatches=4,
        microbatch=2,
    )
    for lr, code, verdict in ((3e-3, 0, "are bitwise equal to"), (3.001e-3, 1, "DIFFER from")):
        done = subprocess.run(
            [sys.executable, "-m", "badput_trainer.oracle", replace(config, lr=lr).to_json()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert f"proof: 12 steps of 1f1b on 2 stages {verdict} the oracle" in done.stdout
        assert ("differs in" in done.stdout) == bool(code)


def test_prove_without_checkpoints_is_refused(trainer):
    refused = trainer.run("unproven", "--prove", checkpoint_every=0)
    assert refused.code == 2
    assert (
        "--prove compares the last checkpoint, and --checkpoint-every 0 saves none" in refused.err
    )
