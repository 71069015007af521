"""torch.compile: how long compilations took, and which were recompilations.

By dynamo's own callbacks, which run outside of what it traces.
"""

from __future__ import annotations

import sys

from badput import clock
from badput.hooks.base import Hook, guarded, ident, live
from badput.spans import Span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from badput.recorder import Recorder

_MAX_EVENTS = 200
_now = clock.mono


@guarded("compile.begin")
def _begin(args: Any) -> None:
    HOOK.begins(args)


@guarded("compile.end")
def _end(args: Any) -> None:
    HOOK.ends(args)


def _begins(args: Any) -> None:
    _begin(args)


def _ends(args: Any) -> None:
    _end(args)


class CompileHook(Hook):
    """One callback at the begin and one at the end of a compilation."""

    def __init__(self) -> None:
        self._span: Span | None = None
        self._start = self._thread = self._count = 0
        self._handler: Any = None

    def begin(self, process: dict[str, Any]) -> None:
        """Count anew."""
        self._count = 0
        self._span = None

    def attach(self, module: str, found: Any) -> None:
        """Register both callbacks, unless they are."""
        self._handler = handler = found.callback_handler
        if _begins not in handler.start_callbacks:
            handler.register_start_callback(_begins)
        if _ends not in handler.end_callbacks:
            handler.register_end_callback(_ends)

    def detach(self) -> None:
        """Take them out."""
        handler = self._handler
        if handler is not None:
            if _begins in handler.start_callbacks:
                handler.remove_start_callback(_begins)
            if _ends in handler.end_callbacks:
                handler.remove_end_callback(_ends)
        self._handler = None

    def look(self, rec: Recorder) -> None:
        """``torch._dynamo.reset`` clears callbacks: register them again."""
        module = sys.modules.get("torch._dynamo.callback")
        if module is not None and self._handler is not None:
            self.attach("", module)

    def begins(self, args: Any) -> None:
        """A compilation begins; one within another does not come here."""
        rec = live()
        if rec is None:
            return
        self._start, self._thread = _now(), ident()
        self._span = Span(rec, "compile", {"id": str(args.compile_id)})
        self._span.__enter__()

    def ends(self, args: Any) -> None:
        """It has ended, in this thread or another."""
        rec, span = live(), self._span
        self._span = None
        if rec is None or span is None:
            return
        if ident() == self._thread:
            span.__exit__(None, None, None)
        else:
            span.abandon()
        self._count += 1
        if self._count <= _MAX_EVENTS:
            name = str(args.compile_id)
            rec.event(
                "compile",
                {
                    "id": name,
                    "trigger": str(getattr(args.callback_trigger, "name", "")),
                    "recompile": not name.endswith("/0"),
                    "ns": _now() - self._start,
                },
            )


HOOK = CompileHook()
