"""The session timeline: what every rank did when, with the incidents marked."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.graph_objects as go

from badput_app import fmt
from badput_app.charts import palette
from badput_ledger.taxonomy import BY_ID, GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_BARS = 2000
"""Bars a figure may hold; more are binned, and the page says so."""
LEGEND_ROW, LEGEND_COLUMNS = 20, 3
"""Height of a row of the legend in pixels, and how many entries surely fit beside each other."""
BELOW = 48
"""Pixels below the lanes: the time and, under it, the date."""
MAX_RANK_LANES = 16
"""Up to so many ranks get a lane each; beyond, a session gets one lane."""


class Slice(NamedTuple):
    """One bar: a lane, the leaf, and its interval in ns since the epoch."""

    lane: str
    session: str
    leaf: str
    start_ns: int
    end_ns: int


def build_slices(segments: Iterable[Any]) -> tuple[list[Slice], int]:
    """Segments as at most MAX_BARS bars.

    Returns the bars, lane by lane in time order, and the width of a bin in ns: 0 if nothing
    had to be binned. A bin shows the leaf that took most of it.
    """
    rows = list(segments)
    ranks = {s.rank for s in rows}
    by_lane: dict[str, list[Slice]] = defaultdict(list)
    per_rank = len(ranks) <= MAX_RANK_LANES
    # With one lane a session, its lowest rank stands for it.
    first: dict[str, int] = {}
    for seg in rows:
        first[seg.session] = min(seg.rank, first.get(seg.session, seg.rank))
    for seg in rows:
        if per_rank:
            lane = f"rank {seg.rank}"
        elif seg.rank == first[seg.session]:
            lane = str(seg.session)
        else:
            continue
        if seg.end_ns > seg.start_ns:
            by_lane[lane].append(Slice(lane, seg.session, seg.leaf, seg.start_ns, seg.end_ns))
    merged = {lane: _merge(sorted(s, key=lambda x: x.start_ns)) for lane, s in by_lane.items()}
    lanes = sorted(merged, key=lambda name: (len(name), name))
    out = [s for lane in lanes for s in merged[lane]]
    if len(out) <= MAX_BARS:
        return out, 0
    begin = min(s.start_ns for s in out)
    end = max(s.end_ns for s in out)
    kept_lanes = lanes[:MAX_BARS]
    bins = max(1, MAX_BARS // len(kept_lanes))
    width = -(-(end - begin) // bins)
    binned = [s for lane in kept_lanes for s in _merge(_bin(merged[lane], begin, width))]
    return binned, width


def timeline_figure(
    segments: Sequence[Any],
    incidents: Sequence[Mapping[str, Any]] = (),
    *,
    units: str = "rank",
    currency: str = "USD",
    dark: bool = False,
) -> tuple[go.Figure, int]:
    """The timeline and the width of a bin in ns (0: every segment is drawn as it is).

    ``segments`` have session, rank, leaf, start_ns and end_ns; ``incidents`` are those of
    the report. Bars are coloured by leaf group.
    """
    slices, width = build_slices(segments)
    look = palette.mode(dark)
    figure = go.Figure()
    groups: dict[str, list[Slice]] = defaultdict(list)
    for piece in slices:
        groups[piece.leaf[0]].append(piece)
    for group in GROUPS:
        if group in groups:
            figure.add_trace(_group_trace(group, groups[group], look, dark))
    lanes = list(dict.fromkeys(s.lane for s in slices))
    if marks := _marks(incidents, lanes, slices):
        figure.add_trace(_mark_trace(marks, look, units, currency))
    # Plotly does not make room for a legend of several rows: it would cover the lanes.
    top = 14 + LEGEND_ROW * max(1, -(-(len(groups) + 1) // LEGEND_COLUMNS))
    figure.update_layout(
        barmode="overlay",
        bargap=0.25,
        height=top + BELOW + 24 + 34 * max(1, min(len(lanes), MAX_RANK_LANES)),
        margin={"l": 8, "r": 8, "t": top, "b": BELOW},
        legend={
            "orientation": "h",
            "y": 1.0,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
            "bgcolor": "rgba(0,0,0,0)",
        },
        xaxis={"type": "date", "gridcolor": look.grid, "title": None, "automargin": True},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": lanes,
            "autorange": "reversed",
            "fixedrange": True,
            "showgrid": False,
            "tickfont": {"size": 13, "color": look.text},
        },
        hoverlabel={"align": "left"},
    )
    return figure, width


def _merge(slices: list[Slice]) -> list[Slice]:
    """Join bars that touch, of one session and leaf: steps one after another are one bar."""
    out: list[Slice] = []
    for piece in slices:
        last = out[-1] if out else None
        touches = last is not None and last.end_ns == piece.start_ns
        if last and touches and (last.leaf, last.session) == (piece.leaf, piece.session):
            out[-1] = last._replace(end_ns=piece.end_ns)
        else:
            out.append(piece)
    return out


def _bin(slices: list[Slice], begin: int, width: int) -> list[Slice]:
    time_in: dict[int, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    lane = slices[0].lane if slices else ""
    for piece in slices:
        first, last = (piece.start_ns - begin) // width, (piece.end_ns - 1 - begin) // width
        for index in range(first, last + 1):
            lo = max(piece.start_ns, begin + index * width)
            hi = min(piece.end_ns, begin + (index + 1) * width)
            time_in[index][piece.session, piece.leaf] += hi - lo
    out: list[Slice] = []
    for index in sorted(time_in):
        session, leaf = max(time_in[index], key=time_in[index].__getitem__)
        start = begin + index * width
        out.append(Slice(lane, session, leaf, start, start + width))
    return out


def _group_trace(group: str, slices: list[Slice], look: palette.Mode, dark: bool) -> go.Bar:
    return go.Bar(
        orientation="h",
        name="kept steps" if group == "H" else GROUPS[group],
        y=[s.lane for s in slices],
        base=[s.start_ns / 1e6 for s in slices],
        x=[(s.end_ns - s.start_ns) / 1e6 for s in slices],
        marker={
            "color": palette.group_color(group, dark),
            "line": {"color": look.outline, "width": 0},
            "pattern": {
                "shape": palette.GROUP_PATTERNS.get(group, ""),
                "fgcolor": look.outline,
                "fillmode": "overlay",
                "size": 6,
            },
        },
        customdata=[_slice_hover(s) for s in slices],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _slice_hover(piece: Slice) -> str:
    leaf = BY_ID.get(piece.leaf)
    title = leaf.title if leaf else piece.leaf
    length = fmt.seconds((piece.end_ns - piece.start_ns) / 1e9)
    return (
        f"<b>{fmt.escape(title)}</b> ({fmt.escape(piece.leaf)}) {length}<br>"
        f"{fmt.escape(piece.lane)}, session {fmt.escape(piece.session)}<br>"
        f"{_clock(piece.start_ns)} to {_clock(piece.end_ns)} UTC"
    )


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


def _marks(
    incidents: Sequence[Mapping[str, Any]], lanes: list[str], slices: list[Slice]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The lane on which each incident is marked: its rank's, else its session's, else the first."""
    out: list[tuple[str, Mapping[str, Any]]] = []
    if not slices:
        return out
    for incident in list(incidents)[:MAX_BARS]:
        if not incident.get("time"):
            continue
        wanted = (f"rank {incident.get('rank')}", str(incident.get("session")))
        out.append((next((w for w in wanted if w in lanes), lanes[0]), incident))
    return out


def _mark_trace(
    marks: list[tuple[str, Mapping[str, Any]]], look: palette.Mode, units: str, currency: str
) -> go.Scatter:
    return go.Scatter(
        mode="markers",
        name="incident",
        x=[str(i["time"]).replace("Z", "").split("+")[0] for _, i in marks],
        y=[lane for lane, _ in marks],
        marker={
            "symbol": "diamond",
            "size": 14,
            "color": "#FFFFFF",
            "line": {"color": palette.VERMILLION, "width": 3},
        },
        customdata=[_mark_hover(i, units, currency) for _, i in marks],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _mark_hover(incident: Mapping[str, Any], units: str, currency: str) -> str:
    lines = [f"<b>{fmt.escape(incident.get('kind') or 'incident')}</b>"]
    if incident.get("cause"):
        lines.append(fmt.escape(incident["cause"]))
    lines.append(f"lost steps: {fmt.count(incident.get('lost_steps'))}")
    lines.append(f"{fmt.escape(units)} time: {fmt.seconds(incident.get('gpu_seconds'))}")
    lines.append(f"cost: {fmt.money(incident.get('cost'), currency)}")
    return "<br>".join(lines)
