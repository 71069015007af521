"""The report as text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import Any

from badput_ledger.taxonomy import BY_ID, GROUPS
from badput_ledger.text_money import (
    cost_lines,
    energy_lines,
    learning_lines,
    token_lines,
    tree_lines,
    waterfall_lines,
)
from badput_ledger.units import amount, decimals, money, plural, time_scale

WIDTH = 80
MOST_SESSIONS, MOST_INCIDENTS = 100, 20
"""What the text lists; all are in the JSON."""


def render(report: dict[str, Any]) -> str:
    """Verdict first, then the waterfall, steps, sessions, incidents and caveats."""
    lines: list[str] = []
    verdict, run = report["verdict"], report["run"]
    for label, key in (("", "headline"), ("Why:  ", "why"), ("Next: ", "next")):
        indent = " " * len(label)
        lines += textwrap.wrap(
            label + clean(verdict[key]), WIDTH, subsequent_indent=indent, break_on_hyphens=False
        )
    lines += ["", *_wrapped(f"run {clean(run['name'])}, source {clean(run['source'])}, "
              f"{run['start']} to {run['end']}")]  # fmt: skip
    lines += _waterfall(report)
    for text in waterfall_lines(report):
        lines += _wrapped(clean(text)) or [""]
    lines += _steps(report) + _pipeline(report) + _starts(report)
    lines += _sessions(report) + tree_lines(report) + _incidents(report)
    lines += _annotations(report) + _quality(report)
    return "\n".join(lines) + "\n"


def clean(text: object) -> str:
    """Text of a run made safe for a terminal: no control characters."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )


def _money(value: float | None, report: dict[str, Any]) -> str:
    return money(value, report["cost"]["currency"])


def _time(seconds: float, report: dict[str, Any]) -> str:
    scale, word, _ = time_scale(report["total_gpu_seconds"])
    return f"{amount(seconds / scale)} {report['units']}-{word}"


def _waterfall(report: dict[str, Any]) -> list[str]:
    unit, total = report["units"], report["total_gpu_seconds"]
    scale, word, _ = time_scale(total)
    digits = decimals(total, scale)

    def cell(seconds: float) -> str:
        text = f"{seconds / scale:,.{digits}f}"
        return f"<0.{'0' * (digits - 1)}1" if seconds and not float(text.replace(",", "")) else text

    priced = report["cost"]["total"] is not None
    head = f"{'leaf':<28}{unit + '-' + word:>13}{'share':>8}"
    head += f"{report['cost']['currency']:>12}" if priced else ""
    lines = ["", head + "  bounds", "-" * WIDTH]
    group = ""
    for leaf, row in report["leaves"].items():
        if not row["gpu_seconds"]:
            continue
        if leaf[0] != group:
            group = leaf[0]
            lines.append(f"{group} {GROUPS[group]}")
        share = row["gpu_seconds"] / total if total else 0.0
        name = f"{leaf[2:]} {_title(leaf)}"
        text = f"  {name:<26.26}{cell(row['gpu_seconds']):>13}{share:>8.1%}"
        text += f"{_money(row['cost'], report):>12}" if priced else ""
        bounds = cell(row["lo"]), cell(row["hi"] or 0.0)
        if bounds != (cell(row["gpu_seconds"]), cell(row["gpu_seconds"])):
            text += f"  {bounds[0]}..{bounds[1]}"
        if row.get("evidence") == "annotation":
            text += "  (said)"
        lines.append(text)
    end = f"{'total':<28}{cell(total):>13}{'100.0%' if total else '-':>8}"
    lines += [
        "-" * WIDTH,
        end + (f"{_money(report['cost']['total'], report):>12}" if priced else ""),
    ]
    return lines + _figures(report)


def _title(leaf: str) -> str:
    title, name = BY_ID[leaf].title, leaf[2:]
    return "" if name in title or title in name else f"({title})"


def _figures(report: dict[str, Any]) -> list[str]:
    kept, good = report["kept_time"], report["goodput"]
    if kept["value"] is None:
        return []
    measured = ", ".join(m[2:] for m in good["measured"]) or "nothing inside steps"
    text = f"kept time {kept['value']:.2%}"
    if kept["hi"] - kept["lo"] > 1e-9:
        text += f" (between {kept['lo']:.2%} and {kept['hi']:.2%})"
    if kept.get("without_stops") is not None:
        stopped = _time(report["leaves"]["A.stop"]["gpu_seconds"], report)
        text += f"; {kept['without_stops']:.2%} without planned stops of {stopped}"
    released = report["total_gpu_seconds"] - report["held_gpu_seconds"]
    if released and report["held_gpu_seconds"]:
        share = kept["value"] * report["total_gpu_seconds"] / report["held_gpu_seconds"]
        text += f"; {share:.2%} of the held time, without {_time(released, report)} not held"
    lines = ["", *_wrapped(text)]
    lines += _wrapped(f"goodput   {good['value']:.2%} (measured inside steps: {measured})")
    unknown = [leaf for leaf, row in report["leaves"].items() if row["gpu_seconds"] is None]
    return lines + _wrapped("not measured, so inside other leaves: " + ", ".join(unknown))


def _steps(report: dict[str, Any]) -> list[str]:
    steps = report["steps"]
    text = (
        f"steps     {steps['executed']} executed = {steps['kept']} kept + {steps['lost']} lost"
        f" + {steps['skipped']} skipped"
    )
    if steps["lost_hi"] != steps["lost"]:
        text += f" (lost: {steps['lost_lo']} to {steps['lost_hi']})"
    lines = ["", *_wrapped(text)]
    for line in [
        *token_lines(report),
        *cost_lines(report),
        *energy_lines(report),
        *learning_lines(report),
    ]:
        lines += _wrapped(clean(line))
    return lines


def _pipeline(report: dict[str, Any]) -> list[str]:
    pipe = report["pipeline"]
    if not pipe or pipe["actual_bubble"] is None:
        return []
    ideal = "not known" if pipe["ideal_bubble"] is None else f"{pipe['ideal_bubble']:.1%}"
    moved = report["leaves"]["G.straggler"]["gpu_seconds"]
    before = ", before the part that follows a slow stage moves to straggler" if moved else ""
    text = f"bubble    {pipe['actual_bubble']:.1%} of kept steps{before}"
    return _wrapped(f"{text}; the schedule's ideal is {ideal}")


def starts_line(report: dict[str, Any]) -> str | None:
    """Starts that came to nothing, where others saved: elsewhere that says nothing."""
    saved, begun = report["starts"]["by_outcome"][::-1], report["starts"]["by_outcome"][:2]
    if not saved[0]["starts"] or not any(o["starts"] for o in begun):
        return None
    parts = [f"{saved[0]['starts']} saved a checkpoint"]
    for group in begun:
        if group["starts"]:
            cost = "" if group["cost"] is None else f", {_money(group['cost'], report)}"
            spent = _time(group["gpu_seconds"], report)
            parts.append(f"{group['starts']} {group['meaning']} ({spent}{cost})")
    return "; ".join(parts)


def _starts(report: dict[str, Any]) -> list[str]:
    line = starts_line(report)
    return [] if line is None else _wrapped(f"starts    {line}")


def session_costs(report: dict[str, Any]) -> dict[str, str] | None:
    """What each session cost with the gap before it, in words; None where nothing is priced."""
    if report["cost"]["total"] is None:
        return None
    return {s["id"]: _money(s["cost"], report) for s in report["cost"]["sessions"] if s["id"]}


def _sessions(report: dict[str, Any]) -> list[str]:
    costs = session_costs(report)
    head = f"{'cost':>12}" if costs is not None else ""
    lines = ["", f"session  steps            kept    lost  gap before{head}  ended"]
    for s in report["sessions"][:MOST_SESSIONS]:
        steps = "none" if s["last_step"] is None else f"{s['first_step']}..{s['last_step']}"
        gap = "-" if s["gap_before_s"] is None else f"{s['gap_before_s']:.1f} s"
        lines.append(
            f"{s['id']:<9}{steps:<14}{s['kept_steps']:>7}{s['lost_steps']:>8}{gap:>12}"
            f"{'' if costs is None else format(costs[s['id']], '>12')}  {s['end_reason']}"
        )
    more = len(report["sessions"]) - MOST_SESSIONS
    return lines + ([f"and {more} more in --json"] if more > 0 else [])


def _incidents(report: dict[str, Any]) -> list[str]:
    if not report["incidents"]:
        return []
    lines = ["", "incidents"]
    dearest = sorted(report["incidents"], key=lambda i: -i["gpu_seconds"])[:MOST_INCIDENTS]
    shown = {i["id"] for i in dearest}
    for i in report["incidents"]:
        if i["id"] not in shown:
            continue
        cost = "" if i["cost"] is None else f", {_money(i['cost'], report)}"
        text = (
            f"{i['id']} {i['time']} {i['session']}: {clean(i['cause'])}; "
            f"{plural(i['lost_steps'], 'step')} lost, {_time(i['gpu_seconds'], report)}{cost}"
        )
        lines += _wrapped(text, "  ")
        for e in i["evidence"][:3]:
            if "file" in e:
                lines += _wrapped(
                    f"{clean(e['file'])}:{e['line']}: {clean(e['text'] or '')}"[:300], "     "
                )
    more = len(report["incidents"]) - MOST_INCIDENTS
    return lines + ([f"  and {more} that took less, in --json"] if more > 0 else [])


def _annotations(report: dict[str, Any]) -> list[str]:
    if not report["annotations"]:
        return []
    lines = ["", "said by people, not recorded"]
    for said in report["annotations"]:
        who = f" ({clean(said['by'])})" if said["by"] else ""
        note = f": {clean(said['note'])}" if said["note"] else ""
        lines += _wrapped(f"{clean(said['id'])} {said['what']}{note}{who}", "  ")
    return lines


def _quality(report: dict[str, Any]) -> list[str]:
    grade = report["grade"]
    lines = ["", *_wrapped(f"quality {grade['grade']}: {clean(grade['reason'])}")]
    if not report["quality"]:
        return lines
    lines += ["", "to know"]
    for note in report["quality"][:12]:
        lines += _wrapped(f"{note['severity']}: {clean(note['what'])}", "  ")
    more = len(report["quality"]) - 12
    return lines + ([f"  and {more} more in --json"] if more > 0 else [])
