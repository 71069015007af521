"""Pipeline schedules: which microbatch a stage works on next, as a plain list.

A schedule is a pure function of (stage, stages, microbatches). F(k) is the forward
pass of microbatch k, B(k) its backward pass. Both schedules here are synchronous: all
microbatches of a step are done before the optimizer steps, so every one of them sees
the same weights. Every stage runs its backward passes in the order 0, 1, 2, ..., which
is why both give the same bits: gradients are added up in the same order.

Seam: an asynchronous schedule with one step of delay (PipeDream-2BW) never drains.
Its list crosses the step boundary, F(k + warm-up) before B(k), and it needs the two
weight slots of ``stage.Stage``. It is not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one microbatch through this stage."""

    kind: Literal["F", "B"]
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}({self.microbatch})"


def gpipe(stage: int, stages: int, microbatches: int) -> list[Action]:
    """All forward passes, then all backward passes; every activation is kept meanwhile."""
    del stage, stages  # every stage does the same
    forward = [Action("F", k) for k in range(microbatches)]
    return forward + [Action("B", k) for k in range(microbatches)]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Action]:
    """Warm-up forward passes, then forward and backward in turn, then the rest.

    Stage r holds at most stages - r activations at a time, whatever the microbatches.
    """
    warmup = min(stages - 1 - stage, microbatches)
    actions = [Action("F", k) for k in range(warmup)]
    for k in range(microbatches - warmup):
        actions += [Action("F", k + warmup), Action("B", k)]
    return actions + [Action("B", k) for k in range(microbatches - warmup, microbatches)]


SCHEDULES: dict[str, Callable[[int, int, int], list[Action]]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
}
"""Every schedule by the name that the command line and badput know it by."""


def ideal_bubble(stages: int, microbatches: int) -> float:
    """Share of a synchronous step that each stage waits, if all passes took equally long."""
    return (stages - 1) / (microbatches + stages - 1)
