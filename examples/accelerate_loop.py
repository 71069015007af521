"""Hugging Face Accelerate with gradient accumulation: a step is what the optimizer steps.

accelerate launch --cpu examples/accelerate_loop.py runs/accelerate
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import badput
from badput.adapters.accelerate import Steps

BATCHES, BATCH, LENGTH, VOCABULARY = 40, 4, 16, 64


def main(run: str) -> None:
    """Train with two batches a step."""
    badput.init(run, name="accelerate")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.randint(0, VOCABULARY, (BATCHES * BATCH, LENGTH + 1))
    loader = torch.utils.data.DataLoader(text, batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = Steps(accelerator)
    for batch in badput.data(loader):
        with steps(tokens=BATCH * LENGTH, samples=BATCH) as step, accelerator.accumulate(model):
            logits = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss.item())
    with badput.span("save", step=BATCHES // 2, path=Path(run) / "checkpoint"):
        accelerator.save_state(str(Path(run) / "checkpoint"))
    badput.event("complete")
    badput.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/accelerate")
