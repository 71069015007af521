"""What else tells how a process ended: torchelastic's error file, and kills for lack of memory.

Neither is proof. The control group counts every process in it that was killed for memory, and an
error file may be of another failure; both stand beside the end, not in its place.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, cast

from badput.files import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][\w.]{0,100}(?=:|$)")
_PLACE = re.compile(r'^\s*File "([^"\n]*)", line (\d+)', re.MULTILINE)
MAX_FILE = 1 << 20


def oom_counter(pid: int) -> str | None:
    """The file in which the control group of ``pid`` counts kills for lack of memory."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as handle:
            lines = [line.rstrip("\n").split(":", 2) for line in handle]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            name = f"/sys/fs/cgroup{path.rstrip('/')}/memory.events"
        elif "memory" in controllers.split(","):
            name = f"/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
        else:
            continue
        if os.path.exists(name):  # noqa: PTH110 - a string is all that is needed
            return name
    return None


def oom_kills(counter: str | None) -> int | None:
    """Kills for lack of memory that ``counter`` has counted so far; None if it cannot tell."""
    if counter is None:
        return None
    try:
        with open(counter, encoding="utf-8", errors="replace") as handle:
            for line in handle:
                name, _, value = line.strip().partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        return None
    return None


def error_signature(path: str) -> str | None:
    """Type and place of the exception in torchelastic's error file ``path``, never its message.

    None if there is none or it makes no sense.
    """
    try:
        fd = open_file(path, os.O_RDONLY, follow=True)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as handle:
            said: Any = json.loads(handle.read(MAX_FILE))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    text, trace = said, ""
    if isinstance(said, dict):
        inner = cast("dict[str, Any]", said)
        text = inner.get("message")
        extra = inner.get("extraInfo")
        if isinstance(extra, dict):
            trace = str(cast("dict[str, Any]", extra).get("py_callstack"))
    found = _NAME.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    places = _PLACE.findall(trace)
    place = f" at {places[-1][0].rpartition('/')[2]}:{places[-1][1]}" if places else ""
    return f"{found.group()}{place}"


class Evidence:
    """Collects both for one process."""

    def __init__(self, facts: Mapping[str, Any], here: bool) -> None:
        """``here``: the process lives in our pid namespace and may be looked at."""
        self._facts = facts
        self._counter = oom_counter(int(facts["process"]["pid"])) if here else None
        self._before = oom_kills(self._counter)

    def attrs(self) -> dict[str, Any]:
        """What there is, as attributes of the end event."""
        found: dict[str, Any] = {}
        now = oom_kills(self._counter)
        if now is not None and self._before is not None and now > self._before:
            found["oom_kill_rise"] = now - self._before
        path = self._facts.get("error_file")
        signature = error_signature(path) if isinstance(path, str) and path else None
        if signature is not None:
            found["error_signature"] = signature
        return found
