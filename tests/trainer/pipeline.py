"""Stages in this process, handed to each other by a player that knows no processes.

It takes the next pass of any stage whose inputs are there, at random: what real
processes do in time, it does in order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch

from badput_trainer import data
from badput_trainer.config import ModelConfig, TrainConfig
from badput_trainer.schedule import SCHEDULES
from badput_trainer.stage import Stage

STEPS = 6
TEXT = np.random.default_rng(1).integers(0, 256, 4000).astype(np.uint8)


def config_of(schedule: str, **changes: object) -> TrainConfig:
    base = {"stages": 4, "microbatches": 4, "microbatch": 2, "steps": STEPS}
    shape = ModelConfig(layers=4, width=16, heads=2, context=8)
    return TrainConfig(model=shape, schedule=schedule, **(base | changes))


@dataclass
class Player:
    """Plays the lists of all stages; ``start`` steps are done already."""

    config: TrainConfig
    stages: list[Stage]
    seed: int = 0
    until: int = STEPS
    arrived: dict[tuple[int, str, int, int], torch.Tensor] = field(default_factory=dict)

    def play(self) -> None:
        torch.set_num_threads(1)
        choice = random.Random(self.seed)
        queues = [self.queue(r) for r in range(len(self.stages))]
        while any(queues):
            ready = [r for r, queue in enumerate(queues) if queue and self.ready(r, *queue[0])]
            assert ready, "the stages wait for each other"
            r = choice.choice(ready)
            self.do(r, *queues[r].pop(0))

    def queue(self, r: int) -> list[tuple[str, int, int]]:
        """(kind, step, microbatch) in order, U for the optimizer."""
        c, start = self.config, self.stages[r].steps
        out: list[tuple[str, int, int]] = []
        for step in range(start + 1, self.until + 1):
            plan = SCHEDULES[c.schedule](
                r, c.stages, c.microbatches, first=step == start + 1, last=step == c.steps
            )
            out += [(a.kind, step + a.ahead, a.microbatch) for a in plan]
            out.append(("U", step, 0))
        return out

    def ready(self, r: int, kind: str, step: int, k: int) -> bool:
        end = {"F": r == 0, "B": r == self.config.stages - 1, "U": True}[kind]
        return end or (r, kind, step, k) in self.arrived

    def do(self, r: int, kind: str, step: int, k: int) -> None:
        stage, c = self.stages[r], self.config
        if kind == "U":
            stage.update(step)
            return
        tensor = self.arrived.pop((r, kind, step, k), None)
        if kind == "B":
            upstream = stage.backward(step, k, tensor)
            if upstream is not None:
                self.arrived[r - 1, "B", step, k] = upstream.clone()
            return
        n = c.microbatches * c.microbatch
        x, y = data.batch(TEXT, seed=0, step=step, sequences=n, context=c.model.context)
        rows = slice(k * c.microbatch, (k + 1) * c.microbatch)
        inputs = torch.from_numpy(x[rows]) if tensor is None else tensor
        output = stage.forward(step, k, inputs, torch.from_numpy(y[rows]))
        if r < c.stages - 1:
            self.arrived[r + 1, "F", step, k] = output.clone()


def played(config: TrainConfig, seed: int = 0) -> list[Stage]:
    stages = [Stage(config, r) for r in range(config.stages)]
    Player(config, stages, seed).play()
    return stages
