"""Sessions, their members and the allocated places, put together from the processes.

The result is written into DuckDB as the tables `sessions`, `members`, `slots`,
`allocations`, `hangs` and `span_leaves`, from which the SQL chain starts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from badput_ledger import store
from badput_ledger.endings import (
    SEEN_LATE_NS,
    Culprit,
    Mark,
    culprit_of,
    first_sign,
    read_marks,
    vanished,
)
from badput_ledger.errors import BooksError
from badput_ledger.hangs import COLUMNS as HANG_COLUMNS
from badput_ledger.hangs import Hang, ended_in, survived
from badput_ledger.hangs import rows as hang_rows
from badput_ledger.places import members_of, places_of
from badput_ledger.processes import Exit, Process, attrs_of, read_processes, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from badput_ledger.annotations import Annotation

MAX_PLACES = 200_000
"""More requested places than this are taken for a damaged table."""

SPAN_LEAVES: dict[str, str] = {
    "rendezvous": "C.rendezvous",
    "model": "C.model",
    "data_init": "C.data",
    "load": "C.load",
    "save": "E.save",
    "snapshot": "E.snapshot",
    "eval": "E.eval",
    "overhead": "E.overhead",
    "compile": "C.warmup",
    "launch": "C.launch",
    "data": "G.data",
    # a step that ended with an exception: under way at a failure, if not caught and tried again
    "failed_step": "D.partial",
}
"""Names of out-of-step spans that have a leaf of their own."""


@dataclass(slots=True)
class Session:
    """One life of the world: from its first process to its last exit."""

    id: str
    members: list[Process]
    start_ns: int = 0
    end_ns: int = 0
    end_known: bool = False
    """Did anything say that it ended?"""
    window_end_ns: int = 0
    """Its end, or the next session's start where the two overlap."""
    fail_ns: int | None = None
    """First failure mark; None if it ended on purpose or nothing is known."""
    end_reason: str = "unknown"
    culprit: Culprit | None = None
    """Who went first, where it failed."""
    failure: Mark | None = None
    """The first failure mark that was not trained past."""
    sign: Mark | None = None
    """A fault of a GPU before that, which was not trained past either."""
    hangs: list[Hang] = field(default_factory=list[Hang])
    """What stood still: those that moved on by themselves, then those that it ended in."""
    exits: list[Exit] = field(default_factory=list[Exit])
    """What was said of the ends of ranks that left no rows."""
    vanished: bool = False
    """The last one, only known to be gone: whether it failed is not known."""
    world_size: int = 0
    job_id: str | None = None
    attempt: int | None = None

    @property
    def trained_ns(self) -> int:
        """Since when no rank is known to have trained on: a failure or hang before was survived."""
        return min((p.last_step_ns for p in self.members if p.last_step_ns is not None), default=0)


@dataclass(slots=True)
class Facts:
    """What the report needs beside the tables."""

    sessions: list[Session]
    launchers: list[Process]
    slots: int
    over: bool
    """Is the run known to have ended?"""
    config: dict[str, Any]
    run: dict[str, Any]
    said: list[Annotation] = field(default_factory=list["Annotation"])
    """What people said about the run."""
    notes: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """(severity, what, evidence) for the report's quality list."""

    def note(self, severity: str, what: str, evidence: str) -> None:
        """Add a caveat."""
        self.notes.append((severity, what, evidence))


def assemble(
    con: duckdb.DuckDBPyConnection, *, gaps: str, said: Sequence[Annotation] = ()
) -> Facts:
    """Read the processes and write the tables that the SQL chain starts from.

    ``said``: what people said about the run, beside its facts.
    """
    processes, strays = read_processes(con)
    ranks = [p for p in processes if p.role != "launcher" and p.rank is not None]
    launchers = [p for p in processes if p.role == "launcher"]
    run, config = _read_run(con)
    sessions = _sessions(ranks)
    facts = Facts(sessions, launchers, 0, over=False, config=config, run=run, said=list(said))
    for i, session in enumerate(sessions):
        following = sessions[i + 1].start_ns if i + 1 < len(sessions) else None
        session.exits = [e for p in session.members for e in p.others]
        session.exits += [e for e in strays if _during(e, session, following)]
        _finish(con, session, following, facts)
    facts.slots = max([s.world_size for s in sessions], default=0)
    if facts.slots > MAX_PLACES:
        raise BooksError(
            f"the processes table says {facts.slots} ranks, and the books hold at most "
            f"{MAX_PLACES}; look at rank, world_size and the setting gpus."
        )
    facts.over = _is_over(facts)
    members = members_of(facts)
    _write(con, facts, members, gaps)
    return facts


def _read_run(con: duckdb.DuckDBPyConnection) -> tuple[dict[str, Any], dict[str, Any]]:
    """Merge the rows of `runs`: the first value by time wins."""
    run: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for row in store.rows(con, "SELECT * FROM runs ORDER BY time_ns, process_id"):
        for name, value in row.items():
            if value is not None:
                run.setdefault(name, value)
        for name, value in attrs_of(row["config"]).items():
            if value is not None:
                config.setdefault(name, value)
    return run, config


def _sessions(ranks: list[Process]) -> list[Session]:
    """A process joins the current session if nothing speaks against it."""
    sessions: list[Session] = []
    for process in ranks:
        if not sessions or not _joins(process, sessions[-1].members):
            sessions.append(Session(f"s{len(sessions) + 1}", [], process.start_ns))
        sessions[-1].members.append(process)
    return sessions


def _joins(process: Process, members: list[Process]) -> bool:
    for other in members:
        if process.rank == other.rank or process.start_ns >= other.end_ns:
            return False
        if process.world_size != other.world_size:
            return False
        if None not in (process.endpoint, other.endpoint) and process.endpoint != other.endpoint:
            return False
        # The restart count is kept per node: only on one host do two counts contradict.
        same_host = process.host == other.host and process.host is not None
        counts = (process.attempt, other.attempt)
        if same_host and None not in counts and counts[0] != counts[1]:
            return False
    return True


def _finish(
    con: duckdb.DuckDBPyConnection, session: Session, following: int | None, facts: Facts
) -> None:
    """Fill in when and how a session ended."""
    members = session.members
    session.end_ns = max(p.end_ns for p in members)
    session.end_known = any(p.death_ns is not None for p in members)
    session.window_end_ns = session.end_ns
    if following is not None and following < session.end_ns:
        session.window_end_ns = following
        alive = any((p.last_sign_ns or 0) >= following for p in members)
        if alive or session.end_ns - following > SEEN_LATE_NS:
            facts.note(
                "warning",
                f"session {session.id} still had processes when the next one started; "
                "its time is counted up to that start",
                f"processes of {session.id}",
            )
    world = members[0].world_size or _positive(facts.config.get("gpus")) or 0
    session.world_size = max(world, len(members), max(p.rank or 0 for p in members) + 1)
    session.job_id = next((p.job_id for p in members if p.job_id), None)
    session.attempt = next((p.attempt for p in members if p.attempt is not None), None)
    marks = read_marks(con, members)
    session.hangs = survived(members, marks)
    if any(m.kind == "complete" for m in marks) or (
        session.end_known
        and all(p.clean or p.death_ns is None for p in members)
        and not any(e.failed for e in session.exits)
    ):
        session.end_reason = "completed"
        return
    _blame(session, marks, last=following is None)


def _blame(session: Session, marks: list[Mark], *, last: bool) -> None:
    """Who ended it, when the first sign of that was, or that nothing tells whether it failed."""
    members = session.members
    dead = sorted(
        (p for p in members if p.death_ns is not None and not p.clean),
        key=lambda p: (p.end_ns, p.rank or 0),
    )
    # What was caught, or moved on by itself, and trained past does not end the session.
    over = [h.told for h in session.hangs]
    kinds = ("failure", "hang", "signal")
    ending = [
        m for m in marks
        if m.kind in kinds and m.time_ns >= session.trained_ns and m not in over
    ]  # fmt: skip
    times = [m.time_ns for m in ending] + [p.end_ns for p in dead[:1]]
    fail_ns = min(times, default=None)
    if fail_ns is not None:
        session.sign = first_sign(marks, session.trained_ns, fail_ns)
    if last and not ending and session.sign is None and vanished(dead, session.exits):
        session.vanished = bool(dead)
        session.end_known = False
        return
    session.failure = next((m for m in ending if m.kind == "failure"), None)
    told = {pid for m in marks if m.kind == "signal" for pid in _pids(m)}
    session.culprit = culprit_of(dead, session.exits, session.failure, told)
    if session.culprit is not None:
        session.end_reason = session.culprit.reason
    session.fail_ns = fail_ns
    session.hangs += ended_in(ending, fail_ns)


def _pids(mark: Mark) -> list[int]:
    """The process ids that a launcher's signal went to."""
    said = mark.attrs.get("pids")
    found = [whole(p) for p in cast("list[object]", said)] if isinstance(said, list) else []
    return [p for p in found if p is not None]


def _during(said: Exit, session: Session, following: int | None) -> bool:
    """True if a launcher's word belongs to the session that had begun by then."""
    return session.start_ns <= said.time_ns and (following is None or said.time_ns < following)


def _is_over(facts: Facts) -> bool:
    """Is it known that the run ended: by its launcher, or by its last session?"""
    if facts.launchers:
        return all(p.death_ns is not None for p in facts.launchers)
    if not facts.sessions:
        return False
    last = facts.sessions[-1]
    return last.end_reason == "completed" or (
        last.end_known and all(p.death_ns is not None for p in last.members)
    )


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return None  # nan too
    return int(min(value, MAX_PLACES + 1))  # inf too


def _write(
    con: duckdb.DuckDBPyConnection, facts: Facts, members: list[dict[str, Any]], gaps: str
) -> None:
    from badput_ledger.allocations import allocated

    sessions = [
        {
            "session": s.id,
            "ord": i,
            "start_ns": s.start_ns,
            "end_ns": s.window_end_ns,
            "end_known": s.end_known,
            "fail_ns": s.fail_ns,
            "sign_ns": s.sign.time_ns if s.sign is not None else None,
            "completed": s.end_reason == "completed",
            "end_reason": s.end_reason,
            "world_size": s.world_size,
            "job_id": s.job_id,
            "attempt": s.attempt,
            "run_over": facts.over,
        }
        for i, s in enumerate(facts.sessions, 1)
    ]
    said = store.rows(con, "SELECT * FROM allocations")
    fit = [row for row in said if 0 <= row["slot"] < MAX_PLACES]
    if len(fit) < len(said):
        facts.note(
            "warning", f"{len(said) - len(fit)} allocations of impossible places", "allocations"
        )
    given = allocated(facts, fit, gaps, facts.said)
    places = [row for s in facts.sessions for row in places_of(s, facts.slots)]
    leaves = [{"name": n, "leaf": leaf} for n, leaf in SPAN_LEAVES.items()]
    hangs = [row for s in facts.sessions for row in _hang_rows(s)]
    con.execute("DROP TABLE IF EXISTS allocations")
    _insert(con, "sessions", _SESSIONS, sessions)
    _insert(con, "members", _MEMBERS, members)
    _insert(con, "slots", "session VARCHAR, slot INTEGER, rank INTEGER", places)
    _insert(con, "hangs", HANG_COLUMNS, hangs)
    _insert(con, "span_leaves", "name VARCHAR, leaf VARCHAR", leaves)
    _insert(con, "allocations", _ALLOCATIONS, given)
    _insert(con, "annotations", _ANNOTATIONS, [asdict(a) | {"author": a.by} for a in facts.said])


def _hang_rows(session: Session) -> list[dict[str, Any]]:
    stepped = {p.process_id for p in session.members if p.last_step_ns is not None}
    return hang_rows(session.id, session.hangs, stepped)


_SESSIONS = (
    "session VARCHAR, ord INTEGER, start_ns BIGINT, end_ns BIGINT, end_known BOOLEAN, "
    "fail_ns BIGINT, sign_ns BIGINT, completed BOOLEAN, end_reason VARCHAR, world_size INTEGER, "
    "job_id VARCHAR, attempt INTEGER, run_over BOOLEAN"
)
_MEMBERS = (
    "session VARCHAR, process_id BIGINT, rank INTEGER, weight INTEGER, replica INTEGER, "
    "stage INTEGER, stages INTEGER, gpu_uuid VARCHAR, start_ns BIGINT, init_ns BIGINT, "
    "death_ns BIGINT, phase VARCHAR, phase_since_ns BIGINT, phase_step BIGINT, last_sign_ns BIGINT"
)
_ALLOCATIONS = (
    "slot INTEGER, start_ns BIGINT, end_ns BIGINT, held VARCHAR, billed BOOLEAN, "
    "evidence VARCHAR, said VARCHAR, spare BOOLEAN"
)
_ANNOTATIONS = (
    "id VARCHAR, kind VARCHAR, start_ns BIGINT, end_ns BIGINT, places INTEGER, step BIGINT, "
    "note VARCHAR, author VARCHAR, written_ns BIGINT"
)


def _insert(
    con: duckdb.DuckDBPyConnection, table: str, columns: str, rows: list[dict[str, Any]]
) -> None:
    """CREATE a table and fill it by columns: executemany is slow for many rows.

    (Arrow would look for pandas first, and importing that takes half a second.)
    """
    con.execute(f"CREATE TABLE {table} ({columns})")
    if not rows:
        return
    kinds = [c.split() for c in columns.split(", ")]
    lists = ", ".join(f"unnest(${i}::{kind}[])" for i, (_, kind) in enumerate(kinds, 1))
    con.execute(f"INSERT INTO {table} SELECT {lists}", [[r[n] for r in rows] for n, _ in kinds])
