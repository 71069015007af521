"""Stages with their weight slots, their state and the delay that they see."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.trainer.pipeline import STEPS, Player, config_of, played

from badput_trainer.schedule import SCHEDULES
from badput_trainer.stage import Stage


@pytest.mark.parametrize("schedule", ["1f1b", "2bw"])
def test_a_run_resumed_from_the_state_of_its_stages_ends_with_the_same_bits(schedule):
    config = config_of(schedule)
    whole = played(config)
    first = [Stage(config, r) for r in range(4)]
    Player(config, first, until=3).play()
    states = [copy.deepcopy(s.state()) for s in first]
    other_seed = config_of(schedule, seed=9)
    second = [Stage(other_seed, r) for r in range(4)]
    for stage, state in zip(second, states, strict=True):
        stage.load_state(state)
    Player(config, second).play()
    assert [s.digest() for s in second] == [s.digest() for s in whole]
    assert [s.delays for s in second] == [s.delays for s in whole]


def test_a_run_resumed_from_its_newest_weights_alone_does_not():
    config = config_of("2bw")
    whole = played(config)
    stages = [Stage(config, r) for r in range(4)]
    Player(config, stages, until=3).play()
    for stage in stages:
        state = copy.deepcopy(stage.state())
        state["slots"][0]["weights"] = state["slots"][1]["weights"]
        stage.load_state(state)
    Player(config, stages).play()
    assert [s.digest() for s in stages] != [s.digest() for s in whole]


def test_a_state_holds_both_slots_with_their_versions_and_the_steps_done():
    config = config_of("2bw", stages=2)
    stages = [Stage(config, r) for r in range(2)]
    assert [s["version"] for s in stages[0].state()["slots"]] == [0]
    Player(config, stages, until=3).play()
    for stage in stages:
        state = stage.state()
        assert state["steps"] == 3
        assert [s["version"] for s in state["slots"]] == [2, 3]
        older, newer = (s["weights"] for s in state["slots"])
        assert older.keys() == newer.keys()
        assert not any(torch.equal(older[n], newer[n]) for n in older)


@pytest.mark.parametrize("stages", [2, 4])
def test_under_2bw_every_microbatch_after_the_first_step_is_one_update_behind(stages):
    config = config_of("2bw", stages=stages)
    for stage in played(config):
        assert stage.delays == {0: 4, 1: 4 * (STEPS - 1)}


def test_under_a_synchronous_schedule_none_is():
    for stage in played(config_of("1f1b")):
        assert stage.delays == {0: 4 * STEPS}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_whoever_comes_first_the_bits_are_the_same(schedule):
    config = config_of(schedule)
    digests = {tuple(s.digest() for s in played(config, seed)) for seed in range(4)}
    assert len(digests) == 1
