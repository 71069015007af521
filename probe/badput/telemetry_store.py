"""Telemetry on its way into run folders: buffered, and written as parts of its own.

A part has a random name of this stay of the run here and a running number, and a part that could
not be written is tried again under its name with the same rows, so that nothing doubles. Rows
wait in memory: a collector that is killed loses those of the last seconds.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from badput.parts import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLUSH_S = (1.0, 30.0)
"""Time between two parts: short at first, so that short runs show up."""
RETRY_S = (1.0, 30.0)
"""Pause after a part that could not be written: doubled up to the second figure."""
MOST_ROWS = 50_000
"""Rows that wait for a run folder at most; the oldest are given up. 50,000: 8 GPUs, 7 hours."""


class RunTelemetry:
    """What one run folder has yet to get."""

    def __init__(self, run: str, begin_ns: int) -> None:
        self.run = run
        self.begin_ns = begin_ns
        """Monotonic time since when a rank of the run has lived here."""
        self.end_ns: int | None = None
        """And until when; None while one does."""
        self.wanted: frozenset[str] | None = None
        """GPUs whose samples it gets; None: all."""
        self.lost_rows = 0
        self._name = secrets.token_hex(8)
        self._parts = 0
        self._pending: dict[str, list[dict[str, Any]]] = {}
        self._waiting: list[tuple[str, str, list[dict[str, Any]]]] = []
        """Parts with their names given, in order."""
        self._described: dict[str, str | None] = {}
        self._due = 0.0
        self._pause = FLUSH_S[0]
        self._retry = RETRY_S[0]

    def lives(self, mono_ns: int) -> bool:
        """Did a rank of the run live here at that time?"""
        return mono_ns >= self.begin_ns and (self.end_ns is None or mono_ns <= self.end_ns)

    def add(self, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Take rows of a table."""
        if rows:
            self._pending.setdefault(table, []).extend(rows)

    def describe(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take rows of `devices`; the same GPU again only if something is new about it."""
        for row in rows:
            uuid, can = row["gpu_uuid"], row["capabilities"]
            if self._described.get(uuid, ...) != can:
                self._described[uuid] = can
                self.add("devices", [row])

    def flush(self, now: float, log: Callable[[str], None], last: bool = False) -> bool:
        """Write what is due. ``last``: all of it. True when nothing waits any more."""
        retrying = self._retry > RETRY_S[0]
        if now < self._due and not (last and not retrying):
            return not (self._pending or self._waiting)
        for table, rows in self._pending.items():
            self._waiting.append((table, f"{self._name}-{self._parts:08d}", rows))
            self._parts += 1
        self._pending = {}
        try:
            while self._waiting:
                table, name, rows = self._waiting[0]
                write_rows(self.run, table, name, rows)
                self._waiting.pop(0)
        except OSError as error:
            if not retrying:
                log(f"cannot write telemetry to {self.run}: {error}; kept for later")
            self._due = now + self._retry
            self._retry = min(self._retry * 2, RETRY_S[1])
            self._shed()
            return False
        self._due = now + self._pause
        self._pause = min(self._pause * 1.5, FLUSH_S[1])
        self._retry = RETRY_S[0]
        return True

    def _shed(self) -> None:
        """Give up the oldest parts once too much waits."""
        while len(self._waiting) > 1 and sum(len(p[2]) for p in self._waiting) > MOST_ROWS:
            self.lost_rows += len(self._waiting.pop(0)[2])

    def waiting(self) -> int:
        """Rows that are not in the run folder yet."""
        return sum(map(len, self._pending.values())) + sum(len(p[2]) for p in self._waiting)
