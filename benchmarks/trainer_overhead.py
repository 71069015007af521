"""What the probe costs a training loop: the reference trainer's model with it and without.

    python benchmarks/trainer_overhead.py [BLOCKS]

One process trains one stage of the reference model. Blocks of steps with the probe (init: spool,
collector, all hooks; a step, a span, a loss each time) take turns with blocks without it (closed),
in random order within each pair. The first two seconds of each block are not counted: with the
probe its collector starts then, without it one may still be ending. From each pair comes one ratio
of median step times; the interval is a bootstrap over the pairs. The bar is held if its upper 95 %
end is at most 0.5 %.

That difference is small beside the machine's own noise. So the time within the probe's calls is
measured too, in the same loop, with the caches as cold as the training left them: it is what the
training thread pays for certain, and leaves out what hooks and collector cost.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import badput
from badput_trainer.config import ModelConfig
from badput_trainer.model import build, loss_of

BAR, STEPS, WARM = 0.005, 60, 60
_clock = time.perf_counter_ns


class Loop:
    """A model, an optimizer and a batch."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = build(ModelConfig(), 0, 1, seed=1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randint(0, 256, (8, 65))

    def step(self) -> float:
        """One training step and its loss."""
        with badput.step(tokens=512) as step:
            self.optimizer.zero_grad()
            with badput.span("forward"):
                loss = loss_of(self.model(self.batch[:, :-1]), self.batch[:, 1:])
            with badput.span("backward"):
                loss.backward()
            self.optimizer.step()
            value = loss.item()
            step.log(loss=value)
        return value

    def block(self) -> float:
        """Median ns of a step; the first ones are warm-up."""
        times = []
        for _ in range(STEPS + WARM):
            begin = _clock()
            self.step()
            times.append(_clock() - begin)
        return statistics.median(times[WARM:])


def own_time(loop: Loop, steps: int) -> tuple[float, float]:
    """Median ns of a step, and of those in it that pass within the probe's calls."""
    whole, own = [], []
    for _ in range(steps):
        at = [_clock()]
        step = badput.step(tokens=512)
        log = step.__enter__()
        at.append(_clock())
        loop.optimizer.zero_grad()
        at.append(_clock())
        span = badput.span("forward")
        span.__enter__()
        at.append(_clock())
        loss = loss_of(loop.model(loop.batch[:, :-1]), loop.batch[:, 1:])
        at.append(_clock())
        span.__exit__(None, None, None)
        span = badput.span("backward")
        span.__enter__()
        at.append(_clock())
        loss.backward()
        at.append(_clock())
        span.__exit__(None, None, None)
        at.append(_clock())
        loop.optimizer.step()
        value = loss.item()
        at.append(_clock())
        log.log(loss=value)
        step.__exit__(None, None, None)
        at.append(_clock())
        del step, log, span
        whole.append(at[-1] - at[0])
        own.append(sum(at[n + 1] - at[n] for n in range(0, len(at), 2)))
    return statistics.median(whole[WARM:]), statistics.median(own[WARM:])


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the mean."""
    means = sorted(statistics.fmean(random.choices(values, k=len(values))) for _ in range(4000))
    return means[100], means[3899]


def main(argv: list[str]) -> int:
    """Print the figures; 0 always."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "pairs",
        nargs="?",
        type=int,
        default=30,
        help="pairs of blocks with and without the probe; %(default)s",
    )
    pairs = parser.parse_args(argv).pairs
    folder = Path(tempfile.mkdtemp(prefix="badput-trainer-"))
    os.environ["BADPUT_SPOOL"] = str(folder / "spool")
    loop, ratios, plain = Loop(), [], []
    loop.block()
    load = os.getloadavg()[0]
    try:
        for _ in range(pairs):
            found = {}
            for probe in random.sample((True, False), 2):
                if probe:
                    badput.init(folder / "run", name="overhead")
                found[probe] = loop.block()
                badput.close(timeout=0)
            ratios.append(found[True] / found[False] - 1)
            plain.append(found[False])
        badput.init(folder / "run", name="overhead")
        whole, own = own_time(loop, 10 * STEPS)
        badput.close(timeout=0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    low, high = interval(ratios)
    usual = statistics.median(plain) / 1e6
    print(f"load {load:.1f}; {pairs} pairs of blocks of {STEPS} steps of {usual:.2f} ms")
    print(
        f"with the probe {statistics.fmean(ratios):+.2%}, 95 % interval {low:+.2%} to {high:+.2%}"
    )
    verdict = "held" if high <= BAR else "not shown"
    print(f"bar {BAR:.1%} for the upper end: {verdict}")
    print(
        f"within the probe's calls: {own / 1e3:.0f} us of {whole / 1e6:.2f} ms, {own / whole:.2%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
