"""``badput compact``: the small parts of a run become few bigger ones, once it is over.

While a run goes on the collectors compact what they wrote themselves. What is left are the last
parts of a collector that was killed with its node.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput import identity, parts
from badput.files import open_file
from badput.neutral import emit, reason
from badput.schema import TABLES
from badput.telemetry_tables import TELEMETRY

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from badput.merge import Outcome


SETTLED_S = 120.0
"""Age from which a part of telemetry is not written again by a collector that could not."""


class LockedError(Exception):
    """Someone else compacts this run."""


@contextlib.contextmanager
def lock(run: str | os.PathLike[str], alone: bool) -> Generator[bool]:
    """Hold the run's compaction lock: collectors share it, the command wants it ``alone``.

    Yields False where the file system has no locks. Raises LockedError, and OSError if the run
    folder cannot be written.
    """
    folder = Path(run) / parts.TMP
    folder.mkdir(parents=True, exist_ok=True)
    fd = open_file(folder / "compact.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        held = True
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(f"{run} is being compacted by another process") from error
        except OSError:
            held = False
        yield held
    finally:
        os.close(fd)


class _Over:
    """Rights over the parts of processes that have ended, or of all of them.

    Telemetry is no process's. A collector writes a part of it again only while it fails to, so
    one that has lain there for a while may go, whether or not its collector lives.
    """

    def __init__(self, run: str | os.PathLike[str], table: str, ended: set[str] | None) -> None:
        from badput.merge import PROBE_PART, owner_of

        self._ended = ended
        self._folder = Path(run) / parts.FACTS / table
        self._telemetry = any(t.name == table for t in TELEMETRY)
        self._is_ours, self._owner_of = PROBE_PART.match, owner_of

    def part(self, stem: str) -> bool:
        if self._is_ours(stem) is None:
            return False
        if not self._telemetry or self._ended is None:
            return self.owner(self._owner_of(stem))
        try:
            written = (self._folder / f"{stem}.parquet").stat().st_mtime
        except OSError:
            return False
        return time.time() - written > SETTLED_S

    def owner(self, owner: str) -> bool:
        return self._telemetry or self._ended is None or owner in self._ended


def ended_processes(run: str | os.PathLike[str]) -> tuple[set[str], list[dict[str, Any]]]:
    """Who wrote an end event (process id as in part names), and the rows of those who did not."""
    events = parts.good_rows(run, "events")
    ended = {f"{r['process_id']:016x}" for r in events if r["kind"] == "end"}
    rows = parts.good_rows(run, "processes")
    return ended, [r for r in rows if f"{r['process_id']:016x}" not in ended]


def compact_run(
    run: str | os.PathLike[str], every: bool = False, tables: Sequence[str] = ()
) -> Outcome:
    """Compact the parts of a run's ended processes (``every``: of all, none of which may live).

    ``tables``: only these. Raises LockedError, and OSError if the folder cannot be written.
    """
    from badput.merge import Outcome, TableCompactor, clear_tmp

    outcome = Outcome()
    with lock(run, alone=True) as held:
        if not held and not every:
            raise LockedError(f"the file system of {run} has no locks: a collector may be at work")
        ended = None if every else ended_processes(run)[0]
        for table in tables or TABLES:
            rights = _Over(run, table, ended)
            outcome.add(TableCompactor(run, table, rights).compact(2, 0.0, whole=True))
        with contextlib.suppress(FileNotFoundError):
            clear_tmp(run)
    return outcome


_DESCRIPTION = """\
Turn the many small parts of a run into few bigger ones, which are read much faster.

Collectors do this for their own parts while they run; this is for what they left: parts of
processes whose collector was killed with its node. RUN may be read meanwhile: no reader sees a
row twice or misses one. Telemetry is taken once it has lain there for two minutes. Parts of
processes that have not ended, as far as the run folder tells, are left alone, and so is what
badput did not write or a newer version wrote. Killed at any moment it can simply be run again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 0 fine, 1 it could not be done, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="badput compact",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument(
        "--all",
        action="store_true",
        help="parts of processes without an end too; only if none of them runs any more",
    )
    args = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
    run = Path(args.run)
    try:
        if not parts.is_run(run):
            what = "is not the folder of a run" if run.exists() else "does not exist"
            return _say(f"{run} {what}; give a folder that has {parts.FACTS}/", 2)
        return _compact(run, args.all)
    except LockedError as error:
        return _say(f"{error}; try again when nothing writes into it any more", 1)
    except OSError as error:
        return _say(f"cannot compact {run} ({reason(error)}); nothing is lost", 1)


def _say(text: str, code: int) -> int:
    emit(f"badput compact: {text}", sys.stderr)
    return code


def _compact(run: Path, every: bool) -> int:
    _, going = ended_processes(run)
    alive = [r for r in going if _lives_here(r)]
    if alive and every:
        return _say(f"pid {alive[0]['pid']} still trains into {run}; end it first", 1)
    outcome = compact_run(run, every)
    for sentence in outcome.left:
        emit(sentence, sys.stderr)
    if going and not every:
        word = "process has" if len(going) == 1 else "processes have"
        emit(
            f"{len(going)} {word} not ended, as far as {run} tells; their parts are left alone. "
            "If their node is gone for good, give --all."
        )
    if not outcome.made:
        emit(f"{run}: nothing to compact; {outcome.unlinked} replaced parts removed")
        return 0
    emit(
        f"{run}: {outcome.sources} parts became {outcome.made}, {outcome.rows} rows, "
        f"{outcome.bytes_before} -> {outcome.bytes_after} bytes"
    )
    return 0


def _lives_here(row: dict[str, Any]) -> bool:
    """Is the process alive on this machine, as far as its number tells?"""
    return row["boot_id"] == identity.boot_id() and Path(f"/proc/{row['pid']}").exists()
