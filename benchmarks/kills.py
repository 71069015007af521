"""How many finished steps are lost when a rank is killed with SIGKILL at a random moment.

    python benchmarks/kills.py [COUNT]

Each child records steps as fast as it can and counts the finished ones in a page that outlives
it. After the kill its spool is collected; lost are the steps that it had finished and that no row
has. The parts are read back with DuckDB or pyarrow, so an unreadable one is an error here.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from badput.collect import main as collect
from badput.parts import list_parts

CHILD = """
import badput, mmap, os, struct
with open(os.environ["COUNTER"], "r+b") as handle:
    counter = mmap.mmap(handle.fileno(), 8)
from badput import session
session.ensure_collector = lambda root: False
badput.init(os.environ["RUN"])
number = 0
while True:
    with badput.step(tokens=number) as step:
        if number % 3 == 0:
            with badput.span("forward"):
                pass
            step.log(loss=1.0)
    number += 1
    counter[:8] = struct.pack("<Q", number)
"""


def kill_one(folder: Path, turn: int) -> tuple[int, int, int]:
    """Steps finished, rows found, and rows that are not the steps 1, 2, 3 ... with their tokens."""
    counter, run, spool = folder / "counter", folder / f"run{turn}", folder / f"spool{turn}"
    counter.write_bytes(bytes(8))
    with counter.open("r+b") as handle:
        page = mmap.mmap(handle.fileno(), 8)
    env = {**os.environ, "COUNTER": str(counter), "RUN": str(run), "BADPUT_SPOOL": str(spool)}
    child = subprocess.Popen([sys.executable, "-c", CHILD], env=env)
    while page[:8] == bytes(8):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    child.kill()
    child.wait()
    (finished,) = struct.unpack("<Q", page[:8])
    with open(os.devnull, "w") as quiet:
        saved, sys.stdout = sys.stdout, quiet
        try:
            collect([str(spool)])
        finally:
            sys.stdout = saved
    rows = []
    for part in list_parts(run, "steps"):
        table = pq.read_table(part, columns=["step", "tokens"])
        rows += zip(*table.to_pydict().values(), strict=True)
    wrong = sum(row != (n + 1, n) for n, row in enumerate(sorted(rows)))
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(spool, ignore_errors=True)
    return finished, len(rows), wrong


def main(argv: list[str]) -> int:
    """Print the figures; 1 if a finished step was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "count", nargs="?", type=int, default=100, help="ranks to kill; %(default)s"
    )
    count = parser.parse_args(argv).count
    folder = Path(tempfile.mkdtemp(prefix="badput-kills-"))
    steps = lost = wrong = 0
    try:
        for turn in range(count):
            finished, found, odd = kill_one(folder, turn)
            steps += finished
            lost += max(0, finished - found)
            wrong += odd
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{count} kills, {steps:,} finished steps: {lost} lost, {wrong} wrong rows")
    return int(lost > 0 or wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
