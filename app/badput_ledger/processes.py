"""Processes of a run: what each left behind, when it died and why.

All instants are nanoseconds since the epoch. What is not known is None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from badput_ledger import store

if TYPE_CHECKING:
    from collections.abc import Collection

    import duckdb

CLEAN = ("completed",)


@dataclass(frozen=True, slots=True)
class Exit:
    """A launcher's word about how a rank ended; ``writer`` is whose record says it."""

    time_ns: int
    writer: int
    seq: int
    rank: int | None
    pid: int | None
    exit_code: int | None
    signal: int | None

    @property
    def failed(self) -> bool:
        """Did that rank end otherwise than with exit code 0?"""
        return bool(self.signal or self.exit_code)


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
    gpu_mapping: str | None = None
    """How its GPU is known: docs/schema.md; said by itself, pid, uuid, ..., unverified."""
    last_step_ns: int | None = None
    """End of its last finished step."""
    end_seq: int | None = None
    """Number of the `end` event that counts."""
    death_ns: int | None = None
    """When it was gone; None where nothing says so."""
    reason: str = "unknown"
    """completed, killed, signal, exit, exception or unknown."""
    exit_code: int | None = None
    signal: int | None = None
    closed: bool = False
    launcher_ended: bool = False
    """What ended was the launcher, and this rank with it."""
    others: list[Exit] = field(default_factory=list[Exit])
    """What its records say of ranks that may have left none."""
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


def attrs_of(text: str | None) -> dict[str, Any]:
    """The JSON object of an attrs column; broken JSON counts as empty."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def read_processes(con: duckdb.DuckDBPyConnection) -> tuple[list[Process], list[Exit]]:
    """Every process, in order of its start, with its last record and its end.

    Also what launchers said of ranks that left no process row.
    """
    signs = {int(r["process_id"]): r for r in store.rows(con, _SIGNS)}
    found: dict[int, Process] = {}
    parents: set[int] = set()
    for row in store.rows(con, "SELECT * FROM processes ORDER BY start_ns, process_id"):
        pid = int(row["process_id"])
        if pid not in found:
            found[pid] = _process(row, signs.get(pid))
            if row.get("role") != "launcher" and row.get("parent") is not None:
                parents.add(int(row["parent"]))
    for pid, sign in signs.items():
        if pid not in found and sign["rank"] is not None:
            # Its processes row is lost; its records still say that it lived.
            row = {"process_id": pid, "rank": sign["rank"], "role": "rank"}
            found[pid] = _process(row | {"start_ns": sign["first_ns"]}, sign)
    _read_devices(con, found)
    _read_ends(con, found)
    ordered = sorted(found.values(), key=lambda p: (p.start_ns, p.rank or 0, p.process_id))
    for p in ordered:
        # A script below `badput run` that never stepped and started ranks is their launcher.
        if p.role == "rank" and p.last_step_ns is None and p.process_id in parents:
            p.role = "launcher"
    return ordered, _read_exits(con, ordered)


_SIGNS = """
SELECT process_id, max(rank) AS rank, min(first_ns) AS first_ns, max(last_ns) AS last_ns,
       max(step_ns) AS step_ns
FROM (
    SELECT process_id, max(rank) AS rank, min(start_ns) AS first_ns,
           max(start_ns + greatest(dur_ns, 0)) AS last_ns, last_ns AS step_ns
    FROM loose_steps GROUP BY process_id
    UNION ALL
    SELECT process_id, rank, start_ns, stop_ns, stop_ns FROM stretches
    UNION ALL
    SELECT process_id, rank, start_ns, start_ns + greatest(coalesce(dur_ns, 0), 0), NULL FROM spans
    UNION ALL
    SELECT process_id, rank, start_ns, start_ns + greatest(coalesce(dur_ns, 0), 0), NULL
    FROM checkpoints
    UNION ALL
    SELECT process_id, rank, time_ns, time_ns, NULL FROM events
    WHERE kind NOT IN ('end', 'exit', 'xid', 'gpu_lost')  -- what others say is no sign of life
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


_EVIDENCE = {"pid": 5, "single": 4, "uuid": 4, "pci": 3, "none": 2, "unverified": 1}
"""How much a collector's `device` event says, by its mapping."""
_OWN_RECORD = 9
"""What the process itself recorded is what CUDA told it, and the best there is."""


def _read_devices(con: duckdb.DuckDBPyConnection, found: dict[int, Process]) -> None:
    """Take in `device` events: the best one names the GPU, the next ones what it left open."""
    said: dict[int, list[tuple[int, int, dict[str, Any]]]] = {}
    for row in store.rows(con, "SELECT * FROM events WHERE kind = 'device' ORDER BY time_ns, seq"):
        attrs = attrs_of(row["attrs"])
        own = int(row["seq"]) >= 0
        worth = _OWN_RECORD if own else _EVIDENCE.get(str(attrs.get("mapping")), 0)
        said.setdefault(int(row["process_id"]), []).append((worth, int(row["time_ns"]), attrs))
    if not said:
        return
    listed = store.rows(
        con, "SELECT host, gpu_uuid, pci_bus_id, name FROM devices ORDER BY time_ns"
    )
    places = {(d["host"], d["pci_bus_id"]): str(d["gpu_uuid"]) for d in listed
              if d["pci_bus_id"] and not str(d["gpu_uuid"]).startswith("MIG-")}  # fmt: skip
    names = {str(d["gpu_uuid"]): d["name"] for d in listed}
    for pid, events in said.items():
        if pid not in found:
            continue
        process, uuid = found[pid], None
        kind: str | None = None
        for worth, _, attrs in sorted(events, key=lambda e: e[:2], reverse=True):
            if attrs.get("gpu_type") and kind is None:
                kind = str(attrs["gpu_type"])
            if uuid is None and kind != "cpu":
                uuid = _uuid(attrs, names) or places.get((process.host, _place(attrs)))
                if uuid is not None:
                    own = worth == _OWN_RECORD
                    process.gpu_mapping = "itself" if own else str(attrs.get("mapping"))
        process.gpu_uuid = uuid if uuid is not None or kind == "cpu" else process.gpu_uuid
        process.gpu_type = kind or names.get(uuid or "") or process.gpu_type


def _uuid(attrs: dict[str, Any], listed: Collection[str]) -> str | None:
    """The UUID of a `device` event. CUDA tells it without saying that it is a MIG instance's."""
    given = attrs.get("gpu_uuid")
    if not isinstance(given, str) or not given:
        return None
    if given.startswith(("MIG-", "PCI-")):
        return given
    bare = given.removeprefix("GPU-")
    mig = f"MIG-{bare}"
    return mig if mig in listed else f"GPU-{bare}"


def _place(attrs: dict[str, Any]) -> str | None:
    """The PCI address of a `device` event as the table `devices` writes it."""
    given = attrs.get("pci_bus_id")
    parts = given.lower().partition(".")[0].split(":") if isinstance(given, str) else []
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _read_ends(con: duckdb.DuckDBPyConnection, found: dict[int, Process]) -> None:
    """Take in `end` events, written when a process was seen dead or closed.

    A copy of a spool and the spool itself may both have told one: the best evidence counts.
    """
    ends: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for row in store.rows(
        con, "SELECT * FROM events WHERE kind = 'end' ORDER BY time_ns, process_id, seq"
    ):
        process = found.get(int(row["process_id"]))
        if process is None:
            continue
        said = attrs_of(row["attrs"])
        if said.get("seen") is False:
            # A log that just stops is a sign of life: nothing saw this process end.
            process.last_record_ns = max(process.last_record_ns, int(row["time_ns"]))
            continue
        have = ends.get(process.process_id)
        if have is None or end_worth(said) >= end_worth(have[1]):
            ends[process.process_id] = row, said
    for pid, (row, said) in ends.items():
        process = found[pid]
        process.end_seq = int(row["seq"])
        process.reason = str(said.get("reason") or "unknown")
        process.launcher_ended = said.get("who") == "launcher"
        process.exit_code = whole(said.get("exit_code"))
        process.signal = whole(said.get("signal"))
        process.closed = bool(said.get("closed"))
        process.phase = None if said.get("phase") is None else str(said["phase"])
        process.phase_since_ns = whole(said.get("phase_since_ns"))
        process.phase_step = whole(said.get("step"))
        process.last_sign_ns = whole(said.get("last_sign_ns"))
        process.dropped = whole(said.get("dropped")) or 0
        process.death_ns = max(int(row["time_ns"]), process.last_record_ns)
        if process.reason in ("unknown", "exit") and (
            process.exit_code == 0 or (process.closed and not process.exit_code)
        ):
            process.reason = "completed"


def end_worth(said: dict[str, Any]) -> tuple[int, bool]:
    """How much an `end` event says: exit status, then signal, then a reason, then nothing.

    Of two that say as much, one whose process was watched is the better witness of the time.
    """
    known = (
        3 if said.get("exit_code") is not None
        else 2 if said.get("signal")
        else int(said.get("reason") not in (None, "unknown"))
    )  # fmt: skip
    return known, said.get("found_ns") is None


def _read_exits(con: duckdb.DuckDBPyConnection, ordered: list[Process]) -> list[Exit]:
    """Take in a launcher's `exit` events: the best witness of how a rank ended.

    A log tells of the ranks of its own attempt only, so what it says goes to no process but
    the one that it was read into. Returns the exits that belong to no process.
    """
    by_id = {p.process_id: p for p in ordered if p.role != "launcher"}
    exits = [_exit(r) for r in store.rows(con, _EXITS)]
    seen: set[int] = set()
    left: list[Exit] = []
    for said in exits:
        if said.rank is None and said.writer not in by_id:
            # Of `badput run`: what it started may be a rank, or a launcher.
            process = _started(ordered, said)
            if process is not None:
                seen.add(process.process_id)
                _take(process, said)
            continue
        writer = by_id.get(said.writer)
        if writer is not None and writer.rank != said.rank:
            writer.others.append(said)
            continue
        same = [p for p in _lived(ordered, said) if said.pid is not None and p.pid == said.pid]
        process = writer or (same[-1] if same else None)
        if process is None:
            left.append(said)
            continue
        seen.add(process.process_id)
        _take(process, said)
    strays: list[Exit] = []
    for said in left:
        # A launcher that sees other process ids than its ranks do (another namespace).
        lived = [p for p in _lived(ordered, said)[-1:] if p.process_id not in seen]
        if lived:
            seen.add(lived[0].process_id)
            _take(lived[0], said)
        else:
            strays.append(said)
    return strays


_EXITS = "SELECT * FROM events WHERE kind = 'exit' ORDER BY time_ns, process_id, seq"


def _lived(ordered: list[Process], said: Exit) -> list[Process]:
    return [
        p
        for p in ordered
        if p.role == "rank" and p.rank == said.rank and p.start_ns <= said.time_ns
    ]


def _started(ordered: list[Process], said: Exit) -> Process | None:
    """The rank with the pid that a launcher on the same host started."""
    hosts = {p.host for p in ordered if p.process_id == said.writer}
    same = [
        p
        for p in ordered
        if p.role == "rank" and p.host in hosts and p.pid == said.pid is not None
        and p.start_ns <= said.time_ns
    ]  # fmt: skip
    return same[-1] if same else None


def _exit(row: dict[str, Any]) -> Exit:
    said = attrs_of(row["attrs"])
    rank, pid = whole(said.get("rank")), whole(said.get("pid"))
    code, signal = whole(said.get("exit_code")), whole(said.get("signal"))
    time, writer = int(row["time_ns"]), int(row["process_id"])
    return Exit(time, writer, int(row["seq"]), rank, pid, code, signal)


def _take(process: Process, said: Exit) -> None:
    """What ``said`` tells of how and when ``process`` ended."""
    code, signal, time = said.exit_code, said.signal, said.time_ns
    if signal:
        process.signal = signal
        process.reason = "killed" if signal == 9 else "signal"
    elif code is not None and process.reason in ("unknown", "completed", "exit", "killed"):
        process.exit_code = code
        process.reason = "completed" if code == 0 else "exit"
    elif code and process.exit_code is None:
        process.exit_code = code
    if process.death_ns is None or process.closed:
        # A closed process lived on until it exited; a killed one was dead before both.
        process.death_ns = max(time, process.end_ns)
    else:
        process.death_ns = max(min(time, process.death_ns), process.last_record_ns)


def whole(value: object) -> int | None:
    """A whole number that a column holds; anything else, inf and nan too, is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if -(1 << 62) < value < 1 << 62 else None
