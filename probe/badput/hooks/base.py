"""What hooks are made of: bodies that cannot hurt the program, and patches that can be undone.

A hook's own work lies in *bodies*: functions under ``guarded``, which return None instead of
raising. What stands between them, a wrapper around a function of torch, only calls the original
with what it was given. Every body asks ``live`` first: without a recorder (after ``close``, in a
forked child, once the probe is off) it does nothing.
"""

from __future__ import annotations

import functools
import threading

import badput
from badput.guard import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, ParamSpec, TypeVar

    from badput.recorder import Recorder
    from badput.spans import Span

    P = ParamSpec("P")
    R = TypeVar("R")

BODIES: dict[str, Callable[..., Any]] = {}
"""Every guarded body that is loaded, by name; tests make each of them fail in turn."""
ident = threading.get_ident


class TorchError(Exception):
    """An error that torch raised while a hook asked it something."""


def guarded(name: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Make a function a body: what it raises is counted and swallowed, and it gives None then."""

    def decorate(func: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(func)
        def body(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return func(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - guard
                caught(name, error)
                return None

        BODIES[name] = body
        return body

    return decorate


def caught(name: str, error: Exception) -> None:
    """Count a body's error. Torch's own types come from our calls, never from the program."""
    if type(error).__module__.partition(".")[0] == "torch":
        error = TorchError(f"{type(error).__name__}: {error}")
    fail(f"hook {name}", error)


def live() -> Recorder | None:
    """The recorder, or None where nothing is to be recorded."""
    return badput._recorder  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def mine() -> Recorder | None:
    """The recorder if this is the thread that runs the steps, else None."""
    rec = badput._recorder  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return rec if rec is not None and ident() == rec.owner else None


def around(rec: Recorder, name: str) -> Span | None:
    """The innermost span called ``name`` that is open on the training thread."""
    return next((span for span in reversed(rec.stack) if span.name == name), None)


def _held(place: object, name: str) -> Any:
    """What ``place`` itself holds under ``name``, without binding or inheritance."""
    return vars(place).get(name)


class Patch:
    """One function replaced by a wrapper in every place that holds it.

    A wrapper that somebody else has wrapped in turn stays where it is when undone, with nothing
    to record to, and is found again when the hook is installed anew.
    """

    def __init__(self) -> None:
        self._places: list[Any] = []
        self._name = ""
        self._original: Any = None
        self._wrapper: Any = None

    def apply(
        self, owners: Iterable[Any], name: str, make: Callable[[Callable[..., Any]], Any]
    ) -> None:
        """Replace ``name`` in all ``owners`` that hold the same function as the first of them."""
        if self._wrapper is not None:
            return
        places: list[Any] = list(owners)
        original: Any = _held(places[0], name)
        if original is None:  # another version of torch: nothing to measure
            return
        wrapper = make(original)
        self._name, self._original, self._wrapper = name, original, wrapper
        for place in places:
            if _held(place, name) is original:
                setattr(place, name, wrapper)
                self._places.append(place)

    def undo(self) -> None:
        """Put the original back wherever the wrapper still stands."""
        left: list[Any] = []
        for place in self._places:
            if _held(place, self._name) is self._wrapper:
                setattr(place, self._name, self._original)
            else:
                left.append(place)
        self._places = left
        if not self._places:
            self._wrapper = None


class Hook:
    """One hook. ``attach`` is called for each of its modules once that is imported."""

    def attach(self, module: str, found: Any) -> None:
        """Install what belongs into ``module``; more than once is the same as once."""

    def detach(self) -> None:
        """Take everything back."""

    def begin(self, process: dict[str, Any]) -> None:
        """A new incarnation begins, ``process``: forget what was of the one before."""

    def look(self, rec: Recorder) -> None:
        """Now and then, at the first step first: has anything changed that matters?"""

    def flush(self, rec: Recorder) -> None:
        """Write what is held back."""
