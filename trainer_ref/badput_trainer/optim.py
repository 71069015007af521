"""AdamW, in two halves: the direction u_t of an update, and its application.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    W = (1 - lr wd) W - lr u

Seam: the halves are apart because a delayed schedule corrects the direction before it
is applied, a_t = u_t + alpha (u_t - u_{t-1}), and because Muon has another direction for
hidden matrices and the same application. Neither is built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BETA1 = 0.9
BETA2 = 0.95
EPSILON = 1e-8


class AdamW:
    """AdamW over named parameters. Norms and embeddings decay like everything else."""

    def __init__(self, parameters: dict[str, Tensor], *, lr: float, weight_decay: float) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self._parameters = parameters
        self._updates = 0
        self._m = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self._v = {name: torch.zeros_like(p) for name, p in parameters.items()}

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients that the parameters hold. All must have one."""
        self._updates += 1
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            assert gradient is not None, name
            direction = self._direction(name, gradient)
            parameter.mul_(1 - self.lr * self.weight_decay).sub_(direction, alpha=self.lr)

    def _direction(self, name: str, gradient: Tensor) -> Tensor:
        m, v = self._m[name], self._v[name]
        m.lerp_(gradient, 1 - BETA1)
        v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        scale = (v / (1 - BETA2**self._updates)).sqrt_().add_(EPSILON)
        return (m / (1 - BETA1**self._updates)).div_(scale)

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint keeps: not copies, the live tensors."""
        return {"updates": self._updates, "m": self._m, "v": self._v}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Take over a saved state. Raises KeyError or RuntimeError if it does not fit."""
        for mine, saved in ((self._m, state["m"]), (self._v, state["v"])):
            for name, tensor in mine.items():
                tensor.copy_(saved[name])
        self._updates = int(state["updates"])
