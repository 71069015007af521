"""The report as Markdown for an issue or a chat: verdict first, then tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.taxonomy import BY_ID, GROUPS
from badput_ledger.text import clean, session_costs, starts_line
from badput_ledger.text_money import energy_lines, learning_lines, token_lines
from badput_ledger.units import amount, money, plural, time_scale

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_ROWS = 40
"""Rows of a table of sessions or incidents; what is left out is said."""
LONGEST = 300
"""Characters of one text of the run."""
_SPECIAL = frozenset("\\`*_{}[]#|<>~$&")


def escape(text: object) -> str:
    """Text of a run, shown as it is: no markup, links, mentions, emoji or line ends."""
    shown = clean(text).strip()
    if len(shown) > LONGEST:
        shown = shown[: LONGEST - 1] + "…"
    out: list[str] = []
    for i, c in enumerate(shown):
        if c == "@":  # a backslash does not keep a forge from notifying somebody
            out.append("@\u2060")
        elif c == "#" and shown[i + 1 : i + 2].isdigit():
            out.append("\\#\u2060")
        elif c == ":":
            out.append(
                ":" if shown[i + 1 : i + 2] in ("", " ") or _in_time(shown, i) else ":\u2060"
            )
        else:
            out.append(f"\\{c}" if c in _SPECIAL else c)
    joined = "".join(out)
    # At the start of a line these would open a list or a heading.
    return f"\\{joined}" if joined[:1] in ("-", "+", "=") and not joined[1:2].isdigit() else joined


def _in_time(text: str, at: int) -> bool:
    return text[at - 1 : at].isdigit() and text[at + 1 : at + 2].isdigit()


def bullet(text: str) -> str:
    """One item of a list."""
    return f"- {escape(text)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> list[str]:
    """Lines of a table whose last ``right`` columns are numbers."""
    rule = ["---"] * (len(head) - right) + ["--:"] * right
    lines = [f"| {' | '.join(escape(h) for h in head)} |", f"| {' | '.join(rule)} |"]
    return lines + [f"| {' | '.join(escape(c) for c in row)} |" for row in rows]


def render(report: dict[str, Any]) -> str:
    """The whole report."""
    said, run = report["verdict"], report["run"]
    lines = [f"**{escape(said['headline'])}**", ""]
    lines += [f"Why: {escape(said['why'])}", "", f"Next: {escape(said['next'])}", ""]
    lines.append(
        f"Run {escape(run['name'])}, source {escape(run['source'])}, "
        f"{escape(run['start'])} to {escape(run['end'])}"
    )
    lines += _waterfall(report) + _figures(report) + _sessions(report) + _incidents(report)
    lines += _annotations(report) + _quality(report)
    return "\n".join(lines) + "\n"


def _waterfall(report: dict[str, Any]) -> list[str]:
    total, cost = report["total_gpu_seconds"], report["cost"]
    scale, word, _ = time_scale(total)
    priced = cost["total"] is not None
    head = ["leaf", "what", f"{report['units']}-{word}", "share", "at least", "at most"]
    head += [cost["currency"]] if priced else []
    rows: list[list[str]] = []
    for leaf, row in report["leaves"].items():
        if not row["gpu_seconds"]:
            continue
        cells = [
            leaf,
            f"{GROUPS[leaf[0]]}: {BY_ID[leaf].title}",
            amount(row["gpu_seconds"] / scale),
        ]
        cells.append(f"{row['gpu_seconds'] / total:.1%}" if total else "–")
        cells += [amount(row["lo"] / scale), amount((row["hi"] or 0.0) / scale)]
        rows.append(cells + ([money(row["cost"], cost["currency"])] if priced else []))
    last = ["total", "", amount(total / scale), "100.0%" if total else "–", "", ""]
    rows.append(last + ([money(cost["total"], cost["currency"])] if priced else []))
    return ["", *table(head, rows, right=len(head) - 2)]


def _figures(report: dict[str, Any]) -> list[str]:
    kept, good, steps = report["kept_time"], report["goodput"], report["steps"]
    lines = [""]
    if kept["value"] is not None:
        lines.append(
            bullet(f"kept time {kept['value']:.2%} (bounds {kept['lo']:.2%} to {kept['hi']:.2%})")
        )
        if kept.get("without_stops") is not None:
            lines.append(bullet(f"kept time without planned stops {kept['without_stops']:.2%}"))
        inside = ", ".join(good["measured"]) or "nothing inside steps"
        lines.append(bullet(f"goodput {good['value']:.2%}, measured: {inside}"))
    unknown = [leaf for leaf, row in report["leaves"].items() if row["gpu_seconds"] is None]
    if unknown:
        lines.append(bullet(f"not measured, so inside other leaves: {', '.join(unknown)}"))
    lines.append(
        bullet(
            f"steps: {steps['executed']:,} executed, {steps['kept']:,} kept, {steps['lost']:,} "
            f"lost ({steps['lost_lo']:,} to {steps['lost_hi']:,}), {steps['skipped']:,} skipped"
        )
    )
    per = report["cost"]["per_kept_token"]
    if per is not None:
        lines.append(
            bullet(f"{money(per * 1e6, report['cost']['currency'])} a million kept tokens")
        )
    more = [*token_lines(report), *energy_lines(report), *learning_lines(report)]
    lines += [bullet(" ".join(line.split())) for line in more]
    if (starts := starts_line(report)) is not None:
        lines.append(bullet(f"starts: {starts}"))
    return [*lines, bullet(f"quality {report['grade']['grade']}: {report['grade']['reason']}")]


def _sessions(report: dict[str, Any]) -> list[str]:
    costs = session_costs(report)
    rows = [
        [
            s["id"],
            "none" if s["last_step"] is None else f"{s['first_step']}..{s['last_step']}",
            f"{s['kept_steps']:,}",
            f"{s['lost_steps']:,}",
            "–" if s["gap_before_s"] is None else f"{s['gap_before_s']:.1f} s",
            *([] if costs is None else [costs[s["id"]]]),
            s["end_reason"],
        ]
        for s in report["sessions"]
    ]
    head = ["session", "steps", "kept", "lost", "gap before"]
    head += ["ended"] if costs is None else ["cost", "ended"]
    return _section("Sessions", head, rows, "sessions")


def _incidents(report: dict[str, Any]) -> list[str]:
    scale, word, _ = time_scale(report["total_gpu_seconds"])
    rows: list[list[str]] = []
    for i in report["incidents"]:
        cost = money(i["cost"], report["cost"]["currency"])
        time = f"{amount(i['gpu_seconds'] / scale)} {report['units']}-{word}"
        rows.append([i["id"], i["time"], i["cause"], plural(i["lost_steps"], "step"), time, cost])
    head = ["incident", "when", "cause", "lost", "time", "cost"]
    return _section("Incidents", head, rows, "incidents")


def _annotations(report: dict[str, Any]) -> list[str]:
    rows = [
        [n["id"], n["what"], n["note"] or "", n["by"] or "–", n["written"]]
        for n in report.get("annotations") or ()
    ]
    head = ["annotation", "what", "note", "by", "written"]
    return _section("Said by people, not recorded", head, rows, "annotations")


def _section(title: str, head: list[str], rows: list[list[str]], what: str) -> list[str]:
    if not rows:
        return []
    lines = ["", f"### {title}", "", *table(head, rows[:MOST_ROWS])]
    more = len(rows) - MOST_ROWS
    return [*lines, "", f"{more} more {what} in the JSON report"] if more > 0 else lines


def _quality(report: dict[str, Any]) -> list[str]:
    if not report["quality"]:
        return []
    lines = ["", "### To know", ""]
    lines += [bullet(f"{n['severity']}: {n['what']}") for n in report["quality"][:MOST_ROWS]]
    more = len(report["quality"]) - MOST_ROWS
    return [*lines, bullet(f"and {more} more in the JSON report")] if more > 0 else lines
