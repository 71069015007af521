"""The optimizers: a direction u_t for each weight, its correction, its application.

    AdamW   m = b1 m + (1 - b1) g       v = b2 v + (1 - b2) g^2
            u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
    Muon    m = mu m + (1 - mu) g       z = (1 - mu) g + mu m
            u = scale NewtonSchulz(z)   scale = 0.2 sqrt(max(rows, columns))
    SGD     m = mu m + (1 - mu) g       u = m

    a_t = u_t + alpha (u_t - u_{t-1}),  u_{-1} := u_0          alpha = 0: a_t = u_t
    W_{t+1} = (1 - lr wd) W_t - lr a_t

The correction is for gradients that are one step late. The direction wanted at W_t exists
only one step later, as u_{t+1}; what the step with u_t left out is remembered and added to
the next one, and that sum collapses to u_t - u_{t-1}. Decay is not late, so it is not
corrected. The formula is derived from the published description of the method
(arXiv 2606.30634), whose code was not at hand.

Muon is for the matrices inside the layers. Embeddings, output head and norms have AdamW
beside it, by name: a head is a matrix too. With the scale, after Liu et al. 2025 (arXiv
2502.16982), both take the same learning rate and decay. Newton-Schulz runs in float32 on a
CPU, in bfloat16 on a GPU; the bfloat16 form gives the bits of ``torch.optim.Muon``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from badput_trainer.config import TrainConfig

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NS_STEPS = 5
NS_EPSILON = 1e-7

HIDDEN = ("qkv", "out", "up", "down")
"""Matrices inside the layers, which Muon steps; the last part of a name but ``weight``."""
OTHERS = ("embed", "position", "head", "norm", "norm_attention", "norm_mlp")
"""What AdamW steps beside Muon."""


def newton_schulz(matrix: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Push all singular values of ``matrix`` [rows, columns] towards 1, computed in ``dtype``.

    ``dtype`` None is bfloat16 on a GPU, and on a CPU float32 or the matrix's own if that is
    finer. Five steps of the quintic iteration bring those that began above 0.002 of the
    Frobenius norm to between 0.68 and 1.21; smaller ones may stay below. Error in the
    Frobenius norm against float64: below 1e-5 in float32, below 3 % in bfloat16. The result
    is a new tensor of ``dtype``, a transposed view where rows > columns.
    Source: Jordan 2024, https://kellerjordan.github.io/posts/muon/.
    """
    if dtype is None:
        coarse = matrix.device.type != "cpu"
        dtype = torch.bfloat16 if coarse else torch.promote_types(matrix.dtype, torch.float32)
    a, b, c = NS_COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]  # then the transpose has the smaller A
    x = matrix.to(dtype)
    x = x.T if tall else x
    # Never in place: a matrix that has the dtype already is the optimizer's own buffer.
    x = x / x.norm().clamp(min=NS_EPSILON)
    for _ in range(NS_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Rule(Protocol):
    """How the gradients of one weight become directions."""

    scale: float
    """What a direction is multiplied with, in the learning rate: that rounds once less."""
    buffers: dict[str, Tensor]

    def direction(self, gradient: Tensor, update: int) -> Tensor:
        """u_t / scale, a new tensor; ``update`` is t + 1, counted from 1."""
        ...


class _AdamW:
    scale = 1.0

    def __init__(self, weight: Tensor, beta1: float) -> None:
        self._beta1 = beta1
        self.buffers = {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}

    def direction(self, gradient: Tensor, update: int) -> Tensor:
        m, v = self.buffers["m"], self.buffers["v"]
        m.lerp_(gradient, 1 - self._beta1)
        v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        scale = (v / (1 - BETA2**update)).sqrt_().add_(EPSILON)
        return (m / (1 - self._beta1**update)).div_(scale)


class _Muon:
    def __init__(self, weight: Tensor, momentum: float, dtype: torch.dtype | None) -> None:
        self._momentum = momentum
        self._dtype = dtype
        self.scale = 0.2 * math.sqrt(max(weight.shape))
        self.buffers = {"m": torch.zeros_like(weight)}

    def direction(self, gradient: Tensor, update: int) -> Tensor:
        del update
        m = self.buffers["m"]
        m.lerp_(gradient, 1 - self._momentum)
        return newton_schulz(gradient.lerp(m, self._momentum), self._dtype)


class _SGD:
    scale = 1.0

    def __init__(self, weight: Tensor, momentum: float) -> None:
        self._momentum = momentum
        self.buffers = {"m": torch.zeros_like(weight)}

    def direction(self, gradient: Tensor, update: int) -> Tensor:
        del update
        return self.buffers["m"].lerp_(gradient, 1 - self._momentum).clone()


def rule_of(
    optimizer: str,
    name: str,
    weight: Tensor,
    *,
    momentum: float,
    newton_schulz_dtype: torch.dtype | None = None,
) -> Rule:
    """The rule of ``optimizer`` (adamw, muon or sgd) for the weight of that name.

    Raises ValueError for a weight that Muon has no place for.
    """
    if optimizer == "adamw":
        return _AdamW(weight, momentum)
    if optimizer == "sgd":
        return _SGD(weight, momentum)
    kind = name.split(".")[-2]
    if kind in HIDDEN and weight.ndim == 2:
        return _Muon(weight, momentum, newton_schulz_dtype)
    if kind in OTHERS:
        return _AdamW(weight, BETA1)
    raise ValueError(f"optim.py does not say whether {name} {tuple(weight.shape)} is Muon's.")


class Optimizer:
    """The optimizer of one stage, over weights in a fixed order.

    It keeps no weights. A step takes the newest and returns new tensors, out of place, since
    backward passes of other microbatches may still need the old ones.
    """

    def __init__(
        self, rules: dict[str, Rule], *, weight_decay: float, correction: float = 0.0
    ) -> None:
        self._rules = rules
        self._decay = weight_decay
        self._correction = correction
        self.updates = 0
        self.direction: list[Tensor] | None = None
        """u_t / scale of the newest step; None before the first and without correction."""

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor], lr: float) -> list[Tensor]:
        """The weights after one update: new tensors in the order of ``params``.

        ``params`` are the newest weights W_t, ``grads`` the gradients of the batch, at whatever
        weights they were taken. Neither is changed. Raises ValueError if one is missing.
        """
        self.updates += 1
        out: list[Tensor] = []
        for rule, weight, a in zip(
            self._rules.values(), params, self._corrected(grads), strict=True
        ):
            decayed = weight.mul(1 - lr * self._decay)
            out.append(decayed.add_(a, alpha=-(lr * rule.scale)))
        return out

    def _corrected(self, grads: Sequence[Tensor]) -> Iterable[Tensor]:
        pairs = zip(self._rules.values(), grads, strict=True)
        directions = [rule.direction(gradient, self.updates) for rule, gradient in pairs]
        if not self._correction:
            return directions
        # Contiguous, so that a direction from a checkpoint is computed with in the same way.
        directions = [u.contiguous() for u in directions]
        before, self.direction = self.direction or directions, directions
        return [
            torch.add(u, u - old, alpha=self._correction)
            for u, old in zip(directions, before, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: numbers and live tensors, to be cloned before the next step."""
        names = list(self._rules)
        return {
            "updates": self.updates,
            "buffers": {name: dict(rule.buffers) for name, rule in self._rules.items()},
            "direction": dict(zip(names, self.direction or (), strict=bool(self.direction))),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, which is copied. Raises ValueError if it is of other weights."""
        updates, saved = int(state["updates"]), state["buffers"]
        wanted = set(self._rules) if self._correction and updates else set()
        if saved.keys() != self._rules.keys() or state["direction"].keys() != wanted:
            raise ValueError("the optimizer state is of other weights or another optimizer.")
        for name, rule in self._rules.items():
            for key, mine in rule.buffers.items():
                _check_shape(name, mine, saved[name].get(key))
                mine.copy_(saved[name][key])
        kept = state["direction"]
        self.direction = [kept[name].clone() for name in self._rules] if wanted else None
        self.updates = updates


def build(config: TrainConfig, weights: dict[str, Tensor]) -> Optimizer:
    """The optimizer that ``config`` asks for, over ``weights`` in their order.

    Raises ValueError for a weight that Muon has no place for.
    """
    rules = {
        name: rule_of(config.optimizer, name, weight, momentum=config.beta)
        for name, weight in weights.items()
    }
    return Optimizer(rules, weight_decay=config.weight_decay, correction=config.correction)


def _check_shape(name: str, mine: Tensor, saved: Tensor | None) -> None:
    if saved is None or saved.shape != mine.shape:
        found = None if saved is None else tuple(saved.shape)
        raise ValueError(f"the optimizer state of {name} is {found}, expected {tuple(mine.shape)}.")
