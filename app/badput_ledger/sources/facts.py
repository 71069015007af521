"""From attempts to a run folder: the rows of every table, written as a whole or not at all.

The same attempts give the same rows, byte for byte and id for id, so importing a log twice
replaces the run with itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput import __version__
from badput.parts import TMP, write_rows
from badput_ledger.sources.tokens import Tokens, row_tokens, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from badput_ledger.sources.attempts import Attempt, Event, Job, Options, Run

Row = dict[str, Any]
CHUNK = 100_000
"""Step rows of one part: bounds what is held as Python objects at a time."""


@dataclass(slots=True)
class Written:
    """A run folder that was written, for the summary."""

    path: Path
    id: str
    name: str
    sessions: int
    steps: int
    first_step: int | None
    last_step: int | None
    gpus: int
    gpu_type: str | None
    notes: list[str]
    restarts: list[tuple[str, int, str]]
    """File, line and text of each restart."""


def write_run(run: Run, source: str, folder: Path, options: Options) -> Written:
    """Write ``run`` below ``folder`` and return what was written.

    The folder is built beside its place and renamed into it; an older import of the same
    run is replaced. Raises OSError; then the older one is still there.
    """
    world, notes = _worlds(run, options)
    ids = [_process_id(run, a) for a in run.attempts]
    run_id = f"{_slug(run.name)}-{ids[0] & 0xFFFFFFFF:08x}"
    target = folder / run_id
    build = folder / f".{run_id}.{os.getpid()}"
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    try:
        tokens = _tokens(run, options)
        for about in tokens:
            if about.note and about.note not in notes:
                notes.append(about.note)
        row = _run_row(run, source, options, tokens=tokens, notes=notes + run.notes)
        row["process_id"] = ids[0]
        _write_tables(build, run, row, ids, tokens)
        (build / TMP).rmdir()
        _swap(build, target)
    except BaseException:
        shutil.rmtree(build, ignore_errors=True)
        raise
    last = max((a.steps.step[-1] for a in run.attempts if len(a.steps)), default=None)
    return Written(
        path=target,
        id=run_id,
        name=run.name,
        sessions=len(run.attempts),
        steps=sum(sum(a.steps.count) for a in run.attempts),
        first_step=next((a.first_step for a in run.attempts if len(a.steps)), None),
        last_step=last,
        gpus=world,
        gpu_type=next((a.gpu_type for a in run.attempts if a.gpu_type), None),
        notes=notes + run.notes,
        restarts=[
            (mark.file, mark.line, mark.text)
            for a in run.attempts[1:]
            for claim, _, mark in a.evidence
            if claim == "start"
        ],
    )


def _swap(build: Path, target: Path) -> None:
    """Put ``build`` at ``target``. A folder cannot be replaced in one call, so the old one
    steps aside first and comes back if the second rename fails."""
    aside = target.with_name(f".{target.name}.old")
    if not target.exists():
        shutil.rmtree(aside, ignore_errors=True)
        build.rename(target)
        return
    shutil.rmtree(aside, ignore_errors=True)
    target.rename(aside)
    try:
        build.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _slug(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return slug[:80] or "run"


def _process_id(run: Run, attempt: Attempt) -> int:
    """The attempt's id: from what it is, not from where the file lies."""
    text = f"{run.home}|{attempt.start}|{attempt.mark.line}|{attempt.mark.text}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1 or 1


def _worlds(run: Run, options: Options) -> tuple[int, list[str]]:
    """Give every attempt a world size and GPU type; returns the largest and what was assumed."""
    notes: list[str] = []
    sizes = [a.world_size for a in run.attempts if a.world_size]
    known = max(sizes, default=None)
    if known is None:
        known = options.gpus
        if known is None:
            known = 1
            notes.append(
                "the log does not say how many GPUs there were: 1 assumed; --gpus N says it"
            )
    elif options.gpus is not None and options.gpus != known:
        notes.append(f"--gpus {options.gpus} was not used: the log says {known}")
    gpu_type = next((a.gpu_type for a in run.attempts if a.gpu_type), options.gpu_type)
    for attempt in run.attempts:
        attempt.world_size = attempt.world_size or known
        attempt.gpu_type = attempt.gpu_type or gpu_type
        wrapper = attempt.config.get("wrapper_last_step")
        last = attempt.steps.step[-1] if len(attempt.steps) else None
        if wrapper is not None and last is not None and wrapper != last:
            notes.append(f"the wrapper says last_step={wrapper}, the last step line says {last}")
    return known, notes


def _tokens(run: Run, options: Options) -> list[Tokens]:
    """One verdict for each attempt; attempts of equal settings share theirs."""
    groups: dict[str, list[Attempt]] = {}
    keys: list[str] = []
    for attempt in run.attempts:
        picked = [attempt.config.get(k) for k in ("global_batch", "seq_len")]
        keys.append(repr((picked, attempt.world_size)))
        groups.setdefault(keys[-1], []).append(attempt)
    found = {
        key: tokens_of(group, options)
        for key, group in groups.items()
        if any(len(a.steps) for a in group)
    }
    return [found.get(key, Tokens(None, "no steps")) for key in keys]


def _write_tables(build: Path, run: Run, about: Row, ids: list[int], tokens: list[Tokens]) -> None:
    stem = f"{ids[0]:016x}"
    write_rows(build, "runs", stem, [about])
    write_rows(build, "allocations", stem, _allocations(run))
    processes: list[Row] = []
    spans: list[Row] = []
    checkpoints: list[Row] = []
    events: list[Row] = []
    evidence: list[Row] = []
    for attempt, pid, known in zip(run.attempts, ids, tokens, strict=True):
        processes.append(_process(attempt, run, pid))
        spans += _spans(attempt, pid)
        checkpoints += _checkpoints(attempt, pid)
        events += _events(attempt.events, attempt.rank, pid)
        evidence += _evidence(attempt, pid, "restart" if processes[:-1] else "start")
        for first, rows in _steps(attempt, pid, known):
            write_rows(build, "steps", f"{pid:016x}-{first:012d}", rows)
    write_rows(build, "processes", stem, processes)
    write_rows(build, "spans", stem, spans)
    write_rows(build, "checkpoints", stem, checkpoints)
    write_rows(build, "events", stem, events)
    write_rows(build, "evidence", stem, evidence)


def _run_row(
    run: Run, source: str, options: Options, *, tokens: list[Tokens], notes: list[str]
) -> Row:
    first = run.attempts[0]
    about = next((t for t in tokens if t.per_step is not None), Tokens(None, "unknown"))
    counts = sorted(c for a in run.attempts for c in a.steps.count[1:])
    config: Row = {k: v for k, v in first.config.items() if k != "wrapper_last_step"}
    config |= {
        "gpus": max(a.world_size or 1 for a in run.attempts),
        "gpu_type": next((a.gpu_type for a in run.attempts if a.gpu_type), None),
        "folder": run.home,
        "files": sorted({m.file for a in run.attempts for _, _, m in a.evidence}),
        "tokens_per_step": about.per_step,
        "tokens_source": about.source,
        "tokens_precision": about.precision,
        "log_interval": counts[len(counts) // 2] if counts else None,
        "clock": "the log's own clock, shown as UTC",
        "notes": notes,
    }
    if options.price is not None:
        config["price_per_gpu_hour"] = options.price
    return {
        "time_ns": first.start,
        "name": options.name or run.name,
        "source": source,
        "config": json.dumps(config),
    }


def _process(attempt: Attempt, run: Run, pid: int) -> Row:
    return {
        "process_id": pid,
        "rank": attempt.rank,
        "role": "rank",
        "world_size": attempt.world_size,
        "replica": 0,  # the rows carry the tokens of the whole job
        "start_ns": attempt.start,
        "job_id": run.home or run.name,
        "attempt": attempt.number,
        "gpu_type": attempt.gpu_type,
        "version": f"import {__version__}",
    }


def _steps(attempt: Attempt, pid: int, about: Tokens) -> Iterator[tuple[int, list[Row]]]:
    rows = attempt.steps
    measured = any(o >= 0 for o in rows.overhead)
    for first in range(0, len(rows), CHUNK):
        chunk: list[Row] = []
        for i in range(first, min(first + CHUNK, len(rows))):
            row: Row = {
                "process_id": pid,
                "seq": i + 1,
                "rank": attempt.rank,
                "step": rows.step[i],
                "n_steps": rows.count[i],
                "start_ns": rows.start[i],
                "dur_ns": rows.dur[i],
                "tokens": row_tokens(attempt, about, i),
                "loss": _known(rows.loss[i]),
                "grad_norm": _known(rows.grad_norm[i]),
            }
            if measured:
                row["overhead_ns"] = max(rows.overhead[i], 0)
            if rows.save[i] >= 0:
                row["save_ns"] = rows.save[i]
            if rows.eval[i] >= 0:
                row["eval_ns"] = rows.eval[i]
            chunk.append(row)
        yield first + 1, chunk


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _spans(attempt: Attempt, pid: int) -> list[Row]:
    rows: list[Row] = []
    for seq, span in enumerate(sorted(attempt.spans, key=lambda s: s.start), 1):
        rows.append(
            {
                "process_id": pid,
                "seq": seq,
                "rank": attempt.rank,
                "name": span.name,
                "start_ns": span.start,
                "dur_ns": None if span.end is None else span.end - span.start,
                "step": span.step,
                "in_step": span.in_step,
                "attrs": json.dumps(span.attrs) if span.attrs else None,
            }
        )
    return rows


def _checkpoints(attempt: Attempt, pid: int) -> list[Row]:
    return [
        {
            "process_id": pid,
            "seq": seq,
            "rank": attempt.rank,
            "op": c.op,
            "step": c.step,
            "path": c.path,
            "start_ns": c.start,
            "dur_ns": c.dur,
            "durable_ns": c.end if c.op == "save" and c.ok else None,
            "ok": c.ok,
        }
        for seq, c in enumerate(attempt.checkpoints, 1)
    ]


def _events(events: list[Event], rank: int, pid: int) -> list[Row]:
    return [
        {
            "process_id": pid,
            "seq": seq,
            "rank": rank,
            "time_ns": e.time,
            "kind": e.kind,
            "step": e.step,
            "attrs": json.dumps(e.attrs) if e.attrs else None,
        }
        for seq, e in enumerate(sorted(events, key=lambda e: e.time), 1)
    ]


def _evidence(attempt: Attempt, pid: int, start: str) -> list[Row]:
    """``start``: what the begin of this attempt is called, by its place in the run."""
    return [
        {
            "claim": start if claim == "start" else claim,
            "process_id": pid,
            "step": step,
            "file": mark.file,
            "line": mark.line,
            "text": mark.text,
        }
        for claim, step, mark in attempt.evidence
    ]


def _allocations(run: Run) -> list[Row]:
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
    if len(jobs) == 1 and not jobs[0][0].dated:
        return []
    intervals: list[tuple[int, int, str, str]] = []
    for job, attempts in jobs:
        start = min(job.start, attempts[0].start)
        last = max(a.last for a in attempts)
        end = max(last, job.end) if job.end is not None else last
        if intervals and start > intervals[-1][1]:
            intervals.append(_between(run, intervals[-1][1], start))
        elif intervals:
            start = intervals[-1][1]  # the next job began before the last one's end was seen
        intervals.append((start, max(start, end), "yes", _why(job)))
    slots = max(a.world_size or 1 for a in run.attempts)
    return [
        {"slot": slot, "start_ns": start, "end_ns": end, "held": held, "evidence": why}
        for slot in range(slots)
        for start, end, held, why in intervals
    ]


def _between(run: Run, start: int, end: int) -> tuple[int, int, str, str]:
    if any(start < stop and begin < end for begin, stop in run.elsewhere):
        return start, end, "no", "other runs of the same log ran in between"
    return start, end, "unknown", "between two jobs of this run nothing says who held the GPUs"


def _why(job: Job) -> str:
    begin = f"{job.mark.file}:{job.mark.line}" if job.mark else "first sign"
    if job.end_mark is None:
        return f"from {begin} to the last sign of life"
    return f"from {begin} to {job.end_mark.file}:{job.end_mark.line}"
