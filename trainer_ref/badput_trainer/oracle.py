"""The oracle: the equations of a run read literally, in one process, to compare bits with.

    python -m badput_trainer.oracle CONFIG_JSON

One model without cuts, a list of its weights by version, one loop over microbatches; no
stages, slots, schedules or messages. With s = max(t - delay, 0):

    g_t = (1/m) sum_j grad f_{t,j}(W_s)        W_{t+1} = optimizer step of W_t with g_t

The command trains again what a finished run has trained and compares with its last
checkpoint: all versions of the weights that it holds, the optimizer's state, and the delay
that each stage saw. What the pipeline shares with it are model, data and optimizer, which
have tests of their own.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call

from badput_trainer import checkpoint, data, model, optim, rank
from badput_trainer.config import ConfigError, TrainConfig
from badput_trainer.schedule import DELAYS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Oracle:
    """A run without a pipeline. ``versions[v]`` are the weights after v updates."""

    def __init__(
        self, config: TrainConfig, corpus: data.Corpus, *, delay: int | None = None
    ) -> None:
        self.config = config
        self.delay = DELAYS[config.schedule] if delay is None else delay
        self._part = corpus.train
        self._model = model.build(config.model, 0, 1, config.seed)
        start = {n: w.detach().clone() for n, w in self._model.named_parameters()}
        self.versions = {0: start}
        self.optimizer = optim.build(config, start)

    def train(self, steps: int) -> None:
        """Go on to ``steps`` updates in all."""
        for t in range(max(self.versions), steps):
            gradients = self._gradients(t)
            new = self.optimizer.step(list(self.versions[t].values()), gradients, self.config.lr)
            self.versions[t + 1] = dict(zip(self.versions[t], new, strict=True))
            self.versions.pop(t - self.delay, None)  # nothing will ask for them again

    def state(self, stage: int, stages: int) -> dict[str, Any]:
        """What ``Stage.state`` of stage ``stage`` of ``stages`` should be, now."""
        done, c = max(self.versions), self.config
        mine = {n for n, _ in model.StageModel(c.model, stage, stages).named_parameters()}
        delays = Counter(t - max(t - self.delay, 0) for t in range(done))
        return {
            "steps": done,
            "slots": [
                {"version": v, "weights": _only(mine, weights)}
                for v, weights in sorted(self.versions.items())
                if v >= done - self.delay
            ],
            "optimizer": _of_weights(mine, set(self.versions[done]), self.optimizer.state()),
            "delays": {delay: c.microbatches * n for delay, n in delays.items()},
        }

    def _gradients(self, t: int) -> list[Tensor]:
        c = self.config
        weights = {
            name: w.detach().requires_grad_()
            for name, w in self.versions[max(t - self.delay, 0)].items()
        }
        x, y = data.batch(
            self._part,
            seed=c.seed,
            step=t + 1,
            sequences=c.microbatches * c.microbatch,
            context=c.model.context,
        )
        for k in range(c.microbatches):
            rows = slice(k * c.microbatch, (k + 1) * c.microbatch)
            logits = functional_call(self._model, weights, (torch.from_numpy(x[rows]),))
            loss = model.loss_of(logits, torch.from_numpy(y[rows]))
            torch.autograd.backward(loss / c.microbatches)
        return [w.grad for w in weights.values() if w.grad is not None]


def differences(expected: Any, found: Any, at: str = "") -> list[str]:
    """Where two states differ in any bit, a sentence each; empty if they are equal."""
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        return _tensors(expected, found, at)
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            odd = sorted(map(str, expected.keys() ^ found.keys()))
            return [f"{at}: only one of the two has {', '.join(odd[:3])}"]
        return [d for k, v in expected.items() for d in differences(v, found[k], f"{at}/{k}")]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{at}: {len(found)} entries, expected {len(expected)}"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for i, (e, f) in pairs for d in differences(e, f, f"{at}/{i}")]
    equal = type(expected) is type(found) and expected == found
    return [] if equal else [f"{at}: {found!r}, expected {expected!r}"]


def main(argv: Sequence[str]) -> int:
    """Compare the last checkpoint of a run. Returns 0 if equal, 1 if not, 2 if it cannot."""
    if not rank.tied_to_launcher():
        return 2
    try:
        config = TrainConfig.from_json(argv[0])
        corpus = data.load(config.data.path, config.data.sha256, config.model.context)
        states = [
            checkpoint.load(config.checkpoint_dir, step=config.steps, stage=stage)
            for stage in range(config.stages)
        ]
    except (ConfigError, data.DataError, OSError) as error:
        print(f"badput train: cannot compare: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    oracle = Oracle(config, corpus)
    oracle.train(config.steps)
    unequal = 0
    for stage, found in enumerate(states):
        expected = oracle.state(stage, config.stages)
        wrong = differences(expected, {name: found.get(name) for name in expected})
        unequal += bool(wrong)
        delays = ", ".join(f"{d} on {n}" for d, n in sorted(found["delays"].items()))
        verdict = f"differs in {len(wrong)} places: {wrong[0]}" if wrong else "equal to the bit"
        print(f"stage {stage}: {verdict}; delay in updates {delays} microbatches")
    what = f"{config.steps} steps of {config.schedule} on {config.stages} stages"
    print(f"proof: {what} {'DIFFER from' if unequal else 'are bitwise equal to'} the oracle")
    return 1 if unequal else 0


def _only(names: set[str], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _of_weights(mine: set[str], known: set[str], value: Any) -> Any:
    """A state without what belongs to weights of other stages."""
    if not isinstance(value, dict):
        return value
    return {k: _of_weights(mine, known, v) for k, v in value.items() if k in mine or k not in known}


def _tensors(expected: Tensor, found: Tensor, at: str) -> list[str]:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return [f"{at}: {tuple(found.shape)} {found.dtype}, expected {tuple(expected.shape)}"]
    # The bytes: an equality of numbers takes 0.0 for -0.0, and no NaN for itself.
    one, two = (t.detach().cpu().contiguous().view(torch.uint8) for t in (expected, found))
    if torch.equal(one, two):
        return []
    size = (expected.detach().double() - found.detach().double()).abs().max().item()
    return [f"{at}: other bits, the largest difference is {size:.3g}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
