"""When each requested place was ours: given by a source, or derived from the processes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from badput_ledger.annotations import LEAVES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from badput_ledger.annotations import Annotation
    from badput_ledger.facts import Facts

Interval = tuple[int, int, str, str]
"""start_ns, end_ns, held (yes, no or unknown), evidence."""

_RANK = {"no": 0, "unknown": 1, "yes": 2}


DERIVED = ("the same job came back", "no launcher known")
"""Evidence of gaps that nobody vouched for: a person knows better."""


def allocated(
    facts: Facts, given: list[dict[str, Any]], gaps: str, said: Sequence[Annotation] = ()
) -> list[dict[str, Any]]:
    """Disjoint intervals of each slot. Where processes ran, the place was ours.

    ``gaps`` ("unknown", "held" or "released") decides whether intervals of unknown hold are billed.
    ``said``: annotations, which name stops and spares and decide what is not known otherwise.
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
    filled = facts.slots
    known = max([filled, *(slot + 1 for slot in by_slot)])
    spares = [a for a in said if a.kind == "spare"]
    # Spares are places beyond those of the largest world: where no source knew them, they are new.
    facts.slots = max([known, *(filled + (a.places or 0) for a in spares)])
    rows: list[dict[str, Any]] = []
    for slot in range(facts.slots):
        intervals = flatten(by_slot[slot] + ours) if slot in by_slot else shared
        standby = [a for a in spares if slot >= facts.slots - (a.places or 0)]
        for piece in _cut(intervals, [*(a for a in said if a.kind != "spare"), *standby]):
            start, stop, held, evidence = piece
            spare = any(a.covers(start, stop) for a in standby)
            if slot >= known and not spare:
                continue  # ours only while somebody said so
            here = [a for a in said if a.kind in ("stop", "diagnosis") and a.covers(start, stop)]
            held, evidence = _decided(held, evidence, [a for a in said if a.covers(start, stop)])
            billed = held == "yes" or (held == "unknown" and gaps != "released")
            rows.append(
                {
                    "slot": slot,
                    "start_ns": start,
                    "end_ns": stop,
                    "held": held,
                    "billed": billed,
                    "evidence": evidence,
                    "said": LEAVES[here[0].kind] if here else None,
                    "spare": spare,
                }
            )
    return rows


def _cut(intervals: list[Interval], said: Sequence[Annotation]) -> Iterator[Interval]:
    """The intervals, cut where an annotation begins or ends."""
    edges = sorted({e for a in said for e in (a.start_ns, a.end_ns) if e is not None})
    for start, stop, held, evidence in intervals:
        inside = [e for e in edges if start < e < stop]
        for a, b in pairwise([start, *inside, stop]):
            yield a, b, held, evidence


def _decided(held: str, evidence: str, said: Sequence[Annotation]) -> tuple[str, str]:
    """Whether time was held where nothing vouches for it: as a person said, if one did."""
    if held != "unknown" and evidence not in DERIVED:
        return held, evidence
    for one in said:
        if one.kind in ("held", "released"):
            return ("yes" if one.kind == "held" else "no"), f"annotation {one.id}"
    return held, evidence


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
        held, why = ("yes", DERIVED[0]) if same else ("unknown", DERIVED[1])
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
