"""Pipeline schedules: which microbatch a stage works on next, as a plain list.

A schedule is a pure function of stage, stages, microbatches and of whether a step is the
first or the last one. F(k) is the forward pass of microbatch k, B(k) its backward pass,
F'(k) the forward pass of microbatch k of the next step. Every stage runs its backward
passes in the order 0, 1, 2, ..., so gradients are added up in one order everywhere.

GPipe and 1F1B are synchronous: all microbatches of a step are done before the optimizer
steps, and all see the newest weights. PipeDream-2BW (Narayanan et al. 2021, "double
buffered weights") never drains: while a stage still has backward passes of one step to do
it begins the next, so its gradients are made with weights one update old (``DELAYS``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one microbatch through this stage."""

    kind: Literal["F", "B"]
    microbatch: int
    ahead: int = 0
    """Steps ahead of the one that the list is for: 0 or 1."""

    def __str__(self) -> str:
        return self.kind + "'" * self.ahead + f"({self.microbatch})"


def gpipe(
    stage: int, stages: int, microbatches: int, *, first: bool = True, last: bool = True
) -> list[Action]:
    """All forward passes, then all backward passes; every activation is kept meanwhile."""
    del stage, stages, first, last  # every stage does the same in every step
    forward = [Action("F", k) for k in range(microbatches)]
    return forward + [Action("B", k) for k in range(microbatches)]


def one_f_one_b(
    stage: int, stages: int, microbatches: int, *, first: bool = True, last: bool = True
) -> list[Action]:
    """Warm-up forward passes, then forward and backward in turn, then the rest.

    Stage r holds at most stages - r activations at a time, whatever the microbatches.
    """
    del first, last  # it fills and drains in every step
    return two_bw(stage, stages, microbatches, first=True, last=True)


def two_bw(
    stage: int, stages: int, microbatches: int, *, first: bool = True, last: bool = True
) -> list[Action]:
    """1F1B that is filled in the ``first`` step of a process and drained in the ``last`` of a run.

    In between each backward pass is followed by a forward pass, of the next step where this
    one has none left. Needs at least stages - 1 microbatches, unless first and last.
    """
    warmup = min(stages - 1 - stage, microbatches)
    actions = [Action("F", k) for k in range(warmup)] if first else []
    for k in range(microbatches):
        if k + warmup < microbatches:
            actions.append(Action("F", k + warmup))
        elif not last:
            actions.append(Action("F", k + warmup - microbatches, ahead=1))
        actions.append(Action("B", k))
    return actions


class Schedule(Protocol):
    """The form of a schedule."""

    def __call__(
        self, stage: int, stages: int, microbatches: int, *, first: bool = True, last: bool = True
    ) -> list[Action]:
        """The passes of one step on one stage, in order."""
        ...


SCHEDULES: dict[str, Schedule] = {"1f1b": one_f_one_b, "gpipe": gpipe, "2bw": two_bw}
"""Every schedule by the name that the command line and badput know it by."""

DELAYS = {"1f1b": 0, "gpipe": 0, "2bw": 1}
"""Updates between the weights that a gradient is made with and those it is applied to."""


def ideal_bubble(stages: int, microbatches: int, steps: int = 1) -> float:
    """Share of the time that each stage waits, if all passes took equally long.

    ``steps``: those between filling and draining, 1 for a synchronous schedule.
    """
    return (stages - 1) / (steps * microbatches + stages - 1)
