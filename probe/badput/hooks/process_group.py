"""Rendezvous: how long ``init_process_group`` took, and who this process then is."""

from __future__ import annotations

import functools

from badput.hooks.base import Hook, Patch, around, guarded, live, mine
from badput.spans import Span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from badput.recorder import Recorder

_dist: Any = None


@guarded("process_group.begin")
def _begin(backend: Any) -> Span | None:
    rec = mine()
    if rec is None or around(rec, "rendezvous") is not None:
        return None
    span = Span(rec, "rendezvous", {"backend": backend} if isinstance(backend, str) else {})
    span.__enter__()
    return span


@guarded("process_group.end")
def _end(span: Span | None, error: BaseException | None) -> None:
    if span is not None:
        span.__exit__(None if error is None else type(error), error, None)
    rec = live()
    if error is None and rec is not None:
        _tell_world(rec)


def _tell_world(rec: Recorder) -> None:
    """Rank and world size, where they are not what was said of the process at ``init``."""
    now: dict[str, int | None] = {
        "rank": int(_dist.get_rank()),
        "world_size": int(_dist.get_world_size()),
    }
    said = HOOK.said
    if any(said.get(name) != value for name, value in now.items()):
        HOOK.said = now
        rec.event("world", {**now, "backend": str(_dist.get_backend())})


def _measured(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        span = _begin(args[0] if args else kwargs.get("backend"))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _end(span, error)
            raise
        _end(span, None)
        return result

    return init_process_group


class ProcessGroupHook(Hook):
    """Wraps ``torch.distributed.init_process_group``."""

    def __init__(self) -> None:
        self._patch = Patch()
        self.said: dict[str, int | None] = {}

    def begin(self, process: dict[str, Any]) -> None:
        """What ``init`` found out is what events are compared with."""
        self.said = {"rank": process.get("rank"), "world_size": process.get("world_size")}

    def attach(self, module: str, found: Any) -> None:
        """Wrap it in both modules that hold it, so that it can still be pickled by name."""
        global _dist  # noqa: PLW0603 - torch is one
        _dist = found
        if found.is_available():
            places = [found, found.distributed_c10d]
            self._patch.apply(places, "init_process_group", _measured)

    def detach(self) -> None:
        """Put it back."""
        self._patch.undo()


HOOK = ProcessGroupHook()
