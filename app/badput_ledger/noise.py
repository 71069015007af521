"""The gradient noise scale and Pollux's statistical efficiency.

From the squared norms of a small and a big batch's gradient come unbiased estimates of the true
gradient's, |G|^2, and of the noise's trace, S (McCandlish et al. 2018, appendix A.1); their
ratio is the noise scale phi = S / |G|^2, in samples. Both are noisy and their ratio is biased,
so each is smoothed on its own before they are divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.books import Books

LEAST_STEPS = 20
"""Kept steps with both norms; fewer smooth nothing."""
DECAY = 0.98
"""Of the moving averages: a memory of some 50 steps."""


@dataclass(slots=True)
class Average:
    """An exponential moving average that is not drawn to zero by its start."""

    sum: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> float:
        """Take ``value`` in; returns the average so far."""
        self.sum = DECAY * self.sum + (1 - DECAY) * value
        self.weight = DECAY * self.weight + (1 - DECAY)
        return self.sum / self.weight


def estimates(small: float, n_small: int, big: float, n_big: int) -> tuple[float, float]:
    """|G|^2 and S from squared norms of the gradients of ``n_small`` and ``n_big`` samples."""
    gradient = (n_big * big - n_small * small) / (n_big - n_small)
    noise = (small - big) / (1 / n_small - 1 / n_big)
    return gradient, noise


def efficiency(phi: float, batch: float, first: float) -> float:
    """Pollux: (phi + M0) / (phi + M), progress of a sample against one at batch M0."""
    return (phi + first) / (phi + batch)


def build_noise(books: Books) -> dict[str, Any]:
    """Noise scale and efficiency of the kept steps, or why there are none."""
    found: dict[str, Any] = dict.fromkeys(
        ("efficiency", "noise_scale", "batch", "first_batch", "first_batch_source", "steps")
    )
    measured = books.rows(
        "SELECT count(samples) AS samples, count(grad_norm) AS big, "
        "count(grad_norm_small) AS small FROM steps"
    )[0]
    for column, why in (
        ("big", "no step has a gradient norm"),
        ("small", "no step has the gradient norm of a part of its batch (grad_norm_small)"),
        ("samples", "no step says how many samples it took"),
    ):
        if not measured[column]:
            return found | {"reason": f"gradient noise: {why}"}
    rows = books.rows(_STEPS)
    batches = [int(r["batch"]) for r in rows if r["batch"]]
    if not batches:
        return found | {"reason": "gradient noise: no kept step says how many samples it took"}
    said = books.facts.config.get("first_batch")
    given = isinstance(said, int) and not isinstance(said, bool) and said > 0
    first = int(str(said)) if given else batches[0]
    found |= {
        "batch": batches[-1],
        "first_batch": first,
        "first_batch_source": "run configuration" if given else "the run's first kept step",
    }
    return found | _smoothed(rows, first)


def _smoothed(rows: list[dict[str, Any]], first: int) -> dict[str, Any]:
    gradient, noise = Average(), Average()
    used, weighted, samples, phi = 0, 0.0, 0, None
    for row in rows:
        small, n_small, big, batch = (row[k] for k in ("small", "n_small", "big", "batch"))
        if None in (small, n_small, big, batch) or not 0 < n_small < batch:
            continue
        estimate = estimates(small, n_small, big, batch)
        g, s = gradient.add(estimate[0]), noise.add(estimate[1])
        used += 1
        phi = s / g if g > 0 and s >= 0 else None
        if used >= LEAST_STEPS and phi is not None:
            weighted += batch * efficiency(phi, batch, first)
            samples += batch
    if used < LEAST_STEPS:
        why = f"only {used} kept steps have both norms and a part smaller than the batch"
        return {"steps": used, "reason": f"gradient noise: {why}; {LEAST_STEPS} are needed"}
    if phi is None or not samples:
        why = "the noise hides the gradient: their estimates are not both positive"
        return {"steps": used, "reason": f"gradient noise: {why}"}
    return {"steps": used, "noise_scale": phi, "efficiency": weighted / samples}


KEPT = """
WITH kept AS (
    SELECT m.session, m.replica, s.* FROM steps s JOIN members m USING (process_id)
    JOIN cuts c USING (session)
    WHERE s.step <= least(c.kept_upto, c.completed_upto)
      AND NOT EXISTS (FROM skips k WHERE k.session = m.session AND k.step = s.step)
      AND NOT EXISTS (FROM rewinds w WHERE w.session = m.session AND w.rank = m.rank
                      AND w.time_ns > s.start_ns AND w.to_step < s.step)
)"""
"""The rows of kept steps, long runs too, whose rows are not in `divided`. One that is only partly
kept, as it covers several steps, is left out."""

_STEPS = f"""{KEPT},
told AS (
    SELECT s.session, s.step, s.replica, max(s.samples // greatest(s.n_steps, 1)) AS samples,
           avg(s.grad_norm * s.grad_norm) FILTER (WHERE abs(s.grad_norm) < 1e100) AS big,
           avg(s.grad_norm_small * s.grad_norm_small)
               FILTER (WHERE abs(s.grad_norm_small) < 1e100) AS small,
           max(s.samples_small) AS n_small,
           count(DISTINCT s.samples_small) AS sizes
    FROM kept s GROUP BY s.session, s.step, s.replica
)
SELECT z.ord, t.step, sum(t.samples)::BIGINT AS batch, avg(t.big) AS big,
       avg(t.small) AS small,
       CASE WHEN count(DISTINCT t.n_small) = 1 AND max(t.sizes) = 1
            THEN max(t.n_small) END AS n_small
FROM told t JOIN sessions z USING (session) GROUP BY z.ord, t.step ORDER BY z.ord, t.step
"""  # noqa: S608 - our own text only
