"""A plain training loop with badput: one process, a tiny model, a few seconds on a CPU.

python examples/plain_loop.py runs/plain && badput report runs/plain
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import badput

STEPS, BATCH, LENGTH, VOCABULARY = 30, 8, 16, 64


def main(run: str) -> None:
    """Train, evaluate and save."""
    badput.init(run, name="plain loop")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with badput.span("model"):
        model = torch.nn.Sequential(
            torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.randint(0, VOCABULARY, (STEPS * BATCH, LENGTH + 1))
    loader = torch.utils.data.DataLoader(text, batch_size=BATCH)
    for number, batch in enumerate(badput.data(loader), 1):
        with badput.step(tokens=BATCH * LENGTH, samples=BATCH) as step:
            with badput.span("forward"):
                logits = model(batch[:, :-1])
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch[:, 1:].flatten()
                )
            with badput.span("backward"):
                loss.backward()
            with badput.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            step.log(loss=loss.item())
        if number % 10 == 0:
            path = Path(run) / "checkpoints" / f"{number}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            with badput.span("save", step=number, path=path):
                torch.save({"model": model.state_dict(), "step": number}, path)
    with badput.span("eval"), torch.no_grad():
        model(text[:BATCH, :-1])
    badput.event("complete")
    badput.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/plain")
