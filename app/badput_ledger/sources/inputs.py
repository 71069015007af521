"""What the user gave to ``badput import``: which files, of which format, and where to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from badput.parts import is_run
from badput_ledger.sources import FORMATS
from badput_ledger.sources.attempts import BadLogError, reason
from badput_ledger.sources.text import TextLog, excerpt, is_binary

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = ".log, .txt, .out, .err or .gz"
_LOG_NAME = re.compile(r".*\.(?:(?:log|txt|out|err)(?:[.-]\d[-_.\dT]*)?|gz)")


def out_folder(name: str) -> Path:
    """The folder for run folders, made if absent. Raises BadLogError if it cannot be one."""
    out, shown = Path(name), excerpt(name, 4096)
    if not name or "\0" in name:
        raise BadLogError(f"-o {shown!r} is no folder; give one for the run folders")
    try:
        for above in (out, *out.absolute().parents):
            if is_run(above):
                raise BadLogError(
                    f"{shown}: is a run folder, or lies in one ({excerpt(str(above), 4096)}); "
                    "-o needs a folder that holds runs"
                )
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadLogError(
            f"{shown}: is a file, or lies below one; -o needs a folder for the run folders"
        ) from None
    except OSError as error:
        raise BadLogError(f"{shown}: {reason(error)}; give another folder with -o") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadLogError(f"{shown}: no permission to write there; give another folder with -o")
    return out


def find_logs(
    names: Sequence[str], wanted: str | None
) -> tuple[list[tuple[str, TextLog]], list[str]]:
    """(format, log) for every readable log, and one sentence for each that is not."""
    logs: list[tuple[str, TextLog]] = []
    problems: list[str] = []
    seen: set[tuple[int, int]] = set()
    for name in names:
        try:
            expanded, unreadable = _expand(name)
            problems += unreadable
        except (BadLogError, OSError) as error:
            problems.append(_sentence(name, error))
            continue
        for log in expanded:
            try:
                status = log.path.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue  # the same file twice would be a run trained twice
                seen.add((status.st_dev, status.st_ino))
                logs.append((wanted or _format_of(log), log))
            except (BadLogError, OSError) as error:
                problems.append(_sentence(log.name, error))
    return logs, problems


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{excerpt(name, 4096)}: {reason(error)}"
    return str(error)


def _expand(name: str) -> tuple[list[TextLog], list[str]]:
    """The log files that ``name`` means: itself, or those of a folder that some format knows.

    And one sentence for each file of a folder that cannot be read. Raises BadLogError, OSError.
    """
    path, shown = Path(name), excerpt(name, 4096)
    if not name or "\0" in name:
        raise BadLogError(f"{shown!r} is no file; give a log file or a folder of logs")
    status = path.stat() if path.exists() or path.is_symlink() else None
    if status is None:
        raise BadLogError(f"{shown}: no such file or folder")
    if path.is_file():
        if status.st_size == 0:
            raise BadLogError(f"{shown}: the file is empty")
        return [TextLog(path)], []
    if not path.is_dir():
        raise BadLogError(f"{shown}: not a regular file; save the log to a file first")
    files = sorted(p for p in path.iterdir() if _LOG_NAME.fullmatch(p.name) and p.is_file())
    found: list[TextLog] = []
    problems: list[str] = []
    for log in map(TextLog, files):
        try:
            if _best(log.head())[1] > 0:
                found.append(log)
        except OSError as error:
            problems.append(_sentence(log.name, error))
    if not found and not problems:
        raise BadLogError(
            f"{shown}: none of its {len(files)} log files ({_KINDS}) "
            f"is of a known format ({', '.join(FORMATS)})"
        )
    return found, problems


def _best(head: bytes) -> tuple[str, float]:
    scores = {name: form.sniff(head) for name, form in FORMATS.items()}
    name = max(scores, key=lambda n: scores[n])
    return name, scores[name]


def _format_of(log: TextLog) -> str:
    """The format that fits best. Raises BadLogError if none does, saying what was seen."""
    head = log.head()
    name, score = _best(head)
    if score > 0:
        return name
    known = ", ".join(FORMATS)
    if not head:
        raise BadLogError(f"{log.name}: nothing in it, or its compressed data are damaged")
    if is_binary(head):
        raise BadLogError(f"{log.name}: this is binary data, no text log (formats: {known})")
    lines = [line for line in head.split(b"\n") if line.strip()]
    sample = excerpt(log.clean(lines[len(lines) // 2][:400]).strip(), 100) if lines else ""
    raise BadLogError(
        f"{log.name}: 0 of its first {len(lines)} lines are of a known format ({known}); "
        f"a line in it: {sample!r}; --format NAME insists"
    )
