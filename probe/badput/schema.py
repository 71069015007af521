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

from typing import TYPE_CHECKING

from badput.columns import Table, col, key
from badput.telemetry_tables import TELEMETRY

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
"""Version of the tables below; written into every part and raised on any change.

2: telemetry (devices, host_samples, more columns of gpu_samples), device_times, traces, the
noise scale's inputs in steps, and who a process is on its scheduler. Only nullable columns and
new tables were added, so parts of version 1 are read as they are.
"""

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


_PROCESS = key("process_id", "int64", "id", "random id of the process incarnation, 63 bits")
_RANK = col("rank", "int32", "index", "global rank of the process; NULL for a launcher")
_SEQ = key(
    "seq", "int64", "count", "sequence number of the record in its process; with process_id, unique"
)

_NUMBER = key("number", "int32", "index", "place in its record; with process_id and seq, unique")

_TABLES = (
    Table(
        "runs",
        "What a source says about the run as a whole. Rows of several writers are merged: "
        "the first non-NULL value by time_ns wins.",
        (
            _PROCESS,
            key("time_ns", "int64", "ns since epoch", "when this was said"),
            col("name", "string", "", "name given by the user, or the imported file's name"),
            key("source", "string", "", "probe, or the importer's format name such as torchtitan"),
            col("flops_formula", "string", "", "id of the FLOP formula; NULL if none was given"),
            col("flops_inputs", "string", "JSON", "inputs of the formula"),
            col("config", "string", "JSON", "settings of the run that the source knows"),
        ),
    ),
    Table(
        "processes",
        "One row for each process incarnation: a rank or a launcher. Sessions are put together "
        "from these when the books are read. An importer writes one row for each attempt.",
        (
            _PROCESS,
            _RANK,
            key("role", "string", "", "rank or launcher"),
            col("world_size", "int32", "ranks", "ranks in this process's world"),
            col("local_rank", "int32", "index", "rank on its node"),
            col(
                "replica",
                "int32",
                "index",
                "data replica; ranks of one replica see the same tokens",
            ),
            col("stage", "int32", "index", "pipeline stage of this rank"),
            col("stages", "int32", "count", "pipeline stages in all"),
            col("microbatches", "int32", "count", "microbatches a step"),
            col("schedule", "string", "", "pipeline schedule: gpipe, 1f1b, 2bw"),
            key(
                "start_ns", "int64", "ns since epoch", "creation of the process, or its first sign"
            ),
            col(
                "init_ns",
                "int64",
                "ns since epoch",
                "when it joined badput; start_ns..init_ns is launch",
            ),
            col("host", "string", "", "host name"),
            col("boot_id", "string", "", "kernel boot id of the host"),
            col("pid", "int64", "id", "process id on its host"),
            col(
                "job_id",
                "string",
                "",
                "launcher or scheduler id, the same over restarts of one job",
            ),
            col("attempt", "int32", "count", "the launcher's restart count, only informative"),
            col("endpoint", "string", "", "rendezvous endpoint host:port"),
            col(
                "gpu_uuid",
                "string",
                "",
                "GPU of this rank; NULL where there is none or it is unknown",
            ),
            col("gpu_type", "string", "", "GPU name; cpu where the rank has none; NULL if unknown"),
            col("version", "string", "", "version of badput that wrote the row"),
            col("scheduler", "string", "", "what started it: slurm, kubernetes, torchrun, ..."),
            col("node", "string", "", "the scheduler's name of the node"),
            col("pod", "string", "", "Kubernetes pod, or the container's name"),
            col("parent", "int64", "id", "process_id of the launcher or script that started it"),
            col("frameworks", "string", "JSON", "versions of torch and what runs on it, by name"),
        ),
    ),
    Table(
        "allocations",
        "Intervals in which a requested GPU place was ours, where a source knows them. Without "
        "rows the books derive them from the processes.",
        (
            key("slot", "int32", "index", "requested GPU place"),
            key("start_ns", "int64", "ns since epoch", "begin"),
            col("end_ns", "int64", "ns since epoch", "end; NULL while it lasts"),
            key("held", "string", "", "yes, no or unknown: was it paid for"),
            col("evidence", "string", "", "what says so"),
        ),
    ),
    Table(
        "steps",
        "One row for each finished step and rank. An aggregated row of a log that prints every "
        "n-th step has n_steps > 1 and covers the steps step-n_steps+1 .. step.",
        (
            _PROCESS,
            _SEQ,
            key("rank", "int32", "index", "global rank"),
            key(
                "step",
                "int64",
                "count",
                "number of the step, or of the last one of an aggregated row",
            ),
            key("n_steps", "int32", "count", "steps that the row covers, 1 for the probe"),
            key("start_ns", "int64", "ns since epoch", "begin of the step"),
            key("dur_ns", "int64", "ns", "begin to end, monotonic"),
            col(
                "pre_data_ns", "int64", "ns", "wait for data between the previous step and this one"
            ),
            col(
                "tokens", "int64", "tokens", "tokens of this rank's data replica, padding included"
            ),
            col("samples", "int64", "samples", "samples of this rank's data replica"),
            col("padding", "int64", "tokens", "tokens that are padding"),
            col("loss", "float64", "", "training loss as the user gave it"),
            col("grad_norm", "float64", "", "gradient norm as the user gave it"),
            col(
                "grad_norm_small",
                "float64",
                "",
                "norm of the gradient of a part of the batch, for the gradient noise scale",
            ),
            col("samples_small", "int64", "samples", "samples of that part of the batch"),
            col("applied", "bool", "", "did the update change the weights; NULL unknown"),
            col(
                "committed",
                "bool",
                "",
                "was the result committed (fault tolerant training); NULL unknown",
            ),
            col("source", "string", "", "data source of the step"),
            *(
                col(
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
            key("name", "string", "", "name given by the user or hook"),
            key("start_ns", "int64", "ns since epoch", "begin"),
            col("dur_ns", "int64", "ns", "duration; NULL if its end was never seen"),
            col("step", "int64", "count", "last finished step at its begin"),
            key(
                "in_step",
                "bool",
                "",
                "true if inside a step: its time is then in the step's row too",
            ),
            col("attrs", "string", "JSON", "what the user gave with it"),
        ),
    ),
    Table(
        "collectives",
        "Enter and exit of collectives by rank, where they can be had without a sync.",
        (
            _PROCESS,
            _SEQ,
            _NUMBER,
            _RANK,
            key("name", "string", "", "operation"),
            col("group_id", "string", "", "process group"),
            col("step", "int64", "count", "step it belongs to"),
            key("start_ns", "int64", "ns since epoch", "enter"),
            col(
                "dur_ns",
                "int64",
                "ns",
                "enter to exit; NULL where only the enqueueing could be seen",
            ),
            col("bytes", "int64", "bytes", "size of the input"),
        ),
    ),
    Table(
        "traces",
        "Single spans inside steps, kept in trace windows; their time is in the step's row too.",
        (
            _PROCESS,
            _SEQ,
            key("number", "int32", "index", "place in the record; with process_id and seq, unique"),
            _RANK,
            key("step", "int64", "count", "step it belongs to"),
            key("name", "string", "", "category or name of the span"),
            key("start_ns", "int64", "ns since epoch", "begin"),
            key("dur_ns", "int64", "ns", "begin to end, nested spans included"),
            col("depth", "int32", "count", "spans around it in the step"),
            col("microbatch", "int32", "index", "microbatch, where the span was given one"),
        ),
    ),
    Table(
        "device_times",
        "Time that the GPU was at work for a step, from CUDA events and without waiting for it.",
        (
            _PROCESS,
            _SEQ,
            _NUMBER,
            _RANK,
            key("step", "int64", "count", "step it belongs to"),
            key(
                "device_ns",
                "int64",
                "ns",
                "from the first to the last CUDA event of the step, on the device's clock",
            ),
        ),
    ),
    Table(
        "checkpoints",
        "One row for each save or load of a checkpoint and rank.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            key("op", "string", "", "save or load"),
            col("step", "int64", "count", "last step that the checkpoint contains"),
            col("path", "string", "", "where it lies"),
            key("start_ns", "int64", "ns since epoch", "begin"),
            col("dur_ns", "int64", "ns", "time the training process was blocked; NULL if not seen"),
            col(
                "durable_ns",
                "int64",
                "ns since epoch",
                "when it was durable; NULL if never confirmed",
            ),
            col("ok", "bool", "", "did it succeed; NULL unknown"),
            col("bytes", "int64", "bytes", "size"),
        ),
    ),
    Table(
        "events",
        "Instants. Kinds that the books know: end (a process ended), failure (first sign of a "
        "failure), exit (a launcher saw a rank exit), complete (training finished), hang, "
        "hang_end, rewind, note, dropped.",
        (
            _PROCESS,
            _SEQ,
            _RANK,
            key("time_ns", "int64", "ns since epoch", "when"),
            key("kind", "string", "", "kind of event"),
            col("step", "int64", "count", "step it belongs to"),
            col("attrs", "string", "JSON", "details; see docs/schema.md"),
        ),
    ),
    *TELEMETRY,
    Table(
        "evidence",
        "Where an importer found what it claims: file and line.",
        (
            key("claim", "string", "", "what is claimed, such as restart, resumed_from, save, end"),
            col("process_id", "int64", "id", "process incarnation it is about"),
            col("step", "int64", "count", "step it is about"),
            key("file", "string", "", "file as given"),
            key("line", "int64", "count", "line number from 1"),
            col("text", "string", "", "the line, shortened to 300 characters"),
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
