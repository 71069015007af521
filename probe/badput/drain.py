# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""Draining one spool into Parquet parts, so that doing it again after a crash changes nothing.

Order of every round: read, write the parts, save the position, tell the writer, unlink what
is drained. Parts are named after the first record of their round; a round that was cut off
is done again from the same record, and its parts replace those of the first try.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Any

from badput import layout as lo
from badput.parts import write_part, write_rows
from badput.reader import SpoolReader
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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.reader = SpoolReader(path)
            self.position = self.reader.load_position()
        except BlockingIOError as error:
            os.close(self._folder)
            raise BusyError(f"another collector is draining {path}") from error
        except BaseException:
            os.close(self._folder)
            raise
        self.facts = self.reader.facts
        self.run: str = self.facts["run"]
        self.process_id = self.reader.process_id
        self._prepared = 0
        self._announced = False
        self.written: list[Path] = []
        """Parts written so far."""

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
        self._save(position)
        drained = range(self.position.segment, position.segment)
        self.position = position
        self.reader.acknowledge(position.segment, position.seq, ended=False)
        for index in drained:
            (self.path / lo.segment_name(index)).unlink(missing_ok=True)

    def _save(self, position: Position) -> None:
        """Save the position, unless somebody removed the spool: then there is nothing to redo."""
        try:
            self.reader.save_position(position)
        except FileNotFoundError:
            if self.path.exists():
                raise

    def tell(self, kind: str, time_ns: int, attrs: dict[str, Any]) -> None:
        """Write an event that the collector itself saw. Raises OSError: tell it again then.

        Its sequence number is below 0, where no record of the writer can have it. Killed before
        the position is saved, the next collector's first event takes its place.
        """
        position = self.position.copy()
        position.told += 1
        row = event_row(self.facts, -position.told, time_ns, kind, attrs)
        self._write_rows(f"{self.process_id:016x}-told-{position.told:06d}", {"events": [row]})
        self._save(position)
        self.position = position

    # -- the end ----------------------------------------------------------------------------
    def finish(self, status: int | None, seen_ns: int) -> dict[str, Any]:
        """Write the end event, after the last record. Raises OSError, and can be called again.

        ``status``: wait status, None if unknown. ``seen_ns``: when the death was seen, epoch ns.
        """
        position = self.position.copy()
        if position.end is None:
            position.end = self._end_attrs(status, seen_ns)
            self._save(position)
            self.position = position
        end = dict(position.end)
        time_ns = end.pop("time_ns")
        rows: Rows = {"spans": [], "checkpoints": [], "events": []}
        self._announce()
        key = {"process_id": self.process_id, "rank": self.facts["process"].get("rank")}
        for seq, payload in position.open.items():
            add_span(rows, {**key, "seq": int(seq)}, payload, Clock(self.facts))
        rows["events"].append(event_row(self.facts, position.seq, time_ns, "end", end))
        if end["dropped"]:
            dropped = {"count": end["dropped"]}
            rows["events"].append(
                event_row(self.facts, position.seq + 1, time_ns, "dropped", dropped)
            )
        self._write_rows(f"{self.process_id:016x}-{position.seq:012d}-end", rows)
        self.reader.acknowledge(position.segment, position.seq, ended=True)
        return end

    def remove(self) -> None:
        """Remove the spool: everything in it is in Parquet."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _end_attrs(self, status: int | None, seen_ns: int) -> dict[str, Any]:
        position, clock = self.position, Clock(self.facts)
        _, dropped, closed = self.reader.writer()
        code, signal = split_status(status)
        step, phase, since = self.phase()
        close = position.close
        if close is not None and "t" in close:
            seen_ns = clock.wall(close["t"])
        sign = max(position.last_sign, since)
        return {
            "time_ns": seen_ns,
            "reason": self._reason(code, signal),
            "exit_code": code,
            "signal": signal,
            "phase": phase,
            "phase_since_ns": clock.wall(since) if since else self.facts["process"]["init_ns"],
            "step": step,
            "last_sign_ns": clock.wall(sign) if sign else self.facts["process"]["init_ns"],
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
