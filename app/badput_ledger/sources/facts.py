"""From attempts to a run folder: the rows of every table, written as a whole or not at all.

The same attempts give the same rows, byte for byte and id for id, so importing a log twice
replaces the run with itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from badput import __version__, parts, schema
from badput.parts import TMP, write_rows
from badput_ledger.sources.held import allocations
from badput_ledger.sources.place import building
from badput_ledger.sources.tokens import Tokens, row_tokens, tokens_of
from badput_ledger.store import pyarrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from badput_ledger.sources.attempts import Attempt, Event, Options, Run

Row = dict[str, Any]
CHUNK = 100_000
"""Rows of one part: bounds what is held in memory at a time."""


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

    The folder is built beside its place and put there in one move; an older import of the
    same run is replaced. Raises OSError; then the older one is still there.
    """
    world, notes = _worlds(run, options)
    ids = _process_ids(run)
    run_id = f"{_slug(run.name)}-{ids[0] & 0xFFFFFFFF:08x}"
    tokens = _tokens(run, options)
    for about in tokens:
        if about.note and about.note not in notes:
            notes.append(about.note)
    row = _run_row(run, source, options, tokens=tokens, notes=notes + run.notes)
    row["process_id"] = ids[0]
    with building(folder, run_id) as build:
        _write_tables(build, run, row, ids, tokens)
        (build / TMP).rmdir()
    last = max((a.steps.last_step for a in run.attempts if len(a.steps)), default=None)
    return Written(
        path=folder / run_id,
        id=run_id,
        name=run.name,
        sessions=len(run.attempts),
        steps=sum(a.steps.total for a in run.attempts),
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


def _slug(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return slug[:80] or "run"


def _process_ids(run: Run) -> list[int]:
    """An id for each attempt: from what it is, not from where the file lies."""
    ids: dict[int, None] = {}
    for attempt in run.attempts:
        text = f"{run.home}|{attempt.start}|{attempt.mark.line}|{attempt.mark.text}"
        pid = 0
        while pid == 0 or pid in ids:  # two that nothing tells apart still are two
            pid = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
            text += "|"
        ids[pid] = None
    return list(ids)


def _worlds(run: Run, options: Options) -> tuple[int, list[str]]:
    """Give every attempt a world size and GPU type; returns the largest and what was assumed."""
    notes: list[str] = []
    sizes = [a.world_size for a in run.attempts if a.world_size]
    if run.places:
        sizes.append(run.places)
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
        last = attempt.steps.last_step if len(attempt.steps) else None
        if wrapper is not None and last is not None and wrapper != last and len(notes) < 20:
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
    _write_parts(build, "allocations", stem, allocations(run))
    processes: list[Row] = []
    spans: list[Row] = []
    checkpoints: list[Row] = []
    events: list[Row] = []
    evidence: list[Row] = []
    for attempt, pid in zip(run.attempts, ids, strict=True):
        processes.append(_process(attempt, run, pid))
        spans += _spans(attempt, pid)
        checkpoints += _checkpoints(attempt, pid)
        events += _events(attempt.events, attempt.rank, pid)
        evidence += _evidence(attempt, pid, "restart" if processes[:-1] else "start")
    steps = (
        table
        for attempt, pid, known in zip(run.attempts, ids, tokens, strict=True)
        for table in _steps(attempt, pid, known)
    )
    _write_steps(build, stem, steps)
    write_rows(build, "processes", stem, processes)
    write_rows(build, "spans", stem, spans)
    write_rows(build, "checkpoints", stem, checkpoints)
    write_rows(build, "events", stem, events)
    write_rows(build, "evidence", stem, evidence)


def _write_parts(build: Path, table: str, stem: str, rows: Iterable[Row]) -> None:
    """Write any number of rows in parts of ``CHUNK``."""
    left = iter(rows)
    first = 1
    while chunk := list(islice(left, CHUNK)):
        write_rows(build, table, f"{stem}-{first:012d}", chunk)
        first += len(chunk)


def _run_row(
    run: Run, source: str, options: Options, *, tokens: list[Tokens], notes: list[str]
) -> Row:
    first = run.attempts[0]
    about = next((t for t in tokens if t.per_step is not None), Tokens(None, "unknown"))
    config: Row = {}
    for attempt in run.attempts:  # the first one may have died before it told its settings
        for key, value in attempt.config.items():
            if key != "wrapper_last_step":
                config.setdefault(key, value)
    config |= {
        "gpus": max([run.places or 1, *(a.world_size or 1 for a in run.attempts)]),
        "gpu_type": next((a.gpu_type for a in run.attempts if a.gpu_type), None),
        "folder": run.home,
        "files": sorted({m.file for a in run.attempts for _, _, m in a.evidence}),
        "tokens_per_step": about.per_step,
        "tokens_source": about.source,
        "tokens_precision": about.precision,
        "log_interval": _interval(run),
        "clock": "the log's own clock, shown as UTC",
        "notes": notes,
    }
    if options.step_time is not None:
        config["step_time_s"] = options.step_time
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


def _steps(attempt: Attempt, pid: int, about: Tokens) -> Iterator[Any]:
    """The rows of an attempt as tables of the schema."""
    pa, form = pyarrow(), cast(Any, schema).arrow_schema("steps")
    known, done = attempt.steps, 0
    for rows in known.blocks():
        seq = np.arange(done + 1, done + len(rows) + 1)
        tokens, unknown = row_tokens(attempt, about, rows)
        columns: dict[str, Any] = {
            "process_id": np.full(len(rows), pid),
            "seq": seq,
            "rank": np.full(len(rows), attempt.rank),
            "step": rows["step"],
            "n_steps": rows["count"],
            "start_ns": rows["start"],
            "dur_ns": rows["dur"],
            "tokens": pa.array(tokens, mask=unknown),
            "loss": pa.array(rows["loss"], from_pandas=True),  # NaN is NULL
            "grad_norm": pa.array(rows["grad_norm"], from_pandas=True),
        }
        if known.overhead:
            columns["overhead_ns"] = _sparse(known.overhead, done, len(rows)).fill_null(0)
        for name, values in (("save_ns", known.save), ("eval_ns", known.eval)):
            if values:
                columns[name] = _sparse(values, done, len(rows))
        done += len(rows)
        arrays = [
            pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(rows), f.type)
            for f in form
        ]
        yield pa.Table.from_arrays(arrays, schema=form)


def _sparse(values: dict[int, int], first: int, size: int) -> Any:
    """Values by row index as a column of the rows from ``first`` on, NULL elsewhere."""
    pa = pyarrow()
    column, mask = np.zeros(size, np.int64), np.ones(size, bool)
    for index, value in values.items():
        if first <= index < first + size:
            column[index - first], mask[index - first] = value, False
    return pa.array(column, mask=mask)


def _write_steps(build: Path, stem: str, tables: Iterable[Any]) -> None:
    """Write step rows in parts of about ``CHUNK``."""
    first, kept = 1, list[Any]()
    for table in tables:
        kept.append(table)
        if sum(t.num_rows for t in kept) >= CHUNK:
            first += _write_part(build, f"{stem}-{first:012d}", kept)
    if kept:
        _write_part(build, f"{stem}-{first:012d}", kept)


def _write_part(build: Path, name: str, tables: list[Any]) -> int:
    table = pyarrow().concat_tables(tables)
    tables.clear()
    cast(Any, parts).write_part(build, "steps", name, table)
    return table.num_rows


def _interval(run: Run) -> int | None:
    """The usual number of steps of a row; the first row of an attempt may be shorter."""
    found: dict[int, int] = {}
    for attempt in run.attempts:
        first = 1
        for rows in attempt.steps.blocks():
            for count, times in zip(
                *np.unique(rows["count"][first:], return_counts=True), strict=True
            ):
                found[int(count)] = found.get(int(count), 0) + int(times)
            first = 0
    half = sum(found.values()) // 2
    for count in sorted(found):
        half -= found[count]
        if half < 0:
            return count
    return None


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
