"""What `badput status` prints for a person."""

from __future__ import annotations

import time
from typing import Any

from badput.neutral import neutral as clean


def duration(seconds: float | None) -> str:
    """A duration with the unit that fits."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def render(run: dict[str, Any]) -> str:
    """One run as some lines of text."""
    lines = [f"{clean(run['path'])}  {_state(run)}"]
    rows = [
        ("ranks", _ranks(run)),
        ("step", _step(run)),
        ("time", _time(run)),
        ("goodput", _goodput(run["goodput"])),
        ("saved", _saved(run)),
        ("behind", _behind(run)),
        ("restarts", str(run["restarts"])),
        ("on event", _on_event(run.get("on_event"))),
    ]
    lines += [f"  {name:<9}{text}" for name, text in rows if text]
    lines += _table(run)
    if run["events"]:
        lines.append("  newest events")
    for event in run["events"]:
        stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(event["time_ns"] / 1e9))
        who = "" if event["rank"] is None else f"rank {event['rank']} "
        lines.append(f"    {stamp} {clean(event['kind'])} {who}{clean(event['what'])[:160]}")
    if run["unreadable_parts"]:
        lines.append(f"  {run['unreadable_parts']} parts cannot be read")
    return "\n".join(lines) + "\n"


def _state(run: dict[str, Any]) -> str:
    said = run["launcher"]
    if run["state"] != "exited" or said is None:
        return run["state"].upper()
    how = f"with code {said['exit_code']}"
    if said["signal"]:
        how = f"by signal {said['signal']}"
    return f"EXITED {clean(how)}: no rank was seen, only the launcher of {clean(said['program'])}"


def _ranks(run: dict[str, Any]) -> str:
    counts = [f"{n} {state}" for state, n in run["ranks"].items() if n]
    if run["ranks_unknown"]:
        counts.append(f"{run['ranks_unknown']} left nothing yet")
    where = "from the spools of this node"
    if run["source"] == "parts":
        where = f"no spool here; the newest part is {duration(run['newest_part_age_s'])} old"
    if run["source"] == "copies":
        where = f"from copies in the run folder; first: badput collect {clean(run['path'])}"
    return f"{', '.join(counts) or 'none'} of {run['world_size'] or 'unknown'} ({where})"


def _step(run: dict[str, Any]) -> str:
    if run["step"] is None:
        return "none finished"
    least = "" if run["step_least"] == run["step"] else f" (least {run['step_least']})"
    return f"{run['step']}{least}; the last one ended {duration(run['last_step_age_s'])} ago"


def _time(run: dict[str, Any]) -> str:
    times = run["step_time_s"]
    if times["usual"] is None:
        return "no step is in Parquet yet"
    return f"{duration(times['now'])} a step now, usually {duration(times['usual'])}"


def _goodput(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["kept_time"] is None:
        why = str(found["why"] or "nothing says why").removeprefix("badput report: ")
        if "not collected yet" in why:
            why = "its spools are not collected yet"
        return clean(f"not known: {why}")
    text = f"{found['kept_time']:.1%} of the time is kept"
    return text if found["goodput"] is None else f"{text}, {found['goodput']:.1%} is compute"


def _saved(run: dict[str, Any]) -> str:
    found = run["checkpoint"]
    if found is None:
        return ""
    if run["state"] == "done":
        if found["step"] is None:
            return "no durable checkpoint"
        later = (run["step"] or 0) - found["step"]
        after = f"; {later} {'step' if later == 1 else 'steps'} came after it" if later > 0 else ""
        return f"step {found['step']}, durable {duration(found['age_s'])} ago{after}"
    least = duration(found["at_risk_s"])
    if found["at_risk_s"] is None:
        least = f"how long is not known ({clean(found['at_risk_why'])})"
    if found["step"] is None:
        return f"no durable checkpoint; {found['at_risk_steps']} steps are at risk, {least}"
    risk = f"at risk: {found['at_risk_steps']} steps, {least}"
    return f"step {found['step']}, durable {duration(found['age_s'])} ago; {risk}"


def _on_event(said: dict[str, Any] | None) -> str:
    """Which command the collector of this node runs on events; nothing where none runs."""
    if said is None:
        return ""
    if said["command"] is None:
        text = "no command is set for the collector of this node"
        if said["mine"] is not None:
            text += "; this shell has BADPUT_ON_EVENT, but the collector began in another job"
        return text
    text = f"{clean(said['command'])} on {clean(', '.join(said['on']))}"
    if said["last_code"] is None:
        return text
    code = said["last_code"]
    how = "took too long and was ended" if code < 0 else f"ended with code {code}"
    return f"{text}; the last one {how}"


def _behind(run: dict[str, Any]) -> str:
    parts: list[str] = []
    if run["behind"]:
        names = ", ".join(map(str, run["behind"][:8])) + (", ..." if len(run["behind"]) > 8 else "")
        parts.append(f"rank {names}")
    if run["slowest"]:
        slow, usual = run["slowest"], run["step_time_s"]["usual"]
        more = f"{slow['median_s'] / usual - 1:+.0%}" if usual else ""
        parts.append(f"slowest: rank {slow['rank']}, {duration(slow['median_s'])} ({more})")
    return "; ".join(parts)


def _table(run: dict[str, Any]) -> list[str]:
    ranks = run["worst"]
    if not ranks:
        return []
    lines = [
        f"  {'rank':>5} {'state':<8} {'step':>9} {'phase':<16} {'since':>9} {'a step':>9}  host"
    ]
    for rank in ranks:
        median = "-" if rank["median_s"] is None else duration(rank["median_s"])
        since = "-" if rank["phase_age_s"] is None else duration(rank["phase_age_s"])
        step = "-" if rank["step"] is None else rank["step"]
        phase, host = clean(rank["phase"] or "-")[:16], clean(rank["host"] or "-")[:40]
        who = f"{rank['rank']:>5} {rank['state']:<8} {step:>9}"
        lines.append(f"  {who} {phase:<16} {since:>9} {median:>9}  {host}")
        if rank["why"]:
            lines.append(f"        {clean(rank['why'])[:200]}")
    left = sum(run["ranks"].values()) - len(ranks)
    return [*lines, f"  and {left} more ranks"] if left > 0 else lines
