"""How many GPUs a node has, for logs that count nodes only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import MOST_GPUS, BadLogError

if TYPE_CHECKING:
    from badput_ledger.sources.attempts import Options

_TYPES: dict[str, tuple[str, int]] = {
    "a3h": ("NVIDIA H100 80GB HBM3", 8),
    "a3high": ("NVIDIA H100 80GB HBM3", 8),
    "a3m": ("NVIDIA H100 80GB HBM3", 8),
    "a3mega": ("NVIDIA H100 80GB HBM3", 8),
    "a3u": ("NVIDIA H200", 8),
    "a3ultra": ("NVIDIA H200", 8),
    "a4": ("NVIDIA B200", 8),
}
"""Google Cloud's machine types as they are put into job names: GPU and GPUs a node.
Source: cloud.google.com/compute/docs/gpus (a3-megagpu-8g and its kind)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one node is."""

    gpus: int
    """Places of a node; 1 where the number of GPUs is not known and a place is a node."""
    gpu_type: str | None
    known: int | None
    """GPUs of a node, None if unknown."""
    note: str | None

    @property
    def place(self) -> str:
        """What one requested place is."""
        return "GPU" if self.known else "node"


def machine_of(job: str, nodes: int, options: Options) -> Machine:
    """GPUs of a node: as given, else as the job's name says, else unknown.

    Raises BadLogError where ``--gpus`` cannot be shared by the nodes, or is too much.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", job.lower()) if w in _TYPES]
    named = _TYPES[words[0]] if len(set(words)) == 1 else None
    if options.gpus is not None:
        if options.gpus % nodes:
            raise BadLogError(
                f"--gpus {options.gpus} cannot be shared by its {nodes} nodes; "
                "give the GPUs of all nodes together"
            )
        each = options.gpus // nodes
        fits = named is not None and named[1] == each
        return Machine(each, options.gpu_type or (named[0] if named and fits else None), each, None)
    if named is None:
        note = "the log counts nodes, not GPUs: a place is a node; --gpus N gives all its GPUs"
        return _checked(Machine(1, options.gpu_type, None, note), nodes)
    note = (
        f"{words[0]} in the job's name is taken for machines of {named[1]} {named[0]}; "
        "--gpus and --gpu-type say otherwise"
    )
    return _checked(Machine(named[1], options.gpu_type or named[0], named[1], note), nodes)


def _checked(machine: Machine, nodes: int) -> Machine:
    if machine.gpus * nodes > MOST_GPUS:
        raise BadLogError(f"{nodes} nodes are more than {MOST_GPUS} GPUs")
    return machine
