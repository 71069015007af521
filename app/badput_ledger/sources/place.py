"""Putting a run folder in its place, whole or not at all, whenever the importer is killed.

The folder is built beside its place under a hidden name and put there by one call of the
kernel: a rename where nothing was, an exchange of the two names where an older import of
the run lies. So at every moment the place holds a whole run, or nothing if there was none.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_NO_SUCH_CALL = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}
)


@contextmanager
def building(folder: Path, name: str) -> Generator[Path]:
    """A folder to fill, which becomes ``folder/name`` if the body ends well.

    What killed importers of this run left is removed first. Raises OSError; then what was
    at ``folder/name`` is still there.
    """
    _clear(folder, name)
    build, lock = _own(folder, name)
    try:
        yield build
        put(build, folder / name)
    finally:
        shutil.rmtree(build, ignore_errors=True)
        os.close(lock)


def put(build: Path, target: Path) -> None:
    """Make ``build`` be ``target``. An older ``target`` is removed afterwards. Raises OSError."""
    for _ in range(100):  # another importer may make or remove the target in between
        try:
            if target.is_symlink() or (target.exists() and not target.is_dir()):
                raise NotADirectoryError(errno.ENOTDIR, "is in the way of a run folder", target)
            flag = _EXCHANGE if target.exists() else _NOREPLACE
            _rename(build, target, flag)
        except FileExistsError:
            continue
        except FileNotFoundError:
            if not build.exists():
                raise
            continue
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
            _step_aside(build, target)
        return
    raise FileExistsError(errno.EEXIST, "another importer keeps changing it", str(target))


def _rename(source: Path, target: Path, flags: int) -> None:
    """``renameat2``: atomic also where both names exist. Raises OSError, ENOSYS without it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    call.restype = ctypes.c_int
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _step_aside(build: Path, target: Path) -> None:
    """Where the kernel or the file system cannot exchange: the old one steps aside first and
    comes back if the second rename fails. A kill just between the two leaves it aside."""
    if not target.exists():
        build.rename(target)
        return
    aside = build.with_name(build.name + ".old")
    target.rename(aside)
    try:
        build.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _own(folder: Path, name: str) -> tuple[Path, int]:
    """A fresh hidden folder, and the lock that shows that its maker lives."""
    for count in range(100):
        build = folder / f".{name}.{os.getpid()}-{count}"
        try:
            build.mkdir(parents=True)
        except FileExistsError:
            continue
        lock = os.open(build, os.O_RDONLY | os.O_DIRECTORY)
        try:
            mine = _locked(lock) and build.stat().st_ino == os.fstat(lock).st_ino
        except FileNotFoundError:
            mine = False  # another importer took it for an abandoned one
        except OSError:
            mine = True  # a file system without locks: there nothing is ever cleared
        if mine:
            return build, lock
        os.close(lock)
    raise FileExistsError(errno.EEXIST, "too many unfinished imports; remove them", str(folder))


def _clear(folder: Path, name: str) -> None:
    """Remove what importers of this run left that are no longer alive.

    If one of them was killed while the run stood aside, the run comes back.
    """
    try:
        found = [p for p in folder.iterdir() if p.name.startswith(f".{name}.")]
    except OSError:
        return
    for path in found:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _locked(lock):
                if path.name.endswith(".old") and not (folder / name).exists():
                    path.rename(folder / name)
                else:
                    shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # another importer was faster
        finally:
            os.close(lock)


def _locked(lock: int) -> bool:
    """Take the lock of an open folder; False if another process holds it. Raises OSError."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
