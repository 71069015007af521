"""DistributedDataParallel on gloo that knows nothing of badput, and comes back after a failure.

badput run -o runs/untouched -- torchrun --nproc-per-node 2 --max-restarts 1 examples/untouched.py
badput report runs/untouched
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY, BATCH, WIDTH = 20, 5, 4, 600


def main(folder: Path) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    path, done = folder / "last.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    for number in range(done + 1, STEPS + 1):
        batch = torch.randn(BATCH, WIDTH)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % SAVE_EVERY == 0:
            if dist.get_rank() == 0:
                folder.mkdir(parents=True, exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": number}, path.with_suffix(".new"))
                os.replace(path.with_suffix(".new"), path)  # noqa: PTH105 - as scripts do
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
