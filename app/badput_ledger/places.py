"""Which process carries which of the requested places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from badput_ledger.facts import Facts, Session


def members_of(facts: Facts) -> list[dict[str, Any]]:
    """One row for each process of a session, with the places that it carries."""
    rows: list[dict[str, Any]] = []
    for session in facts.sessions:
        present = sorted(p.rank or 0 for p in session.members)
        missing = session.world_size - len(present)
        if missing:
            facts.note(
                "info",
                f"session {session.id}: {missing} of {session.world_size} ranks left no rows; "
                f"rank {present[0]} stands for them",
                "processes",
            )
        for p in session.members:
            rank = p.rank or 0
            replica = p.replica
            if replica is None:
                replica = rank // p.stages if p.stages else rank
            death = session.end_ns if p.death_ns is None else p.death_ns
            rows.append(
                {
                    "session": session.id,
                    "process_id": p.process_id,
                    "rank": rank,
                    "weight": 1 + (missing if rank == present[0] else 0),
                    "replica": replica,
                    "stage": p.stage,
                    "stages": p.stages,
                    "gpu_uuid": p.gpu_uuid,
                    "start_ns": p.start_ns,
                    "init_ns": p.init_ns,
                    "death_ns": min(death, session.window_end_ns),
                    "phase": p.phase,
                    "phase_since_ns": p.phase_since_ns,
                    "phase_step": p.phase_step,
                    "last_sign_ns": p.last_sign_ns,
                }
            )
    return rows


def places_of(session: Session, slots: int) -> Iterable[dict[str, Any]]:
    """Which rank's time line stands for which place; rank NULL: the session left it empty."""
    present = {p.rank or 0 for p in session.members}
    carrier = min(present)
    for slot in range(slots):
        rank = None if slot >= session.world_size else slot if slot in present else carrier
        yield {"session": session.id, "slot": slot, "rank": rank}
