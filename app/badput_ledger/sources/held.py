"""Who held the GPUs of a run, and when: what the wrapper's lines in a log tell of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from badput_ledger.sources.attempts import Attempt, Job, Run

Row = dict[str, Any]


def allocations(run: Run) -> Iterator[Row]:
    """Intervals of each slot, where the log tells more than the processes' lives do.

    Inside a job the GPUs are held all the time, restarts included. Between two jobs nobody
    says who had them, unless the same logs show another run there. A single launch without
    a wrapper's dates needs no rows: the books derive them.
    """
    jobs: list[tuple[Job, list[Attempt]]] = []
    for attempt in run.attempts:
        if not jobs or jobs[-1][0] is not attempt.job:
            jobs.append((attempt.job, []))
        jobs[-1][1].append(attempt)
    if len(jobs) == 1 and not jobs[0][0].dated and run.places is None:
        return
    intervals: list[tuple[int, int, str, str]] = []
    if run.submitted is not None and run.submitted < run.attempts[0].start:
        why = "asked for, and not yet started"
        intervals.append((run.submitted, run.attempts[0].start, "unknown", why))
    for job, attempts in jobs:
        start = min(job.start, attempts[0].start)
        last = max(a.last for a in attempts)
        end = max(last, job.end) if job.end is not None else last
        if intervals and start > intervals[-1][1] and attempts[0] is not run.attempts[0]:
            intervals.append(_between(run, intervals[-1][1], start))
        elif intervals:
            start = intervals[-1][1]  # the next job began before the last one's end was seen
        intervals.append((start, max(start, end), "yes", _why(job)))
    slots = max([run.places or 1, *(a.world_size or 1 for a in run.attempts)])
    for slot in range(slots):
        for start, end, held, why in intervals:
            yield {"slot": slot, "start_ns": start, "end_ns": end, "held": held, "evidence": why}


def _between(run: Run, start: int, end: int) -> tuple[int, int, str, str]:
    if any(lives.another(run, start, end) for lives in run.others):
        return start, end, "no", "other runs of the same log ran in between"
    return start, end, "unknown", "between two jobs of this run nothing says who held the GPUs"


def _why(job: Job) -> str:
    begin = f"{job.mark.file}:{job.mark.line}" if job.mark else "first sign"
    if job.end_mark is None:
        return f"from {begin} to the last sign of life"
    return f"from {begin} to {job.end_mark.file}:{job.end_mark.line}"
