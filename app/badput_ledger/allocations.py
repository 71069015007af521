"""When each requested place was ours: given by a source, or derived from the processes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.facts import Facts

Interval = tuple[int, int, str, str]
"""start_ns, end_ns, held (yes, no or unknown), evidence."""

_RANK = {"no": 0, "unknown": 1, "yes": 2}


def allocated(facts: Facts, given: list[dict[str, Any]], gaps: str) -> list[dict[str, Any]]:
    """Disjoint intervals of each slot. Where processes ran, the place was ours.

    ``gaps`` ("unknown", "held" or "released") decides whether intervals of unknown hold are billed.
    """
    ours = _lived(facts)
    shared = flatten(ours if given else ours + _between(facts))
    by_slot: dict[int, list[Interval]] = {}
    end = max((i[1] for i in ours), default=0)
    for row in given:
        stop = end if row["end_ns"] is None else int(row["end_ns"])
        evidence = str(row["evidence"] or "the source's allocations")
        held = row["held"] if row["held"] in _RANK else "unknown"
        item = (int(row["start_ns"]), stop, held, evidence)
        by_slot.setdefault(int(row["slot"]), []).append(item)
    facts.slots = max([facts.slots, *(slot + 1 for slot in by_slot)])
    rows: list[dict[str, Any]] = []
    for slot in range(facts.slots):
        intervals = flatten(by_slot[slot] + ours) if slot in by_slot else shared
        for start, stop, held, evidence in intervals:
            billed = held == "yes" or (held == "unknown" and gaps != "released")
            rows.append(
                {
                    "slot": slot,
                    "start_ns": start,
                    "end_ns": stop,
                    "held": held,
                    "billed": billed,
                    "evidence": evidence,
                }
            )
    return rows


def _lived(facts: Facts) -> list[Interval]:
    """Lives of launchers and sessions."""
    found: list[Interval] = [
        (s.start_ns, s.window_end_ns, "yes", "processes ran") for s in facts.sessions
    ]
    last = max((s.window_end_ns for s in facts.sessions), default=0)
    for p in facts.launchers:
        # A launcher that is still alive, or whose end was not seen, lived as long as its ranks.
        end = p.death_ns if p.death_ns is not None else max(p.last_record_ns, last)
        found.append((p.start_ns, max(end, p.start_ns), "yes", "the launcher was alive"))
    return found


def _between(facts: Facts) -> list[Interval]:
    """Gaps between sessions: held for certain only if the same job came back."""
    found: list[Interval] = []
    for before, after in pairwise(facts.sessions):
        if after.start_ns <= before.window_end_ns:
            continue
        same = before.job_id is not None and before.job_id == after.job_id
        held, why = ("yes", "the same job came back") if same else ("unknown", "no launcher known")
        found.append((before.window_end_ns, after.start_ns, held, why))
    return found


def flatten(intervals: list[Interval]) -> list[Interval]:
    """Disjoint intervals in order; where two overlap, the stronger hold wins."""
    edges = sorted({edge for i in intervals for edge in i[:2]})
    ordered = sorted(intervals)
    out: list[Interval] = []
    active: list[Interval] = []
    at = 0
    for start, stop in pairwise(edges):
        while at < len(ordered) and ordered[at][0] <= start:
            active.append(ordered[at])
            at += 1
        active = [i for i in active if i[1] > start]
        if not active:
            continue
        best = max(active, key=lambda i: _RANK[i[2]])
        if out and out[-1][1] == start and out[-1][2:] == best[2:]:
            out[-1] = (out[-1][0], stop, best[2], best[3])
        else:
            out.append((start, stop, best[2], best[3]))
    return out
