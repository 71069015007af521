"""``badput status``: how runs stand right now, for the person on call."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput.event_text import kind_of, told
from badput.neutral import emit, fit
from badput.on_event import (
    KINDS,
    Goodput,
    Runner,
    Wanted,
    command_of,
    low,
    parse_command,
)
from badput.parts import is_run
from badput.spool import default_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput.live import Live
    from badput.seen import Seen

_DESCRIPTION = """\
How runs stand right now: ranks, step, phase, step time, goodput so far, who is behind, restarts,
the last durable checkpoint and what is at risk, the newest events.

DIR is a run folder or a folder of runs. On the node where ranks run, what is shown is what they
do this instant, read from their spools; of ranks on other nodes it is as old as the newest parts
in the run folder. Exit codes: 0 fine, 1 something is hung, silent, dead or
has failed, 2 bad input."""
GOODPUT_S = 30.0
_BAD = ("hung", "dead", "silent")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="badput status",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", metavar="DIR", help="run folder, or a folder of runs")
    parser.add_argument(
        "--watch", nargs="?", type=_seconds, const=2.0, metavar="SECONDS",
        help="show again every SECONDS (2) until interrupted",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object (a line a look)")
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="worst ranks shown (8)")
    parser.add_argument(
        "--events", type=int, default=5, metavar="N", help="newest events shown (5)"
    )
    parser.add_argument("--spool", metavar="DIR", help="spool root, if not the usual one")
    parser.add_argument("--no-goodput", action="store_true", help="do not ask the books")
    parser.add_argument(
        "--on-event", metavar="CMD", help="with --watch: run CMD when something happens"
    )
    parser.add_argument(
        "--on", default=",".join(KINDS), metavar="LIST",
        help=f"when to run it: some of {', '.join(KINDS)}, goodput<0.8",
    )  # fmt: skip
    args = parser.parse_intermixed_args(sys.argv[1:] if argv is None else list(argv))
    try:
        runner = _runner(args)
        board = Board(Path(args.dir), Path(args.spool or default_root()), args)
        board.look()
    except ValueError as problem:
        emit(f"badput status: {problem}", sys.stderr)
        return 2
    if args.watch is None:
        board.wait_for_goodput()
        board.look_again()  # the books take seconds, and this instant is asked for
        board.show()
        return board.code
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            if runner is not None:
                board.offer(runner)
            board.show()
            _rest(args.watch, runner)
            board.look_again()
    if runner is not None:
        runner.finish()
    return board.code


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError("give seconds between 0.1 and 86400")
    return value


def _rest(seconds: float, runner: Runner | None) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if runner is not None:
            runner.poll()
        time.sleep(min(left, 0.2))


def _runner(args: argparse.Namespace) -> Runner | None:
    if args.on_event is None:
        return None
    if args.watch is None:
        raise ValueError("--on-event needs --watch; for unattended runs set BADPUT_ON_EVENT")

    def log(text: str) -> None:
        emit(f"badput status: {text}", sys.stderr)

    return Runner(parse_command(args.on_event), Wanted.parse(args.on), log)


class Board:
    """What is shown, look after look."""

    def __init__(self, folder: Path, root: Path, args: argparse.Namespace) -> None:
        self.folder, self.root, self.args = folder, root, args
        self.runs: dict[str, dict[str, Any]] = {}
        self.code = 0
        self._lost = ""
        self._seen: dict[str, Seen] = {}
        self._known: dict[str, set[tuple[int, int]]] = {}
        self._restarts: dict[str, int] = {}
        self._asking: dict[str, Goodput] = {}
        self._goodput: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, float] = {}

    def look(self) -> None:
        """Read everything anew. Raises ValueError with a sentence if there is no run."""
        from badput.copying import FOLDER
        from badput.live import live
        from badput.seen import Seen
        from badput.standing import standing

        lives = live(self.root)
        on_event = command_of(self.root)
        found = _runs(self.folder, lives)
        self.runs = {}
        for run in found:
            seen = self._seen.setdefault(run, Seen(Path(run)))
            seen.refresh()
            # A copy in the run folder is older than the spool: where both are here, that counts.
            mine = live(Path(run) / FOLDER) + [x for x in lives if x.run == run]
            for one in mine:
                seen.take(one)
            untended = str(self.root) if on_event is None else None
            now = standing(run, seen, mine, self.args.events, untended=untended)
            self._ask(run)
            now["goodput"] = self._goodput.get(run)
            now["on_event"] = on_event
            self.runs[run] = now
        bad = [r for r in self.runs.values() if any(r["ranks"][s] for s in _BAD)]
        wrong = any(r["state"] not in ("done", "running") for r in bad)
        wrong |= any(_failed(r) for r in self.runs.values())
        self.code = 1 if wrong else 0

    def look_again(self) -> None:
        """As ``look``; where there is nothing to read any more, or not now, that is said once."""
        try:
            self.look()
            self._lost = ""
        except ValueError as problem:
            self.runs, self.code = {}, 2
            if str(problem) != self._lost:
                self._lost = str(problem)
                emit(f"badput status: {problem}", sys.stderr)

    def _ask(self, run: str) -> None:
        if self.args.no_goodput:
            return
        asking = self._asking.get(run)
        if asking is not None and asking.done():
            self._goodput[run] = self._asking.pop(run).result()
            self._asked[run] = time.monotonic()
        due = time.monotonic() - self._asked.get(run, -GOODPUT_S) >= GOODPUT_S
        if asking is None and due and len(self._asking) < 4:
            self._asked[run] = time.monotonic()
            with contextlib.suppress(OSError):
                self._asking[run] = Goodput(run)

    def wait_for_goodput(self) -> None:
        """Wait for the books."""
        for run in self.runs:
            while not self.args.no_goodput and run not in self._goodput:
                self._ask(run)
                if run not in self._asking and run not in self._goodput:
                    break
                time.sleep(0.05)
            self.runs[run]["goodput"] = self._goodput.get(run)

    def offer(self, runner: Runner) -> None:
        """Hand what is new since the last look to the command."""
        for run, seen in self._seen.items():
            known = self._known.get(run)
            if known is not None:
                for key in sorted(seen.events.keys() - known):
                    row, attrs = seen.events[key], seen.attrs(seen.events[key])
                    kind = kind_of(row["kind"], attrs)
                    if kind is not None:
                        host = seen.processes.get(row["process_id"], {}).get("host")
                        runner.offer(kind, run, told(row, attrs, host))
            self._known[run] = set(seen.events)
            restarts = self.runs[run]["restarts"] if run in self.runs else 0
            if restarts > self._restarts.get(run, restarts):
                runner.offer("restart", run, {"what": f"{restarts} restarts so far"})
            self._restarts[run] = restarts
            if self._goodput.get(run) is not None:
                low(runner, run, self._goodput[run], None)

    def show(self) -> None:
        """Print how everything stands."""
        runs = [{**r, "worst": r["worst"][: max(0, self.args.ranks)]} for r in self.runs.values()]
        if not runs and not self.args.json:
            return  # what was said of it stays on the screen
        if self.args.json:
            print(json.dumps({"schema": "badput.status/1", "runs": runs}), flush=True)
            return
        from badput.status_text import render

        if self.args.watch is not None and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        print(fit("\n".join(render(run) for run in runs), sys.stdout), end="", flush=True)


def _failed(run: dict[str, Any]) -> bool:
    """Did a launcher's command fail before a rank was seen?"""
    said = run["launcher"]
    return run["state"] == "exited" and bool(said["exit_code"] or said["signal"])


def _runs(folder: Path, lives: list[Live]) -> list[str]:
    """The runs in ``folder``. Raises ValueError with a sentence."""
    own = os.path.abspath(folder)  # noqa: PTH100 - as init() makes it, links not followed
    recorded = {x.run for x in lives if x.run == own or x.run.startswith(own + "/")}
    if own in recorded:
        return [own]
    try:
        if is_run(folder) or (folder / "spools").is_dir():
            return [own]
        below = [p for p in folder.iterdir() if p.is_dir() and is_run(p)]
    except FileNotFoundError:
        below = []
        if not recorded:
            raise ValueError(f"{folder}: no such folder; give a run folder") from None
    except NotADirectoryError:
        raise ValueError(f"{folder} is a file; give a run folder or a folder of runs") from None
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error.strerror}") from None
    found = sorted({os.path.abspath(p) for p in below} | recorded)  # noqa: PTH100
    if not found:
        raise ValueError(f"{folder} is not the folder of a run and holds none")
    return found
