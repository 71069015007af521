"""torch.save and torch.load: which of them are checkpoints, and how long they took.

A checkpoint is what goes to or comes from a file on disk and has more than 1 MiB, or whatever is
saved inside a span ``save`` (loaded inside a span ``load``): there the program's own span stays
the only one and is given path, size and step where it has none. What other threads save, what
goes to memory or to a remote file object, and what a DataLoader reads is none.
"""

from __future__ import annotations

import functools
import os
from typing import cast

from badput import clock
from badput import layout as lo
from badput.hooks import dcp
from badput.hooks.base import Hook, Patch, around, guarded, mine
from badput.hooks.loader import waits
from badput.hooks.optimizer import HOOK as OPTIMIZER
from badput.recorder import CATEGORY
from badput.spans import Span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from badput.recorder import Recorder

SMALL = 1 << 20
"""Bytes; what is not larger is no checkpoint by itself."""
_MAX_VISITS = 20_000
_COUNTERS = ("step", "global_step", "iteration")
"""Names under which scripts save how many steps were done."""
_SAVE = CATEGORY["save"]
_now = clock.mono
_torch: Any = None


class Transfer:
    """One save or load under way."""

    __slots__ = ("file", "inside", "path", "span", "start", "step")

    def __init__(self, file: Any, path: str) -> None:
        self.file = file
        self.path = path
        self.start = _now()
        self.step: int | None = None
        self.span: Span | None = None
        self.inside: Span | None = None


def place(file: Any) -> str | None:
    """The path of ``file``, a path or an open file; None if it is not on disk."""
    if isinstance(file, (str, os.PathLike)):
        text: str = os.fspath(file) if isinstance(file, str) else str(os.fspath(file))  # pyright: ignore[reportUnknownArgumentType]
        return text if "://" in text else os.path.abspath(text)  # noqa: PTH100
    name = getattr(file, "name", None)
    if not isinstance(name, str) or not hasattr(file, "fileno"):
        return None
    try:
        file.fileno()
    except (OSError, ValueError):
        return None
    return os.path.abspath(name)  # noqa: PTH100


def size_of(path: str) -> int | None:
    """Bytes of the file at ``path``."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return None


def heavy(value: object) -> bool:
    """True if ``value`` surely holds more than SMALL bytes of tensors; nothing is touched."""
    torch, total, visits = _torch, 0, 0
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting and visits < _MAX_VISITS:
        visits += 1
        item, depth = waiting.pop()
        inner: Iterable[object] = ()
        if isinstance(item, torch.Tensor):
            total += int(item.numel()) * int(item.element_size())  # type: ignore[attr-defined]
            if total > SMALL:
                return True
        elif isinstance(item, dict):
            inner = item.values()  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(item, (list, tuple)):
            inner = item  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(item, torch.nn.Module):
            inner = item.parameters()  # type: ignore[attr-defined]
        if depth < 6:
            waiting.extend((one, depth + 1) for one in cast("Iterable[object]", inner))
    return False


def contained(rec: Recorder) -> int | None:
    """The last step that a checkpoint made now contains."""
    return OPTIMIZER.contained(rec)


# -- save -----------------------------------------------------------------------------------
@guarded("checkpoint.save begins")
def _save_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Transfer | None:
    rec = mine()
    if rec is None or dcp.busy():
        return None
    file = args[1] if len(args) > 1 else kwargs.get("f")
    path = place(file)
    if path is None:
        return None
    transfer = Transfer(file, path)
    transfer.inside = around(rec, "save")
    if transfer.inside is not None:
        return transfer
    transfer.step = contained(rec)
    if heavy(args[0] if args else kwargs.get("obj")):
        transfer.span = Span(rec, "save", _attrs(transfer))
        transfer.span.__enter__()
    return transfer


def _attrs(transfer: Transfer) -> dict[str, Any]:
    attrs: dict[str, Any] = {"path": transfer.path}
    if transfer.step is not None:
        attrs["step"] = transfer.step
    return attrs


@guarded("checkpoint.save ends")
def _save_ends(transfer: Transfer | None, error: BaseException | None) -> None:
    rec = mine()
    if transfer is None or rec is None:
        return
    kind = None if error is None else type(error)
    size = _written(transfer)
    if transfer.inside is not None:
        if size is not None:
            _complete(transfer.inside, transfer.path, size, contained(rec))
    elif transfer.span is not None:
        if size is not None and error is None:
            transfer.span.set(bytes=size)
        transfer.span.__exit__(kind, error, None)
    elif size is not None and size > SMALL:
        _add_late(rec, transfer, size, kind)


def _written(transfer: Transfer) -> int | None:
    """Bytes that are in the file, counting what an open file has not flushed yet."""
    size = size_of(transfer.path)
    if not isinstance(transfer.file, (str, os.PathLike)):
        try:
            size = max(size or 0, int(transfer.file.tell()))
        except (OSError, ValueError):
            return size
    return size


def _complete(span: Span, path: str, size: int, step: int | None) -> None:
    """Give the program's span what it does not say itself."""
    mine_ = span.attrs.get("files") if "files" in span.attrs else None
    if isinstance(mine_, int) or "bytes" not in span.attrs:
        span.set(bytes=size + (span.attrs.get("bytes") or 0), files=(mine_ or 0) + 1)
    span.attrs.setdefault("path", path)
    if step is not None and span.name == "save":
        span.attrs.setdefault("step", step)


def _add_late(rec: Recorder, transfer: Transfer, size: int, kind: type | None) -> None:
    """A save that only its file shows to be a checkpoint: its row and its time."""
    ns = _now() - transfer.start
    inside = bool(rec.step.open)
    attrs = {**_attrs(transfer), "bytes": size}
    name = None if kind is None else kind.__name__
    head = {"n": "save", "t": transfer.start, "d": ns, "s": rec.step.last, "i": inside}
    rec.append(lo.SPAN, {**head, "a": attrs, "b": None, "f": name})
    if inside:
        rec.step.add(_SAVE, ns)
    if rec.stack:
        rec.stack[-1].child += ns


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        transfer = _save_begins(args, kwargs)
        if transfer is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _save_ends(transfer, error)
            raise
        _save_ends(transfer, None)
        return result

    return save


# -- load -----------------------------------------------------------------------------------
@guarded("checkpoint.load begins")
def _load_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
    rec = mine()
    if rec is None or dcp.busy() or waits(rec):
        return None
    path = place(args[0] if args else kwargs.get("f"))
    size = None if path is None else size_of(path)
    if path is None or size is None:
        return None
    outer = around(rec, "load")
    if outer is not None:
        _complete(outer, path, size, None)
        return None
    if size <= SMALL or around(rec, "save") is not None:
        return None
    span = Span(rec, "load", {"path": path, "bytes": size})
    span.__enter__()
    return span


@guarded("checkpoint.load ends")
def _load_ends(span: Span, error: BaseException | None, loaded: object = None) -> None:
    rec = mine()
    fresh = rec is not None and not rec.step.last and not rec.step.open
    if (OPTIMIZER.auto or fresh) and type(loaded) is dict:
        # Nobody else says where the steps go on, unless each is given its number.
        state = cast("dict[object, object]", loaded)
        step = next((state[n] for n in _COUNTERS if type(state.get(n)) is int), None)
        if step is not None:
            span.attrs.setdefault("step", step)
    span.__exit__(None if error is None else type(error), error, None)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        span = _load_begins(args, kwargs)
        if span is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _load_ends(span, error)
            raise
        _load_ends(span, None, result)
        return result

    return load


class CheckpointHook(Hook):
    """Wraps ``torch.save``, ``torch.load`` and those of ``torch.distributed.checkpoint``."""

    def __init__(self) -> None:
        self._save, self._load = Patch(), Patch()

    def begin(self, process: dict[str, Any]) -> None:
        """Saves of another incarnation are not under way any more."""
        dcp.begin()

    def attach(self, module: str, found: Any) -> None:
        """Wrap each function in the modules that hold it, so that pickling it still works."""
        global _torch  # noqa: PLW0603 - torch is one
        if module == "torch":
            _torch = found
            places = [found, getattr(found, "serialization", found)]
            self._save.apply(places, "save", _save)
            self._load.apply(places, "load", _load)
        else:
            dcp.attach(found)

    def detach(self) -> None:
        """Put them back."""
        self._save.undo()
        self._load.undo()
        dcp.detach()


HOOK = CheckpointHook()
