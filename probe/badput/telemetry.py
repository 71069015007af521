"""The collector's telemetry: GPUs and the node, once an interval, into the runs that live here.

Sampling has a thread of its own, so that a driver that answers late, or never, holds up neither
draining nor the other kind of sample, and so has each run folder's writing. The collector's own
thread only hands over. Nothing here runs in a training process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from badput import clock, identity
from badput.environment import MOST_S, SCOPES, sample_s
from badput.host import Host
from badput.telemetry_gpu import Gpus
from badput.telemetry_ranks import Ranks
from badput.telemetry_store import RunTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from badput.collector import Tended
    from badput.telemetry_gpu import Round

INTERVAL_S = 5.0
LEAST_S = 0.05
"""Sampling more often than this measures itself."""
T = TypeVar("T")


def interval(log: Callable[[str], None]) -> float:
    """Seconds between samples as BADPUT_SAMPLE_S says; 0 is off, nonsense is the default."""
    given = os.environ.get("BADPUT_SAMPLE_S", "").strip()
    if not given:
        return INTERVAL_S
    seconds = sample_s(given)
    if seconds is None:
        log(
            f"BADPUT_SAMPLE_S={given[:80]!r} is no number of seconds from 0 to {MOST_S:.0f}; "
            f"{INTERVAL_S:g} is used"
        )
        return INTERVAL_S
    return max(seconds, LEAST_S) if seconds else 0.0


def scope(log: Callable[[str], None]) -> str:
    """Which GPUs a run's samples are of, as BADPUT_GPUS says."""
    given = os.environ.get("BADPUT_GPUS", "").strip().lower()
    if given and given not in SCOPES:
        log(f"BADPUT_GPUS={given[:80]!r} is none of {', '.join(SCOPES)}; {SCOPES[0]} is used")
    return given if given in SCOPES else SCOPES[0]


class Sampler(Generic[T]):
    """Calls ``take`` once an interval in a thread of its own, while there is somebody to do it for.

    What is late is skipped, not made up for: the next sample comes at the next whole interval.
    """

    def __init__(
        self, name: str, seconds: float, take: Callable[[], T], rest: Callable[[], None]
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._take = take
        self._rest = rest
        """Called in the thread when there is nobody left, and at the end."""
        self._wanted = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.found: deque[T] = deque(maxlen=10_000)
        self.skipped = 0

    def want(self, wanted: bool) -> None:
        """Sample, or rest. The thread starts with the first wish, and never in a fork."""
        if not wanted:
            self._wanted.clear()
            return
        self._wanted.set()
        if self._thread is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            if not self._wanted.is_set():
                self._rest()
                while not self._wanted.wait(0.2) and not self._stop.is_set():
                    pass
                due = time.monotonic()
                continue
            self.found.append(self._take())
            now = time.monotonic()
            late = int((now - due) // self._seconds)
            self.skipped += late
            due += (late + 1) * self._seconds
            self._stop.wait(max(due - now, 0.0))
        self._rest()

    def close(self, timeout: float = 1.0) -> None:
        """End the thread. One that hangs in a driver is left behind: it is a daemon."""
        self._stop.set()
        self._wanted.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout)


def _nothing() -> None:
    """A sampler that has nothing to give back."""


class Telemetry:
    """The duty."""

    name = "telemetry"

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._seconds = interval(log)
        self._scope = scope(log)
        self._node = {"host": identity.host(), "boot_id": identity.boot_id()}
        self._runs: dict[str, RunTelemetry] = {}
        self._described: dict[str, dict[str, Any]] = {}
        """The last row of `devices` of each GPU."""
        self._host = Host()
        self.gpus = Gpus(log, os.environ.get("BADPUT_KERNEL_LOG") or "/dev/kmsg")
        self._ranks = Ranks(self.gpus)
        self._gpu_sampler = Sampler("badput-gpus", self._seconds, self.gpus.sample, self.gpus.close)
        self._host_sampler = Sampler("badput-host", self._seconds, self._look_at_host, _nothing)

    def _look_at_host(self) -> tuple[int, dict[str, Any]]:
        return clock.mono(), self._host.read()

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Take over what was sampled, and write what is due."""
        if not self._seconds:
            return
        alive = {name: t for name, t in tended.items() if t.dead_ns is None}
        self._follow_runs(alive)
        self._gpu_sampler.want(bool(alive))
        self._host_sampler.want(bool(alive))
        self._ranks.follow(alive)
        self._take_gpus(alive)
        self._take_host(alive)
        self._ranks.tell(alive, now)
        self._write(now)

    def _follow_runs(self, alive: Mapping[str, Tended]) -> None:
        here = {t.drain.run for t in alive.values()}
        mono = clock.mono()
        for run in here:
            known = self._runs.setdefault(run, RunTelemetry(run, mono))
            known.end_ns = None
        for run, known in self._runs.items():
            if run not in here and known.end_ns is None:
                known.end_ns = mono

    def _take_gpus(self, alive: Mapping[str, Tended]) -> None:
        for path, run in self._runs.items():
            if run.end_ns is None:
                run.wanted = self._ranks.wanted(path, self._scope, alive)
        while self._gpu_sampler.found:
            found = self._gpu_sampler.found.popleft()
            for row in found.devices:
                self._described[row["gpu_uuid"]] = {**self._node, **row}
            for run in self._runs.values():
                if run.lives(found.mono_ns):
                    self._give(run, found)
            for fault in found.faults:
                self._ranks.fault(fault, alive)

    def _give(self, run: RunTelemetry, found: Round) -> None:
        host = {"host": self._node["host"]}
        rows = [
            {**host, **row}
            for row in found.samples
            if run.wanted is None or row["gpu_uuid"] in run.wanted
        ]
        described = (self._described.get(str(row["gpu_uuid"])) for row in rows)
        run.describe([row for row in described if row is not None])
        run.add("gpu_samples", rows)

    def _take_host(self, alive: Mapping[str, Tended]) -> None:
        while self._host_sampler.found:
            mono_ns, row = self._host_sampler.found.popleft()
            for path, run in self._runs.items():
                if run.lives(mono_ns):
                    # Of a rank of this run: ours is that of whoever started the collector.
                    pids = [t.drain.facts["process"]["pid"] for t in alive.values()
                            if t.drain.run == path and t.watch.fd is not None]  # fmt: skip
                    group = self._host.control_group(pids[0] if pids else "self")
                    state = {"gpu_telemetry": self.gpus.state}
                    run.add("host_samples", [{**self._node, **row, **group, **state}])

    def _write(self, now: float) -> None:
        for path, run in list(self._runs.items()):
            over = run.end_ns is not None
            if run.flush(now, self._log, last=over) and over:
                del self._runs[path]

    def close(self) -> None:
        """End the threads and write what is left."""
        self._gpu_sampler.close()
        self._host_sampler.close()
        for run in self._runs.values():
            lost = run.finish(self._log)
            if lost:
                self._log(f"{lost} rows of telemetry for {run.run} are lost")
        if self._gpu_sampler.skipped:
            self._log(f"{self._gpu_sampler.skipped} GPU samples were skipped: the driver was late")
