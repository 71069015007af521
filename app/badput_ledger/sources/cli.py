"""``badput import``: make run folders from the logs that a run left."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from badput_ledger.sources import FORMATS
from badput_ledger.sources.attempts import Options, Unread
from badput_ledger.sources.facts import Written, write_run
from badput_ledger.sources.text import TextLog, excerpt, is_binary

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz")
_DESCRIPTION = """\
Reads the logs that a training run left and writes one run folder for each run it finds
in them. Several files given together are ordered by time and may be parts of one run.
Formats: {formats}. What a claim rests on is kept as file and line."""
_EPILOG = """\
examples:
  badput import train.log -o runs
  badput import node0/*.log -o runs --price 2.5 --name llama-7b
then: badput report runs/NAME"""


class BadLogError(Exception):
    """Bad input; the message is one sentence for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``badput import`` and return its exit code: 0 fine, 2 bad usage or input."""
    args = _parser().parse_args(argv)
    try:
        out = _out_folder(Path(args.out))
        logs, problems = _logs(args.logs, args.format)
    except BadLogError as error:
        print(f"badput import: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(f"badput import: {problem}", file=sys.stderr)
    options = Options(args.gpus, args.gpu_type, args.tokens_per_step, args.price, args.name)
    runs: list[tuple[str, Written]] = []
    unread: list[Unread] = []
    failed = bool(problems)
    progress = _Progress(logs) if sys.stderr.isatty() else None
    for name, group in _by_format(logs).items():
        try:
            parsed = FORMATS[name].parse(group, options)
            unread += parsed.unread
            if not parsed.runs:
                failed = True
                _say(progress, f"no run found in {_names(group)}, read as {name}")
            runs += [(name, write_run(run, name, out, options)) for run in parsed.runs]
        except OSError as error:
            failed = True
            _say(progress, f"{error.filename or _names(group)}: {_reason(error)}")
    if progress is not None:
        progress.close()
    _print(runs, unread, as_json=args.json)
    return 2 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="badput import",
        description=_DESCRIPTION.format(formats=", ".join(FORMATS)),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="log file (also .gz) or folder of logs"
    )
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="where run folders go")
    parser.add_argument("--format", choices=sorted(FORMATS), help="do not guess the format")
    parser.add_argument("--gpus", type=_count, metavar="N", help="GPUs, if the log does not say")
    parser.add_argument("--gpu-type", metavar="T", help="GPU name, if the log does not say")
    parser.add_argument(
        "--tokens-per-step", type=_count, metavar="N", help="tokens of a step over all GPUs"
    )
    parser.add_argument("--price", type=_price, metavar="X", help="price of a GPU-hour")
    parser.add_argument("--name", metavar="N", help="name of the run")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 1 << 53:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return value


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no price; give a number such as 2.5")
    return value


def _out_folder(out: Path) -> Path:
    """``out``, made if absent. Raises BadLogError if nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadLogError(
            f"{out}: is a file, or lies below one; -o needs a folder for the run folders"
        ) from None
    except OSError as error:
        raise BadLogError(f"{out}: {_reason(error)}; give another folder with -o") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadLogError(f"{out}: no permission to write there; give another folder with -o")
    return out


def _logs(names: Sequence[str], wanted: str | None) -> tuple[list[tuple[str, TextLog]], list[str]]:
    """(format, log) for every readable log, and one sentence for each that is not.

    Raises BadLogError if nothing at all can be imported.
    """
    logs: list[tuple[str, TextLog]] = []
    problems: list[str] = []
    seen: set[tuple[int, int]] = set()
    for name in names:
        try:
            for log in _expand(Path(name)):
                status = log.path.stat()
                if (status.st_dev, status.st_ino) in seen:
                    continue  # the same file twice would be a run trained twice
                seen.add((status.st_dev, status.st_ino))
                logs.append((wanted or _format_of(log), log))
        except BadLogError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{error.filename or name}: {_reason(error)}")
    if not logs:
        raise BadLogError("; ".join(problems))
    return logs, problems


def _expand(path: Path) -> list[TextLog]:
    """The log files that ``path`` names: itself, or those of a folder that some format knows."""
    if not path.exists():
        raise BadLogError(f"{path}: no such file or folder")
    if path.is_file():
        if path.stat().st_size == 0:
            raise BadLogError(f"{path}: the file is empty")
        return [TextLog(path)]
    if not path.is_dir():
        raise BadLogError(f"{path}: not a regular file; save the log to a file first")
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix in _SUFFIXES)
    found = [log for log in map(TextLog, files) if _best(log.head())[1] > 0]
    if not found:
        known = ", ".join(FORMATS)
        raise BadLogError(
            f"{path}: none of its {len(files)} log files ({', '.join(_SUFFIXES)}) "
            f"is of a known format ({known})"
        )
    return found


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
        raise BadLogError(f"{log.path}: nothing in it, or its compressed data are damaged")
    if is_binary(head):
        raise BadLogError(f"{log.path}: this is binary data, no text log (formats: {known})")
    lines = [line for line in head.split(b"\n") if line.strip()]
    sample = excerpt(log.clean(lines[len(lines) // 2][:400]).strip(), 100) if lines else ""
    raise BadLogError(
        f"{log.path}: 0 of its first {len(lines)} lines are of a known format ({known}); "
        f"a line in it: {sample!r}; --format NAME insists"
    )


def _by_format(logs: Sequence[tuple[str, TextLog]]) -> dict[str, list[TextLog]]:
    groups: dict[str, list[TextLog]] = {}
    for name, log in logs:
        groups.setdefault(name, []).append(log)
    return groups


def _names(logs: Sequence[TextLog]) -> str:
    return ", ".join(log.name for log in logs)


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


class _Progress:
    """Megabytes read, on one line of the terminal."""

    def __init__(self, logs: Sequence[tuple[str, TextLog]]) -> None:
        self.done = 0
        self.shown = 0
        for _, log in logs:
            log.on_bytes = self.more

    def more(self, count: int) -> None:
        """Another block was read."""
        self.done += count
        if self.done - self.shown >= 32 << 20:
            self.shown = self.done
            print(f"\rread {self.done >> 20} MiB", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the line away again."""
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _say(progress: _Progress | None, sentence: str) -> None:
    if progress is not None:
        progress.close()
    print(f"badput import: {sentence}", file=sys.stderr)


def _print(runs: list[tuple[str, Written]], unread: list[Unread], *, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {"runs": [_as_json(f, w) for f, w in runs], "unread": [_unread(u) for u in unread]}
            )
        )
        return
    for name, run in runs:
        gpu = f"{run.gpus} x {run.gpu_type or 'GPU of unknown type'}"
        print(f"{run.name}: {name}, {run.sessions} sessions, {run.steps} steps, {gpu}")
        for file, line, text in run.restarts:
            print(f"  restart {file}:{line}  {excerpt(text, 80)}")
        for note in run.notes:
            print(f"  note: {note}")
        print(f"  next: badput report {run.path}")
    for item in unread:
        where = f"{item.file}:{item.line}" if item.line is not None else item.file
        print(f"unread: {where}: {item.what}")


def _as_json(name: str, run: Written) -> dict[str, object]:
    return {
        "path": str(run.path),
        "id": run.id,
        "format": name,
        "name": run.name,
        "sessions": run.sessions,
        "steps": run.steps,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "gpus": run.gpus,
        "gpu_type": run.gpu_type,
        "restarts": [{"file": f, "line": n, "text": t} for f, n, t in run.restarts],
        "notes": run.notes,
    }


def _unread(item: Unread) -> dict[str, object]:
    return {"file": item.file, "line": item.line, "what": item.what}


if __name__ == "__main__":
    sys.exit(main())
