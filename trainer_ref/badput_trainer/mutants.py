"""Stages with one mistake each, which the proof must notice.

A proof that passes whatever the trainer does proves nothing. Each of these is a mistake
that is easily made when a delayed pipeline is written, and ends with other weights.
Some meet the assertions of ``Stage`` before; under ``python -O`` they do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from badput_trainer.stage import Slot, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from badput_trainer.config import TrainConfig


class NewestFirst(Stage):
    """The first microbatch of a step is passed through the newest weights."""

    _microbatch = 0

    def forward(self, step: int, k: int, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        """See Stage."""
        self._microbatch = k
        return super().forward(step, k, inputs, targets)

    def _read(self, step: int) -> Slot:
        return self._newest if self._microbatch == 0 else super()._read(step)

    def backward(self, step: int, k: int, gradient: Tensor | None = None) -> Tensor | None:
        """See Stage."""
        self._microbatch = -1
        return super().backward(step, k, gradient)


class EarlyStep(Stage):
    """The optimizer steps before the last backward pass."""

    _norm = 0.0

    def backward(self, step: int, k: int, gradient: Tensor | None = None) -> Tensor | None:
        """See Stage."""
        if k == self._microbatches - 1:
            self._norm = super().update(step)
        return super().backward(step, k, gradient)

    def update(self, step: int) -> float:
        """See Stage."""
        del step
        return self._norm


class WrongSlot(Stage):
    """New weights are put in the place of the newest instead of the oldest, half of the time."""

    def _slot(self, version: int) -> Slot:
        return self._slots[version // 2 % len(self._slots)]


class FedBack(Stage):
    """The correction compares with the update that was applied, a_{t-1}, and not with u_{t-1}."""

    def __init__(self, config: TrainConfig, stage: int) -> None:
        super().__init__(config, stage)
        right = self._optimizer._corrected  # noqa: SLF001 - a mistake has no proper place

        def corrected(grads: Sequence[Tensor]) -> list[Tensor]:
            applied = [torch.clone(a) for a in right(grads)]
            self._optimizer.direction = applied
            return applied

        self._optimizer._corrected = corrected  # noqa: SLF001


MUTANTS: dict[str, type[Stage]] = {
    "W_t for the first microbatch": NewestFirst,
    "step before the last backward pass": EarlyStep,
    "wrong slot": WrongSlot,
    "a_{t-1} for u_{t-1}": FedBack,
}
"""Every mutant by its mistake."""
