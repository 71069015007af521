"""What `badput import` of a large text log costs, against an empty loop over its lines.

    python benchmarks/importing.py [--format torchtitan] [--mb 1024] [--noise 0] [--repeats 3]

Writes a log in our own words, then takes turns: `for line in open(log): pass` in a Python of its
own, and `badput import` in one of its own, start-up and Parquet included. Prints the ratio of the
medians, by the clock and by processor time, and the importer's peak memory. `--noise N` puts N
lines that no importer wants after each step line.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BAR, RSS_BAR_MIB = 5.0, 500
LOOP = "import sys\nfor line in open(sys.argv[1], encoding='utf-8'): pass"
START = datetime(2031, 5, 1, tzinfo=UTC)


def torchtitan() -> Iterator[str]:
    """Coloured step lines, a save every 1,000 steps."""

    def said(now: datetime, text: str) -> str:
        clock = now.strftime("%Y-%m-%d %H:%M:%S,") + f"{now.microsecond // 1000:03d}"
        return f"[rank0]:[titan] {clock} - root - INFO - {text}\n"

    now = START
    yield said(now, "Building device mesh with parallelism: pp=1, dp_shard=8, tp=1")
    yield said(now, "Training starts at step 1")
    step = 0
    while True:
        step += 1
        now += timedelta(milliseconds=2000 + step * 37 % 90)
        text = (
            f"\x1b[31mstep: {step:2}  \x1b[32mloss: {2 + 9 / (step + 3):8.5f}  "
            f"\x1b[38;2;180;60;0mgrad_norm: {0.2 + step % 71 / 90:7.4f}  "
            f"\x1b[38;2;54;234;195mmemory: 22.39GiB(71.39%)  \x1b[34mtps: {1800 + step % 97:,}  "
            f"\x1b[36mtflops: {13 + step % 9 / 10:,.2f}  \x1b[35mmfu: 4.{step % 90 + 10}%\x1b[39m"
        )
        yield said(now, text)
        if step % 1000 == 0:
            yield said(now, "Saving the checkpoint (or staging if async is enabled).")
            now += timedelta(seconds=3)
            end = "Finished saving the checkpoint (or staging if async is enabled) in 3.00 seconds."
            yield said(now, end)


FORMATS: dict[str, Callable[[], Iterator[str]]] = {"torchtitan": torchtitan}


def fill(out: TextIO, lines: Iterator[str], size: int, noise: int) -> int:
    """Write ``size`` bytes of a log; returns the number of lines."""
    written = count = 0
    while written < size:
        line = next(lines)
        for extra in (
            line,
            *(f"worker {count * 7 + i}: cache at 0x{count:x}\n" for i in range(noise)),
        ):
            written += len(extra)
            count += 1
            out.write(extra)
    return count


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock, seconds of processor, and peak MiB of one command."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    if process.returncode:
        sys.exit(f"{command[1:4]} ended with {process.returncode}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Write the log, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--format", choices=FORMATS, default="torchtitan")
    parser.add_argument("--mb", type=int, default=1024, help="size of the log in MiB")
    parser.add_argument("--noise", type=int, default=0, help="other lines after each step line")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "train.log", Path(folder) / "runs"
        with log.open("w", encoding="utf-8") as handle:
            count = fill(handle, FORMATS[args.format](), args.mb << 20, args.noise)
        loops: list[tuple[float, float, float]] = []
        imports: list[tuple[float, float, float]] = []
        for _ in range(args.repeats):
            loops.append(measured([sys.executable, "-c", LOOP, str(log)]))
            command = [sys.executable, "-m", "badput_ledger.sources.cli", str(log), "-o", str(out)]
            imports.append(measured(command))
    print(f"{args.format}: {args.mb} MiB, {count:,} lines; load {os.getloadavg()[0]:.1f}")
    loop, took = ([statistics.median(c) for c in zip(*m, strict=True)] for m in (loops, imports))
    for name, wall, cpu, _ in (("empty loop", *loop), ("import", *took)):
        print(
            f"{name:10} {wall:8.2f} s, {cpu:8.2f} s of processor, {cpu / count * 1e9:6.0f} ns/line"
        )
    print(f"ratio      {took[0] / loop[0]:8.2f} x, {took[1] / loop[1]:8.2f} x  (bar {BAR:g} x)")
    peak = max(m for _, _, m in imports)
    print(f"peak       {peak:8.0f} MiB  (bar {RSS_BAR_MIB} MiB)")


if __name__ == "__main__":
    main()
