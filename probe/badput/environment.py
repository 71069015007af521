"""Variables of the environment: what each may hold, and one sentence where one holds nonsense.

Variables that have more to say are read elsewhere: BADPUT_HOOKS (hooks), BADPUT_TRACE (tracing),
BADPUT_HANG_S and BADPUT_HANG_SLOW_S (stacks), BADPUT_ON and BADPUT_ON_EVENT (the collector's log).
"""

from __future__ import annotations

import os

from badput.guard import say

FLAGS = (
    "BADPUT_DISABLE", "BADPUT_AUTO_STEPS", "BADPUT_STACKS", "BADPUT_PTRACE", "BADPUT_STRICT",
)  # fmt: skip
SCOPES = ("visible", "own", "all")
"""BADPUT_GPUS: GPUs that the ranks of a run see, that they compute on, or all of the node."""
MOST_S = 86_400.0
"""Longest time between two samples."""


def sample_s(text: str) -> float | None:
    """BADPUT_SAMPLE_S as a number of seconds; None if it is none."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MOST_S else None


def problems() -> list[tuple[str, str]]:
    """Variables that hold nonsense: the name, and a sentence about it."""
    found = [
        (n, "is neither 1 nor 0; it counts as 0")
        for n in FLAGS
        if os.environ.get(n, "") not in ("", "0", "1")
    ]
    if _get("BADPUT_COLLECTOR") not in ("", "thread"):
        found.append(("BADPUT_COLLECTOR", "is not thread; a process is started"))
    attempt = _get("BADPUT_ATTEMPT")
    if attempt and not (attempt.isdigit() and len(attempt) < 10):
        found.append(("BADPUT_ATTEMPT", "is no whole number from 0 up; it is ignored"))
    seconds = _get("BADPUT_SAMPLE_S")
    if seconds and sample_s(seconds) is None:
        text = f"is no number of seconds from 0 to {MOST_S:.0f}; the default is used"
        found.append(("BADPUT_SAMPLE_S", text))
    if _get("BADPUT_GPUS").lower() not in ("", *SCOPES):
        found.append(("BADPUT_GPUS", f"is none of {', '.join(SCOPES)}; {SCOPES[0]} is used"))
    return [(name, f"{name}={os.environ[name][:80]!r} {text}") for name, text in found]


def check() -> None:
    """Tell the user about each, once."""
    for name, text in problems():
        say(f"variable {name}", text)


def _get(name: str) -> str:
    return os.environ.get(name, "").strip()
