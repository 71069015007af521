"""DistributedDataParallel on gloo, with badput in each rank.

torchrun --standalone --nproc-per-node 2 examples/ddp.py runs/ddp && badput report runs/ddp
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import badput

STEPS, BATCH, LENGTH, VOCABULARY = 20, 8, 16, 64


def main(run: str) -> None:
    """Train on all ranks of the world."""
    badput.init(run, name="ddp")  # rank and world come from torchrun's variables
    torch.set_num_threads(1)
    with badput.span("rendezvous"):
        dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    with badput.span("model"):
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        with badput.span("data"):
            batch = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        with badput.step(tokens=BATCH * LENGTH) as step:  # this rank's own tokens
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss.item())
    badput.event("complete")
    badput.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/ddp")
