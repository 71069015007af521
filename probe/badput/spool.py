# No pathlib: calls relative to a descriptor follow no link, and it is slow to import.
# ruff: noqa: PTH100, PTH101, PTH102, PTH116, PTH118, PTH208
"""The writer's side of a spool: memory-mapped, append-only, safe against SIGKILL.

What is written here is in the kernel's page cache at once and outlives the process. The
folder must be on a local file system: a page that a server fails to back is a SIGBUS, which
kills training.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import stat
import sys
from zlib import crc32

from badput import clock
from badput import layout as lo
from badput.files import create, open_file
from badput.guard import cannot_write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

REFUSED_FILE_SYSTEMS = frozenset(
    (
        "nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "9p", "virtiofs", "gpfs", "beegfs",
        "ceph", "glusterfs", "afs", "orangefs", "panfs", "wekafs", "vastfs", "quobyte", "ocfs2",
        "gfs2",
    )
)  # fmt: skip
"""File systems that several nodes share; every FUSE one is refused too."""
RETRY_NS = 1_000_000_000
"""How long to wait before asking for a segment again after it was refused."""
_MADV_POPULATE_WRITE = 23
_RETIRED = 1 << 62
_KEPT: list[object] = []
"""Maps that must not be freed, since that closes descriptors which may be another's by now."""


class SpoolError(Exception):
    """A spool folder that must not be used; the message is a sentence for the user."""


def default_root() -> str:
    """BADPUT_SPOOL, or ``badput-<uid>`` in the system's folder for temporary files.

    A BADPUT_SPOOL in which others may write, like /dev/shm, gets a ``badput-<uid>`` in it too.
    """
    own = f"badput-{os.getuid()}"
    given = os.environ.get("BADPUT_SPOOL")
    if not given:
        return os.path.abspath(os.path.join(os.environ.get("TMPDIR") or "/tmp", own))  # noqa: S108
    given = os.path.abspath(given)
    with contextlib.suppress(OSError):
        if os.stat(given).st_mode & (stat.S_ISVTX | 0o022):
            return os.path.join(given, own)
    return given


@contextlib.contextmanager
def above_standard() -> Generator[None]:
    """Inside, new descriptors are above 2, even if the program has closed standard ones.

    What a library prints to standard error must not land in a spool.
    """
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while not held or held[-1] < 3:
                held.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)


def open_root(root: str) -> int:
    """Open the spool root, making it if needed, and return a descriptor of the folder.

    Raises SpoolError if it is a symbolic link, is not ours, or lies on a file system that
    several nodes share; OSError if it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o700)
        os.chmod(root, 0o700)  # whatever the umask
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SpoolError(
            f"spool folder {root} is not a real folder of ours ({error.strerror})"
        ) from error
    try:
        _check_root(root, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_root(root: str, fd: int) -> None:
    info = os.fstat(fd)
    if info.st_uid != os.getuid():
        raise SpoolError(f"spool folder {root} belongs to uid {info.st_uid}, not to us")
    if info.st_mode & 0o022:  # not ours to change: it may be somebody's shared folder
        raise SpoolError(
            f"spool folder {root} can be written by other users; "
            f"set BADPUT_SPOOL to {os.path.join(root, 'badput')} or another folder of its own"
        )
    kind = file_system(root)
    if kind in REFUSED_FILE_SYSTEMS or kind.startswith("fuse"):
        raise SpoolError(
            f"spool folder {root} is on {kind}; set BADPUT_SPOOL to a folder on a local disk"
        )


def file_system(path: str) -> str:
    """Type of the file system that holds ``path``, such as ext4; empty if unknown."""
    path = os.path.realpath(path)
    best, kind = -1, ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                point = left.split(" ")[4].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= best:
                    best, kind = len(point), right.split(" ")[0]
    except (OSError, IndexError):
        return ""
    return kind


def make_segment(folder: int, index: int, process_id: int) -> None:
    """Make segment ``index`` in the folder ``folder`` (a descriptor), space reserved.

    Writer and collector may both try: the second one finds it made. Raises OSError.
    """
    name, temp = lo.segment_name(index), f"new-{index:08d}-{os.getpid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        fd = create(temp, flags, folder)
    except FileExistsError:  # left by a dead process that had our number
        os.unlink(temp, dir_fd=folder)
        fd = create(temp, flags, folder)
    try:
        os.posix_fallocate(fd, 0, lo.SEGMENT_SIZE)
        head = (lo.SEGMENT_MAGIC, lo.FORMAT_VERSION, lo.SEGMENT_SIZE, process_id, index)
        os.pwrite(fd, lo.SEGMENT_HEAD.pack(*head), 0)
        try:
            os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return
    finally:
        os.close(fd)
        os.unlink(temp, dir_fd=folder)


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _discard(root: int, name: str) -> None:
    """Remove a half-made spool."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError:
        return
    with contextlib.suppress(OSError):
        for file in os.listdir(folder):
            os.unlink(file, dir_fd=folder)
        os.rmdir(name, dir_fd=root)
    os.close(folder)


class Spool:
    """An open spool: the control page, the segment being written, and where to write next.

    ``pos``, ``seq`` and ``map`` are read and advanced by the recorder under its lock.
    """

    __slots__ = (
        "_control_fd", "_control_id", "_folder", "_folder_id", "_retry_at", "always", "closed",
        "control", "dropped", "index", "map", "other", "path", "pos", "process_id", "run", "seq",
        "state", "words",
    )  # fmt: skip

    def __init__(self, root: str, process_id: int, facts: dict[str, Any]) -> None:
        """Make the spool of a new incarnation below ``root``. Raises SpoolError, OSError."""
        self.process_id, self.run = process_id, str(facts.get("run", ""))
        self.path = os.path.join(root, lo.spool_name(process_id))
        self.seq = self.index = self.dropped = self._retry_at = 0
        self.closed = False
        self._folder = self._control_fd = -1
        # Without an interpreter lock the training thread must always take ours: see steps.py.
        self.always = self.other = not getattr(sys, "_is_gil_enabled", lambda: True)()
        root_fd = open_root(root)
        temp = f".new-{lo.spool_name(process_id)}"
        try:
            os.mkdir(temp, 0o700, dir_fd=root_fd)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.chmod(temp, 0o700, dir_fd=root_fd)
            self._folder = os.open(temp, flags, dir_fd=root_fd)
            self._folder_id = _identity(self._folder)
            self._write_facts(facts)
            self.control = self._make_control()
            self.state = memoryview(self.control).cast("Q")
            make_segment(self._folder, 0, process_id)
            self._use(self._map_segment(0))
            # From here on a collector may find it.
            os.rename(temp, lo.spool_name(process_id), src_dir_fd=root_fd, dst_dir_fd=root_fd)
        except BaseException:
            for fd in (self._folder, self._control_fd):
                if fd >= 0:
                    os.close(fd)
            _discard(root_fd, temp)
            raise
        finally:
            os.close(root_fd)

    def _write_facts(self, facts: dict[str, Any]) -> None:
        fd = create("facts.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._folder)
        with os.fdopen(fd, "w", encoding="utf-8") as handle:
            json.dump({"format": lo.FORMAT_VERSION, **facts}, handle)

    def _make_control(self) -> mmap.mmap:
        fd = self._control_fd = create("control", os.O_RDWR | os.O_CREAT | os.O_EXCL, self._folder)
        self._control_id = _identity(fd)
        os.posix_fallocate(fd, 0, lo.CONTROL_SIZE)
        # A record lock belongs to this process alone: not inherited over fork, gone with it.
        # Whoever can take it knows that the writer is dead, even from another pid namespace.
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        control = mmap.mmap(fd, lo.CONTROL_SIZE)
        head = (lo.CONTROL_MAGIC, lo.FORMAT_VERSION, lo.SEGMENT_SIZE, self.process_id)
        lo.CONTROL_HEAD.pack_into(control, 0, *head)
        return control

    def _map_segment(self, index: int) -> mmap.mmap:
        fd = open_file(lo.segment_name(index), os.O_RDWR, folder=self._folder)
        try:
            if os.fstat(fd).st_size < lo.SEGMENT_SIZE:
                raise OSError(f"segment {index} of {self.path} is too short")
            area = mmap.mmap(fd, lo.SEGMENT_SIZE)
        finally:
            os.close(fd)
        try:
            area.madvise(_MADV_POPULATE_WRITE)
        except (OSError, ValueError):  # kernels before 5.14
            for offset in range(lo.SEGMENT_START, lo.SEGMENT_SIZE, mmap.PAGESIZE):
                area[offset] = 0
        return area

    def _use(self, area: mmap.mmap) -> None:
        """Write into ``area`` from now on."""
        self.map, self.words = area, memoryview(area).cast("Q")
        self.pos = lo.SEGMENT_START

    def room(self, size: int) -> bool:
        """Make sure that ``size`` bytes fit at ``pos``, in the next segment if need be.

        False: the reader is too far behind, or there is no space; the caller drops its record.
        """
        if self.pos + size <= lo.SEGMENT_END:
            return True
        now = clock.mono()
        if now < self._retry_at:
            return False
        cannot_write(self.control, self.run)
        drained = lo.READER.unpack_from(self.control, lo.READER_AT)[0]
        if self.index + 1 - drained >= lo.MAX_SEGMENTS:
            self._retry_at = now + RETRY_NS // 20
            return False
        try:
            with above_standard():
                area = self._next_segment()
        except OSError:
            if self._again():
                return True
            self._retry_at = now + RETRY_NS
            return False
        self._mark_full()
        self._use(area)
        self.index += 1
        self.note()
        return True

    def _next_segment(self) -> mmap.mmap:
        if _identity(self._folder) != self._folder_id:
            raise OSError(f"the descriptor of {self.path} was closed by the program")
        try:
            return self._map_segment(self.index + 1)  # prepared by the collector
        except FileNotFoundError:
            make_segment(self._folder, self.index + 1, self.process_id)
            return self._map_segment(self.index + 1)

    def _again(self) -> bool:
        """Where there is no space for another segment: the last one once more, as the next one.

        Only when the reader has all of it in Parquet.
        """
        if lo.READER.unpack_from(self.control, lo.READER_AT)[:2] != (self.index, self.seq):
            return False
        old, new = lo.segment_name(self.index), lo.segment_name(self.index + 1)
        try:
            if _identity(self._folder) != self._folder_id:
                return False
            self.map[lo.SEGMENT_START :] = bytes(lo.SEGMENT_SIZE - lo.SEGMENT_START)
            os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            return False
        self.pos, self.index = lo.SEGMENT_START, self.index + 1
        self.note()
        return True

    def _mark_full(self) -> None:
        head = lo.HEAD.pack(lo.FULL, 0, lo.HEAD.size + lo.CRC.size, self.seq)
        mark = head + lo.CRC.pack(crc32(head))
        self.map[self.pos : self.pos + len(mark)] = mark

    def note(self) -> None:
        """Write the writer's counters into the control page."""
        counters = (self.index, self.dropped, int(self.closed))
        lo.WRITER.pack_into(self.control, lo.WRITER_AT, *counters)

    def leaving(self) -> None:
        """Say that the interpreter ends; that the maps go is then no sign of another program."""
        lo.LEAVING.pack_into(self.control, lo.LEAVING_AT, 1)

    def write(self, kind: int, payload: bytes) -> int | None:
        """Append one record with ``payload``; its sequence number, or None if it was dropped.

        The caller holds the recorder's lock.
        """
        size = (lo.HEAD.size + len(payload) + lo.CRC.size + 7) & ~7
        if not self.room(size):
            self.drop()
            return None
        seq = self.seq
        body = lo.HEAD.pack(kind, 0, size, seq) + payload.ljust(size - lo.HEAD.size - lo.CRC.size)
        self.map[self.pos : self.pos + size] = body + lo.CRC.pack(crc32(body))
        self.pos += size
        self.seq = seq + 1
        return seq

    def drop(self) -> None:
        """Count a record that had no room; one that came after the end counts for nothing."""
        if self.pos < _RETIRED:
            self.dropped += 1
            self.note()

    def acknowledged(self) -> bool:
        """True once the reader has everything, the end included, in Parquet."""
        return lo.READER.unpack_from(self.control, lo.READER_AT)[2] != 0

    def retire(self) -> None:
        """Take no more records: there is no room any more, for good."""
        self.pos = self._retry_at = _RETIRED

    def release(self) -> None:
        """Give the descriptors back; the maps go with the last reference to them."""
        for fd, made in ((self._control_fd, self._control_id), (self._folder, self._folder_id)):
            try:
                ours = _identity(fd) == made
            except OSError:
                ours = False
            if ours:
                os.close(fd)
            else:  # the program closed it and may have its own there now; so with those of the maps
                _KEPT.extend((self.map, self.control))
