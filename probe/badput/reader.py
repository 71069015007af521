"""The reader's side of a spool: only whole records, in order, each one once.

A record counts when its crc is right and its number is the next one. Anything else at the
end is a record being written, and is looked at again later; it is given up only when the
writer is dead or has gone on to the next segment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from badput import layout as lo
from badput.files import open_file, read_text, write_whole
from badput.position import Position, parse

if TYPE_CHECKING:
    from pathlib import Path

ACK = "ack.json"
SPARE = "ack.spare"
SPARE_SIZE = 65_536


class UnreadableError(Exception):
    """A spool that cannot be read; the message is a sentence for the user."""


@dataclass(slots=True)
class Batch:
    """Records read in one go: steps unpacked, rare ones decoded."""

    first_seq: int
    steps: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """lo.STEP_BODY's fields, then a tuple of accumulators or None."""
    rare: list[tuple[int, int, dict[str, Any]]] = field(
        default_factory=list[tuple[int, int, dict[str, Any]]]
    )
    """Type, sequence number and payload."""
    count: int = 0
    stuck: bool = False
    """True if a bad record, not the end of what was written, stopped the reading."""


class SpoolReader:
    """Reads one spool folder. Raises UnreadableError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts = self._load_facts()
        self.process_id = int(self.facts["process"]["process_id"])
        try:
            self._control_fd = open_file(path / "control", os.O_RDWR)
        except OSError as error:
            why = f"{path}/control cannot be opened ({error.strerror})"
            raise UnreadableError(why) from error
        head = os.pread(self._control_fd, lo.CONTROL_HEAD.size, 0)
        if len(head) < lo.CONTROL_HEAD.size or head[:8] != lo.CONTROL_MAGIC:
            os.close(self._control_fd)
            raise UnreadableError(f"{path}/control is not the control page of a spool")

    def _load_facts(self) -> dict[str, Any]:
        try:
            facts = json.loads(read_text(self.path / "facts.json"))
            version = int(facts["format"])
            _, number = facts["run"], int(facts["process"]["process_id"])
            _ = int(facts["anchor_mono_ns"]), int(facts["anchor_wall_ns"]), facts["process"]["pid"]
        except OSError as error:
            raise UnreadableError(
                f"{self.path} has no readable facts.json ({error.strerror})"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnreadableError(f"{self.path}/facts.json is not that of a spool") from error
        if version > lo.FORMAT_VERSION:
            raise UnreadableError(f"{self.path} has spool format {version}, too new: update badput")
        if not 0 <= number < 1 << 63:
            raise UnreadableError(f"{self.path}/facts.json names no process id, but {number}")
        return facts

    def close(self) -> None:
        """Give the control page back."""
        os.close(self._control_fd)

    def control_fd(self) -> int:
        """Descriptor of the control page, for asking whether its writer lives."""
        return self._control_fd

    # -- counters ---------------------------------------------------------------------------
    def writer(self) -> tuple[int, int, bool]:
        """Segment being written, records dropped, closed."""
        page = os.pread(self._control_fd, lo.WRITER.size, lo.WRITER_AT)
        segment, dropped, closed = lo.WRITER.unpack(page)
        return segment, dropped, bool(closed)

    def acknowledge(self, segment: int, seq: int, ended: bool) -> None:
        """Tell the writer that segments before ``segment`` are free, and whether all is done."""
        os.pwrite(self._control_fd, lo.READER.pack(segment, seq, int(ended)), lo.READER_AT)

    def slot(self) -> tuple[int, int, int] | None:
        """The state slot: step, phase id, since (monotonic ns); None if there is no good one."""
        best: tuple[int, int, int] | None = None
        for turn in (0, 1):
            page = os.pread(self._control_fd, lo.SLOT.size, lo.SLOT_AT + turn * 8 * lo.SLOT_TURN)
            since, what = lo.SLOT.unpack(page)
            if since > 0 and (best is None or since > best[2]):
                best = (what >> 16, what & 0xFFFF, since)
        page = os.pread(self._control_fd, lo.STEP_SLOT.size, lo.STEP_SLOT_AT)
        step, since = lo.STEP_SLOT.unpack(page)
        if since > 0 and (best is None or since >= best[2]):
            best = (step, lo.PHASE_STEP, since)
        return best

    # -- the acknowledged position ----------------------------------------------------------
    def load_position(self) -> Position | None:
        """The position saved last; the beginning if there is none, None if it makes no sense."""
        found = self._load_spare()
        try:
            saved = parse(read_text(self.path / ACK))
        except FileNotFoundError:
            saved = Position()
        except (OSError, ValueError):
            return found
        return found if found is not None and found.saved > saved.saved else saved

    def _load_spare(self) -> Position | None:
        try:
            head, _, text = read_text(self.path / SPARE).partition("\n")
            size, crc = (int(word) for word in head.split())
            text = text[:size]
            return parse(text) if crc32(text.encode()) == crc else None
        except (OSError, ValueError):
            return None  # never used, or cut off by a power loss

    def acknowledged(self) -> tuple[int, int]:
        """What the control page says: first segment not drained, next sequence number."""
        page = os.pread(self._control_fd, lo.READER.size, lo.READER_AT)
        return lo.READER.unpack(page)[:2]

    def segments(self) -> list[int]:
        """Numbers of the segments that are there."""
        names = (p.name for p in self.path.iterdir())
        return sorted(int(n[4:]) for n in names if n.startswith("seg-") and n[4:].isdecimal())

    def has(self, index: int) -> bool:
        """Is there a segment ``index``?"""
        return self._segment(index) is not None

    def first_seq(self, index: int, about: int) -> int | None:
        """Number of the first record of segment ``index``; None if there is none.

        Short records have its lower half only: ``about`` is the number of one near it.
        """
        data = self._segment(index)
        if data is None or len(data) < lo.SEGMENT_START + lo.HEAD.size:
            return None
        kind, _, _, seq = _head(data, lo.SEGMENT_START, max(0, about - lo.SEGMENT_SIZE))
        return seq if kind else None

    def reserve(self) -> None:
        """Reserve space for a position, so that it can be saved on a full disk. Raises OSError."""
        fd = open_file(self.path / SPARE, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, SPARE_SIZE)
        finally:
            os.close(fd)

    def save_position(self, position: Position) -> None:
        """Save ``position`` for good. Raises OSError."""
        position.saved += 1
        text = position.text()
        try:
            write_whole(str(self.path / ACK), text.encode())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._save_spare(text):
                raise
            return
        self._sync()

    def _save_spare(self, text: str) -> bool:
        """Write into the reserved space, which a full disk does not take away."""
        data = f"{len(text)} {crc32(text.encode())}\n{text}".encode()
        if len(data) > SPARE_SIZE:
            return False
        try:
            fd = open_file(self.path / SPARE, os.O_RDWR)
        except OSError:
            return False
        try:
            return os.pwrite(fd, data, 0) == len(data) and os.fdatasync(fd) is None
        except OSError:
            return False
        finally:
            os.close(fd)

    def _sync(self) -> None:
        """Make the rename outlive a power loss: compaction relies on what was saved."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def tell_state(self, number: int) -> None:
        """Tell the writer why the run folder cannot be written (an errno), or 0: it can."""
        os.pwrite(self._control_fd, lo.STATE.pack(number), lo.STATE_AT)

    # -- records ----------------------------------------------------------------------------
    def read(self, position: Position, limit: int, only: int | None = None) -> Batch:
        """Read at most about ``limit`` records from ``position``, moving it on.

        ``only``: this segment alone. Raises UnreadableError for a segment that is no file of ours.
        """
        batch = Batch(first_seq=position.seq)
        while batch.count < limit:
            data = self._segment(position.segment)
            if data is None:
                if not (self.path / lo.segment_name(position.segment + 1)).exists():
                    break  # else its writer uses it again as the next one, all of it being read
            elif not self._read_segment(data, position, batch, limit) or only is not None:
                break
            position.segment += 1
            position.offset = lo.SEGMENT_START
        return batch

    def skip_bad(self, position: Position) -> bool:
        """Go past a bad record to the next segment; False if there is none."""
        if not (self.path / lo.segment_name(position.segment + 1)).exists():
            return False
        position.segment, position.offset = position.segment + 1, lo.SEGMENT_START
        position.damaged += 1
        data = self._segment(position.segment) or b""
        if len(data) >= lo.SEGMENT_START + lo.HEAD.size:
            kind, _, _, seq = _head(data, lo.SEGMENT_START, position.seq)
            if kind and seq > position.seq:
                position.seq = seq
        return True

    def _segment(self, index: int) -> bytes | None:
        path = self.path / lo.segment_name(index)
        try:
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as handle:
                data = handle.read(lo.SEGMENT_SIZE)
        except FileNotFoundError:
            return None
        except OSError as error:  # not to be taken for one of the run folder
            raise UnreadableError(f"{path} cannot be read ({error.strerror})") from error
        return data if data[:8] == lo.SEGMENT_MAGIC else None

    @staticmethod
    def _read_segment(data: bytes, position: Position, batch: Batch, limit: int) -> bool:
        """Read on in one segment; True if it is read to its end and the next one follows."""
        view, offset, seq = memoryview(data), position.offset, position.seq
        end, crc_size = len(data), lo.CRC.size
        try:
            while batch.count < limit and offset + lo.HEAD.size + crc_size <= end:
                kind, flags, size, number = _head(data, offset, seq)
                if kind == 0:
                    return False
                if number != seq or size < lo.HEAD.size + crc_size or offset + size > end:
                    batch.stuck = True
                    return False
                if not _sound(view, offset, kind, flags, size):
                    batch.stuck = True
                    return False
                if kind == lo.FULL:
                    return True
                if kind == lo.STEP_SHORT:
                    batch.steps.append(_short_step(data, offset, seq))
                elif kind == lo.STEP_PLAIN:
                    batch.steps.append(_plain_step(data, offset))
                elif kind == lo.STEP:
                    batch.steps.append(_step(data, offset, flags))
                else:
                    payload = _payload(data[offset + lo.HEAD.size : offset + size - crc_size])
                    batch.rare.append((kind, number, payload))
                offset += size
                seq += 1
                batch.count += 1
            return False
        finally:
            position.offset, position.seq = offset, seq


def run_folder(path: Path, facts: dict[str, Any]) -> str:
    """The run folder that a spool names. Raises UnreadableError if it cannot be one.

    A relative one would be whatever lies below the folder in which somebody happens to be.
    """
    run = facts["run"]
    if isinstance(run, str) and run.startswith("/") and "\0" not in run:
        return run
    text = f"names {run!r:.200} as its run folder, which is no absolute path"
    todo = f"`badput collect {path} --into RUN` puts it elsewhere"
    raise UnreadableError(f"{path}/facts.json {text}; the spool is left alone; {todo}")


def _head(data: bytes, offset: int, expected: int) -> tuple[int, int, int, int]:
    """Type, flags, size and sequence number of a record, that of ``expected`` or later."""
    kind, flags, size, number = lo.HEAD.unpack_from(data, offset)
    if kind == lo.STEP_SHORT:
        (low,) = lo.CRC.unpack_from(data, offset + lo.SHORT_HEAD.size)
        return kind, flags, lo.SHORT_SIZE, expected + (low - expected & 0xFFFFFFFF)
    if kind == lo.STEP_PLAIN and len(data) < offset + lo.PLAIN_SIZE:
        return kind, flags, lo.PLAIN_SIZE, expected  # cut off
    if kind == lo.STEP_PLAIN:
        (number,) = lo.WORD.unpack_from(data, offset + lo.PLAIN_SIZE - 2 * lo.WORD.size)
        return kind, flags, lo.PLAIN_SIZE, number
    return kind, flags, size, number


def _sound(view: memoryview, offset: int, kind: int, flags: int, size: int) -> bool:
    """Does the record's check agree with what it covers?"""
    if kind == lo.STEP_PLAIN:
        _, _, tokens, start, end, step, _, check = lo.PLAIN.unpack_from(view, offset)
        return not flags and check == lo.PLAIN_SEED + tokens + start + end + step
    covered = size - lo.CRC.size
    (crc,) = lo.CRC.unpack_from(view, offset + covered)
    if kind == lo.STEP:
        covered = lo.STEP_WHOLE if flags & lo.WHOLE else lo.STEP_COVERED
    return crc32(view[offset : offset + covered]) == crc


def _plain_step(data: bytes, offset: int) -> tuple[Any, ...]:
    """A plain step as the same tuple that a STEP gives."""
    kind, _, tokens, start, end, number, seq, _ = lo.PLAIN.unpack_from(data, offset)
    tokens = -1 if tokens == lo.SHORT_UNKNOWN else tokens
    head = (kind, 0, lo.PLAIN_SIZE, seq, number, start, end, tokens, 0.0, lo.ACC_NULL)
    return (*head, -1, -1, 0.0, 0, 0, 0.0, -1, None)


def _short_step(data: bytes, offset: int, seq: int) -> tuple[Any, ...]:
    """A short step as the same tuple that a STEP gives."""
    kind, _, tokens, pre = lo.SHORT_HEAD.unpack_from(data, offset)
    _, start, end, number = lo.SHORT_BODY.unpack_from(data, offset + lo.SHORT_HEAD.size)
    tokens = -1 if tokens == lo.SHORT_UNKNOWN else tokens
    pre = lo.ACC_NULL if pre == lo.SHORT_UNKNOWN else pre
    head = (kind, 0, lo.SHORT_SIZE, seq, number, start, end, tokens, 0.0, pre)
    return (*head, -1, -1, 0.0, 0, 0, 0.0, -1, None)


def _step(data: bytes, offset: int, flags: int) -> tuple[Any, ...]:
    body = lo.STEP_BODY.unpack_from(data, offset)
    if flags & lo.WHOLE:
        return (*body, lo.ACC.unpack_from(data, offset + lo.ACC_AT))
    return (*body[:10], -1, -1, 0.0, 0, 0, 0.0, -1, None)


def _payload(data: bytes) -> dict[str, Any]:
    """The payload of a rare record; an empty one if it makes no sense (it never happens)."""
    try:
        payload: Any = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
