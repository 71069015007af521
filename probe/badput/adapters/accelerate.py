"""Hugging Face Accelerate: one step for all the batches whose gradients it accumulates.

    steps = Steps(accelerator)
    for batch in loader:
        with steps(tokens=batch.numel()) as step, accelerator.accumulate(model):
            ...
            step.log(loss=...)

The step ends with the batch at which ``accelerator.sync_gradients`` is true; tokens and samples
are added up until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import badput
from badput import guard

if TYPE_CHECKING:
    from types import TracebackType


class Steps:
    """Makes steps of batches, as the accelerator accumulates them."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._step: Any = None
        self._view: Any = badput.Nothing()
        self._sums: dict[str, int] = {}

    def __call__(self, *, tokens: int | None = None, samples: int | None = None) -> Batch:
        """One batch, as a context manager; ``tokens`` and ``samples`` are those of this rank."""
        return Batch(self, {"tokens": tokens, "samples": samples})

    def begin(self, counts: dict[str, int | None]) -> Any:
        """A batch begins, and a step if none is open; what ``log`` is called on."""
        if self._step is None:
            self._sums = {}
            self._step = badput.step()
            self._view = self._step.__enter__()
        for name, count in counts.items():
            if type(count) is int:
                self._sums[name] = self._sums.get(name, 0) + count
        return self._view

    def end(self, *error: Any) -> None:
        """A batch ends, and with the last one of an accumulation the step."""
        if self._step is None or (error[0] is None and not self._accelerator.sync_gradients):
            return
        step, self._step = self._step, None
        if error[0] is None:
            skipped = getattr(self._accelerator, "optimizer_step_was_skipped", None)
            applied = not skipped if type(skipped) is bool else None
            self._view.log(**self._sums, applied=applied)
        step.__exit__(*error)


class Batch:
    """The context of one batch."""

    def __init__(self, steps: Steps, counts: dict[str, int | None]) -> None:
        self._steps = steps
        self._counts = counts

    def __enter__(self) -> Any:
        try:
            return self._steps.begin(self._counts)
        except Exception as error:  # noqa: BLE001 - guard
            guard.fail("accelerate", error)
            return badput.Nothing()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._steps.end(kind, error, trace)
        except Exception as problem:  # noqa: BLE001 - guard
            guard.fail("accelerate", problem)
