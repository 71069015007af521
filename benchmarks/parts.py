"""Many small parts: readable while uncompacted, what compacting them costs, and what it gains.

    python benchmarks/parts.py [PARTS]

A run of 256 ranks whose collectors were killed before they compacted anything: PARTS small parts
(25,600 unless given) of 10 steps each. The ledger reads the step table in a process of its own,
before and after; `badput compact` runs in a process of its own, and its peak memory is that of the
kernel's accounts for that process alone, beside one that compacts an empty run.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from badput import parts
from badput.parts import list_parts, rows_to_table

RANKS, STEPS = 256, 10
MS_BAR, SPEED_BAR, RSS_BAR_MIB = 2.0, 15.0, 500
READ = """
import sys, time
from pathlib import Path
from badput_ledger import store
store.pyarrow(); store.pyarrow("parquet")
con = store.connect()
con.execute("SET enable_progress_bar = false")
begin = time.perf_counter()
broken, _ = store.load(con, Path(sys.argv[1]))
query = "SELECT count(*), count(DISTINCT (process_id, seq)), sum(dur_ns) FROM steps"
found = con.execute(query).fetchone()
print(time.perf_counter() - begin, *found, len(broken))
"""


def make(run: Path, count: int) -> None:
    """Write the parts as a drain does, all of processes that have ended; not flushed to disk."""
    fsync, os.fsync = os.fsync, lambda _: None  # only the making is in a hurry
    try:
        for rank in range(RANKS):
            row = {"process_id": rank + 1, "role": "rank", "rank": rank, "start_ns": 1}
            name = f"{rank + 1:016x}-{0:012d}"
            parts.write_rows(run, "processes", name, [{**row, "world_size": RANKS}])
            end = {"process_id": rank + 1, "seq": 10**9, "time_ns": 10**18, "kind": "end"}
            parts.write_rows(run, "events", f"{name}-end", [{**end, "attrs": "{}"}])
        schema = rows_to_table("steps", [])
        for part in range(count // RANKS):
            for rank in range(RANKS):
                numbers = range(part * STEPS, (part + 1) * STEPS)
                rows = [
                    {"process_id": rank + 1, "seq": n, "rank": rank, "step": n + 1, "n_steps": 1,
                     "start_ns": 10**18 + n * 10**9 + rank, "dur_ns": 10**9 - 7 * n, "tokens": 4096,
                     "loss": 2.0 + 1 / (n + 1)}
                    for n in numbers
                ]  # fmt: skip
                data = pa.Table.from_pylist(rows, schema=schema.schema)
                name = f"{rank + 1:016x}-{numbers[0]:012d}"
                parts.write_part(run, "steps", name, data)
    finally:
        os.fsync = fsync


def read(run: Path, times: int) -> tuple[float, list[str]]:
    """Seconds for the ledger to load the facts, a median of some times, and what it found."""
    done = [
        subprocess.run(
            [sys.executable, "-c", READ, str(run)], text=True, capture_output=True, check=True
        ).stdout.split()
        for _ in range(times)
    ]
    return statistics.median(float(words[0]) for words in done), done[0][1:]


def compact(run: Path) -> tuple[float, float, str]:
    """Seconds, peak resident MiB and last line of `badput compact` in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "badput.cli", "compact", str(run)]
    child = subprocess.Popen(command, text=True, stdout=-1)
    assert child.stdout is not None
    said = child.stdout.read().strip().splitlines()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said
    return seconds, usage.ru_maxrss * resource.getpagesize() / 4096 / 1024, said[-1]


def verdict(held: bool) -> str:
    """In words."""
    return "held" if held else "NOT held"


def main(argv: list[str]) -> int:
    """Print the figures; 0 always: nothing is asserted but that no row is lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "count", nargs="?", type=int, default=25_600, help="parts to make and compact; %(default)s"
    )
    count = parser.parse_args(argv).count // RANKS * RANKS
    folder = Path(tempfile.mkdtemp(prefix="badput-parts-"))
    try:
        empty, run = folder / "empty", folder / "run"
        make(empty, 0)
        make(run, count)
        print(f"load {os.getloadavg()[0]:.1f}")
        before, found = read(run, 1)
        good = found[:2] == [str(count * STEPS)] * 2 and found[-1] == "0"
        print(f"{count:,} parts of {STEPS} steps, read uncompacted: {before:.2f} s; "
              f"{'every row once' if good else f'WRONG: {found}'}")  # fmt: skip
        idle, floor, _ = compact(empty)
        seconds, peak, said = compact(run)
        print(said.rpartition(": ")[2])
        each = (seconds - idle) * 1000 / count
        print(f"compaction {seconds:.1f} s, {each:.2f} ms a part; bar {MS_BAR:.0f}: "
              f"{verdict(each <= MS_BAR)}")  # fmt: skip
        print(f"peak memory of the compacting process {peak:.0f} MiB, {floor:.0f} MiB with nothing "
              f"to do; bar {RSS_BAR_MIB}: {verdict(peak <= RSS_BAR_MIB)}")  # fmt: skip
        after, again = read(run, 3)
        same = "the same rows" if again == found else f"WRONG: {again}"
        print(f"read after: {after:.3f} s from {len(list_parts(run, 'steps'))} parts, {same}; "
              f"{before / after:.0f} x faster; bar {SPEED_BAR:.0f}: "
              f"{verdict(before / after >= SPEED_BAR)}")  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
