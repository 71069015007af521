"""Make a run folder of badput of a timeline: real parts, by badput's own schema and writer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from badput.parts import write_rows
from badput_ledger.annotations import Annotation, add_annotations
from benchmarks.conformance.timeline import ScenarioError, nanos

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.conformance.timeline import Piece, Rank, Session, Timeline

T0 = 1_800_000_000_000_000_000
"""Every scenario begins here, in ns since the epoch."""
Rows = dict[str, list[dict[str, Any]]]
_CHECKPOINTS = ("save", "load", "snapshot")


def write(timeline: Timeline, folder: Path) -> Path:
    """Write the parts of a timeline into ``folder`` and return it."""
    for name, rows in tables(timeline).items():
        write_rows(folder, name, "part", rows)
        if timeline.given.get("duplicate"):  # the same rows once more, in another part
            write_rows(folder, name, "again", rows[len(rows) // 2 :])
    said = [_annotation(one) for one in timeline.given.get("annotation", [])]
    if said:
        add_annotations(folder, said)
    return folder


def tables(timeline: Timeline) -> Rows:
    """The rows of a timeline by table."""
    rows: Rows = {}
    number = 1
    for session in timeline.sessions:
        for rank in session.ranks:
            _rank(rows, number, session, rank)
            number += 1
    for one in timeline.given.get("allocation", []):
        for slot in one["slots"]:
            start, end = T0 + nanos(one["start"]), T0 + nanos(one["end"])
            row = {"slot": slot, "start_ns": start, "end_ns": end, "held": one["held"]}
            _add(rows, "allocations", row | {"evidence": one.get("evidence")})
    for one in timeline.given.get("samples", []):
        _samples(rows, one)
    for i, one in enumerate(timeline.given.get("launcher", [])):
        pid = 900_000 + i
        start, end = T0 + nanos(one["start"]), T0 + nanos(one["end"])
        key = {"process_id": pid, "rank": None}
        more = {"role": "launcher", "start_ns": start, "init_ns": start, "job_id": one.get("job")}
        _add(rows, "processes", key | more)
        said = json.dumps({"reason": "exit", "exit_code": one.get("code", 0)})
        _add(rows, "events", key | {"seq": 1, "time_ns": end, "kind": "end", "attrs": said})
    return rows


def _add(rows: Rows, table: str, row: dict[str, Any]) -> None:
    rows.setdefault(table, []).append(row)


def _rank(rows: Rows, pid: int, session: Session, rank: Rank) -> None:
    shift = T0 + nanos(session.given.get("skew", {}).get(str(rank.rank), 0))
    key = {"process_id": pid, "rank": rank.rank}
    more: dict[str, Any] = {
        "role": "rank",
        "world_size": session.world,
        "job_id": session.job,
        "start_ns": shift + rank.start_ns,
        "init_ns": shift + rank.init_ns,
    }
    for name in ("attempt", "endpoint", "stages", "schedule", "microbatches", "gpu_type"):
        if name in session.given:
            more[name] = session.given[name]
    for name in ("stage", "replica", "host", "gpu"):
        given = session.given.get(name)
        if given is not None:
            column = "gpu_uuid" if name == "gpu" else name
            more[column] = given[session.ranks.index(rank)]
    _add(rows, "processes", key | more)
    for seq, piece in enumerate(rank.pieces, 1):
        own = key | {"seq": seq}
        if piece.kind == "step":
            _step(rows, own, piece, shift)
        elif piece.kind == "span":
            _span(rows, own, piece, shift)
        else:
            said = dict(piece.fields)
            kind = piece.name
            if piece.kind == "end":
                kind, said = "end", {"reason": piece.name, **said}
            for name in ("phase_since", "last_sign"):
                if name in said:
                    said[f"{name}_ns"] = T0 + nanos(said.pop(name))
            event = {"time_ns": shift + piece.start_ns, "kind": kind, "attrs": json.dumps(said)}
            _add(rows, "events", own | event)


def _step(rows: Rows, key: dict[str, Any], piece: Piece, shift: int) -> None:
    fields = dict(piece.fields)
    start = shift + piece.start_ns
    for number, one in enumerate(fields.pop("collectives")):
        row = {"number": number, "name": one.get("name", "all_reduce"), "step": fields["step"]}
        row |= {"group_id": one.get("group", "default"), "bytes": None}
        row |= {"start_ns": start + one["at"], "dur_ns": one["s"]}
        _add(rows, "collectives", key | row)
    row = {"start_ns": start, "dur_ns": piece.stop_ns - piece.start_ns, **fields}
    _add(rows, "steps", key | row)


def _span(rows: Rows, key: dict[str, Any], piece: Piece, shift: int) -> None:
    said = dict(piece.fields)
    start, stop = shift + piece.start_ns, shift + piece.stop_ns
    after = said.pop("durable_after", None)
    background = after is not None and after is not False
    durable = said.pop("durable", True)
    attrs = json.dumps(said) if said else None
    row = {"name": piece.name, "start_ns": start, "dur_ns": stop - start, "in_step": False}
    _add(rows, "spans", key | row | {"attrs": attrs})
    if piece.name not in _CHECKPOINTS or "step" not in said:
        return
    op = "load" if piece.name == "load" else "save"
    row = {"op": op, "step": said["step"], "path": said.get("path"), "start_ns": start}
    row |= {"dur_ns": stop - start, "ok": True}
    if op == "save" and durable:
        row["durable_ns"] = stop + after if background else stop
    _add(rows, "checkpoints", key | row)
    if background:
        # what runs beside the training is a span of its own that blocks nothing
        beside = {"seq": key["seq"] + 1_000_000, "name": "save", "start_ns": stop, "in_step": True}
        beside |= {"dur_ns": after, "attrs": json.dumps(said | {"background": True})}
        _add(rows, "spans", key | beside)


def _annotation(given: dict[str, Any]) -> Annotation:
    """What a person said afterwards."""
    said = {f"{k}_ns": T0 + nanos(given[k]) for k in ("start", "end") if k in given}
    more = {k: given[k] for k in ("places", "step", "note") if k in given}
    return Annotation("", given["what"], **said, **more)


def _samples(rows: Rows, given: dict[str, Any]) -> None:
    """Telemetry of one GPU at an interval."""
    start, end, every = (nanos(given[k]) for k in ("start", "end", "every"))
    if every <= 0:
        raise ScenarioError("samples need every > 0")
    for at in range(start, end + 1, every):
        row = {"host": given.get("host", "node0"), "gpu_uuid": given["gpu"], "time_ns": T0 + at}
        row["throttle_names"] = given.get("throttle", "")
        row["sm_clock_mhz"] = float(given["clock"]) if "clock" in given else None
        _add(rows, "gpu_samples", row)
