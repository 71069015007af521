# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
"""From records to the rows of the run folder's tables (collector only: imports pyarrow)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from badput import layout as lo
from badput.parts import RANGES, keys_of
from badput.schema import SCHEMA_VERSION, STEP_CATEGORIES, TABLES, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from badput.reader import Batch, Position

Rows = dict[str, list[dict[str, Any]]]


class Clock:
    """Turns monotonic nanoseconds of one process into nanoseconds since the epoch."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._shift = int(facts["anchor_wall_ns"]) - int(facts["anchor_mono_ns"])

    def wall(self, mono: int) -> int:
        """Epoch ns of the instant ``mono``."""
        return mono + self._shift


def _text(value: Any) -> str | None:
    """JSON text of ``value``; None stays None."""
    return None if value is None else json.dumps(value, sort_keys=True)


def first_rows(facts: Mapping[str, Any]) -> Rows:
    """The rows that a process has before its first record."""
    run = dict(facts["run_row"])
    run["flops_inputs"] = _text(run.get("flops_inputs"))
    run["config"] = _text(facts.get("config"))
    return {"processes": [dict(facts["process"])], "runs": [run]}


def steps_table(batch: Batch, facts: Mapping[str, Any], names: Mapping[str, str]) -> pa.Table:
    """The batch's steps as a table of the schema's form."""
    schema = arrow_schema("steps")
    shift = Clock(facts).wall(0)
    (
        _, flags, _, seq, step, start, end, tokens, loss, pre, samples, padding, grad, source, _,
        small_norm, small,
        acc,
    ) = zip(*batch.steps, strict=True)  # fmt: skip
    count = len(seq)
    process, rank = facts["process"]["process_id"], facts["process"].get("rank") or 0
    values: dict[str, pa.Array] = {
        "process_id": pa.repeat(pa.scalar(process, pa.int64()), count),
        "seq": pa.array(seq, pa.int64()),
        "rank": pa.repeat(pa.scalar(rank, pa.int32()), count),
        "step": pa.array(step, pa.int64()),
        "n_steps": pa.repeat(pa.scalar(1, pa.int32()), count),
        "start_ns": pa.array([s + shift for s in start], pa.int64()),
        "dur_ns": pa.array([e - s for s, e in zip(start, end, strict=True)], pa.int64()),
        "pre_data_ns": _nanoseconds(pre),
        "tokens": _counts(tokens),
        "samples": _counts(samples),
        "padding": _counts(padding),
        "loss": _known(loss, flags, lo.HAS_LOSS),
        "grad_norm": _known(grad, flags, lo.HAS_GRAD_NORM),
        "grad_norm_small": _known(small_norm, flags, lo.HAS_SMALL),
        "samples_small": _known(small, flags, lo.HAS_SMALL, pa.int64()),
        "applied": _flag(flags, lo.APPLIED_KNOWN, lo.APPLIED),
        "committed": _flag(flags, lo.COMMITTED_KNOWN, lo.COMMITTED),
        "source": pa.array([names.get(str(s)) if s else None for s in source], pa.string()),
    }
    nothing = (lo.ACC_NULL,) * len(STEP_CATEGORIES)
    by_category = zip(*(a or nothing for a in acc), strict=True)
    for category, column in zip(STEP_CATEGORIES, by_category, strict=True):
        values[f"{category}_ns"] = _nanoseconds(column)
    return pa.Table.from_arrays([values[name] for name in schema.names], schema=schema)


def _nanoseconds(column: Sequence[int]) -> pa.Array:
    array = pa.array(column, pa.uint64())
    null = pa.scalar(None, pa.uint64())
    return pc.if_else(pc.equal(array, pa.scalar(lo.ACC_NULL, pa.uint64())), null, array).cast(
        pa.int64()
    )


def _counts(column: Sequence[int]) -> pa.Array:
    array = pa.array(column, pa.int64())
    return pc.if_else(pc.less(array, 0), pa.scalar(None, pa.int64()), array)


def _known(column: Sequence[float], flags: Sequence[int], known: int, kind: Any = None) -> pa.Array:
    pairs = zip(column, flags, strict=True)
    return pa.array([v if f & known else None for v, f in pairs], kind or pa.float64())


def _flag(flags: Sequence[int], known: int, true: int) -> pa.Array:
    return pa.array([bool(f & true) if f & known else None for f in flags], pa.bool_())


_RARE_TABLES = ("spans", "checkpoints", "events", "traces", "collectives", "device_times")
_LISTS = {
    lo.TRACE: ("traces", {"n": "name", "t": "start_ns", "d": "dur_ns", "l": "depth",
                          "m": "microbatch"}),
    lo.COLLECTIVES: ("collectives", {"n": "name", "g": "group_id", "t": "start_ns", "d": "dur_ns",
                                     "b": "bytes"}),
    lo.DEVICE: ("device_times", {"s": "step", "d": "device_ns"}),
}  # fmt: skip
"""Records that hold many rows of one table: the table, and the column of each list."""


def _add_list(
    rows: Rows, kind: int, key: dict[str, Any], payload: Mapping[str, Any], clock: Clock
) -> None:
    table, columns = _LISTS[kind]
    lists = {name: payload.get(letter) for letter, name in columns.items()}
    lengths = {len(column) for column in lists.values() if isinstance(column, list)}
    if len(lengths) != 1:  # damaged, or shortened since it was too long
        return
    for number in range(lengths.pop()):
        row = {n: column[number] for n, column in lists.items() if isinstance(column, list)}
        if "start_ns" in row:
            row["start_ns"] = clock.wall(row["start_ns"])
        rows[table].append({**key, "number": number, "step": payload.get("s"), **row})


def rare_rows(batch: Batch, position: Position, facts: Mapping[str, Any]) -> Rows:
    """Rows of the batch's rare records; ``position`` remembers what spans records."""
    rows: Rows = {table: [] for table in _RARE_TABLES}
    clock = Clock(facts)
    who = {"process_id": facts["process"]["process_id"], "rank": facts["process"].get("rank")}
    for kind, seq, payload in batch.rare:
        if kind == lo.NAME:
            position.names[str(payload.get("id"))] = str(payload.get("name"))
        elif kind == lo.CLOSE:
            position.close = payload
        elif kind == lo.SPAN_BEGIN:
            position.open[str(seq)] = payload
        elif kind == lo.SPAN:
            position.open.pop(str(payload.get("b")), None)
            add_span(rows, {**who, "seq": seq}, payload, clock)
        elif kind == lo.EVENT:
            _add_event(rows, {**who, "seq": seq}, payload, clock, position)
        elif kind in _LISTS:
            _add_list(rows, kind, {**who, "seq": seq}, payload, clock)
        position.last_sign = max(position.last_sign, _instant(payload))
    return rows


def _instant(payload: Mapping[str, Any]) -> int:
    time = payload.get("t")
    return int(time) + int(payload.get("d") or 0) if isinstance(time, int) else 0


def _add_event(
    rows: Rows, key: dict[str, Any], payload: Mapping[str, Any], clock: Clock, position: Position
) -> None:
    if "t" not in payload:
        return
    attrs: dict[str, Any] = payload.get("a") or {}
    if payload.get("k") == "failure" and str(attrs.get("what", "")).startswith("uncaught "):
        position.uncaught = True
    rows["events"].append(
        {
            **key,
            "time_ns": clock.wall(payload["t"]),
            "kind": str(payload.get("k")),
            "step": payload.get("s"),
            "attrs": _text(attrs),
        }
    )


def add_span(rows: Rows, key: dict[str, Any], payload: Mapping[str, Any], clock: Clock) -> None:
    """Add a span's row, and the checkpoint's if it is one. No ``d``: its end was never seen."""
    if "t" not in payload:
        return
    attrs: dict[str, Any] = dict(payload.get("a") or {})
    failed, dur = payload.get("f"), payload.get("d")
    if failed:
        attrs["exception"] = failed
    name, start = str(payload.get("n")), clock.wall(payload["t"])
    rows["spans"].append(
        {
            **key,
            "name": name,
            "start_ns": start,
            "dur_ns": dur,
            "step": payload.get("s"),
            "in_step": bool(payload.get("i")),
            "attrs": _text(attrs) if attrs else None,
        }
    )
    if name not in ("save", "load"):
        return
    ok = None if dur is None else not failed
    durable = name == "save" and ok is True and attrs.get("durable") is not False
    step, size, path = attrs.get("step"), attrs.get("bytes"), attrs.get("path")
    rows["checkpoints"].append(
        {
            **key,
            "op": name,
            "step": step if type(step) is int else None,
            "path": None if path is None else str(path),
            "start_ns": start,
            # what runs beside the training thread blocks nothing
            "dur_ns": 0 if attrs.get("background") is True else dur,
            "durable_ns": start + dur if durable and dur is not None else None,
            "ok": ok,
            "bytes": size if type(size) is int else None,
        }
    )


def event_row(
    facts: Mapping[str, Any], seq: int, time_ns: int, kind: str, attrs: Any
) -> dict[str, Any]:
    """An events row that the collector itself writes."""
    process = facts["process"]
    return {
        "process_id": process["process_id"],
        "seq": seq,
        "rank": process.get("rank"),
        "time_ns": time_ns,
        "kind": kind,
        "step": attrs.get("step"),
        "attrs": _text(attrs),
    }


def as_schema(table: str, data: pa.Table) -> pa.Table:
    """``data`` in the form of this version's schema; columns that it lacks are NULL.

    Raises ValueError or an Arrow error where a value would be lost: a column that we do not
    know, a newer version, a type that does not fit, NULL where the schema has none.
    """
    schema = arrow_schema(table)
    version = int((data.schema.metadata or {}).get(b"badput.schema_version", b"0"))
    unknown = ", ".join(sorted(set(data.schema.names) - set(schema.names)))
    if unknown or version > SCHEMA_VERSION:
        raise ValueError(f"another version of badput wrote it ({unknown or version})")
    if data.schema.equals(schema, check_metadata=False):
        return data.replace_schema_metadata(schema.metadata)
    return in_form(schema, data)


def in_form(schema: pa.Schema, data: pa.Table) -> pa.Table:
    """The columns of ``schema`` from ``data``, NULL where it lacks one; others are left out.

    Raises ValueError or an Arrow error for a type that does not fit, and NULL where none may be.
    """
    columns: list[Any] = []
    for item in schema:
        if item.name in data.schema.names:
            column = data[item.name].cast(item.type)
        else:
            column = pa.nulls(data.num_rows, item.type)
        if not item.nullable and column.null_count:
            raise ValueError(f"no value in {item.name}")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def in_order(table: str, data: pa.Table) -> pa.Table:
    """Rows by process and sequence number, doubled ones once; telemetry by time."""
    names = {c.name for c in TABLES[table].columns}
    by = keys_of(table)
    if by:
        data = data.take(pc.sort_indices(data, [(k, "ascending") for k in by])).combine_chunks()
    if "seq" not in names or data.num_rows < 2:
        return data
    same = None
    for k in by:
        column = data[k].combine_chunks()
        equal = pc.equal(column[1:], column[:-1])
        same = equal if same is None else pc.and_(same, equal)
    if not pc.any(same).as_py():
        return data
    first = pa.concat_arrays([pa.array([True]), pc.invert(same)])
    return data.filter(first)


def ranges(data: pa.Table) -> dict[bytes, bytes]:
    """For the footer: which sequence numbers of which processes ``data`` holds."""
    if not {"process_id", "seq"} <= set(data.schema.names):
        return {}
    found = data.group_by("process_id").aggregate([("seq", "min"), ("seq", "max")])
    rows = zip(*(found[n].to_pylist() for n in ("process_id", "seq_min", "seq_max")), strict=True)
    return {RANGES: json.dumps(sorted(rows), separators=(",", ":")).encode()}
