"""The training of one stage, in a process of its own (``badput_trainer.rank``).

The launcher (``badput_trainer.train``) starts one for each stage and hands identity over
by the environment variables that torchrun uses. It shows how a training script uses
badput: everything that takes time has a span, and the loop has a step.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import badput
from badput_trainer import data, faults, meeting
from badput_trainer.config import TrainConfig
from badput_trainer.control import Control, StoppedError
from badput_trainer.link import EVAL_MICROBATCHES, Link, PeerLostError
from badput_trainer.recovery import Recovery
from badput_trainer.schedule import DELAYS, SCHEDULES, Action
from badput_trainer.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from torch import Tensor

    Batch = tuple[np.ndarray, np.ndarray]

STOPPED = 128 + signal.SIGTERM
"""Exit code after a checkpoint that SIGTERM asked for."""
_EXPECTED = (
    PeerLostError, faults.InjectedError, data.DataError, OSError, MemoryError, dist.DistNetworkError
)  # fmt: skip
"""Failures that need no traceback: one line says all there is to know."""


class Worker:
    """One stage in training: steps, checkpoints, evaluation."""

    def __init__(self, config: TrainConfig, rank: int, *, stage_type: type[Stage] = Stage) -> None:
        self.config = config
        self.rank = rank
        self._random = random.Random(rank)  # noqa: S311 - it decides sleeps alone
        wounds = [faults.parse(text) for text in config.faults]
        self.injector = faults.Injector(wounds, rank, config.checkpoint_dir)
        with badput.span("rendezvous"):
            store, lanes = meeting.join(config, rank)
            resume = meeting.agree(config, rank)
        self.link = Link(rank, config, lanes)
        control = Control(store, delay=DELAYS[config.schedule], steps=config.steps)
        with badput.span("model"):
            self.stage = stage_type(config, rank)
        with badput.span("data_init"):
            self.corpus = data.load(config.data.path, config.data.sha256, config.model.context)
        self.recovery = Recovery(config, self.stage, rank, control=control, say=_say)
        self.injector.attach(self.recovery.saver)
        if resume is not None:
            self.recovery.load(*resume)
        self.begun_after = self.stage.steps
        if self.stage.last:
            _say(f"starting at step {self.stage.steps + 1} of {config.steps}")

    def train(self) -> None:
        """All steps that are left. Raises StoppedError after an orderly stop."""
        going = True
        while going:
            self._steps()
            self.link.settle()
            going = self.recovery.goes_on()

    def _steps(self) -> None:
        """Train until the end, or until all stages must do something else."""
        self.begun_after = self.stage.steps
        began, printed = time.perf_counter(), self.stage.steps
        for step, batches in badput.data(self._batches()):
            loss = self.step(step, batches)
            if self.stage.last and step % self.config.log_every == 0:
                ms = 1000 * (time.perf_counter() - began) / (step - printed)
                _say(f"step {step:>6}  loss {loss:.4f}  {ms:.0f} ms/step")
                began, printed = time.perf_counter(), step
            self._after(step)
            self.recovery.after(step, loss)

    def step(self, step: int, batches: Sequence[Batch]) -> float | None:
        """One step: every pass that the schedule lists, then the optimizer.

        ``batches`` are that of this step and, if this stage begins the next, that of the next.
        Returns the mean loss over the batch on the last stage, None on the others.
        """
        m = self.config.microbatches
        with badput.step(number=step, tokens=self.config.tokens_per_step) as record:
            actions = self._actions(step)
            self.link.expect(step, actions)
            losses: list[float] = []
            for action in actions:
                k, ahead = action.microbatch, action.ahead
                if action.kind == "F":
                    batch = batches[ahead] if ahead < len(batches) else None
                    losses += self._forward(step + ahead, k, batch)
                else:
                    self._backward(step, k)
            with badput.span("send"):
                # Only sends of earlier steps are waited for: those of this one are still
                # wanted by neighbours that are behind.
                self.link.settle(m)
            with badput.span("optimizer"):
                norm = self.stage.update(step)
            loss = sum(losses) / m if losses else None
            applied = math.isfinite(norm)
            record.log(loss=loss, grad_norm=norm if applied else None, applied=applied)
        if not applied:
            _say(f"rank {self.rank}: step {step} left out, its gradient is no number")
        return loss

    def finish(self) -> str:
        """Wait for the others; returns the digests of all stages, a line each."""
        digests: list[str | None] = [None] * self.config.stages
        dist.all_gather_object(digests, self.stage.digest())
        dist.destroy_process_group()
        return "\n".join(f"stage {r} weights sha256 {d}" for r, d in enumerate(digests))

    def _forward(self, step: int, k: int, batch: Batch | None) -> list[float]:
        number = (step - 1) * self.config.microbatches + k + 1
        self.injector.before(number)
        inputs, targets = self._ends(batch, k)
        if inputs is None:
            with badput.span("wait_activation"):
                inputs = self.link.activation(step, k)
        with badput.span("forward"), self.injector.slowed(number):
            self._dawdle()
            output = self.stage.forward(step, k, inputs, targets)
        if self.stage.last:
            return [output.item()]
        with badput.span("send"):
            self.link.send_activation(step, k, output)
        return []

    def _backward(self, step: int, k: int) -> None:
        number = (step - 1) * self.config.microbatches + k + 1
        gradient = None
        if not self.stage.last:
            with badput.span("wait_gradient"):
                gradient = self.link.gradient(step, k)
        with badput.span("backward"), self.injector.slowed(number):
            self._dawdle()
            upstream = self.stage.backward(step, k, gradient)
        if self.injector.poisons(number):
            self.stage.poison(step, upstream)
        if upstream is not None:
            with badput.span("send"):
                self.link.send_gradient(step, k, upstream)

    def _dawdle(self) -> None:
        """Sleep at random if ``jitter`` asks for it; which rank comes first must not matter."""
        if self.config.jitter:
            time.sleep(self._random.uniform(0, self.config.jitter) / 1000)

    def _after(self, step: int) -> None:
        """What is due between this step and the next."""
        config = self.config
        last = step == config.steps
        if config.eval_every and (last or step % config.eval_every == 0):
            with badput.span("eval") as span:
                loss = self._evaluate(step)
                span.set(loss=loss)
            if loss is not None:
                _say(f"step {step:>6}  validation loss {loss:.4f}")

    def _evaluate(self, step: int) -> float | None:
        """Mean loss over a fixed set of validation sequences; None on all but the last stage."""
        first = self.config.microbatches
        self.link.expect(step, [Action("F", first + k) for k in range(EVAL_MICROBATCHES)])
        batch = self._batch(self.corpus.validation, 0, EVAL_MICROBATCHES)
        losses: list[float] = []
        for k in range(EVAL_MICROBATCHES):
            inputs, targets = self._ends(batch, k)
            if inputs is None:
                inputs = self.link.activation(step, first + k)
            output = self.stage.evaluate(inputs, targets)
            if self.stage.last:
                losses.append(output.item())
            else:
                self.link.send_activation(step, first + k, output)
        return sum(losses) / len(losses) if losses else None

    def _actions(self, step: int) -> list[Action]:
        """What this stage does in ``step``; the first one after a start fills the pipeline."""
        config = self.config
        return SCHEDULES[config.schedule](
            self.rank,
            config.stages,
            config.microbatches,
            first=step == self.begun_after + 1,
            last=step == self.recovery.end,
        )

    def _batches(self) -> Iterator[tuple[int, Sequence[Batch]]]:
        """The steps that are left with their data; the same whether or not it restarted.

        A first stage that runs ahead gets the batch of the next step beside that of the step.
        """
        ready: dict[int, Batch] = {}
        step = self.stage.steps + 1
        while step <= self.recovery.end:
            ahead = max((a.ahead for a in self._actions(step)), default=0) if self.rank == 0 else 0
            for wanted in range(step, step + ahead + 1):
                if wanted not in ready:
                    ready[wanted] = self._train_batch(wanted)
            yield step, [ready[s] for s in range(step, step + ahead + 1)]
            del ready[step]
            step += 1

    def _train_batch(self, step: int) -> Batch:
        m = self.config.microbatches
        batch = self._batch(self.corpus.train, step + self.recovery.skipped, m)
        return self.injector.batch(range((step - 1) * m + 1, step * m + 1), batch)

    def _batch(self, part: np.ndarray, step: int, microbatches: int) -> Batch:
        sequences = microbatches * self.config.microbatch
        context = self.config.model.context
        return data.batch(
            part, seed=self.config.seed, step=step, sequences=sequences, context=context
        )

    def _ends(self, batch: Batch | None, k: int) -> tuple[Tensor | None, Tensor | None]:
        """Microbatch ``k`` as this stage needs it: inputs if first, targets if last."""
        if batch is None:  # a stage in the middle runs ahead of its data
            assert not self.stage.first
            assert not self.stage.last
            return None, None
        rows = slice(k * self.config.microbatch, (k + 1) * self.config.microbatch)
        inputs = torch.from_numpy(batch[0][rows]) if self.stage.first else None
        targets = torch.from_numpy(batch[1][rows]) if self.stage.last else None
        return inputs, targets


def main(argv: Sequence[str]) -> int:
    """Train one stage. Returns 0, or 1 after a failure that is said in one line."""
    config = TrainConfig.from_json(argv[0])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if config.run is not None:
        badput.init(
            config.run,
            name=config.name,
            stage=rank,
            stages=config.stages,
            microbatches=config.microbatches,
            schedule=config.schedule,
            config=config.described(),
        )
    worker = None
    try:
        worker = Worker(config, rank)
        worker.train()
        digests = worker.finish()
    except StoppedError as stop:
        badput.event("note", what=str(stop))
        badput.close()
        if rank == 0:
            _say(str(stop))
        os._exit(STOPPED)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        badput.event("failure", what=f"rank {rank}: {error}", signature=type(error).__name__)
        if not isinstance(error, _EXPECTED):
            traceback.print_exc()
        with contextlib.suppress(OSError):
            print(f"badput train: rank {rank}: {error}", file=sys.stderr, flush=True)
        if worker is not None:
            with contextlib.suppress(OSError):
                worker.recovery.saver.finish()
        # Without a tidy end: the transport's threads may wait for a peer that is gone.
        os._exit(1)
    badput.event("complete")
    badput.close()
    if rank == 0:
        _say(digests)
    return 0


def _say(line: str) -> None:
    # Whoever read our output may be gone; that is no reason to stop training.
    with contextlib.suppress(OSError):
        print(line, flush=True)
