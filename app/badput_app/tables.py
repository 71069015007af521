"""Rows for the tables and the CSV download. No streamlit here."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from badput_app import fmt
from badput_ledger.taxonomy import COMPUTE, GROUPS, LEAVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def wasted_seconds(report: Mapping[str, Any]) -> float:
    """Held slot-seconds of all but compute in kept steps: what ``cost.wasted`` prices."""
    leaves = report["leaves"].items()
    held = "held_gpu_seconds"
    return sum(float(v.get(held, v.get("gpu_seconds")) or 0) for k, v in leaves if k not in COMPUTE)


def empty_groups(report: Mapping[str, Any]) -> list[str]:
    """Names of the groups in which nothing was booked."""
    leaves = report["leaves"].items()
    return [
        title
        for group, title in GROUPS.items()
        if not any(float(v.get("gpu_seconds") or 0) > 0 for k, v in leaves if k[0] == group)
    ]


def worst_leaf(report: Mapping[str, Any]) -> str:
    """Title of the largest leaf that is not compute in kept steps; ``nothing`` if all are empty."""
    rows = [
        (float(report["leaves"][leaf.id].get("gpu_seconds") or 0), leaf.title)
        for leaf in LEAVES
        if leaf.id in report["leaves"] and leaf.id not in COMPUTE
    ]
    value, title = max(rows, default=(0.0, ""))
    return title if value > 0 else "nothing"


def leaf_rows(report: Mapping[str, Any], *, empty: bool = True) -> dict[str, list[Any]]:
    """The leaves as columns, in the order of the taxonomy, times in the run's unit.

    A leaf that was not measured is None; one that was measured and is empty is 0. Without
    ``empty`` only leaves that hold time, or may hold some by their upper bound, are listed.
    """
    scale, word, _ = fmt.time_scale(report.get("total_gpu_seconds"))
    total = float(report.get("total_gpu_seconds") or 0)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("leaf", word, "share", "lo", "hi", "cost", "definition")
    }
    for leaf in LEAVES:
        values = report["leaves"].get(leaf.id) or {}
        seconds = values.get("gpu_seconds")
        if not empty and not seconds and not values.get("hi"):
            continue
        rows["leaf"].append(leaf.id)
        rows[word].append(_scaled(seconds, scale))
        rows["share"].append(None if seconds is None or not total else seconds / total)
        rows["lo"].append(_scaled(values.get("lo"), scale))
        rows["hi"].append(_scaled(values.get("hi"), scale))
        rows["cost"].append(values.get("cost"))
        rows["definition"].append(leaf.definition)
    return rows


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None else float(value) / scale


def leaves_csv(report: Mapping[str, Any]) -> str:
    """The leaves as CSV: exact nanoseconds, seconds, bounds, cost, tokens, definition."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    cost = report.get("cost") or {}
    header = ("run", "leaf", "title", "units", "ns", "seconds", "lo_seconds", "hi_seconds")
    writer.writerow([*header, "cost", "currency", "tokens", "definition"])
    run = report.get("run") or {}
    for leaf in LEAVES:
        values = report["leaves"].get(leaf.id) or {}
        cells = (
            run.get("name") or run.get("id"),
            leaf.id,
            leaf.title,
            report.get("units"),
            values.get("gpu_ns"),
            values.get("gpu_seconds"),
            values.get("lo"),
            values.get("hi"),
            values.get("cost"),
            cost.get("currency"),
            values.get("tokens"),
            leaf.definition,
        )
        writer.writerow([fmt.csv_text(c) for c in cells])
    return out.getvalue()


def run_state(report: Mapping[str, Any]) -> str | None:
    """``end_reason`` of the last session; None while it runs or if nothing is known."""
    sessions = report.get("sessions") or []
    return sessions[-1].get("end_reason") if sessions else None


def kept_of_held(report: Mapping[str, Any]) -> float | None:
    """Kept time as a share of the time that was held; all of it, unless some was released."""
    value = (report.get("kept_time") or {}).get("value")
    total, held = report.get("total_gpu_seconds"), report.get("held_gpu_seconds")
    if value is None or not total or not held:
        return value
    return value * total / held


def failures(report: Mapping[str, Any]) -> int:
    """How many sessions ended before their time."""
    return sum(1 for i in report.get("incidents") or [] if i.get("kind") != "hang")


def sums(reports: Iterable[Mapping[str, Any]]) -> Sums:
    """Slot-seconds and money over runs: all of it, and what of it bought progress."""
    total = Sums(0, 0.0, 0.0, None, None, set(), set())
    for report in reports:
        cost = report.get("cost") or {}
        held = report.get("held_gpu_seconds")
        held = report.get("total_gpu_seconds") if held is None else held
        parts = [(report["leaves"].get(leaf) or {}).get("gpu_seconds") for leaf in COMPUTE]
        useful = sum(float(seconds or 0.0) for seconds in parts)
        spent, wasted = cost.get("total"), cost.get("wasted")
        if spent is not None and wasted is not None:
            total = total._replace(
                spent=(total.spent or 0.0) + spent, wasted=(total.wasted or 0.0) + wasted
            )
            total.currencies.add(str(cost.get("currency") or "USD"))
        total.units.add(str(report.get("units") or "rank"))
        total = total._replace(
            runs=total.runs + 1,
            seconds=total.seconds + float(held or 0.0),
            useful=total.useful + float(useful),
            priced=total.priced + (spent is not None),
        )
    return total


class Sums(NamedTuple):
    """What the runs of a list took together."""

    runs: int
    seconds: float
    useful: float
    spent: float | None
    wasted: float | None
    currencies: set[str]
    units: set[str]
    priced: int = 0


def evidence_text(item: Mapping[str, Any]) -> str:
    """Where a claim comes from: file and line, or table and row."""
    if item.get("file"):
        return f"{item['file']}:{item.get('line')}  {item.get('text') or ''}".rstrip()
    return f"{item.get('table')}  process_id={item.get('process_id')} seq={item.get('seq')}"
