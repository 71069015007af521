"""The thread of one run folder: all that writes into it, so that one which hangs stops no other.

A file server that does not answer holds the thread that asked. The collector's own thread never
writes into a run folder; it looks after the ranks and hands each run's work to that run's thread.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from badput.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput.collector import Tended
    from badput.drain import Drain

FRESH = 64
"""Small parts of one table after which they are compacted."""
FEW = 8
"""The same once the last process of the run has ended."""
GRACE_S = 60.0
"""How long replaced parts stay, for readers that are at them."""
SWEEP_S = 3600.0
"""How often what dead writers left is swept."""
_PROCESS = re.compile(r"[0-9a-f]{16}-")


class Keeper:
    """Compacts what this collector's drains wrote into one run. Rights: our processes' parts."""

    def __init__(self, run: str, log: Callable[[str], None]) -> None:
        self.run = run
        self._log = log
        self._owners: dict[str, Drain | None] = {}
        """Drains of the run by process; None once all of it is in Parquet and the spool gone."""
        self._counted: dict[int, int] = {}
        self._fresh: Counter[str] = Counter()
        self._unlink_at: dict[str, float] = {}
        self._sweep_at = 0.0
        self._said: set[str] = set()

    # -- rights -----------------------------------------------------------------------------
    def part(self, stem: str) -> bool:
        """A part that lies before what its process has saved, or whose spool is gone."""
        from badput.merge import PROBE_PART

        found = PROBE_PART.match(stem)
        if found is None or not self.owner(stem[:16]):
            return False
        drain = self._owners[stem[:16]]
        if drain is None:
            return True
        first, end, told = found.groups()
        if told is not None:
            return int(told) <= drain.saved.told
        return end is None and int(first) < drain.saved.seq

    def owner(self, owner: str) -> bool:
        """A process that this collector tends or has seen to its end."""
        return owner in self._owners

    # -- keeping count ----------------------------------------------------------------------
    def wrote(self, drain: Drain, gone: bool) -> None:
        """Count what a drain wrote since the last time. ``gone``: all of it, for good."""
        self._owners[f"{drain.process_id:016x}"] = None if gone else drain
        counted = self._counted.get(drain.process_id, 0)
        found = drain.written[counted:]
        self._counted[drain.process_id] = counted + len(found)
        self._fresh.update(path.parent.name for path in found)

    def over(self) -> bool:
        """True if no process of the run is under way here."""
        return not any(self._owners.values())

    def compact(self) -> None:
        """Compact the tables that have many small parts. Never raises for what may be tried again.

        Replaced parts are unlinked a while later.
        """
        self._sweep()
        enough = FEW if self.over() else FRESH
        due = [t for t, count in self._fresh.items() if count >= enough]
        now = time.monotonic()
        late = [t for t, at in self._unlink_at.items() if now >= at]
        for table in {*due, *late} & TABLES.keys():
            self._compact(table, 2 if table in due else 1 << 60, GRACE_S)

    def _sweep(self) -> None:
        """Now and then, remove what writers left half written that were killed."""
        if time.monotonic() < self._sweep_at:
            return
        from badput.merge import clear_tmp

        self._sweep_at = time.monotonic() + SWEEP_S
        with contextlib.suppress(OSError):
            if count := clear_tmp(self.run):
                self._log(f"{self.run}: {count} files of writers that died removed from tmp")

    def close(self) -> None:
        """Unlink what has been replaced, without waiting any longer."""
        for table in list(self._unlink_at):
            self._compact(table, 1 << 60, 0.0)

    def _compact(self, table: str, at_least: int, grace_s: float) -> None:
        from badput.compact import LockedError, lock
        from badput.merge import TableCompactor

        try:
            with lock(self.run, alone=False):
                done = TableCompactor(self.run, table, self).compact(at_least, grace_s)
        except LockedError:
            return
        except Exception as error:  # noqa: BLE001 - a part that makes no sense must not stop draining
            self._log(f"cannot compact {table} of {self.run} ({error!r}); tried again later")
            self._fresh[table] = 0
            return
        for sentence in done.left:
            if sentence not in self._said:
                self._said.add(sentence)
                self._log(sentence)
        self._unlink_at.pop(table, None)
        if at_least < 1 << 60:
            self._fresh[table] = 0
        if done.made:
            self._unlink_at[table] = time.monotonic() + GRACE_S + 1
            self._log(f"{self.run}: {done.sources} parts of {table} became {done.made}")


class Worker:
    """Runs the rounds of one run folder, one after the other, in a thread of its own."""

    def __init__(self, run: str, log: Callable[[str], None]) -> None:
        self.run = run
        self.keeper = Keeper(run, log)
        self._log = log
        self._jobs: queue.SimpleQueue[Tended | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.busy_since: float | None = None
        """When it began what it is at (time.monotonic()); None: it waits."""

    def submit(self, tended: Tended | None) -> None:
        """Have a round of ``tended`` done; None: only compact."""
        if tended is not None:
            tended.working = True
        self._jobs.put(tended)
        if self._thread is None or not self._thread.is_alive():
            name = f"badput {self.run}"[:15]
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            tended = self._jobs.get()
            self.busy_since = time.monotonic()
            try:
                if tended is not None:
                    tended.round()
                    self.keeper.wrote(tended.drain, tended.gone)
                self.keeper.compact()
            except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
                self._failed(tended, error)
            finally:
                self.busy_since = None
                if tended is not None:
                    tended.working = False

    def _failed(self, tended: Tended | None, error: Exception) -> None:
        if tended is not None and not tended.gone:
            tended.broken = f"{type(error).__name__}: {error}"
        else:
            self._log(f"compaction of {self.run} failed: {type(error).__name__}: {error}")
