# No pathlib: the training process may import this, and pathlib is slow to import.
# ruff: noqa: PTH102, PTH103, PTH105, PTH108, PTH110, PTH116, PTH118, PTH208
"""Thread mode: where no process may be started, a thread copies the spool into the run folder.

Copied are the raw bytes, to ``RUN/spools/<process id>/``, at first after a second and later every
ten; Parquet is made of them by `badput collect RUN` or by the next collector that comes by. The
thread holds the lock of the spool's folder, so that no collector drains it at the same time, and
tells the writer which segments are free again, as a collector would.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time

from badput import layout as lo
from badput.files import open_file, read_bytes, read_text, write_whole
from badput.guard import fail, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from badput.drain import Drain
    from badput.recorder import Recorder

FOLDER = "spools"
"""Folder of the copies in a run folder."""
MARK = "copied.json"
"""In the spool: where its copy is. In the copy: that it is one."""
PAUSE_S = (1.0, 10.0)
"""Time between two copies: short at first."""
BEAT_S = 60.0
"""A copy that was renewed within that time has a living writer, whatever its lock says."""
EXIT_S = 1.0
"""How long the end of the interpreter may wait for the last copy."""

_active: Copier | None = None


def start(recorder: Recorder, run: str) -> None:
    """Begin to copy the spool of ``recorder``. Raises OSError."""
    global _active  # noqa: PLW0603 - one probe a process
    import atexit

    try:
        copier = Copier(recorder, run)
    except BlockingIOError:  # a collector was quicker: all is well
        return
    if _active is None:
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_forked)
    _active = copier
    threading.Thread(target=copier.run, name="badput-copy", daemon=True).start()


def active() -> bool:
    """True while a thread of this process copies its spool."""
    return _active is not None and not _active.over


def last_copy() -> None:
    """Have the last copy made now, without waiting for it."""
    if _active is not None:
        _active.wake.set()


def _at_exit() -> None:
    copier = _active
    if copier is None or copier.over:
        return
    copier.leaving = True
    copier.wake.set()
    copier.done.wait(EXIT_S)


def _forked() -> None:
    """A forked child has no such thread; its parent's lock must not live on in it."""
    global _active
    copier, _active = _active, None
    if copier is not None:
        os.close(copier.lock)


class Copier:
    """Copies one spool."""

    def __init__(self, recorder: Recorder, run: str) -> None:
        """Take the spool's lock. Raises OSError, BlockingIOError if a collector has it."""
        self._recorder, self._spool = recorder, recorder.spool
        self.target = os.path.join(run, FOLDER, lo.spool_name(recorder.spool.process_id))
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.lock = os.open(self._spool.path, flags)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(self._spool.path, MARK, json.dumps({"to": self.target}).encode())
        except BaseException:
            os.close(self.lock)
            raise
        self.wake, self.done = threading.Event(), threading.Event()
        self.leaving = self.over = False
        self._index = self._offset = 0
        self._control = -1

    def run(self) -> None:
        """Copy until the recorder has ended."""
        pause = PAUSE_S[0]
        try:
            while True:
                self.wake.wait(pause)
                self.wake.clear()
                last = self._spool.closed or self.leaving or self._recorder.owner == 0
                try:
                    self._copy()
                except OSError as error:
                    why = f"cannot copy to {self.target} ({error.strerror}); tried again"
                    say("copy", why)
                if last:
                    return
                pause = min(pause * 1.5, PAUSE_S[1])
        except Exception as error:  # noqa: BLE001 - guard
            fail("copy", error)
        finally:
            self.over = True
            self.done.set()

    def _copy(self) -> None:
        """Copy what is new. Raises OSError; then it is copied next time."""
        if self._control < 0:
            self._begin()
        closed = self._spool.closed
        while True:
            index, end = self._spool.index, self._spool.pos
            if index != self._spool.index:
                continue
            if self._index == index:
                break
            self._part(lo.SEGMENT_SIZE)
            self._index, self._offset = self._index + 1, 0
            self._tell(ended=False)
            os.unlink(os.path.join(self._spool.path, lo.segment_name(self._index - 1)))
        self._part(min(end, lo.SEGMENT_SIZE))
        _put_page(self._control, self._page())
        os.fsync(self._control)
        if closed:
            self._tell(ended=True)

    def _begin(self) -> None:
        above, name = os.path.split(self.target)
        temp = os.path.join(above, f".new-{name}")
        os.makedirs(above, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # ours, half made: its name is a random number
            os.mkdir(temp, 0o700)
        facts = read_bytes(os.path.join(self._spool.path, "facts.json"))
        fd = _create(temp, "control")
        # As in the spool: whoever can take this lock knows that the writer is gone.
        with contextlib.suppress(OSError):  # a file system without locks: the beat must do
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            _put_page(fd, self._page())
            _write(temp, MARK, b"{}")
            _write(temp, "facts.json", facts)
            os.replace(temp, self.target)  # now it may be found
        except BaseException:
            os.close(fd)
            raise
        self._control = fd

    def _page(self) -> bytes:
        """The control page, from memory: closing its file would give up the record lock."""
        return bytes(self._spool.control[: lo.CONTROL_SIZE])

    def _part(self, end: int) -> None:
        """Copy the segment under way up to ``end``."""
        if end <= self._offset:
            return
        name = lo.segment_name(self._index)
        source = open_file(os.path.join(self._spool.path, name), os.O_RDONLY)
        try:
            data = os.pread(source, end - self._offset, self._offset)
        finally:
            os.close(source)
        fd = _create(self.target, name)
        try:
            os.pwrite(fd, data, self._offset)
            os.fsync(fd)
        finally:
            os.close(fd)
        self._offset += len(data)

    def _tell(self, ended: bool) -> None:
        """Tell the writer what is free, and at last that all is copied."""
        lo.READER.pack_into(self._spool.control, lo.READER_AT, self._index, 0, int(ended))


def _create(folder: str, name: str) -> int:
    return open_file(os.path.join(folder, name), os.O_RDWR | os.O_CREAT)


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a small file as a whole."""
    write_whole(os.path.join(folder, name), data)


def _put_page(fd: int, page: bytes) -> None:
    """Write a control page, but for what the reader of the copy writes into its own."""
    after = lo.READER_AT + lo.READER.size
    os.pwrite(fd, page[: lo.READER_AT], 0)
    os.pwrite(fd, page[after:], after)


# -- from outside, when the writer is gone ---------------------------------------------------
def copy_of(spool: str) -> str | None:
    """Where the copy of a spool is, None if none was made."""
    try:
        to = json.loads(read_text(os.path.join(spool, MARK))).get("to")
        return to if isinstance(to, str) else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def is_copy(spool: str) -> bool:
    """True if the folder is a copy, not a spool."""
    return os.path.exists(os.path.join(spool, MARK)) and copy_of(spool) is None


def is_part(spool: str) -> bool:
    """True if it is a copy whose spool, on the node of the ranks, may hold more."""
    try:
        said = json.loads(read_text(os.path.join(spool, MARK)))
        return said.get("to") is None and said.get("whole") is not True
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def beats(spool: str) -> bool:
    """True if a copy was renewed a moment ago."""
    try:
        age = time.time() - os.stat(os.path.join(spool, "control")).st_mtime
    except OSError:
        return False
    return is_copy(spool) and age < BEAT_S


def complete(spool: str, target: str) -> None:
    """Add to the copy what a dead writer's spool still holds. Raises OSError."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    names = os.listdir(spool)
    for name in sorted(n for n in names if n.startswith("seg-")):
        _write(target, name, read_bytes(os.path.join(spool, name)))
    fd = _create(target, "control")
    try:
        _put_page(fd, read_bytes(os.path.join(spool, "control"))[: lo.CONTROL_SIZE])
    finally:
        os.close(fd)
    _write(target, MARK, b'{"whole": true}')
    _write(target, "facts.json", read_bytes(os.path.join(spool, "facts.json")))


def open_drain(path: Path, into: str | None = None) -> Drain:
    """The drain of a spool, or of its copy if a thread copied it and its writer is dead.

    ``into``: the run folder that it goes to, instead of the one that the spool names.
    Raises BusyError, UnreadableError, OSError.
    """
    from badput.drain import BusyError, Drain
    from badput.watch import lock_is_free

    drain = Drain(path, into)
    to = copy_of(str(path))
    if to is None or os.path.normpath(to) != os.path.normpath(
        os.path.join(drain.facts["run"], FOLDER, path.name)
    ):
        return drain  # what is removed at the end must be a copy of ours, whatever a file says
    try:
        if not lock_is_free(drain.reader.control_fd()):
            raise BusyError(f"the writer of {path} copies it")
        complete(str(path), to)
        drain.remove()
    except OSError as error:  # the run folder is gone: later
        raise BusyError(f"{path} cannot be copied to {to}: {error}") from error
    finally:
        drain.close()
    return Drain(type(path)(to), into)
