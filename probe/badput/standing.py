"""How a run stands: spools and parts put together for the person on call.

Plain values throughout: what `badput status --json` prints. Times are seconds unless named.
"""

from __future__ import annotations

import socket
from statistics import median
from typing import TYPE_CHECKING, Any

from badput import clock
from badput.limits import FACTOR, HANG_S, Place, behind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput.live import Live
    from badput.seen import Seen, Steps

ORDER = ("hung", "dead", "silent", "running", "done")
"""States of a rank, the worst first."""
TELLING = ("hang", "hang_end", "failure", "end", "exit", "complete", "rewind", "gpu_lost")
"""Events that are shown."""
UNTOLD = "its collector has not told yet how it ended"
"""Why a process is dead whose end is not recorded."""
_FAST = 1.02
"""The slowest rank is named if its median is this much above that of all."""


def standing(
    run: str, seen: Seen, lives: Sequence[Live], events: int, *, untended: str | None = None
) -> dict[str, Any]:
    """Everything but the goodput. ``untended``: this node's spool root, if no collector runs."""
    now = clock.wall()
    mine = {x.process_id: x for x in lives}
    ranks = _ranks(seen, mine, now)
    for rank in ranks:
        if rank["why"] == UNTOLD and untended is not None:
            rank["why"] = f"no collector runs here to tell how it ended: badput collect {untended}"
    counts = {state: sum(r["state"] == state for r in ranks) for state in ORDER}
    world = max((r.pop("world_size") or 0 for r in ranks), default=0)
    begin = min((r["init_ns"] for r in _processes(seen, mine)), default=None)
    steps = [r["step"] for r in ranks if r["step"] is not None]
    times = [(r["median_s"], r["rank"]) for r in ranks if r["median_s"] is not None]
    usual = median(t for t, _ in times) if times else None
    slowest = max(times) if len(times) > 1 else None
    current = [r for r in ranks if r["state"] in ("running", "hung", "silent")]
    late = behind([Place(r["rank"], r["step"] or 0, r["phase"] or "") for r in current])
    if any(r["state"] == "running" for r in current) and not _apart(current):
        late = []  # moving ranks are a step apart all the time
    return {
        "path": run,
        "time_ns": now,
        "state": _state(counts, seen),
        "launcher": None if ranks else _launcher(seen),
        "source": _source(lives),
        "newest_part_age_s": _age(now, seen.newest_ns or None),
        "world_size": max(world, len(ranks)) or None,
        "ranks": counts,
        "ranks_unknown": max(0, world - len(ranks)),
        "step": max(steps, default=None),
        "step_least": min(steps, default=None),
        "last_step_age_s": min((r["last_step_age_s"] for r in ranks
                                if r["last_step_age_s"] is not None), default=None),
        "step_time_s": {"now": _middle(r["now_s"] for r in ranks), "usual": usual},
        "behind": late,
        "slowest": None if slowest is None or usual is None or slowest[0] < _FAST * usual
        else {"rank": slowest[1], "median_s": slowest[0]},
        "restarts": _restarts(seen, mine),
        "checkpoint": _checkpoint(seen, ranks, now, max(steps, default=0), begin),
        "events": _events(seen, events),
        "worst": sorted(ranks, key=_badness),
        "unreadable_parts": seen.unreadable,
    }  # fmt: skip


def _source(lives: Sequence[Live]) -> str:
    """spools of this node, copies that threads put into the run folder, else parts."""
    if not lives:
        return "parts"
    return "copies" if all(x.copy for x in lives) else "spools"


def _middle(values: Any) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _age(now: int, then: int | None) -> float | None:
    return None if then is None else max(0, now - then) / 1e9


def _badness(rank: dict[str, Any]) -> tuple[Any, ...]:
    return (ORDER.index(rank["state"]), rank["step"] or 0, -(rank["median_s"] or 0), rank["rank"])


def _apart(ranks: list[dict[str, Any]]) -> bool:
    """Are some ranks more than a step behind, or is one standing still?"""
    steps = [r["step"] or 0 for r in ranks]
    return max(steps) - min(steps) > 1 or any(r["state"] != "running" for r in ranks)


def _state(counts: dict[str, int], seen: Seen) -> str:
    if counts["hung"]:
        return "hung"
    if counts["dead"] and not seen.of_kind("complete"):
        return "dead" if not counts["running"] else "partly dead"
    if counts["silent"]:
        return "silent"
    if counts["running"]:
        return "running"
    if counts["done"] or seen.of_kind("complete"):
        return "done"
    return "exited" if _launcher(seen) else "unknown"


def _launcher(seen: Seen) -> dict[str, Any] | None:
    """How the command of a launcher ended, where one told it."""
    for event in reversed(seen.of_kind("exit")):
        attrs = seen.attrs(event)
        if seen.processes.get(event["process_id"], {}).get("role") == "launcher":
            return {n: attrs.get(n) for n in ("program", "exit_code", "signal")}
    return None


# -- ranks ----------------------------------------------------------------------------------
def _ranks(seen: Seen, mine: dict[int, Live], now: int) -> list[dict[str, Any]]:
    """The newest process of each rank, without those of earlier sessions."""
    ends = _ends(seen)
    newest: dict[int, dict[str, Any]] = {}
    for row in _processes(seen, mine):
        have = newest.get(row["rank"])
        if have is None or row["init_ns"] > have["init_ns"]:
            newest[row["rank"]] = row
    begin = max((r["start_ns"] for r in newest.values()), default=0)
    return [
        _rank(seen, row, mine.get(row["process_id"]), ends.get(row["process_id"]), now)
        for row in newest.values()
        if (end := ends.get(row["process_id"])) is None or end["time_ns"] >= begin
    ]


def _ends(seen: Seen) -> dict[int, dict[str, Any]]:
    """The end of each process; of several, of a copy and its spool, the one that says most."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for end in seen.of_kind("end"):
        said = seen.attrs(end)
        worth = 3 if said.get("exit_code") is not None else 2 if said.get("signal") else 1
        worth = 0 if worth == 1 and said.get("reason") in (None, "unknown") else worth
        have = found.get(end["process_id"])
        if have is None or worth >= have[0]:
            found[end["process_id"]] = worth, end
    return {process: end for process, (_, end) in found.items()}


def _processes(seen: Seen, mine: dict[int, Live]) -> list[dict[str, Any]]:
    rows = {k: dict(v) for k, v in seen.processes.items()}
    for key, x in mine.items():
        rows[key] = {
            "process_id": key, "rank": x.rank, "role": x.role, "world_size": x.world_size,
            "host": x.host, "pid": x.pid, "start_ns": x.start_ns, "init_ns": x.init_ns,
        }  # fmt: skip
    return [r for r in rows.values() if r["role"] != "launcher" and r["rank"] is not None]


def _restarts(seen: Seen, mine: dict[int, Live]) -> int:
    """How often a rank was started again, by the rank that was most often."""
    counts: dict[int, int] = {}
    for row in _processes(seen, mine):
        counts[row["rank"]] = counts.get(row["rank"], 0) + 1
    return max(counts.values(), default=1) - 1


def _rank(
    seen: Seen, row: dict[str, Any], here: Live | None, end: dict[str, Any] | None, now: int
) -> dict[str, Any]:
    steps = seen.steps.get(row["process_id"])
    last_end = steps.end_ns if steps else None
    step, phase, since = steps.step if steps else None, None, None
    at = now  # the instant for which the ages hold: of a copy it is now, it may be old
    if here is not None:
        at = now if here.copy else here.read_ns
        step, phase, since = here.step, here.phase, here.since_ns
        last_end = max(last_end or 0, here.last_step[2] if here.last_step else 0) or None
        if phase == "step" and last_end is not None and since is not None:
            last_end = max(last_end, since)  # the step before ended when this one began, at most
    found: dict[str, Any] = {
        "rank": row["rank"], "host": row["host"], "pid": row["pid"],
        "process_id": str(row["process_id"]), "world_size": row["world_size"],
        "step": step, "phase": phase, "phase_age_s": _age(at, since),
        "last_step_age_s": _age(at, last_end), "why": None,
        "median_s": steps.usual() if steps else None, "now_s": steps.now() if steps else None,
    }  # fmt: skip
    if end is not None:
        attrs = seen.attrs(end)
        found |= _ended(attrs)
        found["step"] = _finished(steps, here)
    elif here is not None:
        found["state"] = "hung" if here.hung else "running"
        found["why"] = here.hung_why or None
        if not here.alive:
            found["step"] = _finished(steps, here)
            found["state"] = "done" if here.closed else "dead"
            waits = "its spool is not collected yet: badput collect RUN" if here.copy else UNTOLD
            found["why"] = None if here.closed else waits
    else:
        found |= _far(seen, row, steps.end_ns if steps else row["init_ns"], now, found)
    if found["state"] == "dead" and _completed(seen, end):
        found["state"], found["why"] = "done", "training said that it was complete, then this ended"
    return found


def _completed(seen: Seen, end: dict[str, Any] | None) -> bool:
    """Did training say that it was complete, and does nothing say that this rank failed?"""
    said = {} if end is None else seen.attrs(end)
    failed = said.get("signal") or said.get("exit_code") or said.get("reason") == "exception"
    return bool(seen.of_kind("complete")) and not failed


def _finished(steps: Steps | None, here: Live | None) -> int | None:
    """The last step that a process which is over has finished; None if it finished none."""
    drained = (steps.end_ns, steps.step) if steps else (0, 0)
    last = here.last_step if here else None
    newest = max(drained, (last[2], last[0]) if last else (0, 0))
    return newest[1] or None


def _ended(attrs: dict[str, Any]) -> dict[str, Any]:
    reason = str(attrs.get("reason"))
    done = reason == "completed"
    why = None
    if not done:
        how = f"signal {attrs['signal']}" if attrs.get("signal") else reason
        if attrs.get("exit_code"):
            how += f", exit code {attrs['exit_code']}"
        why = f"ended ({how}) in phase {attrs.get('phase')}"
    return {"state": "done" if done else "dead", "why": why, "phase": attrs.get("phase")}


def _far(
    seen: Seen, row: dict[str, Any], sign: int, now: int, found: dict[str, Any]
) -> dict[str, Any]:
    """A process without a spool on this node and without an end."""
    own = [e for e in seen.of_kind("hang", "hang_end") if e["process_id"] == row["process_id"]]
    if own and own[-1]["kind"] == "hang" and own[-1]["time_ns"] > sign:
        attrs = seen.attrs(own[-1])
        return {"state": "hung", "why": attrs.get("what"), "phase": attrs.get("phase")}
    limit = max(HANG_S, FACTOR * (found["median_s"] or 0))
    quiet = (now - max(sign, own[-1]["time_ns"] if own else 0)) / 1e9
    if row["host"] == socket.gethostname():
        limit = 60.0  # its spool should be here
    if quiet > limit:
        return {"state": "silent", "why": f"nothing from it for {quiet:.0f} s, and no end"}
    return {"state": "running"}


# -- checkpoints and events -----------------------------------------------------------------
def _checkpoint(
    seen: Seen, ranks: list[dict[str, Any]], now: int, step: int, begin: int | None
) -> dict[str, Any] | None:
    """The newest step that every rank which saves has made durable, and what came after it.

    ``at_risk_s``: seconds of work since the last durable checkpoint that would be lost if the run
    died now; None, with ``at_risk_why``, where that is not known.
    """
    savers: dict[int, set[int]] = {}
    durable: dict[int, int] = {}
    for row in seen.checkpoints.values():
        if row["op"] != "save" or row["step"] is None:
            continue
        rank = row["rank"] or 0
        savers.setdefault(row["step"], set())
        if row["durable_ns"] is not None:
            savers[row["step"]].add(rank)
            durable[row["step"]] = max(durable.get(row["step"], 0), row["durable_ns"])
    everyone = {r["rank"] or 0 for r in seen.checkpoints.values() if r["op"] == "save"}
    alive = {r["rank"] for r in ranks}
    over = bool(ranks) and all(r["state"] == "done" for r in ranks)
    good = [s for s, have in savers.items() if have and have >= (everyone & alive)]
    if not good and not step:
        return None
    last = max(good) if good else None
    then = durable[last] if last is not None else None
    found: dict[str, Any] = {"step": last, "age_s": _age(now, then), "at_risk_why": None}
    if over:  # what comes after a save is lost or kept by now: nothing can still be lost
        return {**found, "at_risk_steps": 0, "at_risk_s": 0.0}
    since = then
    since = begin if since is None else since  # nothing is durable: all since the start
    if since is None:
        found["at_risk_why"] = "when the run began is not known"
    # Work ends with the last finished step where nothing runs: standing still is no work.
    until = now
    if all(r["state"] != "running" for r in ranks):
        ages = [r["last_step_age_s"] for r in ranks if r["last_step_age_s"] is not None]
        if not ages:
            why = "when the last step ended is not known"
            return {**found, "at_risk_steps": max(0, step - (last or 0)), "at_risk_s": None,
                    "at_risk_why": why}  # fmt: skip
        until -= int(min(ages) * 1e9)
    return {
        **found,
        "at_risk_steps": max(0, step - (last or 0)),
        "at_risk_s": None if since is None else max(0, until - since) / 1e9,
    }


def _events(seen: Seen, count: int) -> list[dict[str, Any]]:
    return [
        {"time_ns": e["time_ns"], "kind": e["kind"], "rank": e["rank"], "step": e["step"],
         "what": _what(e["kind"], seen.attrs(e))}
        for e in seen.of_kind(*TELLING)[-count:]
    ]  # fmt: skip


def _how(attrs: dict[str, Any]) -> str:
    """How a process ended, to be read after the word ``exit``."""
    if attrs.get("signal"):
        return f"by signal {attrs['signal']}"
    code = attrs.get("exit_code")
    return f"code {'unknown' if code is None else code}"


def _what(kind: str, attrs: dict[str, Any]) -> str:
    if kind == "end":
        return f"{attrs.get('reason')} in phase {attrs.get('phase')}"
    if kind == "hang_end":
        return f"moved on after {(attrs.get('duration_ns') or 0) / 1e9:.0f} s"
    if kind == "exit":
        return _how(attrs)
    if kind == "rewind" and attrs.get("to_step") is not None:
        return f"to step {attrs['to_step']}"
    return str(attrs.get("what") or attrs.get("text") or "")
