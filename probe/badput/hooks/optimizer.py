"""Optimizer steps, by torch's global optimizer hooks: was an update applied, and auto mode.

The hooks are global with a filter by identity, since hooks of one optimizer are lost when it is
copied or unpickled. One optimizer, the *primary*, stands for the step: the one that the program
names, else the one with most parameters. In auto mode the steps themselves are made here, from
one update of the primary to the next. An optimizer step inside a compiled function is not seen:
whatever runs there would change the program's graphs.
"""

from __future__ import annotations

import sys
import weakref

from badput import clock
from badput import layout as lo
from badput.guard import say
from badput.hooks.base import Hook, Patch, guarded, ident, live, mine
from badput.steps import CLOSED, MORE, OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from badput.recorder import Recorder
    from badput.steps import Step

_SAY_AFTER = 100
"""Steps after which the ratio of several optimizers' steps is recorded."""
_PATIENCE = 16
"""Steps in a row by which a smaller optimizer takes over from a primary that steps no more."""
_LOOK_EVERY = 32
_SLOT = lo.STEP_SLOT_AT // 8
_MAX_EVENTS = 100
"""Failed attempts that get an event of their own."""


class Seen:
    """An optimizer that has stepped: who it is, how large, and how often it did."""

    __slots__ = ("base", "name", "ref", "size", "steps", "streak")

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.size = _parameters(optimizer)
        self.steps = self.streak = 0
        self.base = -1


def _parameters(optimizer: Any) -> int:
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            try:
                total += int(parameter.numel())
            except (ValueError, RuntimeError, TypeError):  # lazy modules have no size yet
                total += 1
    return total


class OptimizerHook(Hook):
    """Follows which optimizer steps, and makes the steps in auto mode."""

    def __init__(self) -> None:
        self.auto = False
        self._handles: list[Any] = []
        self._scaler = Patch()
        self.begin({})

    def begin(self, process: dict[str, Any]) -> None:
        """Forget the optimizers of another incarnation."""
        self.auto = False
        self._seen: dict[int, Seen] = {}
        self._primary: Seen | None = None
        self._named = False
        self._under: list[int] = []
        self._applied_in = -1
        """Number of the step in which an update of the primary was seen."""
        self._said: tuple[int, bool] | None = None
        self._calls = self._failures = 0
        self._told = False

    # -- attaching --------------------------------------------------------------------------
    def attach(self, module: str, found: Any) -> None:
        """Register the global hooks, or wrap ``GradScaler.step``, which has none."""
        if module == "torch.optim.optimizer":
            if not self._handles:
                compiling = sys.modules["torch"].compiler.is_compiling
                self._handles = [
                    found.register_optimizer_step_pre_hook(_pre_hook(compiling)),
                    found.register_optimizer_step_post_hook(_post_hook(compiling)),
                ]
        elif module == "torch.amp.grad_scaler":
            self._scaler.apply([found.GradScaler], "step", _scaler_step)

    def detach(self) -> None:
        """Take the hooks back; a step that auto mode had opened is given up."""
        rec = live()
        if rec is not None:
            self.explicit(rec)
            self._tell(rec)
        while self._handles:
            self._handles.pop().remove()
        self._scaler.undo()
        self.begin({})

    # -- auto mode --------------------------------------------------------------------------
    def explicit(self, rec: Recorder) -> None:
        """The program makes its steps itself: give up the one that auto mode had opened."""
        was, self.auto = self.auto, False
        if was and rec.step.open:
            now = clock.mono()
            rec.step.open = CLOSED
            rec.unwind(now)
            rec.step.reset()
            rec.set_phase(lo.PHASE_LOOP, now)

    def open(self, rec: Recorder) -> None:
        """In auto mode: the first step begins, if none has."""
        if self.auto and not rec.step.open:
            first = rec.fresh
            _begin(rec.first_step())
            if first:
                rec.event("steps", {"made_by": "optimizer", "counted_from": rec.step.number})

    def boundary(self, rec: Recorder, applied: bool | None) -> None:
        """The primary has done its step, or skipped it."""
        step = rec.step
        if self.auto:
            if step.open:
                if applied is not None:
                    step.log(applied=applied)
                step.__exit__(None, None, None)
            self.open(rec)
            return
        if step.open not in (OPEN, MORE) or applied is None:
            return
        said = self._said
        ours = said is not None and said[0] == step.number
        if (ours and (not applied or said == (step.number, True))) or (
            not ours and step.flags & lo.APPLIED_KNOWN
        ):
            return  # the program's own word stands, and one applied update is enough
        step.log(applied=applied)
        self._said = (step.number, applied)

    # -- what happens -----------------------------------------------------------------------
    def before(self, optimizer: Any) -> None:
        """An optimizer begins its step."""
        rec = live()
        if rec is None:
            return
        if ident() != rec.owner:
            if not (self.auto and rec.fresh):
                return
            rec.owner = ident()  # auto mode: who steps first is the training thread
        self._calls += 1
        if self._calls % _LOOK_EVERY == 1:
            sys.modules["badput.hooks"].look(rec)
        key = id(optimizer)
        if key in self._under:
            self._attempt_failed(rec, optimizer)
            del self._under[self._under.index(key) :]
        self._under.append(key)
        if self.auto and not rec.step.open:
            self.open(rec)

    def after(self, optimizer: Any) -> None:
        """An optimizer has done its step."""
        rec = mine()
        if rec is None:
            return
        key = id(optimizer)
        if key in self._under:
            del self._under[self._under.index(key) :]
        seen = self._meet(optimizer, key)
        seen.steps += 1
        if self._counts(rec, seen):
            step = rec.step
            self._applied_in = step.number if step.open else step.last
            # A fused optimizer under a GradScaler skips on the device, without telling.
            unknown = getattr(optimizer, "found_inf", None) is not None
            self.boundary(rec, None if unknown else True)
            if seen.steps == _SAY_AFTER:
                self._tell(rec)

    def skipped(self, optimizer: Any) -> None:
        """A GradScaler has left out an optimizer's step."""
        rec = mine()
        if rec is None:
            return
        primary = self._primary
        if primary is None or primary.ref() is optimizer:
            if self.auto:
                self.open(rec)
            self.boundary(rec, False)

    def steps_of(self, optimizer: Any) -> int:
        """How often this optimizer has stepped."""
        seen = self._seen.get(id(optimizer))
        return 0 if seen is None else seen.steps

    def nominate(self, optimizer: Any) -> None:
        """The program says which optimizer counts."""
        if not hasattr(optimizer, "param_groups"):
            kind = type(optimizer).__name__
            say("primary", f"primary() wants a torch optimizer and got {kind}; it is ignored")
            return
        self._primary = self._meet(optimizer, id(optimizer))
        self._named = True

    def contained(self, rec: Recorder) -> int | None:
        """The last step that a checkpoint written now contains; None if no step is known."""
        step = rec.step
        if rec.fresh and not step.last:
            return None
        done = step.open and not self.auto and self._applied_in == step.number
        return step.number if done else step.last

    # -- which one counts -------------------------------------------------------------------
    def _meet(self, optimizer: Any, key: int) -> Seen:
        seen = self._seen.get(key)
        if seen is None or seen.ref() is not optimizer:  # the id may be used again
            seen = self._seen[key] = Seen(optimizer)
        return seen

    def _counts(self, rec: Recorder, seen: Seen) -> bool:
        """True if this one stands for the step; decides who the primary is."""
        primary = self._primary
        if primary is seen:
            return True
        gone = primary is None or primary.ref() is None
        if gone:
            self._primary, self._named = seen, False
            return True
        assert primary is not None
        if not self._named:
            self._warn()
        seen.streak = seen.streak + 1 if seen.base == primary.steps else 1
        seen.base = primary.steps
        if self._named:
            if seen.streak == _SAY_AFTER:
                say("primary", f"the primary optimizer, {primary.name}, steps no more")
            return False
        if seen.steps == 1 and seen.size > primary.size and primary.steps <= 1:
            self._primary = seen  # larger, met in the first round: that step is counted
            return False
        if seen.streak >= (2 if seen.size >= primary.size else _PATIENCE):
            self._primary = seen  # a copy that replaces the first one, or what comes after it
            return True
        return False

    def _warn(self) -> None:
        say(
            "optimizers",
            "several optimizers step; the one with most parameters stands for the step. "
            "badput.primary(optimizer) names another",
        )

    def _tell(self, rec: Recorder) -> None:
        """Record how often each of several optimizers has stepped."""
        everyone = [seen for seen in self._seen.values() if seen.steps]
        if len(everyone) < 2 or self._primary is None:
            return
        steps = [{"name": s.name, "steps": s.steps, "parameters": s.size} for s in everyone[:20]]
        chosen = "named" if self._named else "most parameters"
        attrs = {"primary": self._primary.name, "chosen": chosen, "optimizers": steps}
        rec.event("optimizers", attrs)

    def _attempt_failed(self, rec: Recorder, optimizer: Any) -> None:
        """The step before was never finished: it raised, and the program went on."""
        self._failures += 1
        if self._failures <= _MAX_EVENTS:
            rec.event("failed_attempt", {"optimizer": type(optimizer).__name__})


def _begin(step: Step) -> None:
    """Begin a step as ``badput.step`` does, which is no way for anybody else to begin one."""
    step.open = step.normal
    if step.tokens is not None:
        step.take_tokens(None)
    step.number = step.last + 1
    step.state[_SLOT] = step.number
    step.start = step.state[_SLOT + 1] = clock.mono()


HOOK = OptimizerHook()


@guarded("optimizer.before")
def _before(optimizer: Any) -> None:
    HOOK.before(optimizer)


@guarded("optimizer.after")
def _after(optimizer: Any) -> None:
    HOOK.after(optimizer)


def _pre_hook(compiling: Callable[[], bool]) -> Callable[..., None]:
    # Asked first, so that a compiled optimizer step has the same graphs with it as without.
    def badput_step_begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not compiling():
            _before(optimizer)

    return badput_step_begins


def _post_hook(compiling: Callable[[], bool]) -> Callable[..., None]:
    def badput_step_ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not compiling():
            _after(optimizer)

    return badput_step_ends


@guarded("optimizer.scaler begins")
def _scaler_begins(optimizer: Any) -> int:
    return HOOK.steps_of(optimizer)


@guarded("optimizer.scaler ends")
def _scaler_ends(scaler: Any, optimizer: Any, before: int | None) -> None:
    if before is not None and scaler.is_enabled() and HOOK.steps_of(optimizer) == before:
        HOOK.skipped(optimizer)


def _scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    import functools

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = _scaler_begins(optimizer)
        result = original(self, optimizer, *args, **kwargs)
        _scaler_ends(self, optimizer, before)
        return result

    return step
