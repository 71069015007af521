"""Incidents: what interrupted the run, on whose word, and what each cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso, span
from badput_ledger.cost import rounded
from badput_ledger.endings import fault_text
from badput_ledger.hangs import FIRST_SEQ

if TYPE_CHECKING:
    from badput_ledger.books import Books
    from badput_ledger.endings import Mark
    from badput_ledger.facts import Session
    from badput_ledger.hangs import Hang

RESTART = (
    "A.requeue", "C.launch", "C.rendezvous", "C.model", "C.data", "C.load", "C.warmup",
)  # fmt: skip
"""Leaves of the session that followed which an incident is charged with."""

_ENDING = ("failure", "cause", "hang", "signal", "exit", "end")
_STARTING = ("restart", "resumed_from")
SILENT_S = 60.0
"""Less silence than this before an end that no event foretold is not called a hang."""
SILENT_STEPS = 10
"""The same in usual steps."""


def build_incidents(books: Books) -> list[dict[str, Any]]:
    """One for each session that did not end on purpose, and one for each hang, in order of time."""
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
        survived = _survived(books, session)
        found += survived
        if session.end_reason == "completed":
            continue
        if following is None and not session.end_known and session.fail_ns is None:
            continue  # the last session may still be alive
        own = leaves.get(session.id, {})
        if "B.hang" in own:  # what the hangs that moved on by themselves leave of it
            rest = own["B.hang"][0] - sum(i.pop("ns") for i in survived)
            own["B.hang"] = (max(0, rest), max(0, rest))
        ended = _ended(books, session, following)
        hang = _last_hang(books, session, ended)
        if hang is not None:
            found.append(_priced(books, hang, {"B.hang": own.get("B.hang", (0, 0))}))
        phases = _phases(leaves, session, following, with_hang=hang is None)
        ended["lost_steps"] = lost.get(session.id, 0)
        found.append(_priced(books, ended, phases))
    for number, incident in enumerate(found, 1):
        incident["id"] = f"i{number}"
        incident.pop("ns", None)
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
    sessions = [s.id for s in books.facts.sessions]
    own = incident["session"]
    following = sessions[sessions.index(own) + 1 :][:1]
    charged = [
        (following[0] if leaf in RESTART and following else own, leaf, billed)
        for leaf, (_, billed) in phases.items()
    ]
    incident["cost"] = rounded(books.costs.of(charged))
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
    signature = None if said is None else said.attrs.get("signature")
    sign = session.sign
    if sign is not None:
        signature = fault_text(sign)
        own = _one_rank(books, session, sign)
        rank = sign.rank if own else rank
        of = f" of rank {sign.rank}" if own else ""
        early = max(0, time - sign.time_ns) / 1e9
        cause = f"{signature}{of}, then {span(early)} later {cause}" if early else (
            f"{signature}{of}; {cause}")  # fmt: skip
        time = min(time, sign.time_ns)
        kind = sign.kind if kind == "unknown" else kind
    return {
        "id": "",
        "session": session.id,
        "time": iso(time),
        "duration_s": (session.window_end_ns - time) / 1e9,
        "kind": kind,
        "rank": rank,
        "cause": cause,
        "signature": signature if isinstance(signature, str) else None,
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
    found += [_row(m.process_id, m.seq) for m in (session.sign, said) if m is not None]
    process = culprit.process if culprit is not None else None
    if process is not None and process.end_seq is not None:
        found.append(_row(process.process_id, process.end_seq))
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


def _one_rank(books: Books, session: Session, sign: Mark) -> bool:
    """Was the fault told of one rank, and not of every rank of a node as that GPU's is unknown?"""
    rows = books.rows(
        "SELECT count(DISTINCT process_id) AS n FROM events WHERE kind = ? AND time_ns = ? "
        "AND list_contains(?, process_id)",
        [sign.kind, sign.time_ns, _ids(session)],
    )
    return rows[0]["n"] == 1


def _survived(books: Books, session: Session) -> list[dict[str, Any]]:
    """Hangs that moved on by themselves; those of several ranks at a time are one."""
    hangs = [h for h in session.hangs if h.survived and h.stop_ns > h.start_ns]
    booked = {
        (int(r["process_id"]), int(r["start_ns"])): int(r["ns"])
        for r in books.rows(
            "SELECT h.process_id, h.start_ns, sum((g.stop_ns - g.start_ns)::HUGEINT * m.weight) "
            "AS ns FROM hangs h JOIN rank_segments g USING (process_id, seq) "
            "JOIN members m USING (process_id) "
            "WHERE h.session = ? AND h.survived AND h.seq <= ? GROUP BY ALL",
            [session.id, FIRST_SEQ],
        )
    }
    groups: list[list[Hang]] = []
    until = 0
    for hang in sorted(hangs, key=lambda h: (h.since_ns, h.rank or 0)):
        if not groups or hang.since_ns >= until:
            groups.append([])
        groups[-1].append(hang)
        until = max(until, hang.stop_ns)
    found: list[dict[str, Any]] = []
    for group in groups:
        first, stop = group[0], max(h.stop_ns for h in group)
        told = min((h.told.time_ns for h in group if h.told is not None), default=None)
        incident = _hang(session, group, told, stop)
        others = f", and {len(group) - 1} more with it" if len(group) > 1 else ""
        lasted = span((stop - first.since_ns) / 1e9)
        incident["cause"] += f"{others}; it moved on by itself after {lasted}"
        ns = sum(booked.get((h.process_id, h.start_ns), 0) for h in group)
        found.append({**_priced(books, incident, {"B.hang": (ns, ns)}), "ns": ns})
    return found


def _last_hang(books: Books, session: Session, ended: dict[str, Any]) -> dict[str, Any] | None:
    """The hang in which the session ended: told by an event, or shown by the silence before."""
    hangs = sorted((h for h in session.hangs if not h.survived), key=lambda h: h.event.time_ns)
    if session.fail_ns is None:
        return None
    if not hangs:
        return _silence(books, session, ended)
    told = hangs[0].event.time_ns
    incident = _hang(session, hangs, told, session.fail_ns)
    late = session.window_end_ns - told
    if session.end_known and late > 0:
        since = span((told - hangs[0].since_ns) / 1e9)
        incident["cause"] += f"; it was noticed after {since} and was over {span(late / 1e9)} later"
        incident["hang"]["until_dead_s"] = late / 1e9
    return incident


def _silence(books: Books, session: Session, ended: dict[str, Any]) -> dict[str, Any] | None:
    """A session that did nothing for long before it was killed, and nothing told that it hung."""
    signs = [t for p in session.members for t in (p.last_step_ns, p.last_sign_ns) if t is not None]
    fail = session.fail_ns
    if fail is None or not signs or not session.end_known:
        return None
    usual = books.rows("SELECT rough_ns AS ns FROM usual WHERE session = ?", [session.id])
    least = max(SILENT_S, SILENT_STEPS * (usual[0]["ns"] or 0) / 1e9 if usual else 0)
    silent = (fail - max(signs)) / 1e9
    hung = books.rows("SELECT coalesce(sum(ns), 0) AS ns FROM session_leaves "
                      "WHERE session = ? AND leaf = 'B.hang'", [session.id])[0]["ns"]  # fmt: skip
    if silent < least or not hung:
        return None
    culprit = session.culprit
    process = culprit.process if culprit is not None else None
    where = ""
    if process is not None and process.phase is not None and process.phase_step is not None:
        where = f" (rank {process.rank}: phase {process.phase} of step {process.phase_step})"
    return {
        "id": "",
        "session": session.id,
        "time": iso(max(signs)),
        "duration_s": silent,
        "kind": "hang",
        "rank": None,
        "cause": f"no rank made progress for {span(silent)}{where}, and nothing told that it hung "
        "until it ended",
        "signature": None,
        "evidence": [e for e in ended["evidence"] if "table" in e],
        "lost_steps": 0,
        "hang": {"survived": False, "phase": process.phase if process is not None else None,
                 "noticed_s": None, "until_dead_s": None},
    }  # fmt: skip


def _hang(session: Session, group: list[Hang], told: int | None, stop: int) -> dict[str, Any]:
    """An incident of ranks that stood still. Its time is the last progress of the first of them."""
    first = min(group, key=lambda h: (h.since_ns, h.rank or 0))
    said = next((h.told for h in group if h.told is not None), None)
    who = first if said is None else next(h for h in group if h.told is said)
    what = said.attrs.get("what") if said is not None else None
    since = first.since_ns
    return {
        "id": "",
        "session": session.id,
        "time": iso(since),
        "duration_s": max(0, stop - since) / 1e9,
        "kind": "hang",
        "rank": who.rank,
        "cause": str(what) if what else f"rank {who.rank} made no progress",
        "signature": None,
        "evidence": [_row(h.event.process_id, h.event.seq) for h in group[:8]],
        "lost_steps": 0,
        "hang": {
            "survived": who.survived,
            "phase": who.phase,
            "noticed_s": None if told is None else max(0, told - since) / 1e9,
            "until_dead_s": None,
        },
    }


def _ids(session: Session) -> list[int]:
    return [p.process_id for p in session.members]
