"""Processes of a run: what each left behind, when it died and why.

All instants are nanoseconds since the epoch. What is not known is None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from badput_ledger import store

if TYPE_CHECKING:
    import duckdb

CLEAN = ("completed",)


@dataclass(slots=True)
class Process:
    """One incarnation of a rank or launcher with what its records say."""

    process_id: int
    rank: int | None
    role: str
    world_size: int | None
    replica: int | None
    stage: int | None
    stages: int | None
    microbatches: int | None
    schedule: str | None
    start_ns: int
    init_ns: int
    host: str | None
    pid: int | None
    job_id: str | None
    attempt: int | None
    endpoint: str | None
    gpu_uuid: str | None
    gpu_type: str | None
    last_record_ns: int
    last_step_ns: int | None = None
    """End of its last finished step."""
    death_ns: int | None = None
    """When it was gone; None where nothing says so."""
    reason: str = "unknown"
    """completed, killed, signal, exit, exception or unknown."""
    exit_code: int | None = None
    signal: int | None = None
    closed: bool = False
    phase: str | None = None
    phase_since_ns: int | None = None
    phase_step: int | None = None
    last_sign_ns: int | None = None
    dropped: int = 0

    @property
    def end_ns(self) -> int:
        """Death where known, else the last record."""
        return self.last_record_ns if self.death_ns is None else self.death_ns

    @property
    def clean(self) -> bool:
        """Did it end on purpose?"""
        return self.reason in CLEAN

    def cause(self) -> str:
        """How it ended, for a person."""
        if self.signal == 9:
            return "was killed (signal 9)"
        if self.signal:
            return f"was ended by signal {self.signal}"
        if self.reason == "exception":
            return "ended with an exception"
        if self.exit_code:
            return f"exited with code {self.exit_code}"
        if self.reason == "unknown":
            return "ended without saying why"
        return "was killed" if self.reason == "killed" else f"ended: {self.reason}"


def attrs_of(text: str | None) -> dict[str, Any]:
    """The JSON object of an attrs column; broken JSON counts as empty."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def read_processes(con: duckdb.DuckDBPyConnection) -> list[Process]:
    """Every process, in order of its start, with its last record and its end."""
    signs = {int(r["process_id"]): r for r in store.rows(con, _SIGNS)}
    found: dict[int, Process] = {}
    for row in store.rows(con, "SELECT * FROM processes ORDER BY start_ns, process_id"):
        pid = int(row["process_id"])
        if pid not in found:
            found[pid] = _process(row, signs.get(pid))
    for pid, sign in signs.items():
        if pid not in found and sign["rank"] is not None:
            # Its processes row is lost; its records still say that it lived.
            row = {"process_id": pid, "rank": sign["rank"], "role": "rank"}
            found[pid] = _process(row | {"start_ns": sign["first_ns"]}, sign)
    _read_ends(con, found)
    ordered = sorted(found.values(), key=lambda p: (p.start_ns, p.rank or 0, p.process_id))
    _read_exits(con, ordered)
    return ordered


_SIGNS = """
SELECT process_id, max(rank) AS rank, min(first_ns) AS first_ns, max(last_ns) AS last_ns,
       max(step_ns) AS step_ns
FROM (
    SELECT process_id, max(rank) AS rank, min(start_ns) AS first_ns,
           max(start_ns + greatest(dur_ns, 0)) AS last_ns, last_ns AS step_ns
    FROM steps GROUP BY process_id
    UNION ALL
    SELECT process_id, rank, start_ns, start_ns + greatest(coalesce(dur_ns, 0), 0), NULL FROM spans
    UNION ALL
    SELECT process_id, rank, start_ns, start_ns + greatest(coalesce(dur_ns, 0), 0), NULL
    FROM checkpoints
    UNION ALL
    SELECT process_id, rank, time_ns, time_ns, NULL FROM events WHERE kind NOT IN ('end', 'exit')
) GROUP BY process_id
"""


def _process(row: dict[str, Any], sign: dict[str, Any] | None) -> Process:
    start = int(row["start_ns"])
    init = start if row.get("init_ns") is None else max(start, int(row["init_ns"]))
    last = init if sign is None else max(init, int(sign["last_ns"]))
    stepped = None if sign is None or sign["step_ns"] is None else int(sign["step_ns"])
    known: dict[str, Any] = {
        name: row.get(name)
        for name in (
            "rank", "world_size", "replica", "stage", "stages", "microbatches", "schedule",
            "host", "pid", "job_id", "attempt", "endpoint", "gpu_uuid", "gpu_type",
        )
    }  # fmt: skip
    return Process(
        process_id=int(row["process_id"]),
        role=str(row["role"]),
        start_ns=start,
        init_ns=init,
        last_record_ns=last,
        last_step_ns=stepped,
        **known,
    )


def _read_ends(con: duckdb.DuckDBPyConnection, found: dict[int, Process]) -> None:
    """Take in `end` events: one a process, written when it was seen dead or closed."""
    for row in store.rows(
        con, "SELECT * FROM events WHERE kind = 'end' ORDER BY time_ns, process_id, seq"
    ):
        process = found.get(int(row["process_id"]))
        if process is None:
            continue
        said = attrs_of(row["attrs"])
        process.reason = str(said.get("reason") or "unknown")
        process.exit_code = _int(said.get("exit_code"))
        process.signal = _int(said.get("signal"))
        process.closed = bool(said.get("closed"))
        process.phase = None if said.get("phase") is None else str(said["phase"])
        process.phase_since_ns = _int(said.get("phase_since_ns"))
        process.phase_step = _int(said.get("step"))
        process.last_sign_ns = _int(said.get("last_sign_ns"))
        process.dropped = _int(said.get("dropped")) or 0
        process.death_ns = max(int(row["time_ns"]), process.last_record_ns)
        if process.reason in ("unknown", "exit") and (
            process.exit_code == 0 or (process.closed and not process.exit_code)
        ):
            process.reason = "completed"


def _read_exits(con: duckdb.DuckDBPyConnection, ordered: list[Process]) -> None:
    """Take in a launcher's `exit` events: the best witness of how a rank ended."""
    for row in store.rows(
        con, "SELECT * FROM events WHERE kind = 'exit' ORDER BY time_ns, process_id, seq"
    ):
        said = attrs_of(row["attrs"])
        rank, pid, time = _int(said.get("rank")), _int(said.get("pid")), int(row["time_ns"])
        lived = [p for p in ordered if p.role == "rank" and p.rank == rank and p.start_ns <= time]
        same = [p for p in lived if pid is not None and p.pid == pid]
        if not (same or lived):
            continue
        process = (same or lived)[-1]
        code, signal = _int(said.get("exit_code")), _int(said.get("signal"))
        if signal:
            process.signal = signal
            process.reason = "killed" if signal == 9 else "signal"
        elif code is not None and process.reason in ("unknown", "completed", "exit", "killed"):
            process.exit_code = code
            process.reason = "completed" if code == 0 else "exit"
        if process.death_ns is None or process.closed:
            # A closed process lived on until it exited; a killed one was dead before both.
            process.death_ns = max(time, process.end_ns)
        else:
            process.death_ns = max(min(time, process.death_ns), process.last_record_ns)


def _int(value: object) -> int | None:
    """A whole number that a column holds; anything else, inf and nan too, is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if -(1 << 62) < value < 1 << 62 else None
