"""Versions of torch and of what runs on it, as far as the program has imported them."""

from __future__ import annotations

import json
import sys

from badput.hooks.base import Hook, guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from badput.recorder import Recorder

_NAMES = (
    "torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed",
    "torchtitan", "megatron.core", "composer", "ray", "trl", "peft", "torchtune", "flash_attn",
    "transformer_engine",
)  # fmt: skip


@guarded("frameworks.versions")
def versions() -> dict[str, str]:
    """Name and version of each framework in ``sys.modules``; nothing is imported."""
    found: dict[str, str] = {}
    for name in _NAMES:
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue
        version = vars(module).get("__version__")
        if isinstance(version, str):
            found[name] = str(version)[:60]
    return found


def as_json() -> str | None:
    """The same as JSON text; None if there is none."""
    found = versions()
    return json.dumps(found, sort_keys=True) if found else None


class FrameworksHook(Hook):
    """Says at the first step what was imported since ``init``."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._done = False

    def begin(self, process: dict[str, Any]) -> None:
        """What is there at ``init`` is in the row of the process."""
        self._known = versions() or {}
        self._done = False

    def look(self, rec: Recorder) -> None:
        """An event with what is new."""
        if self._done:
            return
        self._done = True
        found = versions() or {}
        if found != self._known:
            rec.event("frameworks", found)


HOOK = FrameworksHook()
