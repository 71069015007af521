"""Hangs: when each rank stood still, and whether it moved on by itself or the session ended in it.

All instants are nanoseconds since the epoch. What nothing told, but the silence before a kill
shows, is no hang here: see ``sql/40_ends.sql``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import span
from badput_ledger.processes import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.endings import Mark
    from badput_ledger.processes import Process

LIVED_ON_NS = 60_000_000_000
"""A rank that moves again and is not gone within this time had not merely begun to end."""
STEP_PHASES = (
    "step", "forward", "backward", "optimizer", "wait_activation", "wait_gradient", "send", "comm",
    "host", "other",
)  # fmt: skip
"""Phases that are those of a step, where the event itself does not say whether it was in one."""
FIRST_SEQ = -1_000_000_000
"""Rows of hangs in ``span_rows`` are numbered downwards from here; no record has such a number."""
COLUMNS = (
    "session VARCHAR, process_id BIGINT, rank INTEGER, seq BIGINT, start_ns BIGINT, "
    "stop_ns BIGINT, phase VARCHAR, in_step BOOLEAN, survived BOOLEAN"
)


@dataclass(frozen=True, slots=True)
class Hang:
    """One standstill of one rank."""

    process_id: int
    rank: int | None
    since_ns: int
    """Its last sign of progress."""
    start_ns: int
    """From when it is booked: a step under way first gets its usual time."""
    stop_ns: int
    """When it moved on, or when the session's first failure mark came."""
    phase: str | None
    step: int | None
    in_step: bool
    survived: bool
    """It moved on by itself, and the session went on."""
    told: Mark | None
    """The event `hang`, where there is one."""
    event: Mark
    """The event that says it: `hang_end` of one that was survived, else `hang`."""


def survived(members: Sequence[Process], marks: Sequence[Mark]) -> list[Hang]:
    """The hangs that ended by themselves.

    That of a step that only crawled has no time of its own: its phases went on, and what they
    recorded says where the time went.
    """
    by_id = {p.process_id: p for p in members}
    found: list[Hang] = []
    for end in marks:
        since = _since(end) if end.kind == "hang_end" else None
        if since is None or not _lived_on(by_id[end.process_id], since, end.time_ns):
            continue
        told = next((m for m in marks if m.kind == "hang" and m.process_id == end.process_id
                     and since <= m.time_ns <= end.time_ns), None)  # fmt: skip
        found.append(_hang(end, told, since, end.time_ns, went_on=True))
    return found


def ended_in(ending: Sequence[Mark], fail_ns: int | None) -> list[Hang]:
    """The hangs in which the session ended. ``ending``: its failure marks, none trained past."""
    if fail_ns is None:
        return []
    hangs = [(m, _since(m)) for m in ending if m.kind == "hang"]
    return [
        _hang(m, m, m.time_ns if since is None else since, fail_ns, went_on=False)
        for m, since in hangs
    ]


def _hang(event: Mark, told: Mark | None, since: int, stop: int, *, went_on: bool) -> Hang:
    said = event.attrs if told is None else {**told.attrs, **event.attrs}
    phase = None if said.get("phase") is None else str(said["phase"])
    inside = _in_step(said, phase)
    usual = whole(said.get("usual_step_ns")) or 0
    start = min(stop, since + (usual if inside else 0))
    if _crawled(said):
        start = stop
    return Hang(
        event.process_id, event.rank, since, start, stop, phase, whole(said.get("step")),
        inside, went_on, told, event,
    )  # fmt: skip


def _since(mark: Mark) -> int | None:
    """Since when the rank stood still, by what the event says."""
    since = whole(mark.attrs.get("since_ns"))
    lasted = whole(mark.attrs.get("duration_ns" if mark.kind == "hang_end" else "age_ns"))
    if since is None and lasted is not None:
        since = mark.time_ns - lasted
    return since if since is not None and since <= mark.time_ns else None


def _in_step(said: dict[str, Any], phase: str | None) -> bool:
    inside = said.get("in_step")
    return inside if isinstance(inside, bool) else phase is None or phase in STEP_PHASES


def _crawled(said: dict[str, Any]) -> bool:
    whole_step = said.get("whole_step")
    if isinstance(whole_step, bool):
        return whole_step
    return str(said.get("threshold")).endswith("for the whole step")


def _lived_on(process: Process, since: int, until: int) -> bool:
    """Did it go on, or was what moved only the way to its end, as after a signal?"""
    if process.death_ns is None or process.clean:
        return True
    stepped = process.last_step_ns is not None and process.last_step_ns > since
    return stepped or process.end_ns - until >= LIVED_ON_NS


def rows(session: str, hangs: Sequence[Hang], stepped: set[int]) -> list[dict[str, Any]]:
    """Rows of the table `hangs`: what is booked as an interval of its own.

    Of a hang in which the session ended that is only what did not follow a last step: the time
    after that is divided by ``sql/40_ends.sql``. ``stepped``: processes that finished a step.
    """
    return [
        {
            "session": session,
            "process_id": h.process_id,
            "rank": h.rank or 0,
            "seq": FIRST_SEQ - number,
            "start_ns": h.start_ns,
            "stop_ns": h.stop_ns,
            "phase": h.phase,
            "in_step": h.in_step,
            "survived": h.survived,
        }
        for number, h in enumerate(hangs)
        if h.stop_ns > h.start_ns and (h.survived or not h.in_step or h.process_id not in stepped)
    ]


def advice(report: dict[str, Any], leaf: str) -> str | None:
    """What to do about B.hang or B.teardown, by the hang that cost most; None if none did."""
    hangs = [i for i in report["incidents"] if i["kind"] == "hang"]
    if not hangs or leaf not in ("B.hang", "B.teardown"):
        return None
    most = max(hangs, key=lambda i: i["held_gpu_seconds"])
    said: dict[str, Any] = most["hang"]
    if leaf == "B.teardown":
        late = max(hangs, key=lambda i: i["hang"]["until_dead_s"] or 0)["hang"]
        if not late["until_dead_s"] or late["noticed_s"] is None:
            return None
        return (
            f"Have a job that hangs killed by itself: it was noticed after "
            f"{span(late['noticed_s'])}, and killed only {span(late['until_dead_s'])} later "
            "(BADPUT_ON_EVENT runs a command when a hang is noticed)."
        )
    if said["survived"]:
        who = f"rank {most['rank']}" if most["rank"] is not None else "it"
        where = f" in phase {said['phase']}" if said["phase"] else ""
        return (
            f"Find out what {who} waited for{where}: it moved on by itself. What the kernel and "
            "the stacks showed then is in the attrs of its `hang` event (docs/oncall.md)."
        )
    if said["noticed_s"] is None:
        return (
            "Have hangs noticed: nothing told this one until the job was killed "
            "(BADPUT_HANG_S, BADPUT_ON_EVENT, or the timeout of the collectives)."
        )
    return None
