"""How a process that is not our child ended, as far as the kernel tells.

A pidfd becomes readable when the process is dead. Linux 6.15 and newer then tell the exit
status through PIDFD_GET_INFO even after someone else has reaped it; before that, field 52
of /proc/PID/stat has it while the process is a zombie, which its parent may end at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from typing import TYPE_CHECKING, Any

from badput import layout as lo

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info), 64 bytes
_PIDFD_INFO_EXIT = 1 << 3


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state (the third) on; empty if there is no process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as handle:
            return handle.read().rpartition(")")[2].split()
    except OSError:
        return []


def lock_is_free(control_fd: int) -> bool:
    """True if the writer of the control page is dead: its record lock can be taken."""
    try:
        fcntl.lockf(control_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.lockf(control_fd, fcntl.LOCK_UN)
    return True


class Watch:
    """Watches one process, told by pid, start time and the lock on its control page."""

    def __init__(self, facts: Mapping[str, Any], control_fd: int, here: bool) -> None:
        """``here``: the process lives in our boot and pid namespace, so its pid means something."""
        self._pid = int(facts["process"]["pid"])
        self._control_fd = control_fd
        self.fd: int | None = None
        if here:
            self._open(int(facts.get("start_ticks", 0)))

    def _open(self, ticks: int) -> None:
        try:
            fd = os.pidfd_open(self._pid)
        except OSError:
            return
        fields = stat_fields(self._pid)
        if len(fields) > 19 and int(fields[19]) == ticks:
            self.fd = fd
        else:  # the number belongs to someone else by now
            os.close(fd)

    def dead(self) -> bool:
        """True once the process has ended, or has become another program."""
        if self.fd is not None:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            return bool(poll.poll(0)) or (lock_is_free(self._control_fd) and self._execed())
        return lock_is_free(self._control_fd)

    def _execed(self) -> bool:
        """True if an exec put another program into the process, which took the maps away.

        Asked only when the lock is free, which alone says less: the program may have closed
        our descriptors, and then goes on recording. A process that is ending lets go of its
        memory before its files: it has no maps at all, and how it ended is known a moment later. An
        interpreter that ends gives the maps back long before that, and says so.
        """
        if lo.LEAVING.unpack(os.pread(self._control_fd, lo.LEAVING.size, lo.LEAVING_AT))[0]:
            return False
        inode = os.fstat(self._control_fd).st_ino
        try:
            with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="replace") as maps:
                inodes = {line.split(maxsplit=5)[4] for line in maps}
        except OSError:
            return False
        return bool(inodes) and str(inode) not in inodes

    def status(self) -> int | None:
        """The wait status of the dead process, None if it cannot be known (any more)."""
        if self.fd is None:
            return None
        info = bytearray(64)
        struct.pack_into("<Q", info, 0, _PIDFD_INFO_EXIT)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.fd, _PIDFD_GET_INFO, info)
            if struct.unpack_from("<Q", info)[0] & _PIDFD_INFO_EXIT:
                return struct.unpack_from("<i", info, 60)[0]
        fields = stat_fields(self._pid)
        if len(fields) > 49 and fields[0] == "Z":
            return int(fields[49])
        return None

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
