"""What recording a step costs the training thread, beside reading the clock twice.

One step is ``with badput.step(tokens=N): pass``: begin, tokens, end, into the memory-mapped
spool, with a collector running as in real use. The pair is two ``time.perf_counter_ns()``
calls. Both are measured in the same run, in turns, because absolute figures move with the
machine and only the ratio is worth comparing.

Hot: a tight loop, caches warm, the best case. Paced: a single step after 1-2 ms of
copying memory, which is nearer to what a training loop feels: 1 MiB empties the small caches,
8 MiB most of the large one too, the interpreter's own code and data included. Tails hold
whatever else the machine does and are upper bounds. Nothing is
asserted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import badput

if TYPE_CHECKING:
    from collections.abc import Callable

BAR = 10.0
"""The project's bar: a hot step costs at most so many clock pairs."""
ROUNDS, LOOP, PACED = 300, 200, 1000
_clock = time.perf_counter_ns


def _empty() -> None:
    pass


def _pair() -> None:
    _clock()
    _clock()


def _step() -> None:
    with badput.step(tokens=4096):
        pass


def _step_with_spans() -> None:
    with badput.step(tokens=4096) as step:
        with badput.span("forward"):
            pass
        step.log(loss=1.5)


def _loop_ns(action: Callable[[], None]) -> float:
    begin = _clock()
    for _ in range(LOOP):
        action()
    return (_clock() - begin) / LOOP


def hot(actions: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median ns of one call of each action, the cost of an empty call taken off."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        base = _loop_ns(_empty)
        for name, action in actions.items():
            found[name].append(_loop_ns(action) - base)
    return {name: statistics.median(values) for name, values in found.items()}


def paced(action: Callable[[], None], size: int) -> tuple[float, float]:
    """Median and 99th percentile ns of one call after 1-2 ms of copying ``size`` bytes."""
    source, target = bytearray(os.urandom(1 << 20)) * (size >> 20), bytearray(size)
    taken: list[int] = []
    for turn in range(PACED):
        work_until = _clock() + 1_000_000 + turn % 10 * 100_000
        while _clock() < work_until:
            target[:] = source
        begin = _clock()
        action()
        taken.append(_clock() - begin)
    cuts = statistics.quantiles(taken, n=100)
    return cuts[49], cuts[98]


def main() -> int:
    """Print the figures."""
    folder = tempfile.mkdtemp(prefix="badput-cost-")
    os.environ.setdefault("BADPUT_SPOOL", str(Path(folder) / "spool"))
    badput.init(Path(folder) / "run", name="recording cost")
    try:
        figures = hot({"two perf_counter_ns calls": _pair, "step(tokens=)": _step})
        pair, step = figures.values()
        ratio = step / pair
        print(
            f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
        )
        print(f"hot median, {ROUNDS} rounds of {LOOP}:")
        print(f"  two perf_counter_ns calls   {pair:8.0f} ns")
        print(f"  step: begin, tokens, end    {step:8.0f} ns   {ratio:.1f} x the pair")
        verdict = "held" if ratio <= BAR else "NOT held"
        print(f"  bar of {BAR:.0f} x the pair: {verdict} in this run")
        for size in (1 << 20, 8 << 20):
            print(f"paced, {PACED} times after 1-2 ms of copying {size >> 20} MiB to and fro:")
            for name, action in (("an empty call", _empty), ("step: begin, tokens, end", _step)):
                middle, tail = paced(action, size)
                print(f"  {name:<26}  p50 {middle / 1000:6.1f} us   p99 {tail / 1000:6.1f} us")
        full = hot({"full": _step_with_spans})["full"]
        print(f"hot median of a step with one span and a loss: {full:.0f} ns")
    finally:
        badput.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
