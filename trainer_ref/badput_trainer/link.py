"""The traffic of one stage with its neighbours, over torch.distributed.

Activations go to the next stage, gradients to the one before, each with a tag made of
step, microbatch and direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from badput_trainer.config import TrainConfig
    from badput_trainer.meeting import Lanes
    from badput_trainer.schedule import Action

EVAL_MICROBATCHES = 4
"""Microbatches of an evaluation; a link keeps tags for them."""


class PeerLostError(RuntimeError):
    """The connection to a neighbour broke, nearly always because it died."""


class Link:
    """The traffic of one stage with its neighbours, matched by tags.

    Receives are posted early and sends are kept until a later ``settle``, so neither
    side waits for a buffer; a tag is used again only two steps later.
    """

    def __init__(self, rank: int, config: TrainConfig, lanes: Lanes | None = None) -> None:
        self._rank = rank
        self._lanes = lanes
        self._last = rank == config.stages - 1
        self._neighbours = (rank > 0) + (not self._last)
        self._span = config.microbatches + EVAL_MICROBATCHES
        self._shape = (config.microbatch, config.model.context, config.model.width)
        self._arriving: dict[int, tuple[dist.Work | None, Tensor]] = {}
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def expect(self, step: int, actions: Iterable[Action]) -> None:
        """Post the receives of a step: activations from before, gradients from behind."""
        for action in actions:
            k = action.microbatch
            if action.kind == "F" and self._rank > 0:
                self._post(self._tag(step + action.ahead, k, 0), self._rank - 1)
            if action.kind == "B" and not self._last:
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

    def _guarded(
        self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int
    ) -> dist.Work | None:
        group = None if self._lanes is None else self._lanes.between(self._rank, peer, tag % 2)
        try:
            return call(tensor, peer, tag=tag, group=group)
        except RuntimeError as error:
            raise PeerLostError(f"lost rank {peer}") from error
