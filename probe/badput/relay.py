"""Running a command as a shell would: its terminal, its signals, its end.

The command stays in our process group and has our own standard streams, so the terminal reaches
it directly. A signal that only we are sent is passed on; one that the whole group is sent, by the
terminal's Ctrl-C or by ``kill`` with a group, must not be, or the command would get it twice, and
what launchers do on the second one is not what they do on the first. To tell the two apart a
*witness*, a small process in the same group, reports what it is sent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PASSED_ON = tuple(
    s
    for s in (
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
        signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU,
        signal.SIGIO, signal.SIGPWR,
    )
    if s in signal.valid_signals()
)  # fmt: skip
"""Signals that would end us by default and that somebody may mean for the command."""
_TOGETHER_S = 0.05
"""A signal to the group arrives at all of it within this time."""
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and the command is not to."""


class Witness:
    """A process in our group that reports each signal it is sent, by its number as a byte."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        reports, report = os.pipe()
        ours, hold = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reports)
                os.close(hold)
                _watch(report, ours)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(report)
        os.close(ours)
        self._reports, self._hold = reports, hold

    def saw(self, number: int) -> bool:
        """Was the whole group sent this signal? Waits a moment for the report."""
        deadline = time.monotonic() + _TOGETHER_S
        while True:
            now = time.monotonic()
            if now - self._seen.get(number, -1.0) < 2 * _TOGETHER_S:
                return True
            ready = select.select([self._reports], [], [], max(deadline - now, 0.0))[0]
            news = os.read(self._reports, 512) if ready else b""
            if not news:
                if ready:  # it is gone, and end of file would be ready for ever
                    time.sleep(max(deadline - now, 0.0))
                return False
            self._seen.update(dict.fromkeys(news, time.monotonic()))

    def close(self) -> None:
        """Let it go."""
        os.close(self._hold)
        os.close(self._reports)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(report: int, ours: int) -> None:
    """Report signals until the other end of ``ours`` is closed, by exit or death."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):  # a pipe that we held would keep its reader waiting after our launcher
        os.dup2(nothing, fd)
    os.chdir("/")
    os.set_blocking(report, False)
    for number in PASSED_ON:
        signal.signal(number, _nothing)
    signal.set_wakeup_fd(report, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    os.read(ours, 1)


def _nothing(*_: object) -> None:
    """A handler, so that the signal neither ends us nor is ignored by what we start."""


def run(
    path: str,
    words: list[str],
    env: Mapping[str, str],
    witness: Witness,
    started: Callable[[int], object],
) -> int:
    """Run the program ``path`` with ``words`` to its end, passing signals on; its wait status.

    ``started`` is called with its pid. Raises OSError if it cannot be started. Signals that were
    ignored when we began, as nohup has it, stay ignored.
    """
    heard = {s for s in PASSED_ON if signal.getsignal(s) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    try:
        pid = os.posix_spawn(path, words, env, setsigmask=before, setsigdef=_RESET)
        started(pid)
        return _wait(pid, heard, witness)
    finally:
        for number in heard:  # what comes from here on finds the command gone
            signal.signal(number, _nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, heard: set[signal.Signals], witness: Witness) -> int:
    while True:
        got = signal.sigwaitinfo(heard | {signal.SIGCHLD})
        if got.si_signo != signal.SIGCHLD:
            if not witness.saw(got.si_signo):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, got.si_signo)  # it is our child, not yet waited for
            continue
        while True:  # others too: as a container's first process we inherit orphans
            try:
                gone, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if gone == pid:
                return status
            if gone == 0:
                break


def leave(status: int) -> int:
    """End as the command did: its exit code is returned, its signal is our own end too."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a container outlives its own signal
