"""How many tokens a step had, when the log prints only a rate.

Batch size times sequence length is what was asked for, not what was trained: a loader may
cut or pad. So the product is believed only if the printed throughput agrees with it within
its own rounding; otherwise the number is worked out from throughput, GPUs and time, and is
marked as an estimate with its precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import LARGEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.attempts import Attempt, Options

_CLOCK_NS = 1_000_000
"""Resolution of the log's clock."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a step: ``per_step`` if it is the same for all, else one for each row."""

    per_step: int | None
    source: str
    precision: float | None = None
    """Relative half-width of an estimate; None for a number that was given or agrees."""
    note: str | None = None
    by_row: bool = False


def tokens_of(attempts: Sequence[Attempt], options: Options) -> Tokens:
    """What is known about the tokens of a step of ``attempts``, which share their settings."""
    if options.tokens_per_step is not None:
        return Tokens(options.tokens_per_step, "given by the user")
    config = attempts[0].config
    batch, length = config.get("global_batch"), config.get("seq_len")
    asked = batch * length if batch and length and 0 < batch * length < LARGEST else None
    samples = [s for a in attempts for s in _samples(a)]
    if not samples:
        if asked is None:
            return Tokens(
                None, "unknown", note="the log gives neither batch and length nor a throughput"
            )
        return Tokens(
            asked, "batch x length, not checked", note="no throughput to check the tokens against"
        )
    steps = sum(n for _, n, _ in samples)
    mean = sum(tokens * n for tokens, n, _ in samples) / steps
    tolerance = median(t for _, _, t in samples)
    if asked is not None and abs(asked - mean) <= tolerance * mean:
        return Tokens(asked, "batch x length, agrees with the throughput")
    steady = sum(abs(t - mean) <= 4 * tol * mean for t, _, tol in samples) >= 0.9 * len(samples)
    asked_text = f"; batch x length would be {asked}" if asked is not None else ""
    if not steady:
        note = f"tokens of each step estimated from its throughput to {tolerance:.2%}{asked_text}"
        return Tokens(round(mean), "throughput x GPUs x time, by row", tolerance, note, by_row=True)
    note = (
        f"tokens of a step estimated from throughput, GPUs and time to {tolerance:.2%}{asked_text}"
    )
    whole = round(mean / batch) * batch if batch else 0
    # If only one whole number of tokens a sample fits, the estimate cannot mean another.
    fits = batch and abs(whole - mean) <= tolerance * mean < batch / 2
    source = "throughput x GPUs x time" + (", whole samples" if fits else "")
    return Tokens(whole if fits else round(mean), source, tolerance, note)


def row_tokens(attempt: Attempt, tokens: Tokens, index: int) -> int | None:
    """Tokens of the row ``index`` of ``attempt``; None if unknown."""
    count = attempt.steps.count[index]
    exact = _estimate(attempt, index) if tokens.by_row else None
    if exact is not None:
        return round(exact)
    total = None if tokens.per_step is None else tokens.per_step * count
    return total if total is not None and total < LARGEST else None


def _estimate(attempt: Attempt, index: int) -> float | None:
    rate, span = attempt.steps.rate[index], attempt.steps.rate_ns[index]
    if not rate > 0 or math.isinf(rate) or span <= 0 or not attempt.world_size:
        return None
    tokens = rate * attempt.world_size * span / 1e9
    return tokens if tokens < LARGEST else None


def _samples(attempt: Attempt) -> list[tuple[float, int, float]]:
    """(tokens per step, steps, relative tolerance) of each row whose clock is certain."""
    rows = attempt.steps
    found: list[tuple[float, int, float]] = []
    first = 1 if len(rows) > 1 else 0  # where the first row's counter began is a guess
    for index in range(first, len(rows)):
        tokens = _estimate(attempt, index)
        if tokens is not None:
            tolerance = 0.5 / rows.rate[index] + _CLOCK_NS / rows.rate_ns[index]
            found.append((tokens / rows.count[index], rows.count[index], tolerance))
    return found
