"""Saving a stage's state, while training waits or in the background, and badput's record of it.

``blocking``: training goes on when the checkpoint is on disk; one span ``save``.
``background``: training waits for the copy alone, a span ``save`` that is not durable; a
thread writes it, in a span of its own, and only with its end is the checkpoint durable. At
most one is under way: the next save waits for it, so there is never more than one copy.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import badput
from badput_trainer import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


class Saver:
    """The checkpoints of one stage."""

    def __init__(
        self, folder: str, *, stage: int, origin: checkpoint.Origin, keep: int, mode: str
    ) -> None:
        self._folder = folder
        self._stage = stage
        self._origin = origin
        self._keep = keep
        self._mode = mode
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self.halfway: Callable[[], None] | None = None
        """Called when half of a file is written; for faults on purpose."""
        checkpoint.tidy(folder, stage=stage)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save ``state``, the live tensors, as that after ``step``.

        Raises OSError if this checkpoint, or the one before in the background, cannot be written.
        """
        path = str(checkpoint.step_folder(self._folder, step))
        if self._mode == "blocking":
            with badput.span("save", step=step, path=path) as span:
                span.set(bytes=self._write(step, checkpoint.snapshot(state)))
            checkpoint.prune(self._folder, stage=self._stage, keep=self._keep)
            return
        with badput.span("save", step=step, path=path, durable=False):
            self.finish()
            copy = checkpoint.snapshot(state)
        self._thread = threading.Thread(
            target=self._in_background, args=(step, path, copy), name="checkpoint"
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the one under way. Raises OSError if it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def drop_after(self, step: int) -> None:
        """Remove this stage's checkpoints that are newer than ``step``: they are given up."""
        self.finish()
        for later in checkpoint.saved_steps(self._folder, self._stage):
            if later > step:
                checkpoint.remove(self._folder, step=later, stage=self._stage)

    def _in_background(self, step: int, path: str, copy: dict[str, Any]) -> None:
        try:
            with badput.span("save", step=step, path=path) as span:
                span.set(bytes=self._write(step, copy))
            checkpoint.prune(self._folder, stage=self._stage, keep=self._keep)
        except OSError as error:
            self._error = error

    def _write(self, step: int, state: dict[str, Any]) -> int:
        return checkpoint.write(
            self._folder,
            step=step,
            stage=self._stage,
            origin=self._origin,
            state=state,
            halfway=self.halfway,
        )
