"""torchtitan logs: the trainer's own records, torchrun's agent lines, a wrapper's dates.

``parse`` reads the files in order of time, as one stream, and hands every line of interest
to one of the small readers below. What they know about an attempt while it is read is in
``titan_state.py``. docs/import.md says what each claim rests on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import Attempt, Mark, Options, Parsed, Said, Unread, split_runs
from badput_ledger.sources.clock import bracketed, stamp, yearless
from badput_ledger.sources.text import Wanted, excerpt
from badput_ledger.sources.titan_end import close_all
from badput_ledger.sources.titan_launch import Failure, number, real
from badput_ledger.sources.titan_state import LOOP_WORDS, Live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.text import TextLog

NAME = "torchtitan"

_RECORD = re.compile(
    r"(?:\[(?:rank|default)(\d+)\]: ?|(?<![^\s\]])(\d+): ?)?\[titan\] "
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - (\S+) - (INFO|WARNING|ERROR|CRITICAL|DEBUG) - "
)
_DATED = re.compile(rb"\[titan\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - ")
_AGENT = re.compile(
    r"([WEIC])(\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+) (\d+) \S*torch/distributed/(\S+?):\d+\] ?(.*)"
)
_WANTED = Wanted(
    always=(
        b"titan] ",
        b" torch/distributed/",
        b" site-packages/torch/distributed/",
        *(b"\n[" + c for c in (b"M", b"T", b"W", b"F", b"S", b"2")),  # [Mon .. or [2026-..
        b"OUT_DIR=",
        b"Error: ",
        b" Killed ",
    ),
    after={
        b"OUT_DIR=": (b"NGPU=", b"_BS="),
        b"failed (exitcode": (
            b"\n  time  ",
            b"\n  rank  ",
            b"\n  exitcode ",
            b"Root Cause",
            b"Exception: ",
        ),
    },
)
"""What is looked at; every other line costs next to nothing."""

_ERROR = re.compile(r"\s*(?:\[rank\d+\]: ?)*((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)): (.*)")
_KILLED = re.compile(r": line \d+: +(\d+) Killed ")
_REPORT = re.compile(r" +(time|rank|exitcode) +: (\S+)(?:.*\(pid: (\d+)\))?")
_SIGTERM = re.compile(r"Sending process (\d+) closing signal (\w+)")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_DEATH = re.compile(r"Received (\S+) death signal")
_ATTEMPT = re.compile(r"attempt #(\d+)", re.IGNORECASE)
_ATTEMPT_END = re.compile(
    r"attempt #(\d+)(?: done)? rc=(-?\d+)(?: last_step=(\d+))?", re.IGNORECASE
)
_JOB_END = re.compile(r"\b(end|done|ended|finished|success|reached|stopped|next)\b", re.IGNORECASE)
_JOB_START = re.compile(r"\bSTART\b|\bconfig=", re.IGNORECASE)
_SETTING = re.compile(r"\b([A-Z_]+)=(\S+)")
_FIELD = re.compile(r"(\w+):\s*([^\s(%]+)")


def sniff(head: bytes) -> float:
    """How surely ``head`` is a torchtitan log: 1 with a dated record, 0 without any mark."""
    if _DATED.search(head):
        return 1.0
    return 0.5 if b"torchtitan" in head and b"torch/distributed/" in head else 0.0


def parse(logs: Sequence[TextLog], options: Options) -> Parsed:
    """Every run in ``logs``. Raises OSError if a file cannot be read."""
    unread: list[Unread] = []
    times: list[tuple[int, int, TextLog]] = []
    for order, log in enumerate(logs):
        first = _first_time(log)
        if first is None:
            unread.append(Unread(log.name, None, "no dated torchtitan record in this file"))
        else:
            times.append((first, order, log))
    reader = _Reader(unread, options)
    for first, _, log in sorted(times, key=lambda t: t[:2]):
        reader.read(log, first)
    attempts = reader.finish()
    fallback = options.name or (logs[0].path.name.partition(".")[0] if logs else NAME)
    return Parsed(split_runs(attempts, fallback), unread)


def _first_time(log: TextLog) -> int | None:
    for _, text in log.select(Wanted((b"titan] ",))):
        if match := _RECORD.search(text):
            return stamp(match.group(3))
    return None


class _Reader:
    """The state over all files: the attempt that is under way and the one before."""

    def __init__(self, unread: list[Unread], options: Options) -> None:
        self.unread = unread
        self.options = options
        self.lives: list[Live] = []
        self.banner: tuple[int, Mark] | None = None
        self.new_job = True
        self.report: Failure | None = None
        self.rooted = False
        self.now = 0
        self.file = ""
        self.bad_steps = 0

    @property
    def live(self) -> Live | None:
        return self.lives[-1] if self.lives else None

    def read(self, log: TextLog, first: int) -> None:
        """Feed one file. ``first`` is its earliest certain time, for dates without a year."""
        self.file, self.now = log.name, first
        for line, text in log.select(_WANTED):
            if "[titan] " in text:
                self._records(line, text)
            elif text.startswith("["):
                self._bracket(line, text)
            elif match := _AGENT.match(text):
                self._agent(Mark(self.file, line, excerpt(text)), match)
            else:
                self._plain(line, text)
        if log.held_back is not None:
            self.unread.append(
                Unread(
                    log.name,
                    log.held_back,
                    "the last line has no newline: held back, it may be cut",
                )
            )
        if log.truncated:
            self.unread.append(Unread(log.name, log.lines or None, log.truncated))
        for count, what in (
            (log.bad_utf8, "lines with broken UTF-8, read with replacement characters"),
            (log.nuls, "NUL bytes, left out"),
            (log.long_lines, "lines longer than 1 MiB, cut there"),
        ):
            if count:
                self.unread.append(Unread(log.name, None, f"{count} {what}"))

    def finish(self) -> list[Attempt]:
        """Close every attempt, now that nothing can follow."""
        close_all(self.lives)
        if self.bad_steps > 1:
            self.unread.append(
                Unread(self.file, None, f"{self.bad_steps} step records not understood")
            )
        return self._once([live.attempt for live in self.lives])

    def _once(self, attempts: list[Attempt]) -> list[Attempt]:
        """Every attempt once, where two files hold the same part of a log: the longer copy."""
        best: dict[tuple[int, str, str | None], Attempt] = {}
        for attempt in attempts:
            key = (attempt.start, attempt.mark.text, attempt.home)
            other = best.get(key)
            if other is not None:
                what = f"this attempt is also in {other.mark.file}:{other.mark.line}; counted once"
                self.unread.append(Unread(attempt.mark.file, attempt.mark.line, what))
            if other is None or len(attempt.steps) > len(other.steps):
                best[key] = attempt
        return list(best.values())

    # -- attempts -----------------------------------------------------------------

    def _open(
        self, time: int, mark: Mark, num: int | None = None, *, same_job: bool = False
    ) -> Live:
        live = self.live
        start, start_mark = time, mark
        banner = self.banner if self.banner is not None and self.banner[0] <= time else None
        if (
            live is None
            or self.new_job
            or self._counts_anew(live, num)
            or not (
                same_job
                or live.attempt.job.dated  # with no wrapper, each launch is a job of its own
            )
        ):
            fresh = Live.new_job(
                banner or (time, mark), dated=banner is not None or num is not None
            )
        else:
            fresh = live.attempt.job
        if num is None and banner is not None:
            start, start_mark = banner  # the wrapper announced it without a number
        opened = Live(Attempt(start, start_mark, fresh, number=num, last=start))
        opened.attempt.claim("start", start_mark)
        self.lives.append(opened)
        self.banner, self.new_job, self.report = None, False, None
        return opened

    @staticmethod
    def _counts_anew(live: Live, num: int | None) -> bool:
        """True if a wrapper that numbers its attempts has begun again."""
        return num is not None and (num == 1 or num <= (live.attempt.number or 0))

    def _bracket(self, line: int, text: str) -> None:
        """``[DATE] ...`` of a wrapper script."""
        dated = bracketed(text)
        if dated is None:
            return
        time, rest = dated
        self.now = time
        mark = Mark(self.file, line, excerpt(text))
        live = self.live
        if match := _ATTEMPT_END.search(rest):
            if live is not None:
                last = match.group(3)
                live.ended_by_wrapper(time, mark, int(match.group(2)), int(last) if last else None)
        elif match := _ATTEMPT.search(rest):
            if _JOB_END.search(rest) and live is not None:
                live.job_line(time, mark)
            else:
                self._open(time, mark, int(match.group(1)))
        elif "failed" in rest.lower() and live is not None:
            live.ended_by_wrapper(time, mark, None, None)
        elif _JOB_START.search(rest):
            self.banner, self.new_job = (time, mark), True
        elif _JOB_END.search(rest) and live is not None:
            live.job_line(time, mark)
        else:
            self.banner = (time, mark)

    def _agent(self, mark: Mark, match: re.Match[str]) -> None:
        """A line of torchrun's agent: no year, but the agent's process id."""
        _, month, day, clock, pid_text, where, what = match.groups()
        time = yearless(int(month), int(day), clock, self.now)
        if time is None:
            return
        pid = int(pid_text)
        live = self._of_agent(pid, where)
        if live is None:
            live = self._open(time, mark)
            live.agent = pid
        self.now = max(self.now, time)
        live.sign(time, own=True)
        if found := _SIGTERM.search(what):
            live.signalled(time, mark, int(found.group(1)), found.group(2))
        elif found := _FAILED.search(what):
            code, local_rank, rank_pid = (int(g) for g in found.groups())
            live.rank_failed(time, mark, local_rank, rank_pid, code)
        elif found := _DEATH.search(what):
            live.death_signal(time, mark, found.group(1))

    def _of_agent(self, pid: int, where: str) -> Live | None:
        """The attempt of this agent; a fresh agent takes over an attempt only announced yet."""
        starting = where.startswith("run.py")  # said before the trainer says anything
        for live in reversed(self.lives[-3:]):
            if live.agent == pid:
                return None if starting and live.talking else live
        live = self.live
        if live is None or live.agent is not None or (starting and live.talking):
            return None
        live.agent = pid
        return live

    # -- the trainer's records -----------------------------------------------------

    def _records(self, line: int, text: str) -> None:
        """All records in a line; a progress bar or another record may stand before one."""
        match = _RECORD.search(text)
        while match is not None:
            after = _RECORD.search(text, match.end()) if "[titan] " in text[match.end() :] else None
            time = stamp(match.group(3))
            if time is not None:
                message = text[match.end() : after.start() if after else None].rstrip()
                rank = match.group(1) or match.group(2)
                self._record(time, int(rank or 0), match.group(4), Said(self.file, line, message))
            match = after

    def _record(self, time: int, rank: int, logger: str, said: Said) -> None:
        self.now = time
        live = self._of_record(time, rank, said)
        live.sign(time, own=True)
        self.banner = None  # a dated line in the middle of a training announces nothing
        if logger == "httpx" or rank != live.attempt.rank:
            return
        if said.text.startswith("step:"):
            self._step(live, time, said)
        else:
            live.message(time, said)

    def _of_record(self, time: int, rank: int, said: Said) -> Live:
        """The attempt that a record belongs to; opens one where the record shows a new start."""
        live = self.live
        if live is None:
            live = self._open(time, said.mark())
        elif not live.talking and said.text.startswith(LOOP_WORDS) and len(self.lives) > 1:
            # The next one is only being launched: its predecessor still speaks.
            before = self.lives[-2]
            if before.talking and not before.closed:
                return before
        elif live.starts_again(rank, said.text):
            agent = live.agent
            live = self._open(time, said.mark(), same_job=True)
            live.agent = agent
        if not live.talking:
            live.first_record(time, rank)
        elif said.text.startswith("step:") and not len(live.attempt.steps):
            live.attempt.rank = rank  # the rank that prints the steps is the one to follow
        return live

    def _step(self, live: Live, time: int, said: Said) -> None:
        fields = dict(_FIELD.findall(said.text))
        step = number(fields.get("step"))
        if step is None:
            self.bad_steps += 1
            if self.bad_steps == 1:
                what = f"step record not understood: {excerpt(said.text, 80)}"
                self.unread.append(Unread(self.file, said.line, what))
            return
        values = (real(fields.get("loss")), real(fields.get("grad_norm")), real(fields.get("tps")))
        if what := live.step(time, step, said, values):
            self.unread.append(Unread(self.file, said.line, what))

    # -- everything else -----------------------------------------------------------

    def _plain(self, line: int, text: str) -> None:
        """Launcher settings, the agent's failure report, the shell's word about a kill."""
        mark = Mark(self.file, line, excerpt(text))
        if "OUT_DIR=" in text or "NGPU=" in text or "_BS=" in text:
            self._settings(mark, dict(_SETTING.findall(text)))
            return
        if match := _KILLED.search(text):
            for live in reversed(self.lives[-3:]):
                if live.agent == int(match.group(1)):
                    live.killed(mark)
            return
        live = self.live
        if live is None:
            return
        if "Root Cause" in text:
            self.report, self.rooted = None, True
        elif match := _REPORT.match(text):
            self._report(live, mark, match)
        elif (match := _ERROR.match(text)) and "ChildFailed" not in text:
            live.error(mark, match.group(1), match.group(2), self.rooted)
            self.rooted = False

    def _settings(self, mark: Mark, settings: dict[str, str]) -> None:
        live = self.live
        if "OUT_DIR" in settings and (live is None or live.talking or live.agent or live.out_dir):
            live = self._open(self.banner[0] if self.banner else self.now, mark)
        if live is not None:
            live.settings(mark, settings)

    def _report(self, live: Live, mark: Mark, match: re.Match[str]) -> None:
        """One field of an entry of the agent's failure report."""
        key, value, pid = match.groups()
        if key == "time":
            time = stamp(value)
            if time is not None:
                self.report = Failure(time, mark, root=self.rooted)
        elif self.report is not None and key == "rank":
            self.report.rank = number(value)
        elif self.report is not None and key == "exitcode":
            self.report.code, self.report.pid = number(value), number(pid)
            live.reported(self.report)
            self.report = None
