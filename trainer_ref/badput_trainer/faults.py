"""Faults on purpose: what goes wrong, where and when, written as ``rank:microbatch:kind``.

Microbatches are counted from 1 over the whole run, so ``1:401:kill`` with 8 microbatches
a step strikes rank 1 in step 51, before the forward pass of its first microbatch. A fault
leaves a mark beside the checkpoints before it strikes and never strikes again: otherwise
a restarted run would die at the same place for ever. ``kill=N`` strikes N times.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput_trainer import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from badput_trainer.saver import Saver

    Batch = tuple[np.ndarray, np.ndarray]

PLAIN = {
    "kill": "SIGKILL: the process is gone, nothing is tidied up",
    "exception": "a Python exception",
    "term": "SIGTERM: all stages save at the next step that all can still make, and end",
    "stop": "SIGSTOP: the process hangs until the others have waited --timeout seconds",
    "truncate": "the rank's newest checkpoint is cut in half, then SIGKILL",
    "missing": "the rank's newest checkpoint file is removed, then SIGKILL",
    "kill-save": "SIGKILL when half of the rank's next checkpoint is written",
    "nan": "a gradient that is no number: this stage, and those before it, skip the update",
    "spike": "the rank reads noise instead of the text for one step; first or last rank only",
}
"""Kinds without a number, and what happens."""

COUNTED = {
    "kill=N": "SIGKILL there N times, in N attempts",
    "slow=FxN": "every pass takes F times as long, for N microbatches; such as slow=3x80",
    "slow-data=SxN": "each step's data comes S seconds late, for N microbatches",
}
"""Kinds with numbers."""

ON_CHECKPOINTS = ("truncate", "missing")
"""Kinds that need a checkpoint to be there already."""

_FORM = re.compile(
    r"(?P<rank>\d+):(?P<microbatch>\d+):"
    r"(?:(?P<plain>" + "|".join(PLAIN) + r")|(?P<again>kill)=(?P<times>\d+)"
    r"|(?P<kind>slow|slow-data)=(?P<size>\d+(?:\.\d+)?)x(?P<length>\d+))"
)


class InjectedError(RuntimeError):
    """The exception that the fault kind ``exception`` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    rank: int
    microbatch: int
    """Counted from 1 over the whole run."""
    kind: str
    """One of PLAIN, or slow or slow-data."""
    factor: float = 1.0
    """slow: every pass takes this many times as long. slow-data: seconds that data is late."""
    length: int = 0
    """slow, slow-data: for this many microbatches."""
    times: int = 1
    """In how many attempts it strikes."""

    def marks(self) -> list[str]:
        """File names of the marks that say how often it has struck."""
        name = f"fired-{self.rank}-{self.microbatch}-{self.kind}"
        return [name, *(f"{name}.{n}" for n in range(2, self.times + 1))]

    def covers(self, microbatch: int) -> bool:
        """Whether ``microbatch`` lies in the window of a slow kind."""
        return self.microbatch <= microbatch < self.microbatch + self.length


def parse(text: str) -> Fault:
    """Read ``rank:microbatch:kind``. Raises ValueError with a sentence for the user."""
    match = _FORM.fullmatch(text)
    if match is None:
        kinds = ", ".join([*PLAIN, "kill=COUNT", "slow=FACTORxCOUNT"])
        raise ValueError(
            f"--fault {text} is not rank:microbatch:kind with kind {kinds} "
            f"or slow-data=SECONDSxCOUNT, such as 1:401:kill or 1:400:slow=3x80."
        )
    rank, microbatch = int(match["rank"]), int(match["microbatch"])
    if microbatch < 1:
        raise ValueError(f"--fault {text}: microbatches are counted from 1.")
    if match["plain"]:
        return Fault(rank, microbatch, match["plain"])
    if match["again"]:
        if int(match["times"]) < 1:
            raise ValueError(f"--fault {text}: the count must be at least 1.")
        return Fault(rank, microbatch, "kill", times=int(match["times"]))
    kind, size, length = match["kind"], float(match["size"]), int(match["length"])
    if length < 1 or (size < 1 if kind == "slow" else size <= 0):
        least = "factor must be at least 1" if kind == "slow" else "seconds must be above 0"
        raise ValueError(f"--fault {text}: the {least} and the count at least 1 microbatch.")
    return Fault(rank, microbatch, kind, size, length)


class Injector:
    """The faults of one rank, ready to strike."""

    def __init__(self, faults: Sequence[Fault], rank: int, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._rank = rank
        self._marked: list[Fault] = []
        mine = [f for f in faults if f.rank == rank and self._unmarked(f)]
        self._slow: list[Fault] = []
        self._late = [f for f in mine if f.kind == "slow-data"]
        self._noise = [f for f in mine if f.kind == "spike"]
        self._nan = {f.microbatch: f for f in mine if f.kind == "nan"}
        others = ("slow-data", "spike", "nan")
        self._due = {f.microbatch: f for f in mine if f.kind not in others}
        self._saver: Saver | None = None

    def attach(self, saver: Saver) -> None:
        """Name the saver, for the faults that harm checkpoints."""
        self._saver = saver

    def before(self, microbatch: int) -> None:
        """Strike if a fault is due. ``microbatch`` is counted from 1 over the run.

        Raises InjectedError for the kind exception; does not return where the kind is SIGKILL.
        """
        fault = self._due.pop(microbatch, None)
        if fault is None:
            return
        if fault.kind == "kill-save":
            assert self._saver is not None
            self._saver.halfway = lambda: self._kill(fault)
            return
        self._mark(fault)
        if fault.kind == "kill":
            self._kill(fault)
        elif fault.kind == "exception":
            raise InjectedError(f"fault on purpose before microbatch {microbatch}")
        elif fault.kind == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif fault.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind in ON_CHECKPOINTS:
            self._harm(fault)
        else:
            self._slow.append(fault)

    @contextmanager
    def slowed(self, microbatch: int) -> Iterator[None]:
        """Stretch what happens inside by the factor while ``microbatch`` is in the window."""
        slow = next((f for f in self._slow if f.covers(microbatch)), None)
        if slow is None:
            yield
            return
        begin = time.perf_counter()
        yield
        time.sleep((slow.factor - 1) * (time.perf_counter() - begin))

    def batch(self, numbers: range, batch: Batch) -> Batch:
        """The data of the step with the microbatches ``numbers``, late or as noise if due."""
        for fault in self._late:
            if fault.covers(numbers[0]) or fault.microbatch in numbers:
                self._mark(fault)
                time.sleep(fault.factor)
        for fault in [f for f in self._noise if f.microbatch in numbers]:
            self._noise.remove(fault)
            self._mark(fault)
            return _noise(batch[0]), _noise(batch[1])
        return batch

    def poisons(self, microbatch: int) -> bool:
        """Whether the gradients of ``microbatch`` are to become no numbers; true once."""
        fault = self._nan.pop(microbatch, None)
        if fault is None:
            return False
        self._mark(fault)
        return True

    def _harm(self, fault: Fault) -> None:
        """Cut or remove the newest checkpoint file of this rank, then die."""
        assert self._saver is not None
        self._saver.finish()
        steps = checkpoint.saved_steps(self._folder, self._rank)
        if not steps:
            raise InjectedError(f"fault on purpose {fault.kind}: there is no checkpoint yet")
        path = checkpoint.step_folder(self._folder, steps[-1]) / f"stage-{self._rank}.pt"
        if fault.kind == "missing":
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
        self._kill(fault)

    def _kill(self, fault: Fault) -> None:
        self._mark(fault)
        os.kill(os.getpid(), signal.SIGKILL)

    def _mark(self, fault: Fault) -> None:
        """Note that it strikes in this attempt: the first mark that is missing, once a process."""
        if fault in self._marked:
            return
        self._marked.append(fault)
        self._folder.mkdir(parents=True, exist_ok=True)
        next(self._folder / m for m in fault.marks() if not (self._folder / m).exists()).touch()

    def _unmarked(self, fault: Fault) -> bool:
        return not all((self._folder / mark).exists() for mark in fault.marks())


def _noise(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bytes that no text has, of the same shape; the same each time."""
    import numpy as np

    random = np.random.Generator(np.random.Philox(key=[1, 2]))
    return random.integers(128, 256, size=values.shape, dtype=values.dtype)
