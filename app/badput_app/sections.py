"""The chart sections of the overview: waterfall and timeline, with what is said around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from badput_app import charts, components, fmt, strings, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def waterfall(report: Mapping[str, Any]) -> None:
    """Where the time or the money went."""
    units = report.get("units") or "rank"
    priced = (report.get("cost") or {}).get("total") is not None
    _, word, _ = fmt.time_scale(report.get("total_gpu_seconds"))
    head, control = st.columns((2, 1), vertical_alignment="bottom")
    with control.container(horizontal=True, horizontal_alignment="right"):
        shown = st.segmented_control(
            strings.UNIT_LABEL,
            [strings.TIME, strings.DOLLARS],
            default=strings.TIME,
            required=True,
            key=components.UNIT_KEY,
            bind="query-params",
            label_visibility="collapsed",
            disabled=not priced,
            help=strings.UNIT_HELP,
        )
    dollars = priced and shown == strings.DOLLARS
    head.subheader(strings.WATERFALL.format(what="money" if dollars else f"{units}-{word}"))
    if not priced:
        st.caption(strings.NO_PRICE_HELP)
    dark = components.is_dark()
    bars = charts.waterfall_bars(report, dollars, dark)
    st.plotly_chart(
        charts.waterfall_figure(report, dollars=dollars, dark=dark),
        key="waterfall",
        config={"displayModeBar": False},
        alt=strings.WATERFALL_ALT.format(
            total=bars[0].text, kept=bars[-1].text, worst=tables.worst_leaf(report)
        ),
    )
    nothing = tables.empty_groups(report)
    caption = strings.WATERFALL_CAPTION if nothing else strings.WATERFALL_CAPTION_FULL
    st.caption(caption.format(empty="; ".join(nothing)))


def timeline(report: Mapping[str, Any], segments: Sequence[Any]) -> None:
    """What each rank or session did when."""
    st.subheader(strings.TIMELINE)
    if not segments:
        st.caption(strings.TIMELINE_EMPTY)
        return
    incidents = report.get("incidents") or []
    figure, width = charts.timeline_figure(
        segments,
        incidents,
        units=report.get("units") or "rank",
        currency=(report.get("cost") or {}).get("currency") or "USD",
        dark=components.is_dark(),
    )
    info, units = report.get("run") or {}, report.get("units") or "rank"
    places = info.get("gpus") or info.get("world_size") or 0
    many = len({s.rank for s in segments}) > charts.MAX_RANK_LANES
    lanes = (
        strings.TIMELINE_SESSIONS.format(most=charts.MAX_RANK_LANES)
        if many
        else strings.TIMELINE_LANES
        if len({s.rank for s in segments}) >= places
        else strings.TIMELINE_STANDS.format(places=f"{fmt.count(places)} {units}s")
    )
    st.caption(
        lanes + (strings.TIMELINE_BINNED.format(width=fmt.seconds(width / 1e9)) if width else "")
    )
    sessions = len(report.get("sessions") or [])
    alt = strings.TIMELINE_ALT.format(sessions=sessions, incidents=len(incidents))
    st.plotly_chart(figure, key="timeline", config={"displaylogo": False}, alt=alt)
