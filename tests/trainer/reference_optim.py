"""The optimizers once more, slow and plain: the equations in float64, one weight at a time,
with NumPy's SVD-free textbook operations and no torch. It shares no line with optim.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


def newton_schulz(z: Array) -> Array:
    x = z / np.sqrt((z * z).sum())
    if x.shape[0] > x.shape[1]:
        return newton_schulz(z.T).T
    for _ in range(5):
        a = x @ x.T
        b = -4.7750 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    return x


@dataclass
class Reference:
    """One weight. ``history`` keeps every direction u_0, u_1, ..."""

    kind: str  # adamw, muon or sgd
    momentum: float
    alpha: float
    decay: float
    gradients: list[Array] = field(default_factory=list)
    history: list[Array] = field(default_factory=list)

    def step(self, weight: Array, gradient: Array, lr: float) -> Array:
        self.gradients.append(gradient)
        self.history.append(self._direction())
        now = self.history[-1]
        before = self.history[-2] if len(self.history) > 1 else now
        return weight - lr * self.decay * weight - lr * (now + self.alpha * (now - before))

    def _average(self, beta: float, values: list[Array]) -> Array:
        """sum over s of (1 - beta) beta^(t - s) value_s: the running mean, written out."""
        t = len(values) - 1
        return sum((1 - beta) * beta ** (t - s) * value for s, value in enumerate(values))

    def _direction(self) -> Array:
        m = self._average(self.momentum, self.gradients)
        if self.kind == "sgd":
            return m
        if self.kind == "muon":
            rows, columns = m.shape
            z = (1 - self.momentum) * self.gradients[-1] + self.momentum * m
            return 0.2 * max(rows, columns) ** 0.5 * newton_schulz(z)
        v = self._average(0.95, [g * g for g in self.gradients])
        t = len(self.gradients)
        return m / (1 - self.momentum**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
