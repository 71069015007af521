"""The waterfall: from everything that was allocated down to what trained the final model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from badput_app import fmt
from badput_app.charts import palette
from badput_ledger.taxonomy import GROUPS, LEAVES

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATED, PRODUCTIVE = "allocated", "productive"
_ORDER = tuple(g for g in GROUPS if g != "H")


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of the chart: slot-seconds or dollars in one of it, and how it is written."""

    scale: float
    currency: str | None

    def text(self, value: float) -> str:
        """``value`` (slot-seconds, or money) as it is written in the chart."""
        if self.currency is not None:
            return fmt.money(value, self.currency)
        return fmt.seconds(value)


@dataclass(slots=True)
class Bar:
    """One bar: its label, where it starts, how long it is, and what the hover says."""

    label: str
    start: float
    length: float
    color: str
    pattern: str
    text: str
    hover: list[str] = field(default_factory=list)


def value_of(leaf: Mapping[str, Any], dollars: bool) -> float:
    """What a leaf adds to the chart; an unknown leaf adds nothing."""
    raw = leaf.get("cost") if dollars else leaf.get("gpu_seconds")
    return float(raw or 0.0)


def group_totals(leaves: Mapping[str, Mapping[str, Any]], dollars: bool) -> dict[str, float]:
    """Sum of the leaves of every group, in slot-seconds or in money."""
    totals = dict.fromkeys(GROUPS, 0.0)
    for leaf_id, leaf in leaves.items():
        totals[leaf_id[0]] += value_of(leaf, dollars)
    return totals


def waterfall_bars(report: Mapping[str, Any], dollars: bool, dark: bool) -> list[Bar]:
    """The bars from allocated to productive. Groups with nothing in them have no bar."""
    leaves = report["leaves"]
    totals = group_totals(leaves, dollars)
    total = sum(totals.values())
    unit = _unit(report, dollars)
    scale = unit.scale

    def label(value: float) -> str:
        share = fmt.percent(value / total if total else None)
        return f"{unit.text(value)} · {share}"

    bars = [Bar(ALLOCATED, 0.0, total / scale, palette.TOTAL_COLOR, "", label(total))]
    left = total
    for group in _ORDER:
        value = totals[group]
        if value <= 0:
            continue
        left -= value
        bars.append(
            Bar(
                GROUPS[group],
                left / scale,
                value / scale,
                palette.group_color(group, dark),
                palette.GROUP_PATTERNS.get(group, ""),
                label(value),
                _leaf_lines(leaves, group, dollars, unit),
            )
        )
    kept = totals["H"]
    color = palette.group_color("H", dark)
    bars.append(Bar(PRODUCTIVE, 0.0, kept / scale, color, "", label(kept)))
    return bars


def waterfall_figure(
    report: Mapping[str, Any], *, dollars: bool = False, dark: bool = False
) -> go.Figure:
    """The waterfall as horizontal bars, read from top to bottom.

    ``report`` is the report of a run; ``dollars`` chooses money instead of slot time.
    """
    bars = waterfall_bars(report, dollars, dark)
    look = palette.mode(dark)
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[b.label for b in bars],
            x=[b.length for b in bars],
            base=[b.start for b in bars],
            text=[b.text for b in bars],
            textposition="outside",
            textfont={"size": 13, "color": look.text},
            cliponaxis=False,
            marker={
                "color": [b.color for b in bars],
                "line": {"color": look.outline, "width": 1},
                "pattern": {
                    "shape": [b.pattern for b in bars],
                    "fgcolor": look.outline,
                    "fillmode": "overlay",
                    "size": 6,
                },
            },
            customdata=["<br>".join([f"<b>{b.label}</b> {b.text}", *b.hover]) for b in bars],
            hovertemplate="%{customdata}<extra></extra>",
            showlegend=False,
        )
    )
    for upper, lower in pairwise(bars):
        # The level that the next bar hangs from.
        level = upper.start if upper.label != ALLOCATED else upper.length
        if upper.label != ALLOCATED or lower.label != PRODUCTIVE:
            _connector(figure, level, upper.label, lower.label, look.grid)
    _lay_out(figure, bars, _axis_title(report, dollars), look)
    return figure


def _lay_out(figure: go.Figure, bars: list[Bar], title: str, look: palette.Mode) -> None:
    longest = max((b.start + b.length for b in bars), default=1.0) or 1.0
    figure.update_layout(
        height=60 + 29 * len(bars),
        margin={"l": 8, "r": 8, "t": 4, "b": 44},
        bargap=0.28,
        xaxis={
            "title": {"text": title, "font": {"size": 13}},
            # Room at the right for the text of the longest bar.
            "range": [0, longest * 1.45],
            "gridcolor": look.grid,
            "zeroline": False,
            "fixedrange": True,
        },
        yaxis={
            "autorange": "reversed",
            "fixedrange": True,
            "tickfont": {"size": 13, "color": look.text},
            "showgrid": False,
        },
        hoverlabel={"align": "left"},
    )


def _connector(figure: go.Figure, level: float, upper: str, lower: str, color: str) -> None:
    figure.add_shape(
        type="line",
        x0=level,
        x1=level,
        y0=upper,
        y1=lower,
        line={"color": color, "width": 1, "dash": "dot"},
        layer="below",
    )


def _unit(report: Mapping[str, Any], dollars: bool) -> Unit:
    if dollars:
        return Unit(1.0, str((report.get("cost") or {}).get("currency") or "USD"))
    return Unit(fmt.time_scale(report.get("total_gpu_seconds"))[0], None)


def _axis_title(report: Mapping[str, Any], dollars: bool) -> str:
    if dollars:
        return str((report.get("cost") or {}).get("currency") or "USD")
    _, word, _ = fmt.time_scale(report.get("total_gpu_seconds"))
    return f"{report.get('units') or 'rank'}-{word}"


def _leaf_lines(
    leaves: Mapping[str, Mapping[str, Any]], group: str, dollars: bool, unit: Unit
) -> list[str]:
    rows = [
        (value_of(leaves[leaf.id], dollars), leaf)
        for leaf in LEAVES
        if leaf.group == group and leaf.id in leaves
    ]
    rows = sorted((r for r in rows if r[0] > 0), key=lambda r: -r[0])
    return [f"{leaf.title}: {unit.text(value)}" for value, leaf in rows]
