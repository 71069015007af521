"""Incidents: what interrupted the run, on whose word, and what each cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso
from badput_ledger.processes import attrs_of

if TYPE_CHECKING:
    from badput_ledger.books import Books
    from badput_ledger.endings import Mark
    from badput_ledger.facts import Session

RESTART = (
    "A.requeue", "C.launch", "C.rendezvous", "C.model", "C.data", "C.load", "C.warmup",
)  # fmt: skip
"""Leaves of the session that followed which an incident is charged with."""

_ENDING = ("failure", "cause", "hang", "signal", "exit", "end")
_STARTING = ("restart", "resumed_from")


def build_incidents(books: Books) -> list[dict[str, Any]]:
    """One for each session that did not end on purpose and one for each that ended in a hang."""
    leaves = _leaves_by_session(books)
    lost = {
        str(r["session"]): int(r["steps"])
        for r in books.rows(
            "SELECT session, sum(steps)::BIGINT AS steps FROM step_counts "
            "WHERE fate LIKE 'D.%' GROUP BY session"
        )
    }
    sessions = books.facts.sessions
    _move_diagnosis(books, leaves)
    found: list[dict[str, Any]] = []
    for i, session in enumerate(sessions):
        following = sessions[i + 1] if i + 1 < len(sessions) else None
        hangs = _hangs(books, session)
        found += [_hang(books, session, row, leaves) for row in hangs[:1]]
        if session.end_reason == "completed":
            continue
        if following is None and not session.end_known and session.fail_ns is None:
            continue  # the last session may still be alive
        phases = _phases(leaves, session, following, with_hang=not hangs)
        incident = _ended(books, session, following)
        incident["lost_steps"] = lost.get(session.id, 0)
        found.append(_priced(books, incident, phases))
    for number, incident in enumerate(found, 1):
        incident["id"] = f"i{number}"
    return found


def _leaves_by_session(books: Books) -> dict[str, dict[str, tuple[int, int]]]:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for row in books.rows("FROM session_leaves WHERE session IS NOT NULL"):
        leaf = (int(row["ns"]), int(row["billed_ns"]))
        found.setdefault(str(row["session"]), {})[str(row["leaf"])] = leaf
    return found


def _move_diagnosis(books: Books, leaves: dict[str, dict[str, tuple[int, int]]]) -> None:
    """A search for the cause in the gap after a session is about that session, not the next."""
    rows = books.rows(
        "SELECT g.session, b.session AS before, sum(g.stop_ns - g.start_ns) AS ns, "
        "sum(CASE WHEN g.billed THEN g.stop_ns - g.start_ns ELSE 0 END) AS billed_ns "
        "FROM slot_gaps g JOIN sessions s ON s.session = g.session "
        "JOIN sessions b ON b.ord = s.ord - 1 AND g.start_ns < s.start_ns "
        "WHERE g.leaf = 'B.diagnosis' GROUP BY ALL"
    )
    for row in rows:
        moved = int(row["ns"]), int(row["billed_ns"])
        for session, sign in ((str(row["session"]), -1), (str(row["before"]), 1)):
            had = leaves.setdefault(session, {}).get("B.diagnosis", (0, 0))
            leaves[session]["B.diagnosis"] = had[0] + sign * moved[0], had[1] + sign * moved[1]


def _phases(
    leaves: dict[str, dict[str, tuple[int, int]]],
    session: Session,
    following: Session | None,
    *,
    with_hang: bool,
) -> dict[str, tuple[int, int]]:
    """The lost work and the ending of a session, and the restart of the one after it."""
    phases = {
        leaf: ns
        for leaf, ns in leaves.get(session.id, {}).items()
        if leaf[0] in "BD" and ns[0] and (with_hang or leaf != "B.hang")
    }
    if following is not None:
        restart = leaves.get(following.id, {}).items()
        phases |= {leaf: ns for leaf, ns in restart if leaf in RESTART and ns[0]}
    return phases


def _priced(
    books: Books, incident: dict[str, Any], phases: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    incident["gpu_seconds"] = sum(ns for ns, _ in phases.values()) / 1e9
    incident["cost"] = books.price.of(sum(billed for _, billed in phases.values()))
    incident["phases"] = {leaf: ns / 1e9 for leaf, (ns, _) in sorted(phases.items())}
    held = {leaf: billed / 1e9 for leaf, (_, billed) in sorted(phases.items())}
    incident["held_gpu_seconds"] = sum(held.values())
    incident["held_phases"] = held
    return incident


def _ended(books: Books, session: Session, following: Session | None) -> dict[str, Any]:
    culprit, said = session.culprit, session.failure
    kind = session.end_reason
    cause = "the session ended and nothing says why"
    rank = None
    if culprit is not None:
        rank = None if culprit.launcher else culprit.rank
        cause = culprit.cause()
    if said is not None and not (culprit is not None and culprit.launcher):
        what = said.attrs.get("what")
        speaker = _named_rank(said)
        rank = speaker if rank is None else rank
        if what and culprit is None:
            cause = f"rank {speaker}: {what}"
        elif what:
            seen = "" if speaker == rank or said.attrs.get("exit_code") else f"rank {speaker} saw "
            cause = f"{cause}: {seen}{what}"
        kind = "failure" if kind == "unknown" else kind
    time = session.fail_ns if session.fail_ns is not None else session.end_ns
    return {
        "id": "",
        "session": session.id,
        "time": iso(time),
        "kind": kind,
        "rank": rank,
        "cause": cause,
        "evidence": _evidence(books, session, following),
    }


def _named_rank(said: Mark) -> int | None:
    """The rank that failed. A log is written by one rank, and names another in its text."""
    named = said.attrs.get("rank")
    return named if isinstance(named, int) else said.rank


def _evidence(books: Books, session: Session, following: Session | None) -> list[dict[str, Any]]:
    """Lines of a log where an importer gave them, else the event rows."""
    culprit, said = session.culprit, session.failure
    found = _lines(books, session, _ENDING)
    if following is not None:
        found += _lines(books, following, _STARTING)
    if said is not None:
        found.append(_row(said.process_id, said.seq))
    process = culprit.process if culprit is not None else None
    if process is not None:
        ends = books.rows(
            "SELECT process_id, seq FROM events WHERE kind = 'end' AND process_id = ? ORDER BY seq",
            [process.process_id],
        )
        found += [_row(e["process_id"], e["seq"]) for e in ends]
    if culprit is not None and culprit.exit is not None:
        found.append(_row(culprit.exit.writer, culprit.exit.seq))
    elif books.facts.launchers and process is not None and process.pid is not None:
        exits = books.rows(
            "SELECT process_id, seq FROM events WHERE kind = 'exit' "
            "AND TRY_CAST(json_extract_string(attrs, '$.pid') AS BIGINT) = ? "
            "ORDER BY time_ns, process_id, seq LIMIT 1",
            [process.pid],
        )
        found += [_row(e["process_id"], e["seq"]) for e in exits]
    return found


def _lines(books: Books, session: Session, claims: tuple[str, ...]) -> list[dict[str, Any]]:
    return books.rows(
        "SELECT file, line, min(text) AS text FROM evidence WHERE list_contains(?, claim) "
        "AND list_contains(?, process_id) GROUP BY file, line ORDER BY file, line LIMIT 8",
        [list(claims), _ids(session)],
    )


def _row(process_id: int, seq: int) -> dict[str, Any]:
    # a 63-bit id does not survive a JSON reader that has only doubles: give it as text
    return {"table": "events", "process_id": str(process_id), "seq": int(seq)}


def _hangs(books: Books, session: Session) -> list[dict[str, Any]]:
    """The hangs that nobody trained past: those are what B.hang is about (see facts.py)."""
    if session.end_reason == "completed":
        return []
    return books.rows(
        "SELECT * FROM events WHERE kind = 'hang' AND list_contains(?, process_id) "
        "AND time_ns >= ? ORDER BY time_ns, process_id, seq",
        [_ids(session), session.trained_ns],
    )


def _hang(
    books: Books,
    session: Session,
    row: dict[str, Any],
    leaves: dict[str, dict[str, tuple[int, int]]],
) -> dict[str, Any]:
    what = attrs_of(row["attrs"]).get("what")
    incident = {
        "id": "",
        "session": session.id,
        "time": iso(int(row["time_ns"])),
        "kind": "hang",
        "rank": row["rank"],
        "cause": str(what) if what else f"rank {row['rank']} made no progress",
        "evidence": [_row(row["process_id"], row["seq"])],
        "lost_steps": 0,
    }
    hang = leaves.get(session.id, {}).get("B.hang")
    return _priced(books, incident, {"B.hang": hang} if hang else {})


def _ids(session: Session) -> list[int]:
    return [p.process_id for p in session.members]
