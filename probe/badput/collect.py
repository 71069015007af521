"""``badput collect``: turn spools that were left behind into Parquet parts."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput.copying import FOLDER, beats, is_copy, is_part, open_drain
from badput.neutral import emit, reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput.drain import Drain

_DESCRIPTION = """\
Turn spools that were left behind into Parquet parts.

A spool is what a training process recorded and no collector has put into its run folder yet:
after the whole container or node session was torn down, or when no collector could be
started. SPOOL_DIR is the spool root (by default badput-<uid> in the folder for temporary
files), one spool below it, or a run folder into which its ranks copied their spools
themselves. Spools of processes that still live are drained and kept; finished ones are
removed afterwards."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 0 fine, 1 something could not be drained, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="badput collect",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "spool root, one spool, or a run folder into which its ranks copied their spools"
    parser.add_argument("spool_dir", metavar="SPOOL_DIR", help=what)
    parser.add_argument(
        "--into", metavar="RUN", help="write here instead of the run folder that each spool names"
    )
    args = parser.parse_intermixed_args(sys.argv[1:] if argv is None else list(argv))
    folder = Path(args.spool_dir)
    if _holds_copies(folder):
        args.into = args.into or str(folder)
        folder /= FOLDER
    problem = _problem(folder)
    if problem:
        emit(f"badput collect: {problem}", sys.stderr)
        return 2
    spools = [folder] if (folder / "facts.json").exists() else _spools(folder)
    if not spools:
        emit(f"badput collect: no spools in {folder}; nothing to do")
        return 0
    outcomes = [_collect(spool, args.into) for spool in spools]
    return 0 if all(outcomes) else 1


def _holds_copies(folder: Path) -> bool:
    """Is it a run folder into which ranks copied their spools themselves?"""
    try:
        return (folder / FOLDER).is_dir()
    except OSError:
        return False


def _problem(folder: Path) -> str | None:
    try:
        if not folder.exists():
            return f"{folder} does not exist; give the spool root, such as /tmp/badput-1000"
        if not folder.is_dir():
            return f"{folder} is a file; give the folder that holds spools"
        list(folder.iterdir())
    except PermissionError:
        return f"{folder} cannot be read by this user; run it as the user that ran the training"
    except OSError as error:
        return f"{folder} cannot be read ({error.strerror})"
    known = (folder / "facts.json").exists() or (folder / "control").exists()
    names = [p.name for p in folder.iterdir()]
    others = [n for n in names if not _is_spool_name(n) and not n.startswith((".", "collector"))]
    if names and not known and others and not any(map(_is_spool_name, names)):
        return f"{folder} holds no spools; give the spool root, such as /tmp/badput-1000"
    return None


def _is_spool_name(name: str) -> bool:
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)


def _spools(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if _is_spool_name(p.name) and p.is_dir())


def _collect(path: Path, into: str | None) -> bool:
    """Drain one spool and say what was done; False if it could not be."""
    from badput.drain import BusyError
    from badput.reader import UnreadableError

    try:
        drain = open_drain(path, None if into is None else str(Path(into).absolute()))
    except BusyError:
        emit(f"{path.name}: a collector is at work on it; left to it")
        return True
    except (UnreadableError, OSError) as error:
        return _say(f"{path.name}: {reason(error) if isinstance(error, OSError) else error}")
    except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
        return _damaged(path, error)
    if drain.note is not None:
        emit(drain.note)
    try:
        return _drained(path, drain)
    finally:
        drain.close()


def _drained(path: Path, drain: Drain) -> bool:
    from badput.reader import UnreadableError

    try:
        emit(_drain(drain))
    except UnreadableError as error:
        return _say(f"{path.name}: {error}; spool kept")
    except OSError as error:
        why = error.strerror or error
        return _say(f"{path.name}: cannot write to {drain.run} ({why}); spool kept")
    except Exception as error:  # noqa: BLE001 - one bad spool must not stop the others
        return _damaged(path, error)
    return True


def _damaged(path: Path, error: Exception) -> bool:
    text = f"its files make no sense ({type(error).__name__}: {error}); spool kept"
    return _say(f"{path.name}: {text}")


def _say(text: str) -> bool:
    emit(f"badput collect: {text}", sys.stderr)
    return False


def _root_of(facts: dict[str, Any]) -> str:
    """The spool root of the process, as far as a copy of its facts tells it."""
    root = facts.get("spool_root")
    return shlex.quote(root) if isinstance(root, str) else "SPOOL_ROOT"


def _drain(drain: Drain) -> str:
    from badput import identity
    from badput.watch import Watch

    facts = drain.facts
    here = (
        facts["process"].get("boot_id") == identity.boot_id()
        and facts.get("pid_namespace") == identity.pid_namespace()
    )
    watch = Watch(facts, drain.reader.control_fd(), here)
    closed = drain.reader.writer()[2]
    # Of a process on another node a copy that was renewed a moment ago says that it lives.
    dead = watch.dead() and (here or not beats(str(drain.path)))
    count = drain.drain(writer_dead=dead)
    text = f"{drain.path.name}: {count} records into {drain.run}"
    if dead or closed:
        part = is_part(str(drain.path)) and not closed
        end = drain.finish(watch.status(), None, {"copy": True} if part else None)
        copied = is_copy(str(drain.path))
        drain.remove()
        if copied:
            with contextlib.suppress(OSError):  # others are in it
                drain.path.parent.rmdir()
        text += f"; the process ended ({end['reason']}) in phase {end['phase']}"
        if part:
            text += (
                "; what it recorded after its last copy is still in the spool of its node, which "
                f"the next collector there adds, or there: badput collect {_root_of(facts)}"
            )
    else:
        text += f"; pid {facts['process']['pid']} still runs, its spool stays"
    watch.close()
    return f"{text}; {len(drain.written)} parts written"
