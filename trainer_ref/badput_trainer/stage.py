"""One pipeline stage: its weights, activations in flight and optimizer; and its link.

``Stage`` knows nothing of its neighbours: activations and gradients come in and go out
as tensors. ``Link`` carries them from and to the neighbours and looks at none.

Seam: ``_slot_for`` picks the weights that a step reads. A synchronous schedule has one
slot, whose version is the number of updates made. A schedule with one step of delay
keeps two, slot[v % 2] holding version v, and writes the free one out of place; it is
not built. The versions are checked already, on every pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from badput_trainer import model
from badput_trainer.optim import AdamW

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_trainer.config import TrainConfig

EVAL_MICROBATCHES = 4
"""Microbatches of an evaluation; a link keeps tags for them."""


@dataclass(slots=True)
class Slot:
    """Weights and how many updates they have seen."""

    module: model.StageModel
    version: int = 0


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
        self._microbatches = config.microbatches
        module = model.build(config.model, stage, config.stages, config.seed)
        self._slot = Slot(module)
        self._weights: dict[str, Tensor] = dict(module.named_parameters())
        self._optimizer = AdamW(self._weights, lr=config.lr, weight_decay=config.weight_decay)
        self._in_flight: dict[int, _InFlight] = {}

    @property
    def steps(self) -> int:
        """Optimizer steps done, those before a restart included."""
        return self._slot.version

    def forward(self, step: int, k: int, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """Pass microbatch ``k`` of ``step`` through; the last stage returns its loss.

        The loss is the mean over the microbatch; the gradient is that of the mean over
        the whole batch, so ``backward`` starts from loss / microbatches.
        """
        slot = self._slot_for(step)
        if not self.first:
            inputs = inputs.detach().requires_grad_()
        output = slot.module(inputs)
        if self.last:
            assert targets is not None
            output = model.loss_of(output, targets)
        self._in_flight[k] = _InFlight(inputs, output, slot.version)
        return output.detach()

    def backward(self, step: int, k: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add the gradients of microbatch ``k``; returns that of its inputs, if any flow on."""
        flight = self._in_flight.pop(k)
        assert flight.version == self._slot_for(step).version, "weights changed in between"
        if self.last:
            torch.autograd.backward(flight.output / self._microbatches)
        else:
            torch.autograd.backward(flight.output, gradient)
        return None if self.first else flight.inputs.grad

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """A forward pass with the newest weights that leaves nothing behind."""
        output = self._slot.module(inputs)
        if self.last:
            assert targets is not None
            return model.loss_of(output, targets)
        return output

    def update(self, step: int) -> float:
        """The optimizer step ``step``; returns the gradient norm of this stage."""
        assert not self._in_flight, "a microbatch is still under way"
        slot = self._slot_for(step)
        gradients = [w.grad for w in self._weights.values() if w.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        self._optimizer.step()
        for weight in self._weights.values():
            weight.grad = None
        slot.version += 1
        return norm

    def digest(self) -> str:
        """sha256 of the weights."""
        return model.weights_digest(self._weights)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the live tensors, to be cloned by the writer."""
        weights = {name: w.detach() for name, w in self._weights.items()}
        return {"steps": self.steps, "weights": weights, "optimizer": self._optimizer.state()}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. Raises KeyError or RuntimeError if it does not fit."""
        for name, weight in self._weights.items():
            weight.copy_(state["weights"][name])
        self._optimizer.load(state["optimizer"])
        self._slot.version = int(state["steps"])

    def _slot_for(self, step: int) -> Slot:
        """The weights that step ``step`` (from 1) reads: those after step - 1 updates."""
        slot = self._slot
        assert slot.version == step - 1, f"step {step} met weights of version {slot.version}"
        return slot


class PeerLostError(RuntimeError):
    """The connection to a neighbour broke, nearly always because it died."""


class Link:
    """The traffic of one stage with its neighbours, matched by tags.

    Receives are posted early and sends are kept until a later ``settle``, so neither
    side waits for a buffer; a tag is used again only two steps later.
    """

    def __init__(self, rank: int, config: TrainConfig) -> None:
        self._rank = rank
        self._last = rank == config.stages - 1
        self._neighbours = (rank > 0) + (not self._last)
        self._span = config.microbatches + EVAL_MICROBATCHES
        self._shape = (config.microbatch, config.model.context, config.model.width)
        self._arriving: dict[int, tuple[dist.Work | None, Tensor]] = {}
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def expect(self, step: int, ks: range, *, gradients: bool = True) -> None:
        """Post the receives of a step: activations from before, gradients from behind."""
        for k in ks:
            if self._rank > 0:
                self._post(self._tag(step, k, 0), self._rank - 1)
            if gradients and not self._last:
                self._post(self._tag(step, k, 1), self._rank + 1)

    def activation(self, step: int, k: int) -> Tensor:
        """The stage before's output for microbatch ``k``. Raises PeerLostError."""
        return self._arrived(self._tag(step, k, 0), self._rank - 1)

    def gradient(self, step: int, k: int) -> Tensor:
        """The gradient of this stage's output for microbatch ``k``. Raises PeerLostError."""
        return self._arrived(self._tag(step, k, 1), self._rank + 1)

    def send_activation(self, step: int, k: int, tensor: Tensor) -> None:
        """Hand an output to the next stage, without waiting."""
        self._send(tensor, self._rank + 1, self._tag(step, k, 0))

    def send_gradient(self, step: int, k: int, tensor: Tensor) -> None:
        """Hand a gradient to the stage before, without waiting."""
        self._send(tensor, self._rank - 1, self._tag(step, k, 1))

    def settle(self, microbatches: int = 0) -> None:
        """Wait for all sends but those of the newest ``microbatches``. Raises PeerLostError."""
        while len(self._sent) > microbatches * self._neighbours:
            work, _ = self._sent.pop(0)
            self._wait(work, "a neighbour")

    def _tag(self, step: int, k: int, direction: int) -> int:
        return 2 * ((step % 2) * self._span + k) + direction

    def _post(self, tag: int, source: int) -> None:
        buffer = torch.empty(self._shape)
        self._arriving[tag] = (self._guarded(dist.irecv, buffer, source, tag), buffer)

    def _arrived(self, tag: int, source: int) -> Tensor:
        work, buffer = self._arriving.pop(tag)
        self._wait(work, f"rank {source}")
        return buffer

    def _send(self, tensor: Tensor, target: int, tag: int) -> None:
        tensor = tensor.contiguous()
        self._sent.append((self._guarded(dist.isend, tensor, target, tag), tensor))

    def _wait(self, work: dist.Work | None, peer: str) -> None:
        assert work is not None
        try:
            work.wait()
        except RuntimeError as error:
            raise PeerLostError(f"lost {peer}") from error

    @staticmethod
    def _guarded(
        call: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int
    ) -> dist.Work | None:
        try:
            return call(tensor, peer, tag=tag)
        except RuntimeError as error:
            raise PeerLostError(f"lost rank {peer}") from error
