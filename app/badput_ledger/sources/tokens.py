"""How many tokens a step had, when the log prints only a rate.

Batch size times sequence length is what was asked for, not what was trained: a loader may
cut or pad. So the product is believed only if the printed throughput agrees with it within
its own rounding; otherwise the number is worked out from throughput, GPUs and time, and is
marked as an estimate with its precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from badput_ledger.sources.attempts import LARGEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from badput_ledger.sources.attempts import Attempt, Options

_CLOCK_NS = 1_000_000
"""Resolution of the log's clock."""
_MOST_SAMPLES = 1_000_000


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
    tokens, counts, tolerances = _samples(attempts)
    if not len(tokens):
        if asked is None:
            return Tokens(
                None, "unknown", note="the log gives neither batch and length nor a throughput"
            )
        return Tokens(
            asked, "batch x length, not checked", note="no throughput to check the tokens against"
        )
    mean = float((tokens * counts).sum() / counts.sum())
    tolerance = float(np.median(tolerances))
    if asked is not None and abs(asked - mean) <= tolerance * mean:
        return Tokens(asked, "batch x length, agrees with the throughput")
    steady = np.mean(np.abs(tokens - mean) <= 4 * tolerances * mean) >= 0.9
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


def row_tokens(
    attempt: Attempt, tokens: Tokens, rows: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens of each of ``rows`` of ``attempt``, and where they are unknown."""
    unknown = np.ones(len(rows), bool)
    total = np.zeros(len(rows), np.int64)
    if tokens.per_step is not None:
        fits = rows["count"] < LARGEST / max(tokens.per_step, 1)
        total[fits] = rows["count"][fits] * tokens.per_step
        unknown = ~fits
    if tokens.by_row:
        exact = _estimate(attempt, rows)
        known = ~np.isnan(exact)
        total[known] = np.rint(exact[known]).astype(np.int64)
        unknown &= ~known
    return total, unknown


def _estimate(attempt: Attempt, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Tokens of each row by its throughput; NaN where that cannot be told."""
    rate, span = rows["rate"], rows["rate_ns"]
    good = (rate > 0) & np.isfinite(rate) & (span > 0)
    tokens = np.full(len(rows), np.nan)
    with np.errstate(over="ignore"):
        tokens[good] = rate[good] * (attempt.world_size or 0) * span[good] / 1e9
    tokens[~((tokens > 0) & (tokens < LARGEST))] = np.nan
    return tokens


def _samples(
    attempts: Sequence[Attempt],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Tokens per step, steps, relative tolerance of each row whose clock is certain.

    Of more than ``_MOST_SAMPLES`` rows every n-th.
    """
    stride = sum(len(a.steps) for a in attempts) // _MOST_SAMPLES + 1
    found = [(np.empty(0), np.empty(0, np.int64), np.empty(0))]
    for attempt in attempts:
        at = 1 if len(attempt.steps) > 1 else 0  # where the first row's counter began is a guess
        for block in attempt.steps.blocks():
            rows = block[at::stride]
            at = (at - len(block)) % stride if at < len(block) else at - len(block)
            tokens = _estimate(attempt, rows)
            good = ~np.isnan(tokens)
            rows, tokens = rows[good], tokens[good]
            tolerance = 0.5 / rows["rate"] + _CLOCK_NS / rows["rate_ns"]
            found.append((tokens / rows["count"], rows["count"], tolerance))
    tokens, counts, tolerances = (np.concatenate(column) for column in zip(*found, strict=True))
    return tokens, counts, tolerances
