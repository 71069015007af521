"""What makes a stage's training survive: resuming, saving, stopping in order, going back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

import badput
from badput_trainer import checkpoint, meeting
from badput_trainer.control import Control, SpikeWatch, StoppedError
from badput_trainer.saver import Saver

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_trainer.config import TrainConfig
    from badput_trainer.stage import Stage


class Recovery:
    """One stage's checkpoints, and its part in what all stages do together."""

    def __init__(
        self,
        config: TrainConfig,
        stage: Stage,
        rank: int,
        *,
        control: Control,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._stage = stage
        self._rank = rank
        self._control = control
        self._say = say
        self._spikes = SpikeWatch(config.rewind_above)
        origin = checkpoint.Origin(config.hash, config.name, config.decisive)
        self.saver = Saver(
            config.checkpoint_dir, stage=rank, origin=origin, keep=config.keep, mode=config.save
        )
        self.end = config.steps
        """The step after which this stage leaves its loop; known before that step begins."""
        self.skipped = 0
        """Batches that were left out: step n trains on batch n + skipped."""
        if config.checkpoint_every:
            control.listen()

    def load(self, step: int, position: int) -> None:
        """Take over the checkpoint after ``step``, with ``position`` batches read."""
        folder = self._config.checkpoint_dir
        path = str(checkpoint.step_folder(folder, step))
        with badput.span("load", step=step, path=path):
            self._stage.load_state(checkpoint.load(folder, step=step, stage=self._rank))
        self.skipped = position - step

    def after(self, step: int, loss: float | None) -> None:
        """Between two steps: hear what was decided, and save if it is time to.

        Raises OSError if a checkpoint cannot be written, RuntimeError (of torch.distributed) if
        the store is gone.
        """
        every = self._config.checkpoint_every
        if not every:
            return
        if step < self._config.steps:
            self._listen(step, loss)
        decision = self._control.decision
        if decision is not None and decision.kind == "rewind":
            return  # what comes after a spike is given up
        if step == self.end or step % every == 0:
            self._save(step)

    def goes_on(self) -> bool:
        """Out of the loop, nothing under way: False at the end, True after a rewind.

        Raises StoppedError after an orderly stop.
        """
        decision = self._control.decision
        self.saver.finish()
        if decision is None:
            return False
        if decision.kind == "stop":
            dist.barrier()  # nobody ends, and is seen to end, before all have saved
            raise StoppedError(f"stopped after step {decision.at}: {decision.why}")
        resume = meeting.agree(self._config, self._rank, before=decision.seen)
        self._control.done()
        self._spikes.forget()
        self.end = self._config.steps
        if resume is None:
            self._tell(f"{decision.why} is a spike, but no checkpoint lies before it; going on")
        else:
            self._rewind(*resume, seen=decision.seen + self.skipped, why=decision.why)
        return True

    def _rewind(self, to: int, position: int, *, seen: int, why: str) -> None:
        badput.event("rewind", to_step=to)
        self.load(to, position)
        self.skipped = seen - to
        self.saver.drop_after(to)
        # Saved again with the new place in the data: a restart must not meet the spike again.
        self._save(to)
        self.saver.finish()
        dist.barrier()
        self._tell(f"rewound to step {to}: {why}; batches {position + 1} to {seen} are left out")

    def _listen(self, step: int, loss: float | None) -> None:
        if loss is not None and self._spikes.sees(loss):
            why = f"loss {loss:.4f} of step {step}"
            if not self._control.propose("rewind", step, why, seen=step):
                self._tell(f"{why} is a spike, but the run ends")
        decision = self._control.after(step, self._rank)
        if decision is not None:
            self.end = decision.at

    def _save(self, step: int) -> None:
        # The seed and the digest are there for who opens the file; the manifest is what counts.
        config = self._config
        place = {"position": step + self.skipped, "seed": config.seed, "config": config.hash}
        self.saver.save(step, self._stage.state() | place)

    def _tell(self, line: str) -> None:
        if self._stage.last:
            self._say(line)
