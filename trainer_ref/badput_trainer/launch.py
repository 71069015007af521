"""The outer loop: start the stages, watch them, and after a failure start all of them again.

One process for each stage, with torchrun's environment variables, from the newest
checkpoint that every stage has. It never imports torch, so it is up at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import badput
from badput_trainer.rank import PARENT
from badput_trainer.schedule import DELAYS, ideal_bubble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from badput_trainer.config import TrainConfig

POLL_S = 0.02
RESTART_PAUSE_S = 0.5
FAIL_GRACE_S = 5.0
"""After a failure the others cannot go on; they are given time to close their files."""
STOP_GRACE_S = 30.0
"""A stop that somebody asked for: time to end the step and save."""


class _StoppedError(Exception):
    """SIGINT, SIGTERM or SIGHUP asked the launcher to stop; the argument is the signal."""


def launch(config: TrainConfig, restarts: int) -> int:
    """Attempt until one succeeds, ``restarts`` are used up or a signal comes."""
    job = secrets.token_hex(8)
    # Here too, not only for the stages: badput then knows the launcher and its ranks as one job.
    os.environ["TORCHELASTIC_RUN_ID"] = job
    if config.run is not None:
        badput.init(config.run, name=config.name, role="launcher", config=config.described())
        _say(f"run: {config.run}")
    flush_after = config.steps if DELAYS[config.schedule] else 1
    bubble = ideal_bubble(config.stages, config.microbatches, flush_after)
    _say(
        f"{config.stages} stages, {config.schedule}, {config.microbatches} microbatches a step "
        f"(ideal bubble {bubble:.0%}), {config.tokens_per_step} tokens a step"
    )
    with _signals_raise():
        try:
            code = _attempts(config, restarts)
            if code == 0:
                badput.event("complete")
            badput.close()
        except _StoppedError as stop:
            _say("stopped")
            code = 128 + stop.args[0]
        badput.close()  # outside the handler: its end is no exception to the books
    if config.run is not None:
        _say(f"books: badput report {config.run}")
    return code


def _attempts(config: TrainConfig, restarts: int) -> int:
    for attempt in range(restarts + 1):
        if _attempt(config, attempt):
            return 0
        left = restarts - attempt
        _say(f"the attempt failed; {left} restart{'' if left == 1 else 's'} left")
        if left:
            # No hot loop of crashes; and a process's birth is known to 10 ms only,
            # so without a pause the new ranks may seem older than the old ones' end.
            time.sleep(RESTART_PAUSE_S)
    return 1


def _say(line: str) -> None:
    # Whoever read our output may be gone; that is no reason to stop training. Nor is a name
    # that the terminal cannot show.
    with contextlib.suppress(OSError):
        if sys.stdout is not None:
            print(line.encode(errors="backslashreplace").decode(), flush=True)


def _attempt(config: TrainConfig, attempt: int) -> bool:
    """Start all stages and wait for them; True if all ended well. Leaves no process behind."""
    ranks: list[subprocess.Popen[bytes]] = []
    told: set[int] = set()
    grace = FAIL_GRACE_S
    port = _free_port()
    try:
        for rank in range(config.stages):
            ranks += [_start(config, rank, port, attempt)]
        while len(told) < len(ranks):
            if any(code not in (None, 0) for code in _exits(ranks, told)):
                return False
            time.sleep(POLL_S)
        return True
    except _StoppedError:
        grace = STOP_GRACE_S
        raise
    finally:
        _end(ranks, grace)
        _exits(ranks, told)


def _start(config: TrainConfig, rank: int, port: int, attempt: int) -> subprocess.Popen[bytes]:
    """Start the process of one stage, with the identity that torchrun would give it."""
    identity = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": config.stages,
        "LOCAL_WORLD_SIZE": config.stages,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        PARENT: os.getpid(),
    }
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    env.update({name: str(value) for name, value in identity.items()})
    command = [sys.executable, "-m", "badput_trainer.rank", config.to_json()]
    # A session of its own: Ctrl-C reaches the launcher alone, which then ends the stages.
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)


def _exits(ranks: list[subprocess.Popen[bytes]], told: set[int]) -> list[int | None]:
    """Exit codes so far (None: alive); each new one is told to badput and to the user."""
    codes = [process.poll() for process in ranks]
    for rank, code in enumerate(codes):
        if code is None or rank in told:
            continue
        told.add(rank)
        signal_number = -code if code < 0 else None
        exit_code = code if code >= 0 else None
        if code != 0:
            how = f"signal {signal_number}" if signal_number else f"exit code {code}"
            _say(f"rank {rank} ended with {how}")
        pid = ranks[rank].pid
        badput.event("exit", rank=rank, pid=pid, exit_code=exit_code, signal=signal_number)
    return codes


def _end(ranks: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Ask the stages that still live to stop, then make them; returns when all are gone."""
    for process in ranks:
        process.terminate()
    deadline = time.monotonic() + grace_s
    for process in ranks:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into _StoppedError, so that the stages end first."""

    def stop(number: int, _frame: object) -> None:
        for caught in numbers:
            signal.signal(caught, signal.SIG_IGN)  # the end itself is not interrupted
        raise _StoppedError(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        numbers.append(signal.SIGHUP)
    old = {n: signal.signal(n, stop) for n in numbers}
    try:
        yield
    finally:
        # Once asked to stop the process is on its way out: a further signal stays ignored, as
        # one that came while the handlers are put back would end it in the middle.
        if signal.getsignal(signal.SIGTERM) is stop:
            for number, handler in old.items():
                signal.signal(number, handler)
