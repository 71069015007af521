"""The report as one HTML file that needs nothing else: no network, no other file.

Charts are those of the app, drawn by a plotly.js that is inside the file. A content security
policy lets the browser run only the two scripts that are meant, by their hash, and fetch
nothing. Text of the run reaches the page through one function that escapes it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import TYPE_CHECKING, Any

import plotly.io as pio
from plotly.offline import get_plotlyjs

from badput_app import fmt
from badput_app.charts import timeline_figure, waterfall_figure
from badput_app.report_page import SCRIPT, STYLE
from badput_ledger.taxonomy import BY_ID, GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import plotly.graph_objects as go

MOST_ROWS = 500
"""Rows of a table; the rest is counted, and is in the JSON report."""
LONGEST = 2000
"""Characters of one text of the run."""


def render(report: Mapping[str, Any], segments: Sequence[Any]) -> str:
    """The whole page from a report and the segments of its time line."""
    charts, width = _charts(report, segments)
    library, script = get_plotlyjs(), SCRIPT
    body = [
        tag("h1", report["run"]["name"]),
        tag("p", _about(report), cls="about"),
        _verdict(report["verdict"]),
        _key_figures(report),
        _chart("waterfall", "Where the time went", _waterfall_alt(report)),
    ]
    if report["cost"]["total"] is not None:
        body.append(_chart("dollars", "Where the money went", _waterfall_alt(report)))
    if segments:
        binned = f" One bar stands for up to {fmt.seconds(width / 1e9)}." if width else ""
        note = f"What every rank did when; incidents are diamonds.{binned}"
        body.append(_chart("timeline", "Time line", note))
    body += [_leaves(report), _steps(report), _starts(report), _sessions(report)]
    body.append(_incidents(report))
    body += [_checkpoints(report), _annotations(report), _definitions(report), _quality(report)]
    policy = (
        "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
        f"script-src {_hash(library)} {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    # In JSON, no text may end the element that it lies in.
    data = json.dumps(charts).replace("<", "\\u003c").replace(">", "\\u003e")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(report['run']['name'])} - badput</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(b for b in body if b)}\n</main>\n"
        f'<script type="application/json" id="charts">{data}</script>\n'
        f"<script>{library}</script>\n<script>{script}</script>\n</body></html>\n"
    )


def text(value: object) -> str:
    """Text of the run as HTML: escaped, in one line, without characters that turn it round."""
    shown = "".join(c if c.isprintable() else " " for c in str(value))
    return html.escape(shown[:LONGEST] + ("…" if len(shown) > LONGEST else ""))


def tag(name: str, value: object, *, cls: str = "") -> str:
    """An element that holds text."""
    kind = f' class="{cls}"' if cls else ""
    return f"<{name}{kind}>{text(value)}</{name}>"


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _charts(report: Mapping[str, Any], segments: Sequence[Any]) -> tuple[dict[str, Any], int]:
    """The figures in both looks, by the id of their place, and the width of a bin in ns."""
    cost = report["cost"]
    names: dict[str, Any] = {"waterfall": [waterfall_figure(report, dark=d) for d in (False, True)]}
    if cost["total"] is not None:
        names["dollars"] = [waterfall_figure(report, dollars=True, dark=d) for d in (False, True)]
    width = 0
    if segments:
        both = [
            timeline_figure(
                segments,
                report["incidents"],
                units=report["units"],
                currency=cost["currency"],
                dark=d,
            )
            for d in (False, True)
        ]
        names["timeline"], width = [figure for figure, _ in both], both[0][1]
    looks = (("light", "#1f2328"), ("dark", "#e6e8eb"))
    return {
        name: {
            look: _plain(figure, color)
            for (look, color), figure in zip(looks, figures, strict=True)
        }
        for name, figures in names.items()
    }, width


def _plain(figure: go.Figure, color: str) -> dict[str, Any]:
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": color, "family": "system-ui, sans-serif"},
        template="none",
    )
    figure.update_yaxes(automargin=True)
    made: dict[str, Any] = json.loads(pio.to_json(figure, validate=False) or "{}")
    return made


def _about(report: Mapping[str, Any]) -> str:
    run, unit = report["run"], report["units"]
    parts = [f"source {run['source']}"]
    if run["gpu_type"]:
        parts.append(str(run["gpu_type"]))
    if run["world_size"]:
        parts.append(fmt.plural(int(run["world_size"]), unit if unit == "GPU" else "rank"))
    parts.append(f"{fmt.instant(run['start'])} to {fmt.instant(run['end'])}")
    if not run["over"]:
        parts.append("not known to be over")
    return ", ".join(parts)


def _verdict(said: Mapping[str, Any]) -> str:
    rest = "".join(f"<p><b>{key.title()}</b> {text(said[key])}</p>" for key in ("why", "next"))
    return f'<section class="verdict">{tag("p", said["headline"], cls="headline")}{rest}</section>'


def _key_figures(report: Mapping[str, Any]) -> str:
    cost, kept, good = report["cost"], report["kept_time"], report["goodput"]
    scale, word, _ = fmt.time_scale(report["total_gpu_seconds"])
    inside = ", ".join(good["measured"]) or "nothing inside steps"
    per = cost["per_kept_token"]
    items = [
        ("kept time", fmt.percent(kept["value"]), _bounds(kept)),
        *_without_stops(kept),
        ("goodput", fmt.percent(good["value"]), f"measured: {inside}"),
        (
            f"{report['units']}-{word}",
            fmt.amount(report["total_gpu_seconds"] / scale),
            f"{fmt.amount(report['held_gpu_seconds'] / scale)} held",
        ),
        ("cost", fmt.money(cost["total"], cost["currency"]), str(cost["source"] or "no price")),
        (
            "a million kept tokens",
            fmt.money(None if per is None else per * 1e6, cost["currency"]),
            f"{fmt.count(report['tokens']['kept'])} kept",
        ),
    ]
    cells = "".join(
        f"<div>{tag('dt', name)}{tag('dd', value)}{tag('small', more)}</div>"
        for name, value, more in items
    )
    return f'<dl class="figures">{cells}</dl>'


def _without_stops(kept: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if kept.get("without_stops") is None:
        return []
    said = "by annotation (A.stop)"
    return [("without planned stops", fmt.percent(kept["without_stops"]), said)]


def _bounds(figure: Mapping[str, Any]) -> str:
    if figure["lo"] is None:
        return "not known"
    return f"{fmt.percent(figure['lo'])} to {fmt.percent(figure['hi'])}"


def _chart(name: str, title: str, note: str) -> str:
    label = f"{text(title)}. {text(note)}"
    place = f'<div class="chart" id="{name}" role="img" aria-label="{label}"></div>'
    below = tag("p", note, cls="note")
    return f'<section>{tag("h2", title)}<div class="wide">{place}</div>{below}</section>'


def _waterfall_alt(report: Mapping[str, Any]) -> str:
    total = report["total_gpu_seconds"] or 1.0
    groups: dict[str, float] = {}
    for leaf, row in report["leaves"].items():
        groups[leaf[0]] = groups.get(leaf[0], 0.0) + (row["gpu_seconds"] or 0.0)
    parts = [f"{GROUPS[g]} {s / total:.1%}" for g, s in groups.items() if s]
    return "From what was allocated down to what trained the model: " + ", ".join(parts) + "."


def table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Iterable[int] = ()
) -> str:
    """A section with a table, all of whose cells are text; nothing if there are no rows."""
    if not rows:
        return ""
    numbers = set(right)

    def line(kind: str, cells: Sequence[object]) -> str:
        made = [tag(kind, c, cls="n" if i in numbers else "") for i, c in enumerate(cells)]
        return f"<tr>{''.join(made)}</tr>"

    more = len(rows) - MOST_ROWS
    rest = tag("p", f"{more} more rows are in the JSON report.", cls="note") if more > 0 else ""
    lines = "\n".join(line("td", row) for row in rows[:MOST_ROWS])
    return (
        f'<section>{tag("h2", title)}<div class="wide"><table><thead>{line("th", head)}</thead>\n'
        f"<tbody>{lines}</tbody></table></div>{rest}</section>"
    )


def _leaves(report: Mapping[str, Any]) -> str:
    cost, total = report["cost"], report["total_gpu_seconds"]
    scale, word, _ = fmt.time_scale(total)
    digits = fmt.decimals(total, scale)
    rows: list[list[object]] = []
    for leaf, row in report["leaves"].items():
        known = row["gpu_seconds"]
        if known is None:
            rest = [fmt.UNKNOWN] * 5 + [str(row.get("reason") or "")]
        elif not known:
            continue
        else:
            said = "said by a person (annotation)" if row.get("evidence") == "annotation" else ""
            rest = [
                _small(known / scale, digits),
                fmt.percent(known / total if total else None),
                f"{row['lo'] / scale:,.{digits}f}",
                f"{(row['hi'] or 0.0) / scale:,.{digits}f}",
                fmt.money(row["cost"], cost["currency"]),
                said,
            ]
        rows.append([leaf, GROUPS[leaf[0]], BY_ID[leaf].definition, *rest])
    head = ["leaf", "group", "what it is", f"{report['units']}-{word}", "share"]
    head += ["at least", "at most", "cost", "evidence, or why it is not known"]
    return table("The books", head, rows, right=range(3, 8))


def _small(value: float, digits: int) -> str:
    """A time that is not zero never looks like it."""
    shown = f"{value:,.{digits}f}"
    return shown if float(shown.replace(",", "")) else f"<0.{'0' * (digits - 1)}1"


def _steps(report: Mapping[str, Any]) -> str:
    steps, tokens = report["steps"], report["tokens"]
    lost = f"{steps['lost_lo']:,} to {steps['lost_hi']:,}"
    rows = [
        ["executed", f"{steps['executed']:,}", fmt.count(tokens["processed"]), ""],
        ["kept", f"{steps['kept']:,}", fmt.count(tokens["kept"]), ""],
        ["lost", f"{steps['lost']:,}", fmt.count(tokens["lost"]), lost],
        ["skipped", f"{steps['skipped']:,}", fmt.count(tokens["skipped"]), ""],
    ]
    return table("Steps and tokens", ["", "steps", "tokens", "bounds"], rows, right=(1, 2, 3))


def _starts(report: Mapping[str, Any]) -> str:
    rows = [
        [
            group["meaning"],
            f"{group['starts']:,}",
            fmt.seconds(group["gpu_seconds"]),
            fmt.money(group["cost"], report["cost"]["currency"]),
        ]
        for group in report["starts"]["by_outcome"]
        if group["starts"]
    ]
    head = ["what became of the starts", "starts", f"{report['units']} time", "cost"]
    return table("Starts", head, rows, right=(1, 2, 3))


def _sessions(report: Mapping[str, Any]) -> str:
    costs = {s["id"]: s["cost"] for s in report["cost"]["sessions"]}
    rows = [
        [
            s["id"],
            fmt.instant(s["start"]),
            fmt.instant(s["end"]),
            fmt.UNKNOWN if s["last_step"] is None else f"{s['first_step']}..{s['last_step']}",
            f"{s['kept_steps']:,}",
            f"{s['lost_steps']:,}",
            fmt.UNKNOWN if s["resumed_from"] is None else s["resumed_from"],
            fmt.seconds(s["gap_before_s"]),
            fmt.money(costs.get(s["id"]), report["cost"]["currency"]),
            s["end_reason"],
        ]
        for s in report["sessions"]
    ]
    head = ["session", "start", "end", "steps", "kept", "lost", "resumed from", "gap before"]
    return table("Sessions", [*head, "cost", "ended"], rows, right=range(3, 9))


def _incidents(report: Mapping[str, Any]) -> str:
    rows: list[list[object]] = []
    for i in report["incidents"]:
        places = [
            f"{e['file']}:{e['line']}"
            if "file" in e
            else f"{e['table']} {e['process_id']}/{e['seq']}"
            for e in i["evidence"][:3]
        ]
        rows.append(
            [
                i["id"],
                fmt.instant(i["time"]),
                i["session"],
                i["cause"],
                f"{i['lost_steps']:,}",
                fmt.seconds(i["gpu_seconds"]),
                fmt.money(i["cost"], report["cost"]["currency"]),
                ", ".join(places),
            ]
        )
    head = ["incident", "when", "session", "cause", "lost steps", f"{report['units']} time", "cost"]
    return table("Incidents", [*head, "evidence"], rows, right=(4, 5, 6))


def _checkpoints(report: Mapping[str, Any]) -> str:
    rows = [
        [
            c["op"],
            c["session"],
            fmt.UNKNOWN if c["step"] is None else c["step"],
            fmt.instant(c["start"]),
            fmt.seconds(c["blocked_s"]),
            {True: "yes", False: "no", None: fmt.UNKNOWN}[c.get("durable")],
            ", ".join(c["paths"]),
        ]
        for c in report["checkpoints"]
    ]
    head = ["checkpoint", "session", "step", "start", "blocked for", "durable", "path"]
    return table("Checkpoints", head, rows, right=(2, 4))


def _annotations(report: Mapping[str, Any]) -> str:
    rows = [
        [n["id"], n["what"], n["note"] or "", n["by"] or fmt.UNKNOWN, fmt.instant(n["written"])]
        for n in report.get("annotations") or ()
    ]
    head = ["annotation", "what", "note", "by", "written"]
    return table("Said by people, not recorded", head, rows)


def _definitions(report: Mapping[str, Any]) -> str:
    rows = [
        [name, _unit_value(d), d["formula"], d["note"], d["source"]]
        for name, d in report["definitions"].items()
    ]
    head = ["name", "value", "formula", "note", "source"]
    return table("Published definitions, from the same books", head, rows, right=(1,))


def _unit_value(said: Mapping[str, Any]) -> str:
    """A definition's value: a ratio as a percentage, anything else with its unit."""
    unit = said.get("unit", "ratio")
    if unit == "ratio" or said["value"] is None:
        return fmt.percent(said["value"])
    return fmt.amount(said["value"], str(unit))


def _quality(report: Mapping[str, Any]) -> str:
    grade = report["grade"]
    rows = [[f"grade {grade['grade']}", reason, ""] for reason in grade["reasons"]]
    rows = rows or [[f"grade {grade['grade']}", grade["reason"], ""]]
    rows += [[n["severity"], n["what"], n["evidence"]] for n in report["quality"]]
    return table("To know before trusting this", ["", "what", "evidence"], rows)
