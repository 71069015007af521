"""The schedules, played out by a simulator that knows only who waits for whom."""

from __future__ import annotations

import pytest

from badput_trainer.schedule import (
    SCHEDULES,
    Action,
    gpipe,
    ideal_bubble,
    one_f_one_b,
    two_bw,
)

SIZES = [(p, m) for p in (2, 4) for m in (2, 4, 8)]


def plan_of(name: str, stage: int, stages: int, microbatches: int, steps: int) -> list[Action]:
    """A whole run; microbatches are counted over all steps."""
    return [
        Action(a.kind, a.microbatch + (step + a.ahead) * microbatches)
        for step in range(steps)
        for a in SCHEDULES[name](
            stage, stages, microbatches, first=step == 0, last=step == steps - 1
        )
    ]


def play(
    name: str, stages: int, microbatches: int, steps: int = 1
) -> dict[tuple[int, str, int], int]:
    """End time of every pass, one unit each; fails if the stages wait for each other in a ring."""
    plans = [plan_of(name, r, stages, microbatches, steps) for r in range(stages)]
    ends: dict[tuple[int, str, int], int] = {}
    free, position = [0] * stages, [0] * stages
    while any(position[r] < len(plans[r]) for r in range(stages)):
        before = list(position)
        for r, plan in enumerate(plans):
            if position[r] == len(plan):
                continue
            action = plan[position[r]]
            needs = needed(r, action, stages)
            if all(n in ends for n in needs):
                start = max([free[r], *(ends[n] for n in needs)])
                ends[r, action.kind, action.microbatch] = free[r] = start + 1
                position[r] += 1
        assert position != before, f"deadlock at {position}"
    return ends


def needed(stage: int, action: Action, stages: int) -> list[tuple[int, str, int]]:
    k = action.microbatch
    if action.kind == "F":
        return [(stage - 1, "F", k)] if stage > 0 else []
    own = [(stage, "F", k)]
    return own + ([(stage + 1, "B", k)] if stage < stages - 1 else [])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_every_stage_does_every_pass_once_and_backwards_in_order(name, stages, microbatches):
    for stage in range(stages):
        plan = SCHEDULES[name](stage, stages, microbatches)
        for kind in "FB":
            assert [a.microbatch for a in plan if a.kind == kind] == list(range(microbatches))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_the_stages_never_block_each_other_and_the_bubble_is_the_ideal_one(
    name, stages, microbatches
):
    makespan = max(play(name, stages, microbatches).values())
    assert 1 - 2 * microbatches / makespan == pytest.approx(ideal_bubble(stages, microbatches))


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_1f1b_keeps_at_most_the_stages_that_follow_in_flight(stages, microbatches):
    for stage in range(stages):
        in_flight = most = 0
        for action in one_f_one_b(stage, stages, microbatches):
            in_flight += 1 if action.kind == "F" else -1
            most = max(most, in_flight)
        assert most == min(stages - stage, microbatches)


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (4, 3), (4, 4), (4, 8)])
def test_2bw_drains_once_in_a_run(stages, microbatches, steps):
    makespan = max(play("2bw", stages, microbatches, steps).values())
    ideal = ideal_bubble(stages, microbatches, steps)
    assert 1 - 2 * steps * microbatches / makespan == pytest.approx(ideal)
    for stage in range(stages):
        plan = plan_of("2bw", stage, stages, microbatches, steps)
        for kind in "FB":
            done = [a.microbatch for a in plan if a.kind == kind]
            assert done == list(range(steps * microbatches))


def test_2bw_begins_the_next_step_between_the_last_backward_passes():
    plans = [two_bw(0, 3, 3, first=first, last=last) for first, last in [(1, 0), (0, 0), (0, 1)]]
    assert [" ".join(map(str, plan)) for plan in plans] == [
        "F(0) F(1) F(2) B(0) F'(0) B(1) F'(1) B(2)",
        "F(2) B(0) F'(0) B(1) F'(1) B(2)",
        "F(2) B(0) B(1) B(2)",
    ]
    assert " ".join(map(str, two_bw(2, 3, 2, first=False, last=False))) == "F(0) B(0) F(1) B(1)"


def test_the_lists_of_two_stages_read_as_in_the_papers():
    assert " ".join(map(str, one_f_one_b(0, 2, 3))) == "F(0) F(1) B(0) F(2) B(1) B(2)"
    assert " ".join(map(str, one_f_one_b(1, 2, 3))) == "F(0) B(0) F(1) B(1) F(2) B(2)"
    assert " ".join(map(str, gpipe(0, 2, 2))) == "F(0) F(1) B(0) B(1)"


def test_fewer_microbatches_than_stages_still_work():
    assert max(play("1f1b", 4, 1).values()) == 8
