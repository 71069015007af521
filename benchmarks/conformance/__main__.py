"""Print the table: what each tool says of each scenario, beside its truth.

    python -m benchmarks.conformance [--tool MODULE:NAME] [--only NAME] [--json] [SCENARIO.toml ...]

Exit code 0 if badput agrees with every truth, 1 if not, 2 for input that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.conformance import tools
from benchmarks.conformance.check import differences
from benchmarks.conformance.timeline import ScenarioError, Timeline, read, scenarios

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Score every tool on every scenario."""
    given = _arguments(argv)
    try:
        timelines = [read(path) for path in given.scenarios or scenarios()]
    except (ScenarioError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    chosen: dict[str, tools.Tool] = {}
    missing: dict[str, str] = {}
    wanted = tools.TOOLS | {where.partition(":")[2]: where for where in given.tool}
    for name, where in wanted.items():
        try:
            chosen[name] = tools.load(where)
        except (ImportError, AttributeError) as error:
            missing[name] = f"{where}: {error}"
    if any(where in missing.get(where.partition(":")[2], "") for where in given.tool):
        print("\n".join(missing.values()), file=sys.stderr)
        return 2
    rows = [_row(one, chosen) for one in timelines]
    if given.json:
        print(json.dumps({"scenarios": rows, "missing": missing}, indent=2))
    else:
        _table(rows, chosen, missing)
    return 1 if any(row["differences"] for row in rows) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("scenarios", nargs="*", type=Path, help="files; without, the whole suite")
    parser.add_argument("--tool", action="append", default=[], metavar="MODULE:NAME")
    parser.add_argument("--json", action="store_true", help="everything, for a machine")
    return parser.parse_args(argv)


def _row(timeline: Timeline, chosen: dict[str, tools.Tool]) -> dict[str, Any]:
    truth = timeline.share("goodput")
    row: dict[str, Any] = {
        "scenario": timeline.name,
        "title": timeline.title,
        "truth": None if truth is None else float(truth),
        "arithmetic": timeline.truth.get("goodput"),
        "differences": differences(timeline),
        "tools": {},
    }
    for name, tool in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                score = tool.score(timeline, Path(folder))
            except Exception as error:  # noqa: BLE001 - a tool's failure is its score
                score = tools.Score(None, why_not=f"{type(error).__name__}: {error}")
        row["tools"][name] = {
            "goodput": None if score.goodput is None else float(score.goodput),
            "buckets": {k: float(v) for k, v in score.buckets.items()},
            "steps": score.steps,
            "why_not": score.why_not,
        }
    return row


def _table(
    rows: list[dict[str, Any]], chosen: dict[str, tools.Tool], missing: dict[str, str]
) -> None:
    wide = max(len(row["title"]) for row in rows)
    names = list(chosen)
    print(f"{'scenario':{wide}}  {'truth':>9}  " + "  ".join(f"{n:>22}" for n in names))
    for row in rows:
        cells: list[str] = []
        for name in names:
            value = row["tools"][name]["goodput"]
            off = "" if value is None or abs(value - (row["truth"] or 0)) < 5e-5 else " *"
            cells.append(f"{_percent(value) + off:>22}")
        print(f"{row['title']:{wide}}  {_percent(row['truth']):>9}  {'  '.join(cells)}")
    print("* differs from the truth. Goodput: productive time of kept steps over all time.")
    for row in rows:
        for what in row["differences"]:
            print(f"badput is wrong about {row['scenario']}: {what}")
        for name in names:
            why = row["tools"][name]["why_not"]
            if why:
                print(f"{name} on {row['scenario']}: {why}")
    for name, why in missing.items():
        print(f"{name} is not scored: {why}")
    for name in names:
        print(f"{name} {chosen[name].version}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


if __name__ == "__main__":
    sys.exit(main())
