# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""Draining one spool into Parquet parts, so that doing it again after a crash changes nothing.

Order of every round: read, write the parts, save the position, tell the writer, unlink what
is drained. Parts are named after the first record of their round; a round that was cut off
is done again from the same record, and its parts replace those of the first try. Where the
position cannot be saved, draining goes on, and the segments stay until it can.

Rounds of one run folder may take long (a file server that answers late), so they have a thread
(worker.py). What other threads may call: ``backlog``, ``prepare``, ``tell``, ``phase``, ``now``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections import deque
from typing import TYPE_CHECKING, Any

from badput import clock, identity
from badput import layout as lo
from badput.parts import write_part, write_rows
from badput.position import can_be, found_anew
from badput.reader import SpoolReader, run_folder
from badput.rows import Clock, add_span, event_row, first_rows, rare_rows, steps_table
from badput.schema import STEP_CATEGORIES
from badput.spool import make_segment

if TYPE_CHECKING:
    from pathlib import Path

    from badput.reader import Batch, Position
    from badput.rows import Rows

BATCH_LIMIT = 65_536
"""Records of one round. It bounds the collector's memory."""


_ROUNDS = 16
"""Rounds at a time, so that one busy writer does not keep the others waiting."""


class BusyError(Exception):
    """Another collector drains this spool."""


class Drain:
    """One spool on its way into its run folder. Raises BusyError, UnreadableError, OSError."""

    def __init__(self, path: Path, into: str | None = None) -> None:
        """``into``: the run folder, instead of the one that the spool names."""
        self.path = path
        self.note: str | None = None
        """A sentence for the user, if something about the spool was odd."""
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.reader = SpoolReader(path)
        except BlockingIOError as error:
            os.close(self._folder)
            raise BusyError(f"another collector is draining {path}") from error
        except BaseException:
            os.close(self._folder)
            raise
        self.facts = self.reader.facts
        self.process_id = self.reader.process_id
        try:
            self.run = into or run_folder(path, self.facts)
            self.position = self._where()
        except BaseException:
            self.close()
            raise
        self._prepared = 0
        self._announced = False
        self.saved = self.position
        """The position saved last: nothing before it is ever written again."""
        self.save_error: OSError | None = None
        """Why the position could not be saved in the spool, if it could not."""
        self.written: list[Path] = []
        """Parts written so far."""
        self._told: deque[tuple[str, int, dict[str, Any]]] = deque()
        self._shift: int | None = None
        self.here = self.facts["process"].get("boot_id") == identity.boot_id()
        """Was it recorded in this boot, so that its monotonic clock is ours?"""
        if self.here:
            self._shift = Clock(self.facts).wall(0)
        with contextlib.suppress(OSError):
            self.reader.reserve()

    def _where(self) -> Position:
        """The position saved last, or found anew if it cannot be right."""
        saved = self.reader.load_position()
        if saved is not None and can_be(saved, self.reader):
            return saved
        position = found_anew(self.reader, self.run)
        self.note = (
            f"{self.path}: its saved position cannot be right; "
            f"read on from record {position.seq} in segment {position.segment}"
        )
        return position

    def close(self) -> None:
        """Give the spool back."""
        self.reader.close()
        os.close(self._folder)

    # -- rounds -----------------------------------------------------------------------------
    def backlog(self) -> int:
        """Full segments that wait to be drained."""
        return self.reader.writer()[0] - self.position.segment

    def prepare(self, index: int) -> None:
        """Make segment ``index`` ahead of the writer. Raises OSError."""
        if self._prepared < index:
            make_segment(self._folder, index, self.process_id)
            self._prepared = index

    def drain(self, writer_dead: bool = False) -> int:
        """Put all whole records into Parquet; how many there were. Raises OSError."""
        self._announce()
        if self.save_error is not None:
            self._acknowledge(self.position)
        total = self._drain(writer_dead)
        self._write_told()
        return total

    def _drain(self, writer_dead: bool) -> int:
        total = 0
        for _ in range(_ROUNDS):
            position = self.position.copy()
            batch = self.reader.read(position, BATCH_LIMIT)
            if batch.stuck and not batch.count and (writer_dead or self.backlog() > 0):
                if not self.reader.skip_bad(position):
                    return total
                self._acknowledge(position)
                continue
            if not batch.count:
                if position.segment > self.position.segment:
                    self._acknowledge(position)
                return total
            self._write(batch, position)
            self._acknowledge(position)
            total += batch.count
        return total

    def _announce(self) -> None:
        """Write who the process is, before and whether or not it records anything."""
        if self.position.seq == 0 and not self._announced:
            self._write_rows(f"{self.process_id:016x}-{0:012d}", first_rows(self.facts))
            self._announced = True

    def _write(self, batch: Batch, position: Position) -> None:
        name = f"{self.process_id:016x}-{batch.first_seq:012d}"
        rows = rare_rows(batch, position, self.facts)
        if batch.steps:
            table = steps_table(batch, self.facts, position.names)
            self.written.append(write_part(self.run, "steps", name, table))
            last = batch.steps[-1]
            position.last_step = [last[4], last[5], last[6]]
            position.last_sign = max(position.last_sign, position.last_step[2])
        self._write_rows(name, rows)
        position.records += batch.count

    def _write_rows(self, name: str, rows: Rows) -> None:
        for table, found in rows.items():
            part = write_rows(self.run, table, name, found)
            if part is not None:
                self.written.append(part)

    def _acknowledge(self, position: Position) -> None:
        before = self.saved.segment
        self.position = position
        if not self._save(position):
            return
        self.reader.acknowledge(position.segment, position.seq, ended=False)
        for index in range(before, position.segment):
            with contextlib.suppress(OSError):  # it goes with the spool
                (self.path / lo.segment_name(index)).unlink()

    def _save(self, position: Position) -> bool:
        """Save the position; False if it could not be: it is tried again in the next round.

        Where somebody removed the spool there is nothing to save, and nothing to redo.
        """
        try:
            self.reader.save_position(position)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or self.path.exists():
                self.save_error = error
                return False
        self.save_error = None
        self.saved = position
        return True

    # -- what the collector itself has to tell ----------------------------------------------
    def now(self) -> int:
        """This instant on the process's own time line (epoch ns), whatever the wall clock did."""
        return clock.wall() if self._shift is None else clock.mono() + self._shift

    def tell(self, kind: str, time_ns: int, attrs: dict[str, Any]) -> None:
        """Have an event written that the collector itself saw; it goes out with the next round.

        Its sequence number is below 0, where no record of the writer can have it. Killed before
        the position is saved, the next collector's first event takes its place.
        """
        self._told.append((kind, time_ns, attrs))

    def told(self) -> int:
        """Events of the collector's own so far, those that still wait included."""
        return self.position.told + len(self._told)

    def waiting(self) -> bool:
        """True if events of the collector's own wait to be written."""
        return bool(self._told)

    def _write_told(self) -> None:
        """Write the events that wait, and how many records found no room since the last time."""
        dropped = self.reader.writer()[1]
        if dropped > self.position.dropped:
            attrs = {"count": dropped - self.position.dropped}
            self._write_event("dropped", self.now(), attrs, dropped)
        while self._told:
            self._write_event(*self._told[0])
            self._told.popleft()

    def _write_event(
        self, kind: str, time_ns: int, attrs: dict[str, Any], dropped: int | None = None
    ) -> None:
        position = self.position.copy()
        position.told += 1
        position.dropped = position.dropped if dropped is None else dropped
        if kind == "clock":
            position.shift = attrs["shift_ns"]
        row = event_row(self.facts, -position.told, time_ns, kind, attrs)
        self._write_rows(f"{self.process_id:016x}-told-{position.told:06d}", {"events": [row]})
        self._acknowledge(position)

    # -- the end ----------------------------------------------------------------------------
    def finish(
        self, status: int | None, seen_ns: int | None, evidence: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write the end event, after the last record. Raises OSError, and can be called again.

        ``status``: wait status, None if unknown. ``seen_ns``: when the death was seen, epoch ns;
        None if nobody watched: it then lies at the last sign of life, not at the time that
        somebody came by. ``evidence``: more attributes of the end event.
        """
        position = self.position.copy()
        if position.end is None:
            position.end = {**(evidence or {}), **self._end_attrs(status, seen_ns)}
            self.position = position
            self._save(position)
        self._write_told()
        position = self.position
        end = dict(position.end or {})
        time_ns = end.pop("time_ns")
        rows: Rows = {"spans": [], "checkpoints": [], "events": []}
        self._announce()
        key = {"process_id": self.process_id, "rank": self.facts["process"].get("rank")}
        for seq, payload in position.open.items():
            add_span(rows, {**key, "seq": int(seq)}, payload, Clock(self.facts))
        rows["events"].append(event_row(self.facts, position.seq, time_ns, "end", end))
        if end["dropped"] > position.dropped:
            dropped = {"count": end["dropped"] - position.dropped}
            rows["events"].append(
                event_row(self.facts, position.seq + 1, time_ns, "dropped", dropped)
            )
        self._write_rows(f"{self.process_id:016x}-{position.seq:012d}-end", rows)
        self.reader.acknowledge(position.segment, position.seq, ended=True)
        return end

    def remove(self) -> None:
        """Remove the spool: everything in it is in Parquet."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _end_attrs(self, status: int | None, seen_ns: int | None) -> dict[str, Any]:
        position, line = self.position, Clock(self.facts)
        _, dropped, closed = self.reader.writer()
        code, signal = split_status(status)
        step, phase, since = self.phase()
        close = position.close
        if close is not None and "t" in close:
            seen_ns = line.wall(close["t"])
        sign = max(position.last_sign, since)
        sign_ns = line.wall(sign) if sign else self.facts["process"]["init_ns"]
        return {
            "time_ns": sign_ns if seen_ns is None else seen_ns,
            **({"found_ns": self.now()} if seen_ns is None else {}),
            "reason": self._reason(code, signal),
            "exit_code": code,
            "signal": signal,
            "phase": phase,
            "phase_since_ns": line.wall(since) if since else self.facts["process"]["init_ns"],
            "step": step,
            "last_sign_ns": sign_ns,
            "records": position.records,
            "dropped": dropped,
            "damaged": position.damaged,
            **({} if self.path.exists() else {"spool_removed": True}),
            "closed": closed or close is not None,
        }

    def _reason(self, code: int | None, signal: int | None) -> str:
        if signal is not None:
            return "killed" if signal == 9 else "signal"
        if code is not None and code != 0:
            return "exception" if self.position.uncaught and code == 1 else "exit"
        close = self.position.close
        if close is not None or self.reader.writer()[2]:
            return "exception" if close and close.get("failed") else "completed"
        return "completed" if code == 0 else "unknown"

    def phase(self) -> tuple[int | None, str, int]:
        """Step, phase name and since when (monotonic ns) at the last sign of life."""
        slot = self.reader.slot()
        last = self.position.last_step
        if slot is None:
            return (last[0] if last else None), "unknown", last[2] if last else 0
        step, phase, since = slot
        if phase == lo.PHASE_STEP and last is not None and since <= last[1]:
            return last[0], "loop", last[2]  # the step under way had been finished
        return step, self._phase_name(phase), since

    def _phase_name(self, phase: int) -> str:
        if phase < len(lo.FIXED_PHASES):
            return lo.FIXED_PHASES[phase]
        category = phase - lo.PHASE_CATEGORY
        if 0 <= category < len(STEP_CATEGORIES):
            return STEP_CATEGORIES[category]
        return self.position.names.get(str(phase), "unknown")


def split_status(status: int | None) -> tuple[int | None, int | None]:
    """Exit code and signal of a wait status."""
    if status is None:
        return None, None
    signal = status & 0x7F
    return (None, signal) if signal else ((status >> 8) & 0xFF, None)
