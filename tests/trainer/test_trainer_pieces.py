"""The parts of the trainer one by one, in this process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from badput_trainer import checkpoint, data, faults, model
from badput_trainer.config import ConfigError, DataConfig, ModelConfig, TrainConfig

SMALL = ModelConfig(layers=4, width=16, heads=2, context=16)


def test_initial_weights_are_the_same_however_the_model_is_cut():
    whole = dict(model.build(SMALL, 0, 1, seed=5).named_parameters())
    cut: dict[str, torch.Tensor] = {}
    for stage in range(4):
        cut |= dict(model.build(SMALL, stage, 4, seed=5).named_parameters())
    assert cut.keys() == whole.keys()
    assert model.weights_digest(cut) == model.weights_digest(whole)


def test_another_seed_gives_other_weights():
    one, two = (dict(model.build(SMALL, 0, 1, seed=s).named_parameters()) for s in (1, 2))
    assert model.weights_digest(one) != model.weights_digest(two)


def test_the_model_does_not_look_ahead():
    module = model.build(SMALL, 0, 1, seed=0)
    tokens = torch.arange(16).view(1, 16)
    changed = tokens.clone()
    changed[0, 10] = 200
    assert torch.equal(module(tokens)[0, :10], module(changed)[0, :10])
    assert not torch.equal(module(tokens)[0, 10:], module(changed)[0, 10:])


def test_a_batch_depends_on_seed_and_step_alone_and_targets_are_the_next_bytes():
    part = np.arange(5000, dtype=np.int64).astype(np.uint8)
    ask = {"seed": 3, "sequences": 8, "context": 16}
    x, y = data.batch(part, step=7, **ask)
    again, _ = data.batch(part, step=7, **ask)
    other, _ = data.batch(part, step=8, **ask)
    assert np.array_equal(x, again)
    assert not np.array_equal(x, other)
    assert x.shape == y.shape == (8, 16)
    assert np.array_equal(x[:, 1:], y[:, :-1])


def test_training_and_validation_text_share_no_block():
    text = b"".join(bytes([block]) * 50 for block in range(data.BLOCKS))
    corpus = data.split(text, context=8)
    assert set(corpus.validation) == {9, 19}
    assert set(corpus.train) == set(range(20)) - {9, 19}


def test_a_changed_text_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one two three " * 100)
    pinned = data.digest(path.read_bytes())
    data.load(str(path), pinned, 16)
    path.write_bytes(b"one two four " * 100)
    with pytest.raises(data.DataError, match="not the one this run began with"):
        data.load(str(path), pinned, 16)


def test_the_standard_library_is_read_in_one_order_and_without_installed_packages():
    text = data.read_text(None)
    assert len(text) > 5_000_000
    assert data.digest(text) == data.digest(data.read_text(None))
    assert b"Guido van Rossum" in text


def state(value: float) -> dict[str, object]:
    return {"steps": 3, "weights": {"w": torch.full((2, 2), value)}}


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    size = checkpoint.save(tmp_path, step=8, stage=1, config_hash="c", state=state(0.1))
    assert size == (tmp_path / "step-00000008" / "stage-1.pt").stat().st_size
    back = checkpoint.load(tmp_path, step=8, stage=1)
    assert back["steps"] == 3
    assert torch.equal(back["weights"]["w"], torch.full((2, 2), 0.1))
    assert checkpoint.usable_steps(tmp_path, stage=1, config_hash="c") == [8]
    assert checkpoint.usable_steps(tmp_path, stage=0, config_hash="c") == []


@pytest.mark.parametrize(
    "harm", ["cut short", "bit flip", "no file", "no manifest", "half manifest"]
)
def test_a_harmed_checkpoint_is_not_usable_and_the_older_one_is(tmp_path, harm):
    for step in (4, 8):
        checkpoint.save(tmp_path, step=step, stage=0, config_hash="c", state=state(step))
    place = tmp_path / "step-00000008"
    payload, manifest = place / "stage-0.pt", place / "stage-0.json"
    raw = payload.read_bytes()
    if harm == "cut short":
        payload.write_bytes(raw[: len(raw) // 2])
    elif harm == "bit flip":
        payload.write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
    elif harm == "no file":
        payload.unlink()
    elif harm == "no manifest":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:20])
    assert checkpoint.usable_steps(tmp_path, stage=0, config_hash="c") == [4]


def test_a_checkpoint_of_other_settings_is_not_usable_and_is_named(tmp_path):
    checkpoint.save(tmp_path, step=4, stage=0, config_hash="old", state=state(1))
    assert checkpoint.usable_steps(tmp_path, stage=0, config_hash="new") == []
    found = checkpoint.foreign_manifest(tmp_path, "new")
    assert found is not None
    assert json.loads(found.read_text())["config"] == "old"


def test_the_greatest_step_that_all_stages_have_is_taken():
    assert checkpoint.newest_common([[4, 8, 12], [4, 8], [2, 4, 8, 12]]) == 8
    assert checkpoint.newest_common([[4], [8]]) == 0


def test_pruning_keeps_the_newest_and_other_stages_files(tmp_path):
    for step in (1, 2, 3, 4, 5):
        for stage in (0, 1):
            checkpoint.save(tmp_path, step=step, stage=stage, config_hash="c", state=state(1))
    checkpoint.prune(tmp_path, stage=0, keep=3)
    assert checkpoint.saved_steps(tmp_path, 0) == [3, 4, 5]
    assert checkpoint.saved_steps(tmp_path, 1) == [1, 2, 3, 4, 5]
    checkpoint.prune(tmp_path, stage=1, keep=3)
    assert not (tmp_path / "step-00000001").exists()


def test_faults_are_read_as_documented():
    assert faults.parse("1:401:kill") == faults.Fault(1, 401, "kill")
    assert faults.parse("0:7:slow=2.5x80") == faults.Fault(0, 7, "slow", 2.5, 80)


@pytest.mark.parametrize(
    "text", ["1:2", "1:0:kill", "1:2:fire", "1:2:slow", "1:2:slow=0.5x3", "a:1:kill"]
)
def test_faults_that_make_no_sense_are_refused_with_a_sentence(text):
    with pytest.raises(ValueError, match=f"--fault {text}"):
        faults.parse(text)


def test_a_fault_strikes_once_even_in_a_new_process(tmp_path):
    fault = faults.parse("2:5:exception")
    first = faults.Injector([fault], 2, tmp_path)
    first.before(4)
    with pytest.raises(faults.InjectedError, match="microbatch 5"):
        first.before(5)
    faults.Injector([fault], 2, tmp_path).before(5)
    faults.Injector([fault], 1, tmp_path / "elsewhere").before(5)


def test_the_configuration_survives_the_way_to_a_stage():
    config = TrainConfig(model=SMALL, data=DataConfig("x", "ab"), faults=("1:2:kill",), steps=7)
    assert TrainConfig.from_json(config.to_json()) == config


def test_the_configuration_hash_covers_what_decides_the_weights_and_only_that():
    base = TrainConfig(model=SMALL)
    assert TrainConfig(model=SMALL, momentum=0.9).hash == base.hash  # the usual one, said
    assert TrainConfig(model=SMALL, steps=999, schedule="gpipe", eval_every=3).hash == base.hash
    changes: tuple[dict[str, Any], ...] = (
        {"lr": 0.1},
        {"seed": 1},
        {"microbatches": 16},
        {"data": DataConfig(None, "x")},
        {"optimizer": "muon"},
        {"momentum": 0.8},
    )
    for change in changes:
        assert TrainConfig(model=SMALL, **change).hash != base.hash


def test_settings_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigError, match="--stages 8 needs at least 8 layers"):
        TrainConfig(model=SMALL, stages=8)
    with pytest.raises(ConfigError, match="would never fire"):
        TrainConfig(model=SMALL, steps=2, microbatches=4, faults=("0:9:kill",))
