# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false
"""The tables a run folder holds: names, columns, types, units and meaning.

This module is the one definition of what is on disk. The collector and the
importers write these tables, the ledger reads them, and docs/schema.md is
checked against it by a test. It imports nothing but the standard library, so a
training process may import it; ``arrow_schema`` imports pyarrow when called.

Rules that hold for every table:

* A row is written once and never changed. Nothing on disk says whether a step
  was kept: that is decided when the books are read.
* Times are integer nanoseconds since the Unix epoch, UTC (``*_ns`` that name an
  instant) or integer nanoseconds of duration (``dur_ns`` and every ``*_ns`` that
  names a wait). Durations come from a monotonic clock.
* NULL means "not known" or "not measured". Zero means "measured, and none".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
"""Version of the tables below; written into every part and raised on any change."""

STEP_CATEGORIES: tuple[str, ...] = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "wait_activation",
    "wait_gradient",
    "send",
    "comm",
    "host",
    "overhead",
    "eval",
    "save",
    "snapshot",
    "compile",
    "other",
)
"""In-step time categories, in the order of the spool record's accumulators."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, storage type, unit and meaning."""

    name: str
    type: str
    """One of int64, int32, float64, bool, string."""
    unit: str
    meaning: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the run folder."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


def _col(name: str, type_: str, unit: str, meaning: str) -> Column:
    return Column(name, type_, unit, meaning)


def _key(name: str, type_: str, unit: str, meaning: str) -> Column:
    return Column(name, type_, unit, meaning, nullable=False)


_PROCESS = _key("process_id", "int64", "id", "random id of the process incarnation, 63 bits")
_RANK = _col("rank", "int32", "index", "global rank of the process; NULL for a launcher")
_SEQ = _key(
    "seq", "int64", "count", "sequence number of the record in its process; with process_id, unique"
)

_TABLES = (
    Table(
        "runs",
        "What a source says about the run as a whole. Rows of several writers are merged: "
        "the first non-NULL value by time_ns wins.",
        (
            _PROCESS,
            _key("time_ns", "int64", "ns since epoch", "when this was said"),
            _col("name", "string", "", "name given by the user, or the imported file's name"),
            _key("source", "string", "", "probe, or the importer's format name such as torchtitan"),
            _col("flops_formula", "string", "", "id of the FLOP formula; NULL if none was given"),
            _col("flops_inputs", "string", "JSON", "inputs of the formula"),
            _col("config", "string", "JSON", "settings of the run that the source knows"),
        ),
    ),
    Table(
        "processes",
        "One row for each process incarnation: a rank or a launcher. Sessions are put together "
        "from these when the books are read. An importer writes one row for each attempt.",
        (
            _PROCESS,
            _RANK,
            _key("role", "string", "", "rank or launcher"),
            _col("world_size", "int32", "ranks", "ranks in this process's world"),
            _col("local_rank", "int32", "index", "rank on its node"),
            _col(
                "replica",
                "int32",
                "index",
                "data replica; ranks of one replica see the same tokens",
            ),
            _col("stage", "int32", "index", "pipeline stage of this rank"),
            _col("stages", "int32", "count", "pipeline stages in all"),
            _col("microbatches", "int32", "count", "microbatches a step"),
            _col("schedule", "string", "", "pipeline schedule: gpipe, 1f1b, 2bw"),
            _key(
                "start_ns", "int64", "ns since epoch", "creation of the process, or its first sign"
            ),
            _col(
                "init_ns",
                "int64",
                "ns since epoch",
                "when it joined badput; start_ns..init_ns is launch",
            ),
            _col("host", "string", "", "host name"),
            _col("boot_id", "string", "", "kernel boot id of the host"),
            _col("pid", "int64", "id", "process id on its host"),
            _col(
                "job_id",
                "string",
                "",
                "launcher or scheduler id, the same over restarts of one job",
            ),
            _col("attempt", "int32", "count", "the launcher's restart count, only informative"),
            _col("endpoint", "string", "", "rendezvous endpoint host:port"),
            _col(
                "gpu_uuid",
                "string",
                "",
                "GPU of this rank; NULL where there is none or it is unknown",
            ),
            _col(
                "gpu_type", "string", "", "GPU name; cpu where the rank has none; NULL if unknown"
            ),
            _col("version", "string", "", "version of badput that wrote the row"),
        ),
    ),
    Table(
        "allocations",
        "Intervals in which a requested GPU place was ours, where a source knows them. Without "
        "rows the books derive them from the processes.",
        (
            _key("slot", "int32", "index", "requested GPU place"),
            _key("start_ns", "int64", "ns since epoch", "begin"),
            _col("end_ns", "int64", "ns since epoch", "end; NULL while it lasts"),
            _key("held", "string", "", "yes, no or unknown: was it paid for"),
            _col("evidence", "string", "", "what says so"),
        ),
    ),
    Table(
        "steps",
        "One row for each finished step and rank. An aggregated row of a log that prints every "
        "n-th step has n_steps > 1 and covers the steps step-n_steps+1 .. step.",
        (
            _PROCESS,
            _SEQ,
            _key("rank", "int32", "index", "global rank"),
            _key(
                "step",
                "int64",
                "count",
                "number of the step, or of the last one of an aggregated row",
            ),
            _key("n_steps", "int32", "count", "steps that the row covers, 1 for the probe"),
            _key("start_ns", "int64", "ns since epoch", "begin of the step"),
            _key("dur_ns", "int64", "ns", "begin to end, monotonic"),
            _col(
                "pre_data_ns", "int64", "ns", "wait for data between the previous step and this one"
            ),
            _col(
                "tokens", "int64", "tokens", "tokens of this rank's data replica, padding included"
            ),
            _col("samples", "int64", "samples", "samples of this rank's data replica"),
            _col("padding", "int64", "tokens", "tokens that are padding"),
            _col("loss", "float64", "", "training loss as the user gave it"),
            _col("grad_norm", "float64", "", "gradient norm as the user gave it"),
            _col("applied", "bool", "", "did the update change the weights; NULL unknown"),
            _col(
                "committed",
                "bool",
                "",
                "was the result committed (fault tolerant training); NULL unknown",
            ),
            _col("source", "string", "", "data source of the step"),
            *(
                _col(
                    f"{c}_ns", "int64", "ns", f"time in the step in category {c}; NULL not measured"
                )
                for c in STEP_CATEGORIES
            ),
        ),
    ),
    Table(
        "spans",
        "Rare intervals, most of them outside steps: rendezvous, model, data_init, load, save, "
        "snapshot, eval, overhead, and names of the user's own.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            _key("name", "string", "", "name given by the user or hook"),
            _key("start_ns", "int64", "ns since epoch", "begin"),
            _col("dur_ns", "int64", "ns", "duration; NULL if its end was never seen"),
            _col("step", "int64", "count", "last finished step at its begin"),
            _key(
                "in_step",
                "bool",
                "",
                "true if inside a step: its time is then in the step's row too",
            ),
            _col("attrs", "string", "JSON", "what the user gave with it"),
        ),
    ),
    Table(
        "collectives",
        "Enter and exit of collectives by rank, where they can be had without a sync.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            _key("name", "string", "", "operation"),
            _col("group_id", "string", "", "process group"),
            _col("step", "int64", "count", "step it belongs to"),
            _key("start_ns", "int64", "ns since epoch", "enter"),
            _col("dur_ns", "int64", "ns", "enter to exit"),
        ),
    ),
    Table(
        "checkpoints",
        "One row for each save or load of a checkpoint and rank.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            _key("op", "string", "", "save or load"),
            _col("step", "int64", "count", "last step that the checkpoint contains"),
            _col("path", "string", "", "where it lies"),
            _key("start_ns", "int64", "ns since epoch", "begin"),
            _col(
                "dur_ns", "int64", "ns", "time the training process was blocked; NULL if not seen"
            ),
            _col(
                "durable_ns",
                "int64",
                "ns since epoch",
                "when it was durable; NULL if never confirmed",
            ),
            _col("ok", "bool", "", "did it succeed; NULL unknown"),
            _col("bytes", "int64", "bytes", "size"),
        ),
    ),
    Table(
        "events",
        "Instants. Kinds that the books know: end (a process ended), failure (first sign of a "
        "failure), exit (a launcher saw a rank exit), complete (training finished), hang, rewind, "
        "note, dropped.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            _key("time_ns", "int64", "ns since epoch", "when"),
            _key("kind", "string", "", "kind of event"),
            _col("step", "int64", "count", "step it belongs to"),
            _col("attrs", "string", "JSON", "details; see docs/schema.md"),
        ),
    ),
    Table(
        "gpu_samples",
        "Telemetry of one GPU, once a node and interval.",
        (
            _key("host", "string", "", "host name"),
            _key("gpu_uuid", "string", "", "GPU"),
            _key("time_ns", "int64", "ns since epoch", "when"),
            _col("utilization", "float64", "ratio", "NVML utilisation, 0..1"),
            _col("memory_bytes", "int64", "bytes", "memory in use"),
            _col("power_w", "float64", "W", "power"),
            _col("energy_j", "float64", "J", "energy counter"),
            _col("temperature_c", "float64", "C", "temperature"),
            _col("sm_clock_mhz", "float64", "MHz", "SM clock"),
            _col("throttle", "int64", "bit mask", "throttle reasons"),
        ),
    ),
    Table(
        "evidence",
        "Where an importer found what it claims: file and line.",
        (
            _key(
                "claim", "string", "", "what is claimed, such as restart, resumed_from, save, end"
            ),
            _col("process_id", "int64", "id", "process incarnation it is about"),
            _col("step", "int64", "count", "step it is about"),
            _key("file", "string", "", "file as given"),
            _key("line", "int64", "count", "line number from 1"),
            _col("text", "string", "", "the line, shortened to 300 characters"),
        ),
    ),
)

TABLES: dict[str, Table] = {t.name: t for t in _TABLES}
"""Every table by name."""


def arrow_schema(table: str) -> pa.Schema:
    """The pyarrow schema of ``table``, schema version in its metadata.

    Raises KeyError for a table that does not exist.
    """
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
    }
    fields = [pa.field(c.name, types[c.type], nullable=c.nullable) for c in TABLES[table].columns]
    return pa.schema(fields, metadata={"badput.schema_version": str(SCHEMA_VERSION)})
