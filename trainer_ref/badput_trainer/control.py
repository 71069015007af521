"""What all stages must do at the same step: stop in an orderly way, or go back.

A stage that is asked to stop (SIGTERM), or sees the loss jump, cannot act alone: others are
within a step of it, before or behind. It proposes a step in the store that the stages met
through, where the first proposal wins; every stage looks there after each step. The step
lies far enough ahead that no stage can have passed it: under a synchronous schedule nobody
ends step s + 1 before all have ended step s, so ``LEAD[0]`` is 1. Under a delay of one a
stage may be one step behind, and each must know the last step before it begins it, as it
begins the next step within it otherwise: ``LEAD[1]`` is 3.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

LEAD = {0: 1, 1: 3}
"""Steps between a proposal and the step it is for, by the delay of the schedule."""


class StoppedError(Exception):
    """This stage has saved and is to end, as all do; the message says why."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What all stages do once ``at`` steps are done."""

    kind: str
    """stop or rewind."""
    at: int
    why: str
    seen: int = 0
    """rewind: the step whose loss was too high."""


class Control:
    """One stage's part in common decisions."""

    def __init__(self, store: Store, *, delay: int, steps: int) -> None:
        self._store = store
        self._lead = LEAD[delay]
        self._steps = steps
        self._made = 0
        self._asked = False
        self.decision: Decision | None = None

    def listen(self) -> None:
        """From now on SIGTERM asks for a checkpoint and an orderly end."""
        signal.signal(signal.SIGTERM, self._on_term)

    def after(self, step: int, rank: int) -> Decision | None:
        """What was decided, if anything; to be asked after each step, before the next.

        Raises RuntimeError (of torch.distributed) if the store is gone.
        """
        if self.decision is not None:
            return self.decision
        if self._asked:
            self.propose("stop", step, f"rank {rank} got SIGTERM")
        elif self._store.check([self._key]):
            self._take(self._store.get(self._key))
        return self.decision

    def propose(self, kind: str, step: int, why: str, seen: int = 0) -> bool:
        """Ask all to stop or go back, after ``step``; False if the run ends before they could."""
        if step + self._lead > self._steps or self.decision is not None:
            return False
        mine = json.dumps({"kind": kind, "at": step + self._lead, "why": why, "seen": seen})
        self._take(self._store.compare_set(self._key, "", mine))
        return True

    def done(self) -> None:
        """What was decided has been done; the next decision is a new one."""
        self.decision = None
        self._made += 1

    @property
    def _key(self) -> str:
        return f"decision/{self._made}"

    def _take(self, raw: bytes) -> None:
        self.decision = Decision(**json.loads(raw))

    def _on_term(self, _number: int, _frame: object) -> None:
        self._asked = True


class SpikeWatch:
    """Tells when a loss is ``factor`` times the mean of those before it; 0 never does."""

    WINDOW = 20
    LEAST = 4

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._recent: list[float] = []

    def sees(self, loss: float) -> bool:
        """Take one step's loss; a spike is not taken into the mean."""
        recent = self._recent
        mean = sum(recent) / len(recent) if len(recent) >= self.LEAST else None
        # A loss that is no number is a spike too, so the comparison is turned around.
        if self._factor and mean is not None and not loss <= self._factor * mean:
            return True
        self._recent = [*recent, loss][-self.WINDOW :]
        return False

    def forget(self) -> None:
        """Begin anew, as after a rewind."""
        self._recent.clear()
