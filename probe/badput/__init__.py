"""badput books every GPU-second of a training run exactly once, and prices it.

This module is what a training script imports. It is light: everything else is loaded when
``init`` is called, and before that (or with BADPUT_DISABLE=1) every function does nothing.
No function raises an error of badput's own into the program.
"""

from __future__ import annotations

import os
import sys
from sys import getrefcount

__version__ = "0.1.0"
__all__ = ["close", "data", "event", "init", "primary", "span", "step", "trace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from badput.recorder import Recorder
    from badput.spans import Span
    from badput.steps import Step

    T = TypeVar("T")


class Nothing:
    """Step and span before ``init``: a context manager that does nothing."""

    __slots__ = ()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def log(self, /, **_: object) -> None:
        """Do nothing."""

    def set(self, /, **_: object) -> None:
        """Do nothing."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Nothing, ())


_NOTHING = Nothing()
_recorder: Recorder | None = None
_step: Step | None = None
_make_span: type[Span] | None = None
_make_data: Callable[[Recorder, Any], Any] | None = None
_fork_hook = False
_now: Callable[[], int]


def init(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    flops: float | tuple[str, dict[str, Any]] | dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    role: str = "rank",
    stage: int | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    replica: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    hooks: str | Iterable[str] | None = None,
    auto_steps: bool = False,
) -> None:
    """Begin recording this process into the run folder ``path`` (or BADPUT_DIR).

    With neither, or with BADPUT_DISABLE=1, everything stays a no-op. ``flops``: FLOPs a token,
    or a formula id with its inputs. ``role``: ``rank``, or ``launcher`` for an outer loop that
    starts ranks. Rank and world come from the launcher's environment unless given. ``hooks``:
    names of hooks, ``default``, ``all`` or ``none``; BADPUT_HOOKS comes on top. ``auto_steps``:
    each update of the primary optimizer ends a step, until the program makes steps itself.
    """
    global _recorder, _make_span, _make_data  # noqa: PLW0603 - one probe a process
    if os.environ.get("BADPUT_DISABLE") == "1":
        return
    try:
        from badput import guard

        if _recorder is not None:
            auto = sys.modules.get("badput.auto")
            said = None if auto is None else auto.second_init()
            again = "init() again is ignored; call close() first to begin anew"
            guard.say("init", said or again)
            return
        from badput import session
        from badput.spans import Span, measured

        _make_span, _make_data = Span, measured
        guard.reset()
        guard.on_switch_off(_switch_off)
        given = {
            "name": name, "flops": flops, "config": config, "role": role, "stage": stage,
            "stages": stages, "microbatches": microbatches, "schedule": schedule,
            "replica": replica, "rank": rank, "world_size": world_size, "hooks": hooks,
            "auto_steps": auto_steps,
        }  # fmt: skip
        _recorder = session.start(path, given)
        if _recorder is not None:
            _watch_forks()
    except Exception as error:  # noqa: BLE001 - guard
        _fail("init", error)


def step(  # noqa: PLR0917 - keyword-only ones with defaults would double what the call costs
    tokens: int | None = None,
    number: int | None = None,
    samples: int | None = None,
    padding: int | None = None,
    source: str | None = None,
    committed: bool | None = None,
) -> Step | Nothing:
    """One training step, as a context manager with ``log``. It begins with this call.

    ``number`` counts from 1 and goes on from the last step unless given. ``tokens`` and
    ``samples`` are those of this rank's data replica, ``padding`` the tokens among them that
    are padding. The object is used again for the next step: do not keep it.
    """
    # Between the look at ``open`` and its change no call, so no thread or signal handler either.
    current = _step
    if current is None or current.open:
        current = _first_step()
        if current is None or current.open:  # another thread was faster
            return _NOTHING
    try:
        current.open = current.normal
        if tokens is not current.tokens and (type(tokens) is not int or tokens != current.tokens):
            current.take_tokens(tokens)
        if (
            number is not None
            or samples is not None
            or padding is not None
            or source is not None
            or committed is not None
        ):
            current.take(
                number=number, samples=samples, padding=padding, source=source, committed=committed
            )
        current.number = number = current.last + 1
        state = current.state
        state[48] = number
        current.start = state[49] = _now()
    except BaseException as error:  # noqa: BLE001 - guard
        current.give_up("step begin", error)
        return _NOTHING
    return current


def span(name: str, /, **attrs: Any) -> Span | Nothing:
    """A named interval, as a context manager with ``set``.

    Inside a step it adds to the step's time by category; outside it gets a row of its own.
    ``save`` and ``load`` take ``step=`` (the last one contained), ``path=``, ``bytes=`` and
    ``durable=``.
    """
    recorder, make = _recorder, _make_span
    if recorder is None or make is None:
        return _NOTHING
    try:
        plain = name if type(name) is str else _plain("span", name)
        return _NOTHING if plain is None else make(recorder, plain, attrs)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("span", error)
        return _NOTHING


def data(iterable: Iterable[T]) -> Iterable[T]:
    """``iterable``, with the time spent waiting for its items measured."""
    recorder, make = _recorder, _make_data
    if recorder is None or make is None:
        return iterable
    try:
        return make(recorder, iterable)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("data", error)
        return iterable


def event(kind: str, /, **attrs: Any) -> None:
    """Record that something happened now: ``note``, ``failure``, ``complete``, ``rewind``, ...

    ``rewind`` with ``to_step=N`` declares a rollback; the next step is then N + 1.
    """
    recorder = _recorder
    if recorder is None:
        return
    try:
        plain = kind if type(kind) is str else _plain("event", kind)
        if plain is not None:
            recorder.told(plain, attrs)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("event", error)


def primary(optimizer: object) -> None:
    """Say which optimizer stands for the step, where several step: by default the largest."""
    if _recorder is None:
        return
    try:
        from badput import hooks

        hooks.nominate(optimizer)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("primary", error)


def trace(steps: int = 1, *, every: int = 1, start: int | None = None) -> None:
    """Keep the single in-step spans of ``steps`` steps, from the next one (or ``start``) on.

    ``every=K`` keeps every K-th. Of a step at most 2,000 spans are kept, each with its depth and
    the ``microbatch=`` it was given. ``trace(0)`` ends it. BADPUT_TRACE does the same.
    """
    recorder = _recorder
    if recorder is None:
        return
    try:
        from badput import tracing

        tracing.window(recorder, steps, every, start)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("trace", error)


def close(timeout: float = 2.0) -> None:
    """Say that this process is done, and wait up to ``timeout`` s (5 at most) for the collector.

    Not needed: what was recorded is safe either way. Call it in a ``finally`` and the books
    know whether an exception was on its way.
    """
    global _recorder, _step  # noqa: PLW0603 - one probe a process
    recorder = _recorder
    if recorder is None:
        return
    try:
        from badput import session

        session.unhook()
        _recorder = _step = None
        session.stop(recorder, float(timeout))
    except Exception as error:  # noqa: BLE001 - guard
        _fail("close", error)
    finally:
        _recorder = _step = None


def _plain(what: str, name: object) -> str | None:
    """A name without its class; None, said once, for what is none: str() could wait for a GPU."""
    if isinstance(name, str):
        return str.__str__(name)
    from badput import guard

    guard.say(
        f"{what} name", f"{what}() wants a name and got {type(name).__name__}; it is left out"
    )
    return None


def _first_step() -> Step | None:
    """The step to use where there was none yet, or where the last one is still open."""
    global _step, _now  # noqa: PLW0603 - one probe a process
    recorder, current = _recorder, _step
    if recorder is None:
        return None
    try:
        if current is None:
            from badput import clock, hooks

            _now = clock.mono
            hooks.first_step(recorder)
            with recorder.lock:  # threads may begin their first step at once
                current = recorder.first_step()
                if _step is None:  # so nobody else holds it yet
                    current.refs = getrefcount(current) + 2  # and _step, and the caller's
                    _step = current
            return current
        refs = getrefcount(current)  # here: within a call on current itself it is one more
        if not current.open or current.stale(refs):
            return current
        from badput import guard

        guard.say("nested step", "a step inside a step is ignored")
    except Exception as error:  # noqa: BLE001 - guard
        _fail("step", error)
    return None


def _fail(kind: str, error: Exception) -> None:
    try:
        from badput import guard
    except (ImportError, OSError, MemoryError):  # no descriptor or memory is left: be silent
        return
    try:
        guard.fail(kind, error)
    finally:
        del error  # as in fail


def _switch_off() -> None:
    global _recorder, _step  # noqa: PLW0603 - one probe a process
    recorder = _recorder
    _recorder = _step = None
    if recorder is not None:
        recorder.spool.retire()


def _watch_forks() -> None:
    global _fork_hook  # noqa: PLW0603 - one probe a process
    if not _fork_hook:
        _fork_hook = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """A forked child records nothing until it calls ``init`` itself."""
    global _recorder, _step  # noqa: PLW0603 - one probe a process
    recorder = _recorder
    _recorder = _step = None
    if recorder is None:
        return
    try:
        from badput import session

        session.after_fork(recorder)
    except Exception as error:  # noqa: BLE001 - guard
        _fail("fork", error)
