"""How many bytes of disk a step of one rank takes once its run is compacted.

    python benchmarks/disk.py [STEPS]

Two ranks record STEPS steps each with the recorder itself, on a clock that is moved: steps of
some 250 ms that vary by a few ms, a loss and a gradient norm that torch would give (32-bit
floats). Their spools are collected and compacted, and the sizes of the columns are read from the
footers. The bar is for the base columns: start, duration, step, rank, session (process and
sequence number), tokens, loss, gradient norm; what the file needs beside its columns is counted
with them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from badput.collect import main as collect
from badput.compact import compact_run
from badput.parts import list_parts

BAR, RANKS = 16.0, 2
BASE = {
    "start_ns", "dur_ns", "step", "rank", "process_id", "seq", "tokens", "loss", "grad_norm",
}  # fmt: skip
CHILD = """
import os, random, struct, time
from badput import clock
rank, steps = int(os.environ["RANK"]), int(os.environ["STEPS"])
now, pick = time.monotonic_ns(), random.Random(rank)
clock.mono = lambda: now
import badput
from badput import session
session.ensure_collector = lambda root: False
badput.init(os.environ["RUN"], hooks="none")
def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]
for number in range(1, steps + 1):
    now += int(pick.gauss(200_000, 40_000))
    with badput.step(tokens=32768) as step:
        now += int(pick.gauss(250e6, 3e6))
        loss = 2.0 + 9.0 * number ** -0.3 + pick.gauss(0, 0.03)
        step.log(loss=single(loss), grad_norm=single(pick.lognormvariate(-1, 0.3)))
    if number % 20_000 == 0:
        print(number, flush=True)  # collect what is there, or the spool is full
        input()
badput.close(0)
print("end", flush=True)
"""


def record(folder: Path, steps: int) -> Path:
    """Have all ranks record; where their run is."""
    for rank in range(RANKS):
        env = {
            **os.environ, "RUN": str(folder / "run"), "BADPUT_SPOOL": str(folder / "spool"),
            "RANK": str(rank), "WORLD_SIZE": str(RANKS), "STEPS": str(steps),
        }  # fmt: skip
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=env, text=True, stdin=-1, stdout=-1
        )
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            if line != "end\n":
                collect([str(folder / "spool")])
                child.stdin.write("\n")
                child.stdin.flush()
        child.wait()
        collect([str(folder / "spool")])
    return folder / "run"


def main(argv: list[str]) -> int:
    """Print the figures; 0 always: nothing is asserted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "steps",
        nargs="?",
        type=int,
        default=100_000,
        help="steps that each of the two ranks records; %(default)s",
    )
    steps = parser.parse_args(argv).steps
    folder = Path(tempfile.mkdtemp(prefix="badput-disk-"))
    try:
        run = record(folder, steps)
        before = sum(p.stat().st_size for p in list_parts(run, "steps"))
        compact_run(run)
        found = list_parts(run, "steps")
        total, rows, columns = 0, 0, dict.fromkeys(sorted(BASE), 0)
        for path in found:
            meta = pq.read_metadata(path)
            total += path.stat().st_size
            rows += meta.num_rows
            for group in range(meta.num_row_groups):
                for at in range(meta.num_columns):
                    column = meta.row_group(group).column(at)
                    name = column.path_in_schema
                    columns[name] = columns.get(name, 0) + column.total_compressed_size
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert rows == RANKS * steps, f"{rows} rows"
    beside = total - sum(columns.values())
    base = sum(columns[name] for name in BASE) + beside
    print(
        f"\n{rows:,} steps in {len(found)} parts; {before / rows:.1f} bytes each before compaction"
    )
    for name in sorted(columns, key=lambda n: -columns[n]):
        if columns[name] / rows >= 0.005:
            print(f"{name:16} {columns[name] / rows:6.2f} bytes a step")
    print(f"{'beside':16} {beside / rows:6.2f}")
    print(f"all columns {total / rows:.2f}, base columns {base / rows:.2f} bytes a step and rank")
    print(f"bar {BAR:.0f} for the base columns: {'held' if base <= BAR * rows else 'NOT held'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
