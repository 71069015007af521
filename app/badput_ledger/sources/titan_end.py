"""Closing an attempt of a torchtitan run: what ended it, when, and what it was doing.

Everything here needs the whole attempt: a cause is printed after its effect, and only what
follows tells whether silence was an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.sources.attempts import Event, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.attempts import Mark
    from badput_ledger.sources.titan_launch import Failure
    from badput_ledger.sources.titan_state import Live


def close_all(lives: Sequence[Live]) -> None:
    """Close the attempts of a log, in order; afterwards they are complete but for saves' names."""
    before: Live | None = None
    for live in lives:
        _start(live, before)
        _phases(live)
        _ending(live)
        before = live


def _start(live: Live, before: Live | None) -> None:
    """An attempt announced while its predecessor still wrote begins at its own first sign."""
    attempt = live.attempt
    own = live.first_own
    if before is None or own is None or attempt.start >= before.attempt.last:
        return
    attempt.start = max(attempt.start, own)


def _phases(live: Live) -> None:
    """Spans before the training: launching, and building where no training followed."""
    attempt = live.attempt
    talk = live.first_talk if live.first_talk is not None else attempt.last
    if talk > attempt.start:
        attempt.spans.append(Span("launch", attempt.start, talk))
    if attempt.first_step is None and live.first_talk is not None:
        loads = [s.start for s in attempt.spans if s.name == "load"]
        built = loads[0] if loads else attempt.last
        if built > live.first_talk:
            attempt.spans.append(Span("model", live.first_talk, built))
    if live.open_save is not None:
        attempt.spans.append(live.open_save[1])
    if live.last_step is not None:
        attempt.claim("last_step", live.last_step[1].mark(), live.last_step[0])


def _ending(live: Live) -> None:
    attempt = live.attempt
    if live.end_time is not None:
        attempt.last = max(attempt.last, live.end_time)
    failure = None
    if live.completed_at is None and live.rc != 0:
        failure = _failure(live)
    if failure is not None:
        attempt.events.append(failure)
    attempt.events.extend(_exits(live))
    attempt.completed = live.completed_at is not None or live.rc == 0
    if attempt.completed:
        time, mark = live.completed_at or (attempt.last, live.end_mark)
        attempt.events.append(Event(time, "complete", live.anchor_step or None))
        if mark is not None:
            attempt.claim("complete", mark)
    attempt.events.append(_end(live, failure))
    mark = live.end_mark or live.kill_mark
    if live.end_mark is not None:
        attempt.claim("end", live.end_mark)
    elif mark is None and live.last_step is not None:
        attempt.claim("last_sign", live.last_step[1].mark(), live.last_step[0])


def _failure(live: Live) -> Event | None:
    """The first sign of a failure: the earliest of all marks, not before the last step line.

    torchrun's report gives whole seconds, cut off: a failure printed as second 28 may well
    lie after a step line at 28.2.
    """
    floor = live.anchor if live.attempt.first_step is not None else None
    marks: list[tuple[int, Mark, Failure | None]] = [(f.time, f.mark, f) for f in live.failures]
    if live.first_sigterm is not None:
        marks.append((live.first_sigterm[0], live.first_sigterm[1], None))
    if live.death is not None:
        marks.append((live.death[0], live.death[1], None))
    if not marks:
        return None
    time, mark, first = min(marks, key=lambda m: m[0])
    root = next((f for f in live.failures if f.root), None) or first
    if root is None and live.failures:
        root = live.failures[0]
    what, signature = mark.text, None
    if live.death is not None:
        what = f"the launcher received {live.death[2]}"
        signature = "signal"
    elif live.cause is not None:
        what = live.cause[1]
        signature = what.partition(":")[0]
        live.attempt.claim("cause", live.cause[0])
    if not any(claim == "failure" for claim, _, _ in live.attempt.evidence):
        live.attempt.claim("failure", mark)
    attrs: dict[str, Any] = {"what": what, "signature": signature}
    if root is not None:
        attrs |= {"rank": root.rank, "exit_code": root.code}
    return Event(max(time, floor or 0), "failure", live.anchor_step or None, attrs)


def _exits(live: Live) -> list[Event]:
    """One exit event for each rank whose end the agent tells."""
    known: dict[int, tuple[int, int | None, int | None]] = {}
    floor = live.first_sigterm[0] if live.first_sigterm is not None else 0
    for entry in live.failures:
        if entry.pid is None:
            continue
        if entry.pid in known:  # the agent's own line came first: it has the better time
            time, rank, code = known[entry.pid]
            known[entry.pid] = (time, entry.rank if entry.rank is not None else rank, code)
        else:
            known[entry.pid] = (max(entry.time, floor), entry.rank, entry.code)
    events: list[Event] = []
    for pid, (time, rank, code) in known.items():
        signal = -code if code is not None and code < 0 else None
        attrs = {"rank": rank, "pid": pid, "exit_code": code, "signal": signal}
        events.append(Event(time, "exit", None, attrs))
    return events


def _end(live: Live, failure: Event | None) -> Event:
    attempt = live.attempt
    reason, signal = "unknown", None
    code = failure.attrs.get("exit_code") if failure is not None else None
    if attempt.completed:
        reason = "completed"
    elif live.kill_mark is not None:
        reason, signal = "killed", 9
    elif live.death is not None:
        reason, signal = "signal", 15
    elif isinstance(code, int) and code < 0:
        reason, signal = "signal", -code
    elif live.cause is not None and failure is not None:
        reason = "exception"
    elif live.end_mark is not None:
        reason = "exit"
    phase, since, step = _phase(live)
    attrs = {
        "reason": reason,
        "exit_code": live.rc,
        "signal": signal,
        "phase": phase,
        "phase_since_ns": since,
        "step": step,
        "last_sign_ns": attempt.last,
        "records": len(attempt.steps),
        "dropped": 0,
        "closed": attempt.completed,
    }
    if reason == "unknown":
        attrs["seen"] = False  # the log just stops here; its process may have lived on
    elif live.kill_mark is not None or live.death is not None:
        attrs["who"] = "launcher"
    return Event(attempt.last, "end", step, attrs)


def _phase(live: Live) -> tuple[str, int | None, int | None]:
    """What the attempt was doing last, since when, and the step as the schema wants it."""
    done = live.anchor_step if live.anchor is not None else None
    if live.open_save is not None:
        return "save", live.open_save[0].start, done
    if live.open_load is not None:
        return "load", live.open_load[0].start, done
    if live.anchor is None:
        return "init", live.first_talk or live.attempt.start, None
    if live.attempt.completed:
        return "loop", live.anchor, done
    return "step", live.anchor, live.anchor_step + 1


def name_saves(lives: Sequence[Live]) -> None:
    """Give a save between two logged steps its number, where a folder named later fits alone.

    ``lives``: of all logs, since a later job of the same folder may be in another one.
    """
    named: dict[str | int, set[int]] = {}
    for live in lives:
        if live.step_dirs:
            named.setdefault(live.attempt.folder or id(live), set()).update(live.step_dirs)
    for live in lives:
        dirs = named.get(live.attempt.folder or id(live), ())
        for ckpt in live.attempt.checkpoints if dirs else ():
            if ckpt.step is None and ckpt.step_range is not None:
                low, high = ckpt.step_range
                fits = [d for d in dirs if low < d <= (high or d)]
                if len(fits) == 1:
                    ckpt.step, ckpt.step_range = fits[0], None
                    if live.attempt.folder is not None:
                        ckpt.path = f"{live.attempt.folder}/step-{fits[0]}"
