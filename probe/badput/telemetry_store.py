"""Telemetry on its way into run folders: buffered, and written as parts of its own.

A part has a random name of this stay of the run here and a running number, and a part that
could not be written is tried again under its name with the same rows, so that nothing doubles.
Rows wait in memory: a collector that is killed loses those of the last seconds. Each run is
written by a thread of its own, so that a file server that hangs stops no other run.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
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
FRESH, FEW = 64, 8
"""Small parts of one table after which they are compacted, and the same once the run has left."""
GRACE_S = 60.0
"""How long replaced parts stay, for readers that are at them."""


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
        self._thread: threading.Thread | None = None
        """While it lives, what waits and what is counted is its own."""
        self._error: Exception | None = None
        self._over = False
        self._fresh: Counter[str] = Counter()
        self._replaced: set[str] = set()
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
        """Begin to write what is due. ``last``: all of it. True when nothing waits any more.

        Returns at once: the writing is done in a thread. ``now``: time.monotonic().
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._thread = None
            self._settle(now, log)
        failing = self._retry > RETRY_S[0]
        if now < self._due and not (last and not failing):
            return not (self._pending or self._waiting)
        for table, rows in self._pending.items():
            self._waiting.append((table, f"{self._name}-{self._parts:012d}", rows))
            self._parts += 1
        self._pending = {}
        if not self._waiting and not (last and self._replaced):
            return True
        self._over = last
        self._thread = threading.Thread(target=self._write, name="badput-parts", daemon=True)
        self._thread.start()
        return False

    def finish(self, log: Callable[[str], None], timeout: float = 5.0) -> int:
        """Write all that waits, if that can be done in time; how many rows are left over."""
        deadline = time.monotonic() + timeout
        for _ in range(2):  # what is being written, and what came since
            if self._thread is not None:
                self._thread.join(max(deadline - time.monotonic(), 0.0))
            self._retry = RETRY_S[0]
            self.flush(deadline + RETRY_S[1], log, last=True)
        if self._thread is not None:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
            if not self._thread.is_alive():
                self._settle(deadline, log)
        return self.waiting()

    def _settle(self, now: float, log: Callable[[str], None]) -> None:
        """Take over how the thread got on."""
        error, self._error = self._error, None
        if error is None:
            self._due = now + self._pause
            self._pause = min(self._pause * 1.5, FLUSH_S[1])
            self._retry = RETRY_S[0]
            return
        if self._retry == RETRY_S[0]:
            log(f"cannot write telemetry to {self.run}: {error}; kept for later")
        self._due = now + self._retry
        self._retry = min(self._retry * 2, RETRY_S[1])
        self._shed()

    # -- in the thread --------------------------------------------------------------------------
    def _write(self) -> None:
        try:
            while self._waiting:
                table, name, rows = self._waiting[0]
                write_rows(self.run, table, name, rows)
                self._waiting.pop(0)
                self._fresh[table] += 1
            self._compact()
        except Exception as error:  # noqa: BLE001 - it is told by the collector's thread
            self._error = error

    def _compact(self) -> None:
        """Make few parts of many; what they replace goes with a later call, after a while."""
        from badput.compact import LockedError, lock
        from badput.merge import TableCompactor

        for table, count in list(self._fresh.items()):
            due = count >= (FEW if self._over else FRESH)
            if not (due or table in self._replaced):
                continue
            try:
                with lock(self.run, alone=False):
                    least, grace = (2 if due else 1 << 60), 0.0 if self._over else GRACE_S
                    done = TableCompactor(self.run, table, self).compact(least, grace)
            except LockedError:
                continue
            self._fresh[table] = 0 if due else count
            if done.made and not self._over:
                self._replaced.add(table)
            elif done.unlinked or self._over:
                self._replaced.discard(table)

    def part(self, stem: str) -> bool:
        """For a compaction: may this part go? Ours may that are not to be written again."""
        ours = stem.startswith(f"{self._name}-")
        return ours and all(name != stem for _, name, _ in self._waiting)

    def owner(self, owner: str) -> bool:
        """For a compaction: are its parts ours?"""
        return owner == self._name

    def _shed(self) -> None:
        """Give up the oldest parts once too much waits."""
        while len(self._waiting) > 1 and sum(len(p[2]) for p in self._waiting) > MOST_ROWS:
            self.lost_rows += len(self._waiting.pop(0)[2])

    def waiting(self) -> int:
        """Rows that are not in the run folder yet."""
        return sum(map(len, self._pending.values())) + sum(len(p[2]) for p in self._waiting)
