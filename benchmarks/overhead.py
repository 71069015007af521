"""What recording a step costs the training thread: badput, and its peers beside it.

    python benchmarks/overhead.py [--quick]

Each recorder runs in a child process of its own, all made alike: the same interpreter, torch
loaded, one thread of torch. Hot: a tight loop, caches warm, the cost of an empty call taken off;
given as a ratio to two ``time.perf_counter_ns()`` calls that are measured in the same rounds of
the same process, since absolute figures move with the machine. Paced: one step after 1-2 ms of
matrix products, which is what a training loop feels, and after 1-2 ms of copying 8 MiB, which
empties most of the large cache as well. Tails hold whatever else the machine does: they are upper
bounds. A peer that is not installed is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recorders import RECORDERS, SURVIVES_KILL

if TYPE_CHECKING:
    from collections.abc import Callable

HOT_BAR, P50_BAR_US, P99_BAR_US, RSS_BAR_MIB = 10.0, 10.0, 60.0, 10.0
ROUND_NS, ROUNDS, PACED = 1_500_000, 300, 400
SETTLE_S = 3
"""For what a recorder starts beside the process: a collector, threads, a service."""
_clock = time.perf_counter_ns
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _empty() -> None:
    pass


def _pair() -> None:
    _clock()
    _clock()


def _loop_ns(action: Callable[[], None], count: int) -> float:
    begin = _clock()
    for _ in range(count):
        action()
    return (_clock() - begin) / count


def hot(action: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median ns of one call, and median ratio to a pair of clock calls next to it."""
    count = max(3, min(200, int(ROUND_NS / max(1.0, _loop_ns(action, 20)))))
    times, ratios = [], []
    for _ in range(rounds):
        empty = _loop_ns(_empty, 200)
        pair = _loop_ns(_pair, 200) - empty
        times.append(_loop_ns(action, count) - empty)
        ratios.append(times[-1] / pair)
    return statistics.median(times), statistics.median(ratios)


def matrix_work() -> Callable[[], None] | None:
    """A product of 320 x 320 matrices, some 0.5-1 ms; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    a, out = torch.randn(320, 320), torch.empty(320, 320)
    return lambda: torch.mm(a, a, out=out)


def copy_work() -> Callable[[], None]:
    """A copy of 8 MiB."""
    source, target = bytearray(os.urandom(1 << 20)) * 8, bytearray(8 << 20)

    def work() -> None:
        target[:] = source

    return work


def paced(
    actions: dict[str, Callable[[], None]], work: Callable[[], object], turns: int
) -> dict[str, tuple[float, float]]:
    """Median and 99th percentile us of one call after 1-2 ms of work, the actions in turns."""
    taken: dict[str, list[int]] = {name: [] for name in actions}
    order = list(actions)
    for turn in range(turns):
        random.shuffle(order)
        for name in order:
            action, until = actions[name], _clock() + 1_000_000 + turn % 10 * 100_000
            while _clock() < until:
                work()
            begin = _clock()
            action()
            taken[name].append(_clock() - begin)
    found = {}
    for name, values in taken.items():
        cuts = statistics.quantiles(values, n=100)
        found[name] = (cuts[49] / 1000, cuts[98] / 1000)
    return found


def resident_mib() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


def memory() -> dict[str, float]:
    """Resident memory that init and 20,000 steps add to a process that has torch loaded."""
    matrix_work()
    import json as _json  # noqa: F401 - a training process has these; torch loads them too
    import threading  # noqa: F401

    before = resident_mib()
    folder = Path(tempfile.mkdtemp(prefix="badput-overhead-"))
    try:
        action, end = RECORDERS["badput step, a span and a loss"](folder)
        first = resident_mib()
        for _ in range(20_000):
            action()
        after = resident_mib()
        end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"init": first - before, "all": after - before}


def child(name: str, quick: bool) -> dict[str, Any]:
    """Everything about one recorder."""
    folder = Path(tempfile.mkdtemp(prefix="badput-overhead-"))
    work = matrix_work()
    try:
        try:
            action, end = RECORDERS[name](folder)
        except ImportError as error:
            return {"missing": str(error.name or error)}
        time.sleep(0 if quick else SETTLE_S)
        turns = PACED // (10 if quick else 1)
        actions = {"empty": _empty, "step": action}
        found: dict[str, Any] = {}
        # Paced first: after the hot loop, background threads and processes have millions of
        # records to work off, at a rate that no training loop makes.
        if work is not None:
            found["matrix"] = paced(actions, work, turns)
        found["copy"] = paced(actions, copy_work(), turns)
        found["ns"], found["ratio"] = hot(action, ROUNDS // (10 if quick else 1))
        end()
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_child(*words: str) -> dict[str, Any]:
    """Run this file again as a child and read what it found."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"missing": "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1][:120]}


def _cells(found: dict[str, Any]) -> list[str]:
    cells = [f"{found['ratio']:.1f}", f"{found['ns']:,.0f}"]
    for kind in ("matrix", "copy"):
        middle, tail = found.get(kind, {}).get("step", (None, None))
        cells.append("no torch" if middle is None else f"{middle:.1f} / {tail:.0f}")
    return cells


def _row(words: list[str]) -> str:
    return "| " + " | ".join(words) + " |"


def _verdict(held: bool) -> str:
    return "held" if held else "NOT held"


def report(found: dict[str, dict[str, Any]]) -> None:
    """Print the table and which bars this run held."""
    print(_row(["one step", "x clock pair, hot", "ns, hot", "us paced by matrices, p50 / p99",
                "us paced by copies, p50 / p99", "survives SIGKILL"]))  # fmt: skip
    print("|---|--:|--:|--:|--:|---|")
    for name, row in found.items():
        kept = "yes" if name in SURVIVES_KILL else ""
        if "missing" in row:
            missing = row["missing"]
            text = missing if missing.startswith("failed") else f"not installed ({missing})"
            print(_row([name, text, "", "", "", ""]))
        else:
            print(_row([name, *_cells(row), kept]))
    ours = found["badput step"]
    if "missing" in ours:
        return
    kind = "matrix" if "matrix" in ours else "copy"
    middle, tail = ours[kind]["step"]
    empty = ours[kind]["empty"]
    print(f"\nan empty call, paced: p50 {empty[0]:.1f} us, p99 {empty[1]:.0f} us")
    print(f"bar hot <= {HOT_BAR:.0f} x the pair: {_verdict(ours['ratio'] <= HOT_BAR)}")
    print(f"bar paced p50 <= {P50_BAR_US:.0f} us: {_verdict(middle <= P50_BAR_US)}")
    print(f"bar paced p99 <= {P99_BAR_US:.0f} us: {_verdict(tail <= P99_BAR_US)}")
    for name, row in found.items():
        if name.startswith("badput") or "missing" in row:
            continue
        cheaper = ours["ns"] < row["ns"] and middle < row[kind]["step"][0]
        print(f"cheaper, hot and paced p50, than {name}: {'yes' if cheaper else 'NO'}")


def main(argv: list[str]) -> int:
    """Print the figures; 0 always: nothing is asserted."""
    if argv[:1] == ["--child"]:
        found = memory() if argv[1] == "memory" else child(argv[1], argv[2:] == ["--quick"])
        print(json.dumps(found))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    quick = parser.parse_args(argv).quick
    version = sys.version.split()[0]
    print(f"Python {version}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    words = ["--quick"] if quick else []
    found = {name: run_child(name, *words) for name in RECORDERS}
    report(found)
    added = run_child("memory")
    if "missing" in added:
        print(f"memory: {added['missing']}")
    else:
        held = _verdict(added["all"] <= RSS_BAR_MIB)
        print(
            f"resident memory added: {added['init']:.1f} MiB by init, {added['all']:.1f} MiB with "
            f"20,000 steps; bar {RSS_BAR_MIB:.0f} MiB: {held}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
