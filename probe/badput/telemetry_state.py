"""Is a rank that makes no progress stalled? By the age of its step first, by power second.

A collective that waits for a peer spins on the GPU: utilisation says 100 % while nothing is
computed, and only the power is low.
"""

from __future__ import annotations

from dataclasses import dataclass

BUSY = 0.9
"""Utilisation from which a GPU counts as busy."""
LOW_POWER = 0.35
"""Share of the power limit below which a busy GPU is taken to wait. Computing takes well above
half of it, spinning in a collective a tenth to a fifth."""
LOW_POWER_W = 120.0
"""The same where the limit is not known."""


@dataclass(frozen=True, slots=True)
class State:
    """What a rank is doing, as far as telemetry can tell."""

    state: str
    """productive, stalled or unknown."""
    detail: str | None = None
    """For stalled: busy_wait (busy at low power), idle, computing (busy at high power), or None
    where nothing is known of the GPU."""


def classify(
    step_age_s: float | None,
    limit_s: float,
    utilization: float | None = None,
    power_w: float | None = None,
    power_limit_w: float | None = None,
) -> State:
    """Judge a rank by the seconds since its last sign of progress.

    ``limit_s``: age from which it counts as stalled; the caller knows what is usual in this phase.
    ``utilization``: 0..1. No utilisation, however high, makes a rank productive whose step is
    too old; and none makes one stalled whose step is not.
    """
    if step_age_s is None:
        return State("unknown")
    if step_age_s < limit_s:
        return State("productive")
    if utilization is None:
        return State("stalled")
    if utilization < BUSY:
        return State("stalled", "idle" if utilization < 0.1 else None)
    if power_w is None:
        return State("stalled")
    low = LOW_POWER * power_limit_w if power_limit_w else LOW_POWER_W
    return State("stalled", "busy_wait" if power_w < low else "computing")
