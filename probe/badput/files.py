# No pathlib: the training process imports this, and pathlib is slow to import.
"""Opening files that lie where others could have put something else under their names.

A link is not followed, a pipe is not waited for, and a device is not read: what is opened is a
regular file, or it is an OSError whose text says what lies there instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO


def open_file(
    path: str | os.PathLike[str],
    flags: int,
    mode: int = 0o600,
    *,
    folder: int | None = None,
    follow: bool = False,
) -> int:
    """Open a regular file and return its descriptor. ``folder``: ``path`` is relative to it.

    ``follow``: a link to a regular file will do. Raises OSError.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a symbolic link", os.fspath(path)) from error
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a pipe that nobody reads, a socket
            raise _no_file(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path)
    return fd


def _no_file(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def create(name: str, flags: int, folder: int) -> int:
    """Open a file of ours in ``folder``, made if ``flags`` say so; ours whatever the umask."""
    fd = open_file(name, flags, folder=folder)
    try:
        if os.fstat(fd).st_mode & 0o600 != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def new_file(path: str | os.PathLike[str], mode: int = 0o666) -> IO[bytes]:
    """A new file to write, in place of what a dead process may have left under its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        fd = open_file(path, flags, mode)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108 - see above
        fd = open_file(path, flags, mode)
    return os.fdopen(fd, "wb")


def read_bytes(path: str | os.PathLike[str], *, follow: bool = False) -> bytes:
    """What a regular file holds. Raises OSError."""
    with os.fdopen(open_file(path, os.O_RDONLY, follow=follow), "rb") as handle:
        return handle.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Its text. Raises OSError, and ValueError if it is not UTF-8."""
    return read_bytes(path).decode("utf-8")


def write_whole(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a small file as a whole: under another name first. Raises OSError."""
    above, _, name = path.rpartition("/")
    temp = f"{above}/.{name}-{os.getpid()}" if above else f".{name}-{os.getpid()}"
    try:
        with new_file(temp, mode) as handle:
            handle.write(data)
            handle.flush()
            os.fdatasync(handle.fileno())
        os.replace(temp, path)  # noqa: PTH105 - see above
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temp)  # noqa: PTH108 - see above
        raise
