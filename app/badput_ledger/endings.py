"""Who ended a session first, and how: from members' ends, exits of others and failure marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput_ledger import store
from badput_ledger.processes import attrs_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from badput_ledger.processes import Exit, Process

SEEN_LATE_NS = 2_000_000_000
"""How late the end of a process may be seen: within it the order of two ends is not known."""
ASKED = (1, 2, 15)
"""SIGHUP, SIGINT, SIGTERM: what others send to end a process that had not failed itself."""

BETWEEN = (None, "loop", "init", "unknown")
"""Phases in which a process that vanished leaves open whether anything was under way."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A failure or hang event of a session, or the word that it completed."""

    kind: str
    time_ns: int
    process_id: int
    seq: int
    rank: int | None
    attrs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank that went first, or the launcher, and how it ended."""

    rank: int | None
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    launcher: bool = False
    process: Process | None = None
    """The member that it is, where that rank left rows; else whose records told of it."""
    exit: Exit | None = None
    """The launcher's word about it, where there is one."""

    def cause(self) -> str:
        """Who ended how, for a person."""
        who = "the launcher" if self.launcher else f"rank {self.rank}"
        return f"{who} {_how(self)}"


def _how(end: Culprit) -> str:
    if end.signal == 9:
        return "was killed (signal 9)"
    if end.signal:
        return f"was ended by signal {end.signal}"
    if end.reason == "exception":
        code = f" (exit code {end.exit_code})" if end.exit_code else ""
        return f"ended with an exception{code}"
    if end.exit_code:
        return f"exited with code {end.exit_code}"
    if end.reason == "unknown":
        return "ended without saying why"
    return "was killed" if end.reason == "killed" else f"ended: {end.reason}"


def read_marks(con: duckdb.DuckDBPyConnection, members: Sequence[Process]) -> list[Mark]:
    """What the members' events say of failures, hangs and completion, in order of time."""
    query = (
        "SELECT * FROM events WHERE kind IN ('complete', 'failure', 'hang', 'hang_end', 'signal', "
        "'xid', 'gpu_lost') AND list_contains(?, process_id) ORDER BY time_ns, process_id, seq"
    )
    return [
        Mark(
            str(r["kind"]),
            int(r["time_ns"]),
            int(r["process_id"]),
            int(r["seq"]),
            whole(r["rank"]),
            attrs_of(r["attrs"]),
        )
        for r in store.rows(con, query, [[p.process_id for p in members]])
    ]


SIGN_NS = 600_000_000_000
"""How long before the end of a session without a step a fault of a GPU is a sign of that end."""
SIGN_LATE_NS = 10_000_000_000
"""How late a GPU may be found to be lost: a GPU is sampled every few seconds."""
NO_SIGN = (45, 63, 92)
"""Xids that follow the end of a process (45) or only inform: a row remapped, single-bit errors."""


def first_sign(marks: Sequence[Mark], trained_ns: int, end_ns: int) -> Mark | None:
    """The fault of a GPU after which the session ended; None if there was none.

    ``trained_ns``: since when no rank trained on; a fault before was survived. ``end_ns``: the
    first failure mark or end.
    """
    since = trained_ns or end_ns - SIGN_NS
    for m in marks:
        if m.kind not in ("xid", "gpu_lost") or m.time_ns < since:
            continue
        code = whole(m.attrs.get("xid"))
        late = SIGN_LATE_NS if m.kind == "gpu_lost" or code == 79 else 0
        if m.time_ns <= end_ns + late and code not in NO_SIGN:
            return m
    return None


def fault_text(sign: Mark) -> str:
    """A fault of a GPU in words that are the same each time it happens to that GPU."""
    said = sign.attrs
    place = said.get("gpu_uuid") or said.get("pci_bus_id") or said.get("number")
    gpu = "a GPU" if place is None else f"GPU {place}"
    code = whole(said.get("xid"))
    if sign.kind == "xid":
        return f"Xid {'unknown' if code is None else code} on {gpu}"
    why = said.get("reason") or (None if code is None else f"Xid {code}")
    return f"{gpu} was lost" + (f" ({why})" if why else "")


def vanished(dead: Sequence[Process], exits: Sequence[Exit]) -> bool:
    """True if members are only known to be gone, between two steps and without a word.

    No exit status, no exception and no work under way: that may have been a normal end.
    """
    return not any(e.failed for e in exits) and all(
        p.reason == "unknown" and not p.exit_code and not p.signal and p.phase in BETWEEN
        for p in dead
    )


def culprit_of(
    dead: Sequence[Process], exits: Sequence[Exit], failure: Mark | None, told: set[int]
) -> Culprit | None:
    """The one whose end came first; of ends too near to tell, one that failed by itself.

    ``dead``: members that did not end on purpose, in order of their end. ``exits``: what was
    said of ranks that left no rows. ``failure``: the first failure mark that ended the
    session. ``told``: process ids that the launcher itself told to end: they only followed.
    """
    whole_job = next((p for p in dead if p.launcher_ended), None)
    if whole_job is not None:
        return _of_member(whole_job, launcher=True)
    named = _named(dead, exits, failure)
    if named is not None:
        return named
    found = [(p.pid in told, p.end_ns, p.rank or 0, _of_member(p)) for p in dead]
    found += [(e.pid in told, e.time_ns, e.rank or 0, _of_exit(e, None)) for e in exits if e.failed]
    if not found:
        return None
    first = min(f[:2] for f in found)
    near = [f for f in found if f[0] == first[0] and f[1] <= first[1] + SEEN_LATE_NS]
    return min(near, key=lambda f: (_followed(f[3]), f[1], f[2]))[3]


def _followed(end: Culprit) -> int:
    """0: it failed by itself; 1: not known; 2: somebody asked it to end."""
    if end.signal in ASKED or end.exit_code in [128 + s for s in ASKED]:
        return 2
    return 0 if end.signal or end.exit_code or end.reason == "exception" else 1


def _named(dead: Sequence[Process], exits: Sequence[Exit], failure: Mark | None) -> Culprit | None:
    """The rank that the failure's own mark names, with its exit code."""
    if failure is None:
        return None
    rank, code = whole(failure.attrs.get("rank")), whole(failure.attrs.get("exit_code"))
    if rank is None:
        return None
    member = next((p for p in dead if p.rank == rank), None)
    said = next((e for e in exits if e.rank == rank and e.failed), None)
    if not code:
        if said is not None:
            return _of_exit(said, failure)
        if member is None and len(dead) == 1:  # one rank writes the log of all
            only = dead[0]
            return Culprit(rank, only.reason, only.exit_code, only.signal, process=only)
        return _of_member(member) if member is not None else None
    signal = -code if code < 0 else None
    reason = _reason(code, signal, failure)
    witness = member or (dead[0] if len(dead) == 1 else None)
    return Culprit(rank, reason, None if signal else code, signal, process=witness, exit=said)


def _reason(code: int | None, signal: int | None, failure: Mark | None) -> str:
    if signal:
        return "killed" if signal == 9 else "signal"
    signature = failure.attrs.get("signature") if failure is not None else None
    return "exception" if code and signature not in (None, "signal") else "exit"


def _of_member(process: Process, *, launcher: bool = False) -> Culprit:
    p = process
    return Culprit(p.rank, p.reason, p.exit_code, p.signal, launcher, process=p)


def _of_exit(said: Exit, failure: Mark | None) -> Culprit:
    reason = _reason(said.exit_code, said.signal, failure)
    code = None if said.signal else said.exit_code
    return Culprit(said.rank, reason, code, said.signal, exit=said)
