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
import errno
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from badput import identity
from badput.duties import Guarded, duties
from badput.evidence import Evidence
from badput.neighbour import settle_down
from badput.neutral import emit
from badput.spawn import try_lock
from badput.spool import SpoolError, open_root
from badput.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput.drain import Drain
    from badput.watch import Watch

TICK_S = 0.2
"""How often the control pages are looked at."""
FLUSH_S = (1.0, 10.0, 60.0)
"""Time between two rounds of one spool: short at first, then up to the second; up to the third
for a process that has lived SETTLED_S and records little."""
SETTLED_S = 600.0
SLOW_RECORDS = 1000
"""Records of one round below which its file is small."""
IDLE_S = 5.0
"""How long to stay without any spool."""
STALE_S = 600.0
"""Age of a half-made spool, which takes milliseconds to make, that nobody finishes any more."""
RETRY_S = (1.0, 30.0)
"""Pause after a failed round (disk full, run folder gone): doubled up to the second figure."""
REFUSED_S = (2.0, 600.0)
"""How long a spool is left alone that cannot be read: doubled up to the second figure."""
KEEP_S = 3600.0
"""How long to try for a process that has ended; then its spool is left for `badput collect`."""
HANGS_S = 60.0
"""A run folder that answers later than this is named in the log."""


def log(text: str) -> None:
    """One line in the collector's log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        emit(f"{stamp} collector {os.getpid()}: {text}", sys.stderr)
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
    """One spool that this collector looks after.

    ``round`` runs in the thread of its run folder, everything else in the collector's.
    """

    def __init__(self, drain: Drain, watch: Watch) -> None:
        self.drain = drain
        self.watch = watch
        self.evidence = Evidence(drain.facts, watch.fd is not None)
        self.pause = FLUSH_S[0]
        self.due = 0.0
        self.retry = RETRY_S[0]
        self.dead_ns: int | None = None
        self.lived = False
        """Was it alive when it was looked at first?"""
        self.status: int | None = None
        self.closed = False
        self.working = False
        """A round is under way or waits for its turn."""
        self.gone = False
        """All of it is in Parquet and the spool is removed."""
        self.broken: str | None = None
        """Why it was given up."""
        self.failing_since: float | None = None
        """When writing into the run folder began to fail (time.monotonic()), if it does."""
        self.over_since: float | None = None
        self._born = time.monotonic()
        self._said = ""

    def look(self) -> None:
        """Notice death, and make the segment after the one being written."""
        if self.dead_ns is None:
            if self.watch.dead():
                self.status = self.watch.status()
                self.dead_ns = self.drain.now()  # last: the other thread goes by it
                self.due = 0.0
            else:
                self.lived = True
        segment, _, self.closed = self.drain.reader.writer()
        if self.over() and self.over_since is None:
            self.over_since = time.monotonic()
        if not self.over():
            with contextlib.suppress(OSError):
                self.drain.prepare(segment + 1)

    def over(self) -> bool:
        """True if nothing more is to come."""
        return self.dead_ns is not None or self.closed

    def wanted(self, now: float) -> bool:
        """Is it time for a round?"""
        if self.working:
            return False
        if now >= self.due:
            return True
        if self.retry != RETRY_S[0]:  # it failed the last time
            return False
        return self.over() or self.drain.waiting() or self.drain.backlog() >= 2

    def lost(self, now: float) -> bool:
        """True if the process is over and its run folder cannot be written for too long."""
        if self.over_since is None or (self.failing_since is None and not self.working):
            return False
        return now - max(self.over_since, self.failing_since or 0.0) > KEEP_S

    def round(self) -> None:
        """Drain; at the end write how it ended and remove the spool."""
        over, drain, began = self.over(), self.drain, time.monotonic()
        try:
            count = drain.drain(writer_dead=self.dead_ns is not None)
            if over:
                found = self.evidence.attrs() if self.dead_ns and self.status != 0 else {}
                seen = self.dead_ns or drain.now()
                drain.finish(self.status, seen if self.lived else None, found)
                drain.remove()
                self.gone = True
        except OSError as error:
            self._failed(error)
            return
        self._say_saved()
        if self.failing_since is not None:
            log(f"{drain.path.name}: {drain.run} can be written again")
            self._said, self.failing_since = "", None
            if not self.gone:
                drain.reader.tell_state(0)
        self.retry = RETRY_S[0]
        self.due = time.monotonic() + self.pause
        # Few records make small files: once a process has shown that it lives, they may wait.
        slow = began - self._born > SETTLED_S and count < SLOW_RECORDS
        self.pause = min(self.pause * 1.5, max(FLUSH_S[2 if slow else 1], FLUSH_S[0]))

    def _failed(self, error: OSError) -> None:
        now = time.monotonic()
        self.failing_since = self.failing_since or now
        text = f"{self.drain.path.name}: cannot write to {self.drain.run}: {error}; kept for later"
        if error.strerror != self._said:
            self._said = error.strerror
            log(text)
        self.drain.reader.tell_state(error.errno or errno.EIO)
        self.due = now + self.retry
        self.retry = min(self.retry * 2, RETRY_S[1])

    def _say_saved(self) -> None:
        error = self.drain.save_error
        text = "" if error is None else f"cannot save its position in {self.drain.path}: {error}"
        if text and text != self._said:
            log(f"{self.drain.path.name}: {text}; draining goes on, its segments stay")
        self._said = text

    def close(self) -> None:
        """Give everything back."""
        self.watch.close()
        self.drain.close()


def _birth_of(drain: Drain) -> tuple[int, int]:
    return int(drain.facts["process"]["pid"]), int(drain.facts.get("start_ticks", 0))


class Collector:
    """Tends all spools of a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tended: dict[str, Tended] = {}
        self.seen: set[str] = set()
        """Spools there were at the last look."""
        self._left: dict[tuple[int, int], int] = {}
        """When a process ended, by pid and start: see ``_adopt``."""
        self._refused: dict[str, tuple[float, float, str]] = {}
        """Spools left alone: until when (time.monotonic()), for how long, and why."""
        self._busy: set[str] = set()
        """Spools that `badput collect` drains just now."""
        self._workers: dict[str, Worker] = {}
        self._kept_at: dict[str, float] = {}
        self._hangs: set[str] = set()
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
        for name in self._refused.keys() - self.seen:
            del self._refused[name]
        now = time.monotonic()
        later = {name for name, (until, _, _) in self._refused.items() if now < until}
        for name in sorted(self.seen - self.tended.keys() - later):
            try:
                self._adopt(name)
            except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
                self._refuse(name, f"left alone: {error}")

    def _refuse(self, name: str, why: str, pause: float = REFUSED_S[0]) -> None:
        """Leave a spool alone for a while, longer each time; say why, once."""
        _, before, said = self._refused.get(name, (0.0, pause / 2, ""))
        pause = max(pause, min(2 * before, REFUSED_S[1]))
        self._refused[name] = (time.monotonic() + pause, pause, why)
        if why != said:
            log(f"{name}: {why}")

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
        if drain.note is not None:
            log(drain.note)
        self.tended[name] = Tended(drain, watch)
        log(f"{name}: tending pid {process.get('pid')} for {drain.run}")

    def _begin_after_exec(self, drain: Drain) -> None:
        """A process that became another program by exec begins anew where the old one ended."""
        for other in self.tended.values():
            if not other.gone:
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
        """One look at everything. Writing is left to the threads of the run folders."""
        self.adopt()
        now = time.monotonic()
        gone = [n for n, t in self.tended.items() if not t.working and (t.gone or t.broken)]
        for name, tended in list(self.tended.items()):
            try:
                if not tended.gone:
                    self._look(name, tended, now)
            except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
                tended.broken = f"{type(error).__name__}: {error}"
        for worker in self._workers.values():
            self._watch_worker(worker, now)
        self._duties.tick(self.tended, now)  # sees each at least once after its end
        for name in gone:
            self._let_go(name, self.tended[name])

    def _look(self, name: str, tended: Tended, now: float) -> None:
        tended.look()
        if tended.broken:
            return
        if tended.lost(now):
            text = f"{tended.drain.run} cannot be written and the process is gone; the spool"
            self._refuse(name, f"{text} stays in {self.root} for `badput collect`", math.inf)
            self._forget(name, tended)
        elif tended.wanted(now):
            run = tended.drain.run
            if run not in self._workers:
                self._workers[run] = Worker(run, log)
            self._workers[run].submit(tended)

    def _let_go(self, name: str, tended: Tended) -> None:
        if tended.broken:
            self._refuse(name, f"given up: {tended.broken}")
        self._forget(name, tended)

    def _forget(self, name: str, tended: Tended) -> None:
        self._note_end(tended)
        if not tended.working:  # else its thread has it, and the descriptors go with us
            tended.close()
        del self.tended[name]

    def _watch_worker(self, worker: Worker, now: float) -> None:
        since = worker.busy_since
        if since is None:
            if now - self._kept_at.get(worker.run, now) > 5.0:
                worker.submit(None)  # what was replaced a while ago is unlinked then
                self._kept_at[worker.run] = now
            self._kept_at.setdefault(worker.run, now)
        elif now - since > HANGS_S and worker.run not in self._hangs:
            self._hangs.add(worker.run)
            log(f"{worker.run} has not answered for {HANGS_S:.0f} s; its spools wait")
        if since is None:
            self._hangs.discard(worker.run)

    def close(self) -> None:
        """Let the duties write what they have left, and unlink what was replaced."""
        self._duties.close()
        for worker in self._workers.values():
            if worker.busy_since is None:
                worker.keeper.close()

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
    settle_down()
    # The program's umask may hide files from their owner; what others may see stays as it says.
    os.umask(os.umask(0o077) & 0o077)
    collector = Collector(root)
    with contextlib.suppress(FileNotFoundError):  # someone removed the spool root
        sweep(root)
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


if __name__ == "__main__":
    # As the module that others import: else there would be two of everything in it.
    from badput.collector import main as _main

    sys.exit(_main())
