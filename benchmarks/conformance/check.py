"""Where badput's books of a scenario differ from its truth: to the nanosecond, leaf by leaf."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.conformance import facts
from benchmarks.conformance.timeline import nanos

if TYPE_CHECKING:
    from benchmarks.conformance.timeline import Timeline

_COUNTED = ("steps", "tokens")
_KEPT = ("G", "H")
_GOOD = ("H.productive", "G.recompute", "G.kernel")


def differences(timeline: Timeline) -> list[str]:
    """One sentence for everything in which badput's books are not the truth."""
    from badput_ledger.books import open_books
    from badput_ledger.fsck import check

    with tempfile.TemporaryDirectory() as folder:
        path = facts.write(timeline, Path(folder) / "run")
        with open_books(path) as books:
            report = books.report()
            found = [f"fsck: {c['what']}: {c['found']}" for c in check(books) if not c["ok"]]
    return found + compare(timeline, report)


def compare(timeline: Timeline, report: dict[str, Any]) -> list[str]:
    """The same for a report that is already there."""
    return [*_leaves(timeline, report), *_figures(timeline, report), *_evidence(timeline, report)]


def _leaves(timeline: Timeline, report: dict[str, Any]) -> list[str]:
    found: list[str] = []
    truth, total = timeline.truth_ns, nanos(timeline.truth["total"])
    if sum(truth.values()) != total:
        found.append(f"the truth itself: its leaves sum to {sum(truth.values())}, not {total} ns")
    said = {k: int(v["gpu_ns"] or 0) for k, v in report["leaves"].items()}
    for leaf in sorted(set(said) | set(truth)):
        want, got = truth.get(leaf, 0), said.get(leaf, 0)
        if want != got:
            found.append(f"{leaf} is {got / 1e9:g} s, and the truth {want / 1e9:g} s")
    if int(report["total_gpu_ns"]) != total:
        found.append(f"the total is {report['total_gpu_ns']} ns, and the truth {total} ns")
    return found


def _figures(timeline: Timeline, report: dict[str, Any]) -> list[str]:
    found: list[str] = []
    total = int(report["total_gpu_ns"])
    for figure, counts in (("kept_time", _KEPT), ("goodput", _GOOD)):
        want = timeline.share(figure)
        good = sum(
            int(row["gpu_ns"] or 0)
            for leaf, row in report["leaves"].items()
            if leaf.startswith(counts)
        )
        if want is not None and Fraction(good, total) != want:
            found.append(f"{figure} is {good}/{total}, and the truth {want}")
    for table in _COUNTED:
        for name, want in timeline.truth.get(table, {}).items():
            if report[table][name] != want:
                found.append(f"{table} {name}: {report[table][name]}, and the truth {want}")
    return found


def _evidence(timeline: Timeline, report: dict[str, Any]) -> list[str]:
    """Bounds, leaves that must be NULL, and who descends from whom."""
    found: list[str] = []
    for leaf, side in timeline.truth.get("bounds", {}).items():
        row = report["leaves"][leaf]
        got = [round((row[k] or 0.0) * 1e9) for k in ("lo", "hi")]
        if got != [nanos(s) for s in side]:
            found.append(f"{leaf} lies in {row['lo']} to {row['hi']} s, and the truth is {side}")
    found += [
        f"{leaf} is not NULL, and nothing tells it"
        for leaf in timeline.truth.get("unknown", [])
        if report["leaves"][leaf]["gpu_ns"] is not None
    ]
    parents = timeline.truth.get("parents")
    said = [s["parent"] or "" for s in report["sessions"]]
    if parents is not None and parents != said:
        found.append(f"parents are {said}, and the truth {parents}")
    return found
