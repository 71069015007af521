"""``badput import``: make run folders from the logs that a run left."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from badput_ledger.sources import FORMATS
from badput_ledger.sources.attempts import (
    LARGEST,
    LONGEST_STEP,
    MOST_GPUS,
    BadLogError,
    Options,
    Unread,
    reason,
)
from badput_ledger.sources.facts import Written, write_run
from badput_ledger.sources.inputs import find_logs, out_folder
from badput_ledger.sources.text import TextLog, excerpt
from badput_ledger.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Reads the logs that a training run left and writes one run folder for each run it finds
in them. Several files given together are ordered by time and may be parts of one run.
Formats: {formats}. What a claim rests on is kept as file and line."""
_EPILOG = """\
examples:
  badput import train.log -o runs
  badput import node0/*.log -o runs --price 2.5 --name llama-7b
then: badput report runs/NAME"""


@dataclass
class _Result:
    """What one import did."""

    runs: list[tuple[str, Written]] = field(default_factory=list[tuple[str, Written]])
    unread: list[Unread] = field(default_factory=list[Unread])
    errors: list[str] = field(default_factory=list[str])


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``badput import`` and return its exit code: 0 all was read, 2 something was not."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser().parse_intermixed_args(words)
    except SystemExit as stop:
        if stop.code == 2 and "--json" in words:  # whoever reads the output gets what it expects
            _print(_Result(errors=["bad usage"]), as_json=True)
        raise
    result = _Result()
    progress = _Progress()
    try:
        _import(args, result, progress)
    except BadLogError as error:
        result.errors.append(str(error))
    progress.close()
    for sentence in result.errors:
        print(f"badput import: {sentence}", file=sys.stderr)
    _print(result, as_json=args.json)
    return 2 if result.errors else 0


def _import(args: argparse.Namespace, result: _Result, progress: _Progress) -> None:
    """Read and write everything that can be. Raises BadLogError if nothing can."""
    out = out_folder(args.out)
    logs, result.errors[:] = find_logs(args.logs, args.format)
    if sys.stderr.isatty():
        progress.watch(logs)
    name = None if args.name is None else excerpt(args.name, 200)
    gpu_type = None if args.gpu_type is None else excerpt(args.gpu_type, 100)
    options = Options(args.gpus, gpu_type, args.tokens_per_step, args.price, name, args.step_time)
    for form, group in _by_format(logs).items():
        try:
            parsed = FORMATS[form].parse(group, options)
        except BadLogError as error:
            result.errors.append(str(error))
            continue
        result.unread += parsed.unread
        result.errors += parsed.refused
        if not parsed.runs and not parsed.refused:
            names = ", ".join(log.name for log in group)
            result.errors.append(f"no run found in {names}, read as {form}")
        for run in parsed.runs:
            try:
                result.runs.append((form, write_run(run, form, out, options)))
            except OSError as error:
                where = excerpt(str(error.filename or args.out), 4096)
                result.errors.append(f"{where}: {reason(error)}; run {run.name} was not written")


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
    parser.add_argument("--gpus", type=_gpus, metavar="N", help="GPUs, if the log does not say")
    parser.add_argument("--gpu-type", metavar="T", help="GPU name, if the log does not say")
    parser.add_argument(
        "--tokens-per-step", type=_count, metavar="N", help="tokens of a step over all GPUs"
    )
    parser.add_argument(
        "--step-time",
        type=_seconds,
        metavar="S",
        help="seconds of an undisturbed step, for definitions that need a reference",
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
    if not 0 < value < LARGEST:
        raise argparse.ArgumentTypeError(f"{excerpt(text, 40)!r} is no whole number above 0")
    return value


def _gpus(text: str) -> int:
    value = _count(text)
    if value > MOST_GPUS:
        raise argparse.ArgumentTypeError(f"{value} GPUs are more than {MOST_GPUS}")
    return value


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no price; give a number such as 2.5")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < LONGEST_STEP:
        raise argparse.ArgumentTypeError(
            f"{excerpt(text, 40)!r} is no time of a step; give seconds such as 8 or 0.25"
        )
    return value


def _by_format(logs: Sequence[tuple[str, TextLog]]) -> dict[str, list[TextLog]]:
    groups: dict[str, list[TextLog]] = {}
    for name, log in logs:
        groups.setdefault(name, []).append(log)
    return groups


class _Progress:
    """Megabytes read, on one line of the terminal."""

    def __init__(self) -> None:
        self.done = 0
        self.shown = 0

    def watch(self, logs: Sequence[tuple[str, TextLog]]) -> None:
        """Count what is read of ``logs``."""
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


def _print(result: _Result, *, as_json: bool) -> None:
    if as_json:
        reply = {
            "runs": [_as_json(form, run) for form, run in result.runs],
            "unread": [_unread(item) for item in result.unread],
            "errors": result.errors,
        }
        print(json.dumps(reply))
        return
    for form, run in result.runs:
        gpu = f"{run.gpus} x {run.gpu_type or 'GPU of unknown type'}"
        name = excerpt(run.name, 200)
        print(
            f"{name}: {form}, {plural(run.sessions, 'session')}, {plural(run.steps, 'step')}, {gpu}"
        )
        for file, line, text in run.restarts[:20]:
            print(f"  restart {file}:{line}  {excerpt(text, 80)}")
        if len(run.restarts) > 20:
            print(f"  and {plural(len(run.restarts) - 20, 'more restart')}")
        for note in run.notes:
            print(f"  note: {note}")
        print(f"  next: badput report {excerpt(str(run.path), 4096)}")
    for item in result.unread:
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
