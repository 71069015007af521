"""What a collector does beside draining: each duty on its own, so that none stops another.

A duty is looked at on every tick and must return at once; what may take long (a driver that
answers late) has a thread of its own. A duty that keeps failing is switched off with one line
in the collector's log.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from badput.collector import Tended

MAX_FAILURES = 16
"""Failures after which a duty is switched off."""


class Duty(Protocol):
    """One thing that a collector does for the spools that it tends."""

    name: str
    """For the log."""

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Look, and do what is due. ``tended``: by spool name; ``now``: time.monotonic()."""
        ...

    def close(self) -> None:
        """Write what is left and give everything back."""
        ...


def duties(root: Path, log: Callable[[str], None]) -> list[Duty]:
    """The duties of a collector for the spool root ``root``. ``log``: one line in its log.

    One that cannot even be made (a module that cannot be read any more, a setting that makes no
    sense) is logged and left out: draining goes on without it.
    """
    found: list[Duty] = []
    for name, make in _MAKERS.items():
        try:
            duty = make(root, log)
        except ValueError as error:
            log(f"{name} is ignored: {error}")
        except Exception as error:  # noqa: BLE001 - one duty must not stop the others
            log(f"no {name}: {type(error).__name__}: {error}")
        else:
            found += [] if duty is None else [duty]
    return found


def _hang_watch(root: Path, log: Callable[[str], None]) -> Duty:
    from badput.hang import HangWatch

    return HangWatch(root, log)


def _on_events(root: Path, log: Callable[[str], None]) -> Duty | None:
    from badput.on_event import OnEvents, write_state

    write_state(root, {"command": None, "on": [], "last_code": None})
    if not os.environ.get("BADPUT_ON_EVENT"):
        return None
    return OnEvents(root, log)


def _telemetry(root: Path, log: Callable[[str], None]) -> Duty:
    del root
    from badput.telemetry import Telemetry

    return Telemetry(log)


def _clock_watch(root: Path, log: Callable[[str], None]) -> Duty:
    del root, log
    from badput.anchor import ClockWatch

    return ClockWatch()


_MAKERS: dict[str, Callable[[Path, Callable[[str], None]], Duty | None]] = {
    "hang watch": _hang_watch,
    "BADPUT_ON_EVENT": _on_events,
    "telemetry": _telemetry,
    "clock watch": _clock_watch,
}
"""What the collector does, by the name under which the log speaks of it."""


class Guarded:
    """Runs duties; what one of them raises is logged once a kind and counted."""

    def __init__(self, found: list[Duty], log: Callable[[str], None]) -> None:
        self._log = log
        self._found = found
        self._said: set[str] = set()
        self._failures: dict[str, int] = {}

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Tick each duty."""
        for duty in list(self._found):
            try:
                duty.tick(tended, now)
            except Exception as error:  # noqa: BLE001 - one duty must not stop the others
                self._failed(duty, error)

    def _failed(self, duty: Duty, error: Exception) -> None:
        kind = f"{duty.name} {type(error).__name__}"
        if kind not in self._said:
            self._said.add(kind)
            self._log(f"{duty.name} failed: {type(error).__name__}: {error}")
        count = self._failures[duty.name] = self._failures.get(duty.name, 0) + 1
        if count >= MAX_FAILURES:
            self._log(f"{duty.name} is off after {count} failures")
            self._found.remove(duty)

    def close(self) -> None:
        """Close each duty."""
        for duty in self._found:
            try:
                duty.close()
            except Exception as error:  # noqa: BLE001 - as above
                self._log(f"{duty.name} failed at its end: {type(error).__name__}: {error}")
