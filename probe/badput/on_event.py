"""Running a command of the user's own when something happens to a run.

The command comes from the environment or the command line of the process that runs it, never
from a run or a spool. It is started without a shell, as the same user, gets the event as JSON on
its standard input and in BADPUT_EVENT_* variables, and is ended after 30 seconds. Of a kind and
run at most one is started in five minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput.event_text import kind_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from badput.collector import Tended

KINDS = ("hang", "restart", "failure")
TIMEOUT_S = 30.0
PAUSE_S = 300.0
"""Time between two commands for the same kind of event of the same run."""
GOODPUT_S = 300.0
"""Time between two looks at the goodput of a run."""
GOODPUT_STEPS = 20
"""Steps in the books before their goodput is held against anything: a launch keeps nothing yet."""
_WAITING = 16
_MAX_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a command is for."""

    kinds: frozenset[str]
    goodput: float | None = None
    """Below which share of kept time; None: not asked for."""

    @staticmethod
    def parse(text: str) -> Wanted:
        """Kinds such as ``hang,restart,failure,goodput<0.8``. Raises ValueError with a sentence."""
        kinds: set[str] = set()
        goodput: float | None = None
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, less, number = part.partition("<")
            if less and name.strip() == "goodput":
                try:
                    goodput = float(number)
                except ValueError:
                    goodput = -1.0
                if not 0 < goodput <= 1:
                    raise ValueError(f"{part!r}: give a share between 0 and 1, as in goodput<0.8")
            elif part in KINDS:
                kinds.add(part)
            else:
                raise ValueError(
                    f"{part!r} is no event; give some of {', '.join(KINDS)}, goodput<0.8"
                )
        return Wanted(frozenset(kinds), goodput)


def parse_command(text: str) -> list[str]:
    """The words of a command. Raises ValueError with a sentence."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command {text!r} cannot be split into words: {error}") from error
    if not words:
        raise ValueError("the command is empty")
    return words


class Runner:
    """Starts the command, one at a time, and ends one that takes too long. Never waits."""

    def __init__(self, command: list[str], wanted: Wanted, log: Callable[[str], None]) -> None:
        self._command, self._log = command, log
        self.wanted = wanted
        self.program = command[0]
        self.last_code: int | None = None
        """How the last command ended; -1: it took too long, 127: it could not be started."""
        self._queue: deque[dict[str, Any]] = deque(maxlen=_WAITING)
        self._last: dict[tuple[str, str], float] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._until = 0.0

    def offer(self, kind: str, run: str, event: Mapping[str, Any]) -> None:
        """Something happened: ``kind`` is one of KINDS or ``goodput``."""
        if kind != "goodput" and kind not in self.wanted.kinds:
            return
        now, key = time.monotonic(), (kind, run)
        if now - self._last.get(key, -PAUSE_S) < PAUSE_S:
            return
        self._last[key] = now
        self._queue.append({"kind": kind, "run": run, **event})

    def poll(self) -> bool:
        """Start what waits, end what takes too long; True while there is something to do."""
        child = self._child
        if child is not None:
            code = child.poll()
            if code is None and time.monotonic() < self._until:
                return True
            if code is None:
                self._log(f"on-event: {self._command[0]} took longer than {TIMEOUT_S:.0f} s: ended")
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                code = -1
            elif code:
                self._log(f"on-event: {self._command[0]} ended with code {code}")
            self._child, self.last_code = None, code
        if self._queue:
            self._start(self._queue.popleft())
        return self._child is not None or bool(self._queue)

    def _start(self, event: dict[str, Any]) -> None:
        text = json.dumps(event)
        if len(text) > _MAX_BYTES:  # it must fit into the pipe: nobody may wait for a reader
            event = {k: v for k, v in event.items() if k != "attrs"}
            text = json.dumps(event)[:_MAX_BYTES]
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                stderr=sys.stderr,
                start_new_session=True,
                env={**os.environ, **_variables(event)},
            )
        except OSError as error:
            self._log(f"on-event: {self._command[0]} cannot be started: {error.strerror}")
            self.last_code = 127
            return
        self._child, self._until = child, time.monotonic() + TIMEOUT_S
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.write(text.encode())
            with contextlib.suppress(OSError):
                child.stdin.close()
        self._log(f"on-event: started {self._command[0]} for {event['kind']} of {event['run']}")

    def finish(self) -> None:
        """Start what waits and wait for it, as long as a command may take."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.poll() and time.monotonic() < deadline:
            time.sleep(0.05)


def _variables(event: Mapping[str, Any]) -> dict[str, str]:
    """BADPUT_EVENT_KIND, _RUN, _RANK, _STEP, _WHAT and so on: printable, one line each."""
    found: dict[str, str] = {}
    for name, value in event.items():
        if isinstance(value, (str, int, float)):
            text = "".join(c if c.isprintable() else " " for c in str(value))[:1000]
            found[f"BADPUT_EVENT_{name.upper()}"] = text.encode(errors="replace").decode()
    return found


class Goodput:
    """Asks `badput report` for the share of kept time of a run, beside what else goes on."""

    def __init__(self, run: str) -> None:
        """Start asking. Raises OSError."""
        self._until = time.monotonic() + 120.0
        self._child = subprocess.Popen(
            [sys.executable, "-m", "badput.cli", "report", run, "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._out, self._err = b"", b""

    def done(self) -> bool:
        """True once there is an answer."""
        code = self._child.poll()
        self._out += _available(self._child.stdout)
        self._err += _available(self._child.stderr)
        if code is None and time.monotonic() > self._until:
            self._child.kill()
            self._child.wait()
            return True
        return code is not None

    def result(self) -> dict[str, Any]:
        """``kept_time`` and ``goodput`` (0 to 1, None if unknown), and ``why`` where unknown.

        ``steps``: how many were executed so far, None if unknown.
        """
        for pipe in (self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()
        try:
            report: dict[str, dict[str, Any] | None] = json.loads(self._out)
            found = {n: (report.get(n) or {}).get("value") for n in ("kept_time", "goodput")}
            found["steps"] = (report.get("steps") or {}).get("executed")
        except (ValueError, AttributeError):
            lines = self._err.decode(errors="replace").strip().splitlines()
            unknown = dict.fromkeys(("kept_time", "goodput", "steps"))
            return {**unknown, "why": lines[-1] if lines else "no answer"}
        return {**found, "why": None}


def _available(pipe: Any) -> bytes:
    """What can be read from a pipe without waiting."""
    found = b""
    with contextlib.suppress(OSError, ValueError):
        while piece := pipe.read(1 << 16):
            found += piece
    return found


STATE_FILE = "on-event.json"
"""In the spool root: which command the collector that runs there was given, and how it did."""


def write_state(root: Path, said: Mapping[str, Any]) -> None:
    """Say for others which command is run; what cannot be written is left out."""
    with contextlib.suppress(OSError):
        temp = root / f".{STATE_FILE}-{os.getpid()}"
        temp.write_text(json.dumps({"pid": os.getpid(), **said}), encoding="utf-8")
        temp.replace(root / STATE_FILE)


def command_of(root: Path) -> dict[str, Any] | None:
    """What the running collector of ``root`` does on events; None where none runs or says it.

    ``command``: its program, None if it was given none; ``on``: for which kinds; ``last_code``:
    how the last one ended (-1: ended by us, None: none was started); ``mine``: what this
    process's own environment holds, which the collector of another job has not seen.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        said: dict[str, Any] = json.loads((root / STATE_FILE).read_text(encoding="utf-8"))
        words = _bytes_of(f"/proc/{int(said['pid'])}/cmdline").split(b"\0")
        if b"badput.collector" not in words:
            return None
        code = said.get("last_code")
        return {
            "command": None if said.get("command") is None else str(said["command"]),
            "on": list(map(str, said.get("on") or [])),
            "last_code": code if isinstance(code, int) else None,
            "mine": os.environ.get("BADPUT_ON_EVENT") or None,
        }
    return None


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as handle:
        return handle.read()


class OnEvents:
    """The duty: runs BADPUT_ON_EVENT for events of the ranks of this node."""

    name = "on-event"

    def __init__(self, root: Path, log: Callable[[str], None]) -> None:
        """Raises ValueError where the environment makes no sense."""
        on = os.environ.get("BADPUT_ON") or ",".join(KINDS)
        try:
            wanted = Wanted.parse(on)
        except ValueError as error:
            raise ValueError(f"BADPUT_ON={on[:80]!r} makes no sense: {error}") from error
        self._root = root
        self._told: int | None = None
        self._runner = Runner(parse_command(os.environ["BADPUT_ON_EVENT"]), wanted, log)
        self._log = log
        self._read: dict[str, tuple[Tended, int]] = {}
        self._ranks: dict[tuple[str, int | None], int] = {}
        self._asked: dict[str, float] = {}
        self._asking: dict[str, Goodput] = {}
        self._tell()

    def _tell(self) -> None:
        self._told, wanted = self._runner.last_code, self._runner.wanted
        kinds = sorted(wanted.kinds) + ([f"goodput<{wanted.goodput}"] if wanted.goodput else [])
        said = {"command": self._runner.program, "on": kinds, "last_code": self._told}
        write_state(self._root, said)

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Look for what is new."""
        for name, one in tended.items():
            if name not in self._read:
                if one.drain.path.exists() and one.drain.path.stat().st_uid != os.getuid():
                    continue
                self._read[name] = (one, 0)
                self._began(one)
            self._events(name)
        for name in self._read.keys() - tended.keys():
            self._events(name)
            del self._read[name]
        if self._runner.wanted.goodput is not None:
            self._goodput({t.drain.run for t in tended.values()}, now)
        self._runner.poll()
        if self._runner.last_code != self._told:
            self._tell()

    def close(self) -> None:
        """See through what waits."""
        self._runner.finish()

    def _began(self, one: Tended) -> None:
        process = one.drain.facts["process"]
        if process.get("role") != "rank":
            return
        key = (one.drain.run, process.get("rank"))
        before = self._ranks.get(key)
        self._ranks[key] = int(process["init_ns"])
        attempt = process.get("attempt") or 0
        if before is not None or attempt:
            event = {"rank": key[1], "host": process.get("host"), "time_ns": process["init_ns"]}
            what = f"rank {key[1]} started again" + (f" (attempt {attempt})" if attempt else "")
            self._runner.offer("restart", one.drain.run, {**event, "what": what})

    def _events(self, name: str) -> None:
        one, count = self._read[name]
        written = one.drain.written
        self._read[name] = (one, len(written))
        for path in written[count:]:
            if path.parent.name == "events":
                self._part(one, path)

    def _part(self, one: Tended, path: Path) -> None:
        from badput.parts import part_rows

        try:
            rows = part_rows(path, "events")
        except FileNotFoundError:  # compacted away
            return
        for row in rows:
            attrs: dict[str, Any] = json.loads(row["attrs"] or "{}")
            kind = kind_of(row["kind"], attrs)
            if kind is not None:
                host = one.drain.facts["process"].get("host")
                self._runner.offer(kind, one.drain.run, told(row, attrs, host))

    def _goodput(self, runs: set[str], now: float) -> None:
        for run in runs:
            if now - self._asked.get(run, -GOODPUT_S) >= GOODPUT_S and run not in self._asking:
                self._asked[run] = now
                self._asking[run] = Goodput(run)
        for run, asking in list(self._asking.items()):
            if asking.done():
                del self._asking[run]
                low(self._runner, run, asking.result(), self._log)


def low(
    runner: Runner, run: str, found: Mapping[str, Any], log: Callable[[str], None] | None
) -> None:
    """Offer an event if the share of kept time is below what was asked for.

    Not before GOODPUT_STEPS steps are in the books.
    """
    value, least = found["kept_time"], runner.wanted.goodput
    if value is None and log is not None:
        log(f"on-event: the goodput of {run} is not known: {found['why']}")
    early = (found["steps"] or 0) < GOODPUT_STEPS
    if value is not None and least is not None and value < least and not early:
        what = f"{value:.1%} of the time so far is kept, less than {least:.1%}"
        runner.offer("goodput", run, {"what": what, "kept_time": value})
