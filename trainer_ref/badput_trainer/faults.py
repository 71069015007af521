"""Faults on purpose: what goes wrong, where and when, written as ``rank:microbatch:kind``.

Microbatches are counted from 1 over the whole run, so ``1:401:kill`` with 8 microbatches
a step strikes rank 1 in step 51, before the forward pass of its first microbatch. A fault
leaves a mark beside the checkpoints before it strikes and never strikes again: otherwise
a restarted run would die at the same place for ever.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FORM = re.compile(r"(\d+):(\d+):(kill|exception|slow=(\d+(?:\.\d+)?)x(\d+))")


class InjectedError(RuntimeError):
    """The exception that the fault kind ``exception`` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    rank: int
    microbatch: int
    """Counted from 1 over the whole run."""
    kind: str
    """kill, exception or slow."""
    factor: float = 1.0
    """slow: every pass takes this many times as long."""
    length: int = 0
    """slow: for this many microbatches."""

    @property
    def mark(self) -> str:
        """File name of the mark that says it has struck."""
        return f"fired-{self.rank}-{self.microbatch}-{self.kind}"


def parse(text: str) -> Fault:
    """Read ``rank:microbatch:kind``. Raises ValueError with a sentence for the user."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"--fault {text} is not rank:microbatch:kind with kind kill, exception "
            f"or slow=FACTORxCOUNT, such as 1:401:kill or 1:400:slow=3x80."
        )
    rank, microbatch = int(match[1]), int(match[2])
    if microbatch < 1:
        raise ValueError(f"--fault {text}: microbatches are counted from 1.")
    if match[4] is None:
        return Fault(rank, microbatch, match[3])
    factor, length = float(match[4]), int(match[5])
    if factor < 1 or length < 1:
        raise ValueError(
            f"--fault {text}: the factor must be at least 1 and the count at least 1 microbatch."
        )
    return Fault(rank, microbatch, "slow", factor, length)


class Injector:
    """The faults of one rank, ready to strike."""

    def __init__(self, faults: Sequence[Fault], rank: int, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._due = {f.microbatch: f for f in faults if f.rank == rank and not self._struck(f)}
        self._slow: Fault | None = None

    def before(self, microbatch: int) -> None:
        """Strike if a fault is due. ``microbatch`` is counted from 1 over the run.

        Raises InjectedError for the kind exception; does not return for the kind kill.
        """
        fault = self._due.pop(microbatch, None)
        if fault is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / fault.mark).touch()
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "exception":
            raise InjectedError(f"fault on purpose before microbatch {microbatch}")
        self._slow = fault

    @contextmanager
    def slowed(self, microbatch: int) -> Iterator[None]:
        """Stretch what happens inside by the factor while ``microbatch`` is in the window."""
        slow = self._slow
        if slow is None or not slow.microbatch <= microbatch < slow.microbatch + slow.length:
            yield
            return
        begin = time.perf_counter()
        yield
        time.sleep((slow.factor - 1) * (time.perf_counter() - begin))

    def _struck(self, fault: Fault) -> bool:
        return (self._folder / fault.mark).exists()
