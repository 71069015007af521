"""Hooks: what the probe learns from torch and Python by itself, each on or off by name.

``choose`` reads the names, ``install`` attaches the chosen ones, at once where their modules are
imported and else as soon as they are, and ``remove`` takes them back. torch is never imported.
"""

from __future__ import annotations

import importlib
import sys

from badput.guard import say
from badput.hooks.base import Hook, guarded
from badput.hooks.imports import forget, poll, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from badput.recorder import Recorder

__all__ = [
    "DEFAULT", "NAMES", "choose", "first_step", "flush", "install", "look", "nominate", "remove",
    "when_imported",
]  # fmt: skip

_HERE: dict[str, tuple[str, tuple[str, ...]]] = {
    "exceptions": ("exceptions", ("sys",)),
    "gc": ("garbage", ("gc",)),
    "frameworks": ("frameworks", ("sys",)),
    "optimizer": ("optimizer", ("torch.optim.optimizer", "torch.amp.grad_scaler")),
    "dataloader": ("loader", ("torch.utils.data.dataloader",)),
    "checkpoint": ("checkpoint", ("torch", "torch.distributed.checkpoint")),
    "process_group": ("process_group", ("torch.distributed",)),
    "compile": ("compiling", ("torch._dynamo.callback",)),
    "cuda": ("device", ("torch",)),
    "collectives": ("collectives", ("torch.distributed",)),
}
"""Hooks by name: the module here, and the modules that they wait for."""

NAMES: tuple[str, ...] = tuple(_HERE)
DEFAULT: frozenset[str] = frozenset(NAMES) - {"collectives"}
_GROUPS = {"default": DEFAULT, "all": frozenset(NAMES), "none": frozenset[str]()}

_on: dict[str, Hook] = {}


def choose(given: str | Iterable[str] | None, environment: str | None) -> frozenset[str]:
    """Names to install: what ``init`` was given, then BADPUT_HOOKS on top of it.

    Both are lists of names, ``default``, ``all`` or ``none``; a name with ``-`` before it is
    taken out. A list that only adds (``+name``) or takes out changes what was chosen before. A
    name that is none is said and ignored; a list of nothing else changes nothing.
    """
    chosen = DEFAULT if given is None else _read("init(hooks=)", given, DEFAULT)
    return chosen if not environment else _read("BADPUT_HOOKS", environment, chosen)


def _read(what: str, given: object, before: frozenset[str]) -> frozenset[str]:
    words: list[str] = []
    parts: Any = [given] if isinstance(given, str) else given
    try:
        for part in parts:
            words += str(part).replace(",", " ").split()
    except TypeError:
        say(f"hooks {what}", f"{what} wants names of hooks and got {type(given).__name__}")
        return before
    known = [word for word in words if _is_known(what, word)]
    if words and not known:
        return before
    words = known
    relative = bool(words) and all(word[0] in "+-" for word in words)
    chosen = set(before if relative else ())
    if not relative and words and words[0][0] == "-":
        chosen = set(before)
    for word in words:
        name = _name(word)
        names = _GROUPS.get(name, frozenset({name}))
        if word.startswith("-"):
            chosen -= names
        elif name == "none":
            chosen.clear()
        else:
            chosen |= names
    return frozenset(chosen)


def unknown(given: str) -> list[str]:
    """The words of a list of hooks that name none."""
    words = given.replace(",", " ").split()
    return [w for w in words if _name(w) not in _GROUPS and _name(w) not in _HERE]


def _is_known(what: str, word: str) -> bool:
    """True for a hook or a group of them; else one line to the user."""
    if not unknown(word):
        return True
    say(
        f"hooks {word}"[:80],
        f"{what}: there is no hook {word[:80]!r}, it is ignored; there are {', '.join(NAMES)}, "
        "and default, all and none, each with + or - before it or without",
    )
    return False


def _name(word: str) -> str:
    return word[1:] if word[:1] in ("+", "-") else word


def install(
    recorder: Recorder, process: dict[str, Any], names: Iterable[str], auto_steps: bool = False
) -> None:
    """Attach the hooks ``names``. With ``auto_steps`` the optimizer's hook makes the steps.

    ``process``: what is known of this process, as in the row of the table ``processes``.
    """
    chosen = frozenset(names)
    if auto_steps and "optimizer" not in chosen and process.get("local_rank") in (None, 0):
        say(
            "automatic steps",
            "the optimizer hook is off, and steps are seen by it alone where the script does not "
            "tell them: none is recorded; add +optimizer to the hooks",
        )
    for name in NAMES:
        if name in chosen:
            _install(name, process, auto_steps)


@guarded("hooks.install")
def _install(name: str, process: dict[str, Any], auto_steps: bool) -> None:
    folder, modules = _HERE[name]
    here = importlib.import_module(f"badput.hooks.{folder}")
    hook: Hook = here.HOOK
    _on[name] = hook
    hook.begin(process)
    if auto_steps and name == "optimizer":
        here.HOOK.auto = True
    for module in modules:
        when_imported(module, _Attach(name, module))


class _Attach:
    """What waits for a module of a hook. Equal to another for the same, so none waits twice."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.module = module

    def __call__(self, found: Any) -> None:
        hook = _on.get(self.name)
        if hook is not None:
            hook.attach(self.module, found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attach) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self.name, self.module))


def remove() -> None:
    """Take all hooks back."""
    forget()
    for name in list(_on):
        _remove(name)


@guarded("hooks.remove")
def _remove(name: str) -> None:
    _on.pop(name).detach()


def flush(recorder: Recorder) -> None:
    """Write what hooks hold back to write many rows at once."""
    for hook in _on.values():
        hook.flush(recorder)


def nominate(optimizer: object) -> None:
    """The program says which optimizer is the primary one."""
    hook = _on.get("optimizer")
    if hook is not None:
        sys.modules["badput.hooks.optimizer"].HOOK.nominate(optimizer)


@guarded("hooks.first step")
def first_step(recorder: Recorder) -> None:
    """The program begins its first step by itself: what came meanwhile is attached."""
    poll()
    if "optimizer" in _on:
        sys.modules["badput.hooks.optimizer"].HOOK.explicit(recorder)
    for hook in _on.values():
        hook.look(recorder)


@guarded("hooks.look")
def look(recorder: Recorder) -> None:
    """Has a module come meanwhile, or CUDA, or have callbacks been cleared?"""
    poll()
    for hook in _on.values():
        hook.look(recorder)
