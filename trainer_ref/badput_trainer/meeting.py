"""How the stages find each other: the store, the process group, and lanes between neighbours.

torchrun keeps one TCPStore for all attempts of a job. After a restart it still holds the
addresses of processes that are gone, and gloo connects to them: it fails or hangs. So every
attempt reads and writes under a prefix of its own, keyed by TORCHELASTIC_RESTART_COUNT,
which is the same on all ranks of one node. (Over several nodes torchrun counts restarts on
each node alone; there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives each attempt a new store.)

gloo tells messages apart by tags. NCCL has none and runs what is sent and received over one
group in order, so a lane, one group for each direction and pair of neighbours, keeps an
activation from waiting behind a gradient.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

# Public by their documentation, though the package does not list them.
# pyright: reportPrivateImportUsage=false
from torch.distributed import PrefixStore, Store, TCPStore

from badput_trainer import checkpoint

if TYPE_CHECKING:
    from badput_trainer.config import TrainConfig

_GROUPS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""With NCCL what the stages agree on, plain values, still goes over gloo."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Groups by the lower rank of a pair: activations to the higher, gradients to the lower."""

    activations: dict[int, dist.ProcessGroup]
    gradients: dict[int, dist.ProcessGroup]

    def between(self, one: int, other: int, direction: int) -> dist.ProcessGroup | None:
        """The group of two neighbours for activations (0) or gradients (1); None: the default."""
        lanes = self.gradients if direction else self.activations
        return lanes.get(min(one, other))


def join(config: TrainConfig, rank: int) -> tuple[Store, Lanes]:
    """Meet the other ranks; returns a store of this attempt alone, and the lanes.

    Raises RuntimeError (of torch.distributed) if they do not come within ``config.timeout``.
    """
    timeout = timedelta(seconds=config.timeout)
    # torchrun's agent keeps the store; a plain launcher leaves that to rank 0.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    world = int(os.environ["WORLD_SIZE"])
    server = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size=world,
        is_master=rank == 0 and not agent,
        timeout=timeout,
        multi_tenant=True,
    )
    store = PrefixStore(prefix(), server)
    backend = _GROUPS[config.backend]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    lanes = Lanes({}, {})
    if config.lanes or config.backend == "nccl":
        for lower in range(world - 1):  # every rank makes every group, in the same order
            pair = [lower, lower + 1]
            for groups in (lanes.activations, lanes.gradients):
                group = dist.new_group(pair, timeout=timeout, backend=config.backend)
                if rank in pair:
                    assert isinstance(group, dist.ProcessGroup)
                    groups[lower] = group
    return PrefixStore("control", store), lanes


def prefix() -> str:
    """The part of the store that belongs to this attempt of this job."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"badput/{job}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def agree(config: TrainConfig, stage: int, *, before: int | None = None) -> tuple[int, int] | None:
    """The newest step, with its data position, that all ranks can load; None if there is none.

    ``before``: only steps below it.
    """
    mine = checkpoint.usable(config.checkpoint_dir, stage=stage, config_hash=config.hash)
    mine = {step: at for step, at in mine.items() if before is None or step < before}
    found: list[dict[int, int]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, mine)
    return checkpoint.agreed(found)
