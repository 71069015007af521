"""How long the books take beside one GROUP BY over the columns that they read.

    python benchmarks/books.py [RANKSxSTEPS ...] [--keep FOLDER] [--rich]

For each size (default 16x6250, a tenth of a million rows; the bars are at 256x100000 and
1024x100000) a made-up run is written, then, each in a process of its own: the GROUP BY (DuckDB,
over the step table, once to warm the disk's cache and once timed), `badput report`, `badput
fsck`, and queries on the open books, as an overview asks them. Peak memory is that of the
process. Bars: report at most 4 times the GROUP BY, at most 2 GiB at 25.6 million rows and 4 GiB
at 102.4 million; 50 ms for an overview query.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from books_runs import Maker

GROUP_BY = """
import sys, time, duckdb
query = (
    "SELECT process_id, count(*), min(seq), max(step), sum(n_steps), min(start_ns), sum(dur_ns), "
    "sum(pre_data_ns), sum(tokens), count(*) FILTER (WHERE NOT applied) "
    f"FROM read_parquet('{sys.argv[1]}/facts/steps/*.parquet') GROUP BY process_id"
)
con = duckdb.connect()
con.execute("SET enable_progress_bar = false")
con.execute(query).fetchall()
begin = time.perf_counter()
con.execute(query).fetchall()
print(time.perf_counter() - begin)
"""
QUERIES = """
import sys, time
from badput_ledger.books import open_books
asked = (
    "SELECT leaf, ns FROM leaves",
    "SELECT session, leaf, ns FROM session_leaves",
    "SELECT rank, leaf, sum(ns) FROM rank_leaves GROUP BY ALL",
    "SELECT session, fate, sum(steps) FROM step_sums GROUP BY ALL",
    "SELECT session, step // 1000, sum(time_ns), sum(pre_data_ns) FROM stretch_fates GROUP BY ALL",
)
with open_books(sys.argv[1]) as books:
    for query in asked:
        books.rows(query)
        begin = time.perf_counter()
        books.rows(query)
        print(time.perf_counter() - begin)
"""


def timed(*command: str) -> tuple[float, float, str]:
    """Seconds, peak MiB and output of a process."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024, said


def measure(run: Path, rows: int) -> None:
    """One line of the table, and the totals that it rests on."""
    python = sys.executable
    base = float(timed(python, "-c", GROUP_BY, str(run))[2])
    report, memory, said = timed(python, "-m", "badput.cli", "report", str(run), "--json")
    fsck, fsck_memory, _ = timed(python, "-m", "badput.cli", "fsck", str(run))
    queries = [1e3 * float(q) for q in timed(python, "-c", QUERIES, str(run))[2].split()]
    steps = json.loads(said)["steps"]
    print(
        f"{rows:>12,}  {base:8.2f}  {report:8.2f}  {report / base:6.1f}  {memory:9,.0f}"
        f"  {fsck:7.2f}  {fsck_memory:9,.0f}  {max(queries):8.1f}   "
        f"{steps['kept']:,} kept, {steps['lost']:,} lost",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=["16x6250"], metavar="RANKSxSTEPS")
    parser.add_argument("--keep", type=Path, help="write the runs here and leave or reuse them")
    parser.add_argument("--rich", action="store_true", help="with times of categories in the steps")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="badput-books-"))
    print("        rows  GROUP BY    report   ratio  MiB (report)  fsck  MiB (fsck)  query ms")
    try:
        for size in args.sizes:
            ranks, steps = (int(n) for n in size.split("x"))
            run = folder / (size + ("-rich" if args.rich else ""))
            if not run.exists():
                Maker(run, ranks, steps, rich=args.rich).write()
            measure(run, ranks * steps)
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
