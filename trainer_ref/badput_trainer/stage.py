"""One pipeline stage: its weights, activations in flight and optimizer.

It knows nothing of its neighbours: activations and gradients come in and go out as
tensors. ``link.Link`` carries them from and to the neighbours and looks at none.

Weights have versions: version v has seen v updates. With W_v for version v, step s = t + 1
makes its gradients, forward and backward, with W_t under a synchronous schedule and with
W_max(t-1, 0) under one with a delay of one, applies them to W_t and so makes W_t+1. A stage
has one slot for weights, or two under delay: ``slots[v % len(slots)]`` holds version v. New
weights are new tensors, put in the place of the oldest: nothing that autograd has seen is
ever changed. Every pass and every update checks the versions it meets.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from badput_trainer import model, optim
from badput_trainer.schedule import DELAYS

if TYPE_CHECKING:
    from badput_trainer.config import TrainConfig

EMPTY = -1
"""Version of a slot that no weights were written to yet."""


class Slot:
    """Weights and how many updates they have seen."""

    def __init__(self, module: model.StageModel, version: int) -> None:
        self.module = module
        self.version = version
        owners = dict(module.named_modules())
        self._places = {
            name: (owners[name.rpartition(".")[0]], name.rpartition(".")[2])
            for name, _ in module.named_parameters()
        }

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return dict(self.module.named_parameters())

    def write(self, weights: list[Tensor], version: int) -> None:
        """Put new tensors in the place of the old ones, which graphs may still refer to."""
        for (owner, leaf), tensor in zip(self._places.values(), weights, strict=True):
            setattr(owner, leaf, nn.Parameter(tensor))
        self.version = version


@dataclass(frozen=True, slots=True)
class _InFlight:
    inputs: Tensor
    output: Tensor
    version: int


class Stage:
    """Forward and backward passes of single microbatches, and the step after them all."""

    def __init__(self, config: TrainConfig, stage: int) -> None:
        self.first = stage == 0
        self.last = stage == config.stages - 1
        self.steps = 0
        """Optimizer steps done, those before a restart included."""
        self.delays: Counter[int] = Counter()
        """Microbatches by the delay that was seen: updates that the weights were behind."""
        self.delay = DELAYS[config.schedule]
        self._microbatches = config.microbatches
        modules = [
            model.build(config.model, stage, config.stages, config.seed)
            for _ in range(1 + self.delay)
        ]
        self._slots = [Slot(m, 0 if i == 0 else EMPTY) for i, m in enumerate(modules)]
        self._optimizer = optim.build(config, self._newest.weights)
        self._lr = config.lr
        self._in_flight: dict[tuple[int, int], _InFlight] = {}
        self._versions: list[int] = []

    def forward(self, step: int, k: int, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Pass microbatch ``k`` of ``step`` through; the last stage returns its loss.

        The loss is the mean over the microbatch; the gradient is that of the mean over
        the whole batch, so ``backward`` starts from loss / microbatches.
        """
        slot = self._read(step)
        assert slot.version == max(step - 1 - self.delay, 0), (step, k, slot.version)
        if not self.first:
            inputs = inputs.detach().requires_grad_()
        output = slot.module(inputs)
        if self.last:
            assert targets is not None
            output = model.loss_of(output, targets)
        self._in_flight[step, k] = _InFlight(inputs, output, slot.version)
        return output.detach()

    def backward(self, step: int, k: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add the gradients of microbatch ``k``; returns that of its inputs, if any flow on."""
        flight = self._in_flight.pop((step, k))
        assert flight.version == self._read(step).version, "weights changed in between"
        if self.last:
            torch.autograd.backward(flight.output / self._microbatches)
        else:
            torch.autograd.backward(flight.output, gradient)
        self._versions.append(flight.version)
        return None if self.first else flight.inputs.grad

    def poison(self, step: int, upstream: Tensor | None) -> None:
        """Make the gradients so far no numbers, and that of the inputs; for faults on purpose."""
        for weight in self._read(step).weights.values():
            if weight.grad is not None:
                weight.grad.fill_(math.nan)
        if upstream is not None:
            upstream.fill_(math.nan)

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """A forward pass with the newest weights that leaves nothing behind."""
        output = self._newest.module(inputs)
        if self.last:
            assert targets is not None
            return model.loss_of(output, targets)
        return output

    @torch.no_grad()
    def update(self, step: int) -> float:
        """The optimizer step ``step``; returns the gradient norm of this stage.

        Where that is no finite number the update is left out, decay and moments included: the
        new version has the old weights.
        """
        assert len(self._versions) == self._microbatches, "a microbatch is still under way"
        read, source = self._read(step), self._newest
        assert source.version == step - 1, f"step {step} met weights of version {source.version}"
        self.delays.update(source.version - version for version in self._versions)
        self._versions.clear()
        gradients = [g for w in read.weights.values() if (g := w.grad) is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        old = list(source.weights.values())
        if math.isfinite(norm):
            new = self._optimizer.step(old, gradients, self._lr)
        else:
            new = [weight.detach().clone() for weight in old]
        for weight in read.weights.values():
            weight.grad = None
        self._slot(step).write(new, step)
        self.steps = step
        return norm

    def digest(self) -> str:
        """sha256 of the newest weights."""
        return model.weights_digest(self._newest.weights)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the live tensors, to be cloned by the writer.

        ``slots`` are all of them, oldest first: the older weights make the next gradients.
        Activations in flight are not kept, the older slot makes the same ones again.
        """
        slots = sorted((s for s in self._slots if s.version != EMPTY), key=lambda s: s.version)
        return {
            "steps": self.steps,
            "slots": [
                {"version": s.version, "weights": {n: w.detach() for n, w in s.weights.items()}}
                for s in slots
            ],
            "optimizer": self._optimizer.state(),
            "delays": dict(self.delays),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Raises KeyError or RuntimeError if it does not fit."""
        for slot in self._slots:
            slot.version = EMPTY
        for saved in state["slots"]:
            version = int(saved["version"])
            slot = self._slot(version)
            new = [saved["weights"][name].clone() for name in slot.weights]
            slot.write(new, version)
        self._optimizer.load_state(state["optimizer"])
        self.steps = int(state["steps"])
        self.delays = Counter({int(d): int(n) for d, n in state["delays"].items()})
        self._in_flight.clear()
        self._versions.clear()

    @property
    def _newest(self) -> Slot:
        return self._slot(self.steps)

    def _read(self, step: int) -> Slot:
        """The slot whose weights make the gradients of step ``step`` (from 1)."""
        return self._slot(max(step - 1 - self.delay, 0))

    def _slot(self, version: int) -> Slot:
        """The place of a version."""
        return self._slots[version % len(self._slots)]
