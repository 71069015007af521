"""Reading one stream of a torchtitan log: every line to the attempt that it belongs to.

A stream is a file, or several files that are parts of one log. What is known of an attempt
while it is read is in ``titan_state.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from badput_ledger.sources import titan_lines as lines
from badput_ledger.sources.attempts import (
    MOST_ATTEMPTS,
    NAN,
    SECOND,
    Attempt,
    BadLogError,
    Mark,
    Said,
    Unread,
)
from badput_ledger.sources.clock import END, bracketed, stamp, yearless
from badput_ledger.sources.text import excerpt
from badput_ledger.sources.titan_launch import Failure, number, real
from badput_ledger.sources.titan_rows import SILENCE, take_rows
from badput_ledger.sources.titan_state import LOOP_WORDS, Live

if TYPE_CHECKING:
    import re

    from badput_ledger.sources.text import TextLog

PATIENCE = 6 * 3600 * SECOND
"""How long after a wrapper's announcement a launch may begin and still be the announced one."""


class Reader:
    """The state over one stream: the attempt that is under way and the ones before."""

    def __init__(self, unread: list[Unread], stream: str) -> None:
        self.unread = unread
        self.stream = stream
        self.lives: list[Live] = []
        self.banner: tuple[int, Mark] | None = None
        self.new_job = True
        self.report: Failure | None = None
        self.rooted = False
        self.now = 0
        """The newest time seen; every time is read forward by ``shift``."""
        self.shift = 0
        """How much the clock was set back so far."""
        self.skip_to = 0
        """Lines up to this time were read already, in another copy of them."""
        self.file = ""
        self.bad_steps = 0
        self.bad_dates = 0
        self.blank: Mark | None = None
        """A start that rests on a line without a word."""

    @property
    def live(self) -> Live | None:
        return self.lives[-1] if self.lives else None

    def read(self, log: TextLog, first: int) -> None:
        """Feed one file. ``first`` is its earliest certain time, for dates without a year.

        Raises OSError, and BadLogError if this can be no log of a training.
        """
        self.file, self.now = log.name, max(first, self.now if self.skip_to else first)
        for item in log.scan(lines.WANTED, lines.STEP_FIELDS):
            if isinstance(item, tuple):
                self.line(*item)
            else:
                take_rows(self, item)
        self.skip_to = 0
        if log.held_back is not None:
            what = "the last line has no newline: held back, it may be cut"
            self.unread.append(Unread(log.name, log.held_back, what))
        if log.truncated:
            self.unread.append(Unread(log.name, log.lines or None, log.truncated))
        for count, what in (
            (log.bad_utf8, "lines with broken UTF-8, read with replacement characters"),
            (log.nuls, "NUL bytes, left out"),
            (log.long_lines, "lines longer than 1 MiB, cut there"),
        ):
            if count:
                self.unread.append(Unread(log.name, None, f"{count} {what}"))

    def line(self, line: int, text: str) -> None:
        """Any line, by itself."""
        step = lines.STEP.match(text) if len(text) <= lines.LONGEST else None
        if step is not None:
            self._plain_step(line, step)
        elif "[titan] " in text:
            self._records(line, text)
        elif text.startswith("["):
            self._bracket(line, text[: lines.LONGEST])
        elif match := lines.AGENT.match(text, 0, lines.LONGEST):
            self._agent(Mark(self.file, line, excerpt(text)), match)
        else:
            self._plain(line, text[: lines.LONGEST])

    def sum_up(self) -> None:
        """Tell how often something odd was seen of which only the first was named."""
        for count, what in (
            (self.bad_steps, "step records not understood"),
            (self.bad_dates, "records with an impossible date, not used"),
        ):
            if count > 1:
                self.unread.append(Unread(self.file, None, f"{count} {what}"))

    def goes_on_with(self, step: int) -> bool:
        """True if ``step`` is the next step line to expect of the running attempt."""
        live = self.live
        if live is None or live.over or not len(live.attempt.steps):
            return False
        return 0 < step - live.anchor_step <= 2 * live.attempt.steps.last_count

    def _time(self, seen: int | None, line: int) -> int | None:
        """A time on the stream's clock; None if it is impossible or was read already."""
        if seen is not None:
            time = seen + self.shift
            if time <= self.skip_to:
                return None
            live = self.live
            starting = live is None or not live.talking
            if time < END and (starting or time - self.now <= SILENCE):
                return time
        self._bad_date(line)
        return None

    def _bad_date(self, line: int) -> None:
        self.bad_dates += 1
        if self.bad_dates == 1:
            what = "a record with an impossible date: not used"
            self.unread.append(Unread(self.file, line, what))

    # -- attempts -----------------------------------------------------------------

    def _open(
        self, time: int, mark: Mark, num: int | None = None, *, same_job: bool = False
    ) -> Live:
        if len(self.lives) >= MOST_ATTEMPTS:
            raise BadLogError(
                f"more than {MOST_ATTEMPTS} starts of a training, the last in line {mark.line}: "
                "this is no log of one; split it if it is"
            )
        live = self.live
        start, start_mark = time, mark
        banner = self.banner
        if banner is not None and not 0 <= time - banner[0] <= PATIENCE:
            banner = None
        if (
            live is None
            or self.new_job
            or self._counts_anew(live, num)
            or (banner is None and num is None and time - live.attempt.last > PATIENCE)
            or not (
                same_job
                or live.attempt.job.dated  # with no wrapper, each launch is a job of its own
            )
        ):
            job = Live.new_job(banner or (time, mark), dated=banner is not None or num is not None)
        else:
            job = live.attempt.job
        if num is None and banner is not None:
            start, start_mark = banner  # the wrapper announced it without a number
        attempt = Attempt(start, start_mark, job, self.stream, number=num, last=start)
        attempt.claim("start", start_mark)
        self.lives.append(Live(attempt))
        self.banner, self.new_job, self.report = None, False, None
        return self.lives[-1]

    @staticmethod
    def _counts_anew(live: Live, num: int | None) -> bool:
        """True if a wrapper that numbers its attempts has begun again."""
        return num is not None and (num == 1 or num <= (live.attempt.number or 0))

    def _bracket(self, line: int, text: str) -> None:
        """``[DATE] ...`` of a wrapper script."""
        dated = bracketed(text)
        if dated is None:
            return
        time = self._time(dated[0], line)
        if time is None:
            return
        self.now, rest = time, dated[1]
        mark = Mark(self.file, line, excerpt(text))
        live = self.live
        if match := lines.ATTEMPT_END.search(rest):
            if live is not None:
                last = match.group(3)
                live.ended_by_wrapper(time, mark, int(match.group(2)), int(last) if last else None)
        elif match := lines.ATTEMPT.search(rest):
            if lines.JOB_END.search(rest) and live is not None:
                live.job_line(time, mark)
            else:
                self._open(time, mark, int(match.group(1)))
        elif "failed" in rest.lower() and live is not None:
            live.ended_by_wrapper(time, mark, None, None)
        elif lines.JOB_START.search(rest):
            self.banner, self.new_job = (time, mark), True
        elif lines.JOB_END.search(rest) and live is not None:
            live.job_line(time, mark)
        else:
            self.banner = (time, mark)

    def _agent(self, mark: Mark, match: re.Match[str]) -> None:
        """A line of torchrun's agent: no year, but the agent's process id."""
        month, day, clock, pid_text, where, what = match.groups()
        near = self.now - self.shift
        time = self._time(yearless(int(month), int(day), clock, near), mark.line)
        if time is None:
            return
        pid = int(pid_text)
        live = self._of_agent(pid, where, time)
        if live is None:
            live = self._open(time, mark)
            live.agent = pid
            self.blank = None if _says(what) else mark
        elif self.blank is not None and _says(what):
            live.attempt.restate("start", self.blank, mark)
            self.blank = None
        self.now = max(self.now, time)
        live.sign(time, own=True)
        if found := lines.SIGTERM.search(what):
            live.signalled(time, mark, int(found.group(1)), found.group(2))
        elif found := lines.FAILED.search(what):
            code, local_rank, rank_pid = (int(g) for g in found.groups())
            live.rank_failed(time, mark, local_rank, rank_pid, code)
        elif found := lines.DEATH.search(what):
            live.death_signal(time, mark, found.group(1))

    def _of_agent(self, pid: int, where: str, time: int) -> Live | None:
        """The attempt of this agent; a fresh agent takes over an attempt only announced yet."""
        starting = where.startswith("run.py")  # said before the trainer says anything
        for live in reversed(self.lives[-3:]):
            if live.agent == pid:
                return None if starting and live.talking else live
        live = self.live
        if live is None or live.agent is not None or (starting and live.talking):
            return None
        if not live.talking and time - live.attempt.last > PATIENCE:
            return None  # announced long ago: that launch came to nothing
        live.agent = pid
        return live

    # -- the trainer's records -----------------------------------------------------

    def _plain_step(self, line: int, match: re.Match[str]) -> None:
        """A step line that is nothing else: what most lines of most logs are."""
        ranked, also, clock, text, step, loss, norm, tps = match.groups()
        time = self._time(stamp(clock), line)
        if time is None:
            return
        said = Said(self.file, line, text)
        rank = int(ranked or also or 0)
        live = self.live
        if live is not None and live.last_step is not None and rank == live.attempt.rank:
            self.now, self.banner = time, None  # as below, without its questions
            live.sign(time)
        else:
            live = self._about_record(time, rank, said)
        if live is not None:
            norm_value = NAN if norm is None else real(norm)
            self._step(live, time, said, number(step), (real(loss), norm_value, real(tps)))

    def _records(self, line: int, text: str) -> None:
        """A line with any other records."""
        for record in lines.records(text):
            time = self._time(stamp(record.clock), line)
            if time is None:
                continue
            said = Said(self.file, line, record.message)
            live = self._about_record(time, record.rank, said)
            if live is None or record.logger == "httpx":
                continue
            if record.message.startswith("step:"):
                fields = dict(lines.FIELD.findall(record.message))
                values = (real(fields.get(k)) for k in ("loss", "grad_norm", "tps"))
                self._step(live, time, said, number(fields.get("step")), tuple(values))
            else:
                live.message(max(time, live.newest), said)

    def _about_record(self, time: int, rank: int, said: Said) -> Live | None:
        """Note a sign of life; the attempt, if the record is of the rank that is followed."""
        live = self._of_record(time, rank, said)
        self.now = time
        live.sign(time, own=True)
        self.banner = None  # a dated line in the middle of a training announces nothing
        return live if rank == live.attempt.rank else None

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
        elif not live.talking and time - live.attempt.last > PATIENCE:
            live = self._open(time, said.mark())  # what was announced came to nothing
        elif live.starts_again(rank, said.text):
            agent = live.agent
            live = self._open(time, said.mark(), same_job=True)
            live.agent = agent
        if not live.talking:
            live.first_record(time, rank)
        elif said.text.startswith("step:") and not len(live.attempt.steps):
            live.attempt.rank = rank  # the rank that prints the steps is the one to follow
        return live

    def _step(
        self, live: Live, time: int, said: Said, step: int | None, values: tuple[float, ...]
    ) -> None:
        if step is None or step < 1:
            self.bad_steps += 1
            if self.bad_steps == 1:
                what = f"step record not understood: {excerpt(said.text, 80)}"
                self.unread.append(Unread(self.file, said.line, what))
            return
        anchor = live.anchor or 0
        if time < anchor and live is self.live and self.goes_on_with(step):
            late = live.expected(step) - time
            if time + late >= END:
                self._bad_date(said.line)
                return
            if late <= 2 * SECOND:
                time = anchor  # only a thread that printed a little late
            else:
                self.shift += late
                time += late
                what = f"the clock goes back here; read on as {late / 1e9:.0f} s later"
                self.unread.append(Unread(self.file, said.line, what))
            self.now = time
            live.sign(time)
        if what := live.step(time, step, said, values):
            self.unread.append(Unread(self.file, said.line, what))

    # -- everything else -----------------------------------------------------------

    def _plain(self, line: int, text: str) -> None:
        """Launcher settings, the agent's failure report, the shell's word about a kill."""
        mark = Mark(self.file, line, excerpt(text))
        if "OUT_DIR=" in text or "NGPU=" in text or "_BS=" in text:
            self._settings(mark, dict(lines.SETTING.findall(text)))
            return
        if match := lines.KILLED.search(text):
            for live in reversed(self.lives[-3:]):
                if live.agent == int(match.group(1)):
                    live.killed(mark)
            return
        live = self.live
        if live is None:
            return
        if "Root Cause" in text:
            self.report, self.rooted = None, True
        elif match := lines.REPORT.match(text):
            self._report(live, mark, match)
        elif (match := lines.ERROR.match(text)) and "ChildFailed" not in text:
            live.error(mark, match.group(1), match.group(2), self.rooted)
            self.rooted = False

    def _settings(self, mark: Mark, settings: dict[str, str]) -> None:
        live = self.live
        out = settings.get("OUT_DIR", "")
        if len(out) > lines.LONGEST // 2:
            what = f"OUT_DIR of {len(out)} characters or more: not used"
            self.unread.append(Unread(self.file, mark.line, what))
            return
        if out and (live is None or live.talking or live.agent or live.out_dir):
            live = self._open(self.banner[0] if self.banner else self.now, mark)
        if live is not None and not live.talking:
            live.settings(mark, settings)

    def _report(self, live: Live, mark: Mark, match: re.Match[str]) -> None:
        """One field of an entry of the agent's failure report."""
        key, value, pid = match.groups()
        if key == "time":
            time = stamp(value)
            self.report = None
            if time is not None:
                self.report = Failure(time + self.shift, mark, root=self.rooted)
        elif self.report is not None and key == "rank":
            self.report.rank = number(value)
        elif self.report is not None and key == "exitcode":
            self.report.code, self.report.pid = number(value), number(pid)
            live.reported(self.report)
            self.report = None


def _says(text: str) -> bool:
    """True if ``text`` holds a word, not only a rule of asterisks."""
    return any(c.isalnum() for c in text)
