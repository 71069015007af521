"""The leaves: the one list of places where a GPU-nanosecond can be booked.

Every instant of every slot gets exactly one leaf. The order below is the order of
the groups A to H and U, in which charts and tables show them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of the taxonomy."""

    id: str
    title: str
    definition: str

    @property
    def group(self) -> str:
        """The group's letter."""
        return self.id[0]


GROUPS: dict[str, str] = {
    "A": "not running",
    "B": "failure and teardown",
    "C": "restart",
    "D": "lost work",
    "E": "in the loop, not training",
    "F": "executed, no update",
    "G": "inside kept steps",
    "H": "kept steps, the rest",
    "U": "unaccounted",
}

LEAVES: tuple[Leaf, ...] = (
    Leaf("A.queue", "queue", "requested and waiting for the first start"),
    Leaf("A.requeue", "requeue", "waiting for the scheduler after a stop"),
    Leaf("A.capacity", "capacity", "requested places that a smaller session left empty"),
    Leaf("A.stop", "planned stop", "stopped on purpose"),
    Leaf("A.spare", "spare", "kept ready to replace a failed place"),
    Leaf("B.hang", "hang", "no progress, until someone or something noticed"),
    Leaf("B.teardown", "teardown", "from the first sign that the session ends to its last exit"),
    Leaf("B.diagnosis", "diagnosis", "people looking for the cause, by mark or annotation"),
    Leaf("C.launch", "launch", "starting processes: container, interpreter, imports"),
    Leaf("C.rendezvous", "rendezvous", "ranks finding each other"),
    Leaf("C.model", "model", "building model and optimizer, and start-up that nothing finer names"),
    Leaf("C.data", "data set-up", "building the loader and fast-forwarding it"),
    Leaf("C.load", "checkpoint load", "reading the checkpoint"),
    Leaf("C.warmup", "warm-up", "excess of the first steps and of recompiles over a usual step"),
    Leaf("D.recomputed", "recomputed", "steps done, lost with a failure and done again"),
    Leaf("D.partial", "partial step", "the step that was under way at the failure"),
    Leaf("D.rewind", "rewind", "steps given up by a declared rollback"),
    Leaf(
        "D.branch",
        "abandoned branch",
        "steps of a branch that the final model does not descend from",
    ),
    Leaf("D.tail", "lost tail", "steps after the last durable checkpoint of a run that broke off"),
    Leaf("E.save", "checkpoint save", "training blocked by a checkpoint"),
    Leaf("E.snapshot", "snapshot", "staging of an asynchronous checkpoint, and waiting for one"),
    Leaf("E.interference", "interference", "slower steps while a checkpoint is written"),
    Leaf("E.eval", "evaluation", "evaluation"),
    Leaf("E.overhead", "overhead", "garbage collection, logging, profiling"),
    Leaf("F.skipped", "skipped", "steps whose update was skipped, such as non-finite gradients"),
    Leaf("F.uncommitted", "uncommitted", "steps that fault tolerant training did not commit"),
    Leaf("F.padding", "padding", "share of kept steps spent on padding tokens"),
    Leaf("G.data", "data stall", "waiting for data"),
    Leaf("G.bubble", "pipeline bubble", "a stage waiting for activations or gradients"),
    Leaf("G.straggler", "straggler", "waiting for a slow rank, and its own excess"),
    Leaf("G.comm", "communication", "communication that compute does not hide"),
    Leaf("G.host", "host", "loop time between steps on the host"),
    Leaf("G.throttle", "throttling", "clocks held down by power or heat"),
    Leaf("G.recompute", "activation recompute", "forward work done again to save memory"),
    Leaf("G.kernel", "kernel inefficiency", "compute below the peak rate"),
    Leaf("H.productive", "productive", "what is left of the kept steps"),
    Leaf("U.unaccounted", "unaccounted", "instants that no fact covers"),
)

LEAF_IDS: tuple[str, ...] = tuple(leaf.id for leaf in LEAVES)
BY_ID: dict[str, Leaf] = {leaf.id: leaf for leaf in LEAVES}

RECOMPUTE, KERNEL, REST = "G.recompute", "G.kernel", "H.productive"
COMPUTE = (REST, RECOMPUTE, KERNEL)
"""The compute of kept steps: H is what it takes at the peak rate, where FLOPs tell that."""
