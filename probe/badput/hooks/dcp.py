"""torch.distributed.checkpoint: save, async_save and load.

An asynchronous save has two parts. What blocks is a span ``save`` that is not durable; what runs
beside the training is a second one, marked ``background``, whose end is when the checkpoint was
durable. If it never ends, the checkpoint was never confirmed.
"""

from __future__ import annotations

import functools
import os
import sys

from badput import clock
from badput import layout as lo
from badput.hooks.base import Patch, around, guarded, live, mine
from badput.hooks.optimizer import HOOK as OPTIMIZER
from badput.spans import Span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from badput.recorder import Recorder

_now = clock.mono
_patches = {name: Patch() for name in ("save", "async_save", "load")}
_under_way = 0


def begin() -> None:
    """Nothing is under way."""
    global _under_way  # noqa: PLW0603 - one training thread
    _under_way = 0


def busy() -> bool:
    """True while the training thread is in one of the three: what they save is not counted."""
    return _under_way > 0


class Transfer:
    """One call under way: the span around it, ours or the program's own."""

    __slots__ = ("ours", "path", "span", "step")

    def __init__(self, span: Span | None, ours: bool, path: str | None, step: int | None) -> None:
        self.span = span
        self.ours = ours
        self.path = path
        self.step = step


def _place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Where the checkpoint lies, as far as the call says."""
    given = kwargs.get("checkpoint_id")
    if given is None:
        holder = kwargs.get("storage_writer", kwargs.get("storage_reader"))
        given = getattr(holder, "path", None)
    if not isinstance(given, (str, os.PathLike)):
        return None
    text = str(os.fspath(given))  # pyright: ignore[reportUnknownArgumentType]
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100


@guarded("dcp.begin")
def _begins(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], durable: bool
) -> Transfer | None:
    global _under_way  # noqa: PLW0603 - one training thread
    rec = mine()
    if rec is None or _under_way:
        return None
    path = _place(args, kwargs)
    outer = around(rec, name)
    step = OPTIMIZER.contained(rec) if name == "save" else None
    attrs: dict[str, Any] = {} if path is None else {"path": path}
    if step is not None:
        attrs["step"] = step
    if not durable:
        attrs["durable"] = False
    if outer is not None:
        for key, value in attrs.items():
            outer.attrs.setdefault(key, value)
        transfer = Transfer(outer, False, path, step)
    else:
        span = Span(rec, name, attrs)
        transfer = Transfer(span, True, path, step)
        span.__enter__()
    _under_way = 1
    return transfer


@guarded("dcp.end")
def _ends(transfer: Transfer, error: BaseException | None) -> None:
    global _under_way  # noqa: PLW0603 - one training thread
    _under_way = 0
    if transfer.ours and transfer.span is not None:
        transfer.span.__exit__(None if error is None else type(error), error, None)


@guarded("dcp.background begins")
def _background(transfer: Transfer, result: Any) -> None:
    """Follow the part of a save that goes on beside the training."""
    rec = live()
    future = getattr(result, "upload_completion", result)
    if rec is None or not hasattr(future, "add_done_callback"):
        return
    attrs: dict[str, Any] = {"background": True}
    given = {} if transfer.span is None else transfer.span.attrs
    for key in ("step", "path"):
        if given.get(key) is not None:
            attrs[key] = given[key]
    payload = {"n": "save", "t": _now(), "s": rec.step.last, "i": True, "a": attrs}
    began = rec.append(lo.SPAN_BEGIN, payload)
    future.add_done_callback(functools.partial(_durable, rec, payload, began))


@guarded("dcp.background ends")
def _durable(rec: Recorder, payload: dict[str, Any], began: int | None, future: Any) -> None:
    """The future of an asynchronous save is done, in whatever thread that came about."""
    if live() is not rec:
        return
    failed = "cancelled" if future.cancelled() else None
    if failed is None and future.exception() is not None:
        failed = type(future.exception()).__name__
    rec.append(lo.SPAN, {**payload, "b": began, "d": _now() - payload["t"], "f": failed})


def _wrap(name: str, background: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            transfer = _begins(name, args, kwargs, not background)
            if transfer is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                _ends(transfer, error)
                raise
            _ends(transfer, None)
            if background:
                _background(transfer, result)
            return result

        return wrapper

    return make


def attach(found: Any) -> None:
    """Wrap the three in the package and in the modules that define them."""
    saver = sys.modules["torch.distributed.checkpoint.state_dict_saver"]
    loader = sys.modules["torch.distributed.checkpoint.state_dict_loader"]
    _patches["save"].apply([found, saver], "save", _wrap("save", background=False))
    _patches["async_save"].apply([found, saver], "async_save", _wrap("save", background=True))
    _patches["load"].apply([found, loader], "load", _wrap("load", background=False))


def detach() -> None:
    """Put them back."""
    for patch in _patches.values():
        patch.undo()
