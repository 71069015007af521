# No pathlib: the training process imports this, and pathlib is slow to import.
# ruff: noqa: PTH100
"""Hugging Face Trainer: a callback that records steps, evaluation and checkpoints.

    trainer = Trainer(..., callbacks=[BadputCallback()])

Tokens are known where ``TrainingArguments(include_num_input_tokens_seen=...)`` has them counted;
the Trainer counts over all ranks, so each rank is given its share. The loss is the Trainer's: a
mean over the steps since it last logged, given to the step that logs.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import badput
from badput import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    TrainerCallback = object  # types are checked without the framework
else:
    from transformers import TrainerCallback

_active: BadputCallback | None = None
"""The one callback that records: a second, such as one of ``badput run``, stays out of its way."""


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Nothing that goes wrong here reaches the Trainer, and its control object stays its own."""

    @functools.wraps(method)
    def body(self: BadputCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if _active is not None and _active is not self:
            return
        try:
            method(self, args, state, control, **kwargs)
        except Exception as error:  # noqa: BLE001 - guard
            guard.fail("transformers", error)

    return body


class BadputCallback(TrainerCallback):
    """Records what the Trainer does, into the run that ``badput.init`` began."""

    def __init__(self) -> None:
        self._step: Any = None
        self._log: Any = None
        self._span: Any = None
        self._tokens = 0

    @_guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training starts or resumes: remember what was counted before."""
        global _active  # noqa: PLW0603 - one Trainer trains at a time
        _active = self
        self._tokens = state.num_input_tokens_seen
        if getattr(args, "logging_nan_inf_filter", False):
            badput.event(
                "note",
                text="the Trainer replaces losses that are not finite by earlier means: a finite "
                "curve does not show that there were none (logging_nan_inf_filter)",
            )

    @_guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step begins, with its first batch at hand."""
        self._leave_span()
        self._leave_step()
        self._step = badput.step(number=state.global_step + 1)
        self._log = self._step.__enter__()

    @_guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """It is done. If the Trainer logs now, its loss still belongs to this step."""
        if self._step is None:
            return
        if args.include_num_input_tokens_seen not in ("no", False):
            self._log.log(tokens=self._share(args, state.num_input_tokens_seen))
        if not control.should_log:
            self._leave_step()
            self._expect(control)

    def _share(self, args: Any, seen: int) -> int:
        """This rank's part of the tokens counted since the last step; the parts add up."""
        new, self._tokens = seen - self._tokens, seen
        whole, rest = divmod(new, max(args.world_size, 1))
        return whole + (args.process_index < rest)

    @_guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The Trainer logs a step, or the result of an evaluation."""
        if self._step is None or not logs or "loss" not in logs:
            return
        self._log.log(loss=logs["loss"], grad_norm=logs.get("grad_norm"))
        self._leave_step()
        self._expect(control)

    def _expect(self, control: Any) -> None:
        """After a step the Trainer evaluates, then saves, and says only when it is done."""
        name = "eval" if control.should_evaluate else "save" if control.should_save else None
        self._enter_span(name)

    @_guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The epoch's last step is done; the Trainer may evaluate and save."""
        self._leave_span()
        self._leave_step()
        self._expect(control)

    @_guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation, which may be one that the program asked for."""
        if self._span is None and self._step is None:
            self._enter_span("eval")

    @_guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is done."""
        self._leave_span()
        if control.should_save:
            self._enter_span("save")

    @_guarded
    def on_predict(self, args: Any, state: Any, control: Any, *_: Any, **kwargs: Any) -> None:
        """A prediction is done."""
        self._leave_span()

    @_guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        path = os.path.abspath(f"{args.output_dir}/checkpoint-{state.global_step}")
        if self._span is None:  # decided too late for us to see it begin
            badput.event("note", text="saved", step=state.global_step, path=path)
            return
        self._span.set(step=state.global_step, path=path)
        self._leave_span()

    @_guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over, by its own account."""
        global _active  # noqa: PLW0603 - one Trainer trains at a time
        self._leave_span()
        self._leave_step()
        if state.global_step >= state.max_steps:
            badput.event("complete")
        _active = None

    def _enter_span(self, name: str | None) -> None:
        if name is not None:
            self._span = badput.span(name)
            self._span.__enter__()

    def _leave_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def _leave_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def __deepcopy__(self, memo: object) -> BadputCallback:
        """A copied Trainer gets a callback that has begun nothing."""
        return BadputCallback()

    def __reduce__(self) -> tuple[Any, ...]:
        return (BadputCallback, ())
