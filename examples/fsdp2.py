"""FSDP2 (``fully_shard``) on gloo and CPU, with distributed checkpoints.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py runs/fsdp2 && badput report runs/fsdp2
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import badput

STEPS, BATCH, WIDTH = 20, 8, 32


def main(run: str) -> None:
    """Train a sharded model and save it twice."""
    badput.init(run, name="fsdp2")
    torch.set_num_threads(1)
    with badput.span("rendezvous"):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    with badput.span("model"):
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for number in range(1, STEPS + 1):
        batch = torch.randn(BATCH, WIDTH)
        with badput.step(samples=BATCH) as step:
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss.item())
        if number % 10 == 0:
            path = Path(run) / "checkpoints" / str(number)
            with badput.span("save", step=number, path=path):
                dcp.save({"model": model.state_dict()}, checkpoint_id=path)
    badput.event("complete")
    badput.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/fsdp2")
