# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""The collector: one process a node that turns spools into Parquet and watches ranks.

``python -m badput.collector ROOT`` is started by the first ``init`` on a node and ends some
seconds after the last spool is gone. Only one runs for each spool root; a second one ends at
once. Killed, it loses nothing: the next one goes on where its position was saved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from badput import clock, identity
from badput.duties import Guarded, duties
from badput.spawn import try_lock
from badput.spool import SpoolError, open_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput.drain import Drain
    from badput.watch import Watch

TICK_S = 0.2
"""How often the control pages are looked at."""
FLUSH_S = (1.0, 10.0)
"""Time between two rounds of one spool: short at first, so that short runs show up."""
IDLE_S = 5.0
"""How long to stay without any spool."""
STALE_S = 600.0
"""Age of a half-made spool, which takes milliseconds to make, that nobody finishes any more."""
RETRY_S = (1.0, 30.0)
"""Pause after a failed round (disk full, run folder gone): doubled up to the second figure."""


def log(text: str) -> None:
    """One line in the collector's log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{stamp} collector {os.getpid()}: {text}\n")
        sys.stderr.flush()


def spool_names(root: Path) -> set[str]:
    """Names of the spools below ``root``."""
    return {path.name for path in root.iterdir() if len(path.name) == 16}


def sweep(root: Path) -> None:
    """Remove what processes left behind that were killed while they made their spool."""
    for path in root.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)


class Tended:
    """One spool that this collector looks after."""

    def __init__(self, drain: Drain, watch: Watch) -> None:
        self.drain = drain
        self.watch = watch
        self.pause = FLUSH_S[0]
        self.due = 0.0
        self.retry = RETRY_S[0]
        self.dead_ns: int | None = None
        self.status: int | None = None

    def look(self) -> None:
        """Notice death, and a spool that fills up."""
        if self.dead_ns is None and self.watch.dead():
            self.dead_ns = clock.wall()
            self.status = self.watch.status()
            self.due = 0.0

    def prepare(self) -> None:
        """Make the segment after the one being written, so that the writer need not."""
        if self.dead_ns is not None:
            return
        following = self.drain.reader.writer()[0] + 1
        with contextlib.suppress(OSError):
            self.drain.prepare(following)

    def round(self, now: float) -> bool:
        """Drain if it is time; True when the spool is finished and gone."""
        self.look()
        self.prepare()
        closed = self.drain.reader.writer()[2]
        over = self.dead_ns is not None or closed
        if now < self.due and not (over and self.retry == RETRY_S[0]) and self.drain.backlog() < 2:
            return False
        try:
            self.drain.drain(writer_dead=self.dead_ns is not None)
            if over:
                self.drain.finish(self.status, self.dead_ns or clock.wall())
                self.drain.remove()
                return True
        except OSError as error:
            log(
                f"{self.drain.path.name}: cannot write to {self.drain.run}: {error}; kept for later"
            )
            self.due = now + self.retry
            self.retry = min(self.retry * 2, RETRY_S[1])
            return False
        self.retry = RETRY_S[0]
        self.due = now + self.pause
        self.pause = min(self.pause * 1.5, FLUSH_S[1])
        return False

    def close(self) -> None:
        """Give everything back."""
        self.watch.close()
        self.drain.close()


def _birth_of(drain: Drain) -> tuple[int, int]:
    facts = drain.facts
    return int(facts["process"]["pid"]), int(facts.get("start_ticks", 0))


class Collector:
    """Tends all spools of a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tended: dict[str, Tended] = {}
        self.seen: set[str] = set()
        """Spools there were at the last look."""
        self._left: dict[tuple[int, int], int] = {}
        """When a process ended that was seen to the end, by pid and start: see ``_adopt``."""
        self._refused: set[str] = set()
        self._busy: set[str] = set()
        """Spools that `badput collect` drains just now."""
        self._duties = Guarded(duties(root, log), log)
        self._boot = identity.boot_id()
        self._space = identity.pid_namespace()

    def adopt(self) -> None:
        """Take on spools that are new, or were left by a collector that died."""
        self._busy.clear()
        try:
            self.seen = spool_names(self.root)
        except FileNotFoundError:  # someone removed the root: see those through that are left
            if not self.tended:
                raise
            return
        for name in sorted(self.seen - self.tended.keys() - self._refused):
            try:
                self._adopt(name)
            except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
                self._refused.add(name)
                log(f"{name}: left alone: {error}")

    def _adopt(self, name: str) -> None:
        from badput.copying import open_drain
        from badput.drain import BusyError
        from badput.watch import Watch

        try:
            drain = open_drain(self.root / name)
        except BusyError:
            self._busy.add(name)
            return
        process = drain.facts["process"]
        same_boot = process.get("boot_id") == self._boot
        here = same_boot and drain.facts.get("pid_namespace") == self._space
        watch = Watch(drain.facts, drain.reader.control_fd(), here)
        if same_boot and not here and not watch.dead():
            watch.close()
            drain.close()  # alive in another container: its own collector is better placed
            return
        self._begin_after_exec(drain)
        self.tended[name] = Tended(drain, watch)
        log(f"{name}: tending pid {process.get('pid')} for {drain.run}")

    def _begin_after_exec(self, drain: Drain) -> None:
        """A process that became another program by exec begins anew where the old one ended."""
        for other in self.tended.values():
            other.look()
            self._note_end(other)
        process = drain.facts["process"]
        ended = self._left.get(_birth_of(drain))
        if ended is not None and ended > process["start_ns"]:
            process["start_ns"] = min(ended, process["init_ns"])

    def _note_end(self, tended: Tended) -> None:
        if tended.dead_ns is not None:
            self._left[_birth_of(tended.drain)] = tended.dead_ns

    def tick(self) -> None:
        """One look at everything."""
        self.adopt()
        now = time.monotonic()
        gone: list[str] = []
        for name, tended in list(self.tended.items()):
            try:
                if tended.round(now):
                    gone.append(name)
            except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
                log(f"{name}: given up: {type(error).__name__}: {error}")
                self._refused.add(name)
                self._let_go(name)
        self._duties.tick(self.tended, now)  # sees those too that came and went within this tick
        for name in gone:
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        tended = self.tended.pop(name)
        self._note_end(tended)
        tended.close()

    def close(self) -> None:
        """Let the duties write what they have left."""
        self._duties.close()

    def run(self) -> None:
        """Tend until there has been nothing to do for a while."""
        idle_since = time.monotonic()
        while True:
            self.tick()
            if self.tended or self._busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > IDLE_S:
                return
            time.sleep(TICK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the collector for the spool root named first in ``argv``."""
    args = list(sys.argv[1:] if argv is None else argv)
    root = Path(args[0])
    given = int(args[args.index("--lock-fd") + 1]) if "--lock-fd" in args else None
    try:
        root_fd = open_root(str(root))
        lock = given if given is not None else try_lock(root_fd)
    except (SpoolError, OSError) as error:
        log(f"cannot use {root}: {error}")
        return 2
    if lock is None:
        return 0
    _settle_down()
    # The program's umask may hide files from their owner; what others may see stays as it says.
    os.umask(os.umask(0o077) & 0o077)
    try:
        sweep(root)
        collector = Collector(root)
        while True:
            collector.run()
            # A process that begins now still sees the lock held: look once more after letting
            # go of it, and take it back if something came.
            os.close(lock)
            if not spool_names(root) - collector.seen:
                break
            lock = try_lock(root_fd)
            if lock is None:
                break
        collector.close()
        return 0
    except FileNotFoundError:
        return 0  # someone removed the spool root


def _settle_down() -> None:
    """Be a quiet neighbour: low priority, any core, one thread, deaf to the terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(OSError):
        os.nice(10)
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


if __name__ == "__main__":
    sys.exit(main())
