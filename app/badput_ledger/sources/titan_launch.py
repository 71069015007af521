"""The launcher's side of an attempt: the wrapper's settings and dates, signals, exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import LARGEST, MOST_GPUS, NAN, Event, Job
from badput_ledger.sources.text import excerpt

if TYPE_CHECKING:
    from badput_ledger.sources.attempts import Attempt, Mark

_SETTINGS = {
    "STEPS": "steps",
    "LOCAL_BS": "local_batch",
    "GLOBAL_BS": "global_batch",
    "SEQ_LEN": "seq_len",
}


def number(text: str | None) -> int | None:
    """A whole number with thousands commas; None if it is none, or too large to be one."""
    if not text or len(text) > 25:
        return None
    try:
        value = int(text.replace(",", ""))
    except ValueError:
        return None
    return value if -LARGEST < value < LARGEST else None


def real(text: str | None) -> float:
    """A number with thousands commas, nan and inf included; NaN if it is none."""
    try:
        return float(text.replace(",", "") if "," in text else text) if text else NAN
    except ValueError:
        return NAN


@dataclass(slots=True)
class Failure:
    """An entry of torchrun's failure report. Its times are whole seconds."""

    time: int
    mark: Mark
    root: bool = False
    rank: int | None = None
    code: int | None = None
    pid: int | None = None


class LaunchSide:
    """What launcher, agent and shell say about an attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.out_dir: str | None = None
        self.first_own: int | None = None
        self.first_sigterm: tuple[int, Mark, list[int]] | None = None
        self.failures: list[Failure] = []
        self.death: tuple[int, Mark, str] | None = None
        self.cause: tuple[Mark, str, bool] | None = None
        self.kill_mark: Mark | None = None
        self.rc: int | None = None
        self.end_mark: Mark | None = None
        self.end_time: int | None = None
        self.closed = False
        self.agent: int | None = None

    @staticmethod
    def new_job(begin: tuple[int, Mark], *, dated: bool) -> Job:
        """A job that begins at a wrapper's line, or at the attempt's first sign."""
        return Job(begin[0], begin[1], dated)

    def sign(self, time: int, *, own: bool = False) -> None:
        """Something dated was written by or about this attempt."""
        self.attempt.last = max(self.attempt.last, time)
        if own and self.first_own is None:
            self.first_own = time

    def settings(self, mark: Mark, settings: dict[str, str]) -> None:
        """``KEY=value`` lines of a wrapper script."""
        attempt = self.attempt
        if out := settings.get("OUT_DIR", "").strip("'\"").rstrip("/"):
            self.out_dir = attempt.home = excerpt(out, len(out))
        gpus = number(settings.get("NGPU")) or 0
        if 0 < gpus <= MOST_GPUS and attempt.world_size is None:
            attempt.world_size = gpus
            attempt.claim("world_size", mark)
        for key, name in _SETTINGS.items():
            if value := number(settings.get(key)):
                attempt.config.setdefault(name, value)

    def job_line(self, time: int, mark: Mark) -> None:
        """A dated line of the wrapper after the attempt: the job lasted at least until then."""
        self.attempt.job.end, self.attempt.job.end_mark = time, mark

    def ended_by_wrapper(self, time: int, mark: Mark, rc: int | None, last: int | None) -> None:
        """The wrapper says how the attempt ended (rc None: only that it failed)."""
        self.rc, self.end_mark, self.end_time, self.closed = rc, mark, time, True
        self.sign(time)
        self.job_line(time, mark)
        self.attempt.job.dated = True
        if last is not None:
            self.attempt.config["wrapper_last_step"] = last

    def signalled(self, time: int, mark: Mark, pid: int, name: str) -> None:
        """The agent sends a signal to a rank."""
        if self.first_sigterm is None:
            self.first_sigterm = (time, mark, [])
            self.attempt.claim("signal", mark)
            self.attempt.events.append(
                Event(time, "signal", None, {"signal": name, "pids": self.first_sigterm[2]})
            )
        self.first_sigterm[2].append(pid)

    def rank_failed(self, time: int, mark: Mark, local_rank: int, pid: int, code: int) -> None:
        """The agent tells the exit code of the rank that failed first."""
        self.failures.append(Failure(time, mark, False, local_rank, code, pid))
        self.attempt.claim("exit", mark)

    def reported(self, failure: Failure) -> None:
        """An entry of the agent's failure report."""
        self.failures.append(failure)
        if failure.root:
            self.attempt.claim("failure", failure.mark)

    def death_signal(self, time: int, mark: Mark, name: str) -> None:
        """The agent itself was told to stop."""
        self.death = self.death or (time, mark, name)
        self.attempt.claim("signal", mark)

    def error(self, mark: Mark, kind: str, text: str, rooted: bool) -> None:
        """An exception in a traceback; the root cause's wins over any before it."""
        if self.cause is None or (rooted and not self.cause[2]):
            self.cause = (mark, excerpt(f"{kind}: {text}"), rooted)

    def killed(self, mark: Mark) -> None:
        """The shell reports that the launcher was killed; it prints no time."""
        self.kill_mark, self.closed = mark, True
        self.attempt.claim("end", mark)
