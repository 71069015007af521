"""Call a function once a module has been imported, without importing it.

A finder at the front of ``sys.meta_path`` waits for the named modules only. It lets the finders
behind it find the module and replaces ``exec_module`` on that one loader object until the module
has run, so that module, spec and loader are the ones there would have been. It goes when nobody
waits any more. What goes wrong here leaves the import to the others.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import partial

from badput.hooks.base import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_waiting: dict[str, list[Callable[[Any], None]]] = {}
_ran: set[str] = set()
"""Modules that have run to their end here; the import calls them half made a moment longer."""


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Call ``action`` with the module ``name``: now if it is imported, else as soon as it is.

    A module inside a package counts as imported only when the whole package is.
    """
    module = sys.modules.get(name)
    if module is not None and not _half_made(module) and _package_of(name) is None:
        _run(action, module)
        return
    actions = _waiting.setdefault(name, [])
    package = name.partition(".")[0]
    if package not in sys.modules or _package_of(name) is not None:
        _waiting.setdefault(package, [])
    if action not in actions:
        actions.append(action)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def poll() -> None:
    """Serve those whose module came by a way that the finder did not see."""
    for name in [n for n in _waiting if n in sys.modules]:
        module = sys.modules[name]
        if module is not None and not _half_made(module):  # pyright: ignore[reportUnnecessaryComparison]
            _arrived(name, module)
    if not _waiting:
        _leave()


def forget() -> None:
    """Wait for nothing any more."""
    _waiting.clear()
    _leave()


def _leave() -> None:
    # Another thread may be walking the list: what is taken out makes it skip the next finder.
    # With nothing to wait for the finder says None at once, and poll or forget tries again.
    if threading.active_count() == 1 and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def _half_made(module: ModuleType) -> bool:
    if module.__name__ in _ran:
        return False
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


@guarded("imports.run")
def _run(action: Callable[[Any], None], module: ModuleType) -> None:
    action(module)


def _package_of(name: str) -> str | None:
    """The package that ``name`` lies in, while that is being imported."""
    package = name.partition(".")[0]
    module = sys.modules.get(package)
    half = package != name and module is not None and _half_made(module)
    return package if half else None


def _arrived(name: str, module: ModuleType) -> None:
    package = _package_of(name)
    if package is not None:
        later = partial(_arrived, name, module)
        _waiting.setdefault(package, []).insert(0, lambda _: later())
        return
    for action in _waiting.pop(name, ()):
        _run(action, module)
    if not _waiting:
        _leave()


class _Finder:
    """Finds nothing of its own."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        return _find(self, name, path, target)


_FINDER: Any = _Finder()


@guarded("imports.find")
def _find(
    finder: _Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    every: list[Any] = list(sys.meta_path)
    behind = every[every.index(finder) + 1 :] if finder in every else every
    for other in behind:
        find: Any = getattr(other, "find_spec", None)
        try:
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
        except Exception:  # noqa: BLE001 - the import asks it again and gets the error itself
            return None
        if spec is not None:
            _watch(spec, name)
            return spec
    return None


def _watch(spec: ModuleSpec, name: str) -> None:
    """Have this loader object say when it has run the module."""
    loader: Any = spec.loader
    # A loader that serves many modules, or is a class, is left alone: poll finds the module.
    if isinstance(loader, type) or getattr(loader, "name", None) != name:
        return
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):
            del loader.exec_module
        _ran.discard(name)
        original(module)
        _ran.add(name)
        _arrived(name, module)

    with contextlib.suppress(AttributeError, TypeError):
        loader.exec_module = exec_module
