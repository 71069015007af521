"""All runs below the folders that were opened, newest first."""

from __future__ import annotations

import streamlit as st

from badput_app import cache, components, fmt, state, strings, tables

PAGE_SIZE = 20
WIDTHS = (2.2, 1, 1.4, 1, 1.2, 1, 0.95, 1)


def empty(paths: tuple[object, ...]) -> None:
    """Nothing was found: say where it was looked for and how to record a run."""
    st.info(
        strings.EMPTY.format(paths=", ".join(fmt.markdown(p) for p in paths)),
        title=strings.EMPTY_TITLE,
    )
    st.code(strings.EMPTY_CODE, language="python")
    st.markdown(strings.EMPTY_TRY)
    st.code(strings.EMPTY_COMMANDS, language="bash")


def header(priced: bool) -> None:
    """The names of the columns."""
    wasted = strings.WASTED_MONEY if priced else strings.WASTED_TIME
    with st.container(border=True):
        for column, name in zip(st.columns(WIDTHS), strings.COLUMNS, strict=True):
            column.caption(fmt.markdown(name.format(wasted=wasted)))


def row(run: state.Run, loaded: cache.Loaded) -> None:
    """One run; one that cannot be read is its name and the sentence why."""
    with st.container(border=True):
        if loaded.report is None:
            name, why = st.columns((WIDTHS[0], sum(WIDTHS[1:])), vertical_alignment="center")
            name.markdown(f"{fmt.markdown(run.name)} :red-badge[{strings.BROKEN}]")
            why.markdown(fmt.markdown(loaded.error))
            return
        cells = st.columns(WIDTHS, vertical_alignment="center")
        cells[0].page_link(
            "app_pages/overview.py",
            label=f"**{fmt.markdown(run.name)}**",
            icon=strings.OVERVIEW_ICON,
            query_params={**dict(st.query_params), components.RUN_KEY: run.key},
            help=str(run.path),
        )
        for cell, text in zip(cells[1:], values(run, loaded.report), strict=True):
            cell.markdown(fmt.markdown(text))


def values(run: state.Run, report: dict) -> list[str]:
    """The cells after the name."""
    cost, info = report.get("cost") or {}, report.get("run") or {}
    units = report.get("units") or "rank"
    wasted = tables.wasted_seconds(report)
    scale, _, short = fmt.time_scale(report.get("total_gpu_seconds"))
    if cost.get("wasted") is not None:
        money = fmt.money(cost["wasted"], cost.get("currency") or "USD")
    else:
        money = f"{fmt.amount(wasted / scale)} {units}-{short}"
    reason = tables.run_state(report)
    places = info.get("gpus") or info.get("world_size")
    return [
        run.source,
        strings.STATES.get(reason, str(reason)),
        fmt.percent((report.get("kept_time") or {}).get("value")),
        money,
        f"{fmt.count(places)} {units}s" if places != 1 else f"1 {units}",
        fmt.count(len(report.get("sessions") or [])),
        fmt.count((report.get("steps") or {}).get("lost")),
    ]


def main() -> None:
    """Draw the page."""
    settings, runs = components.loaded_runs()
    price = components.price_input(settings)
    st.header(strings.RUNS_TITLE)
    if not runs:
        empty(settings.paths)
        return
    runs = sorted(runs, key=lambda r: state.stamp(r.path)[1], reverse=True)
    pages = -(-len(runs) // PAGE_SIZE)
    page = st.pagination(pages, key="page") if pages > 1 else 1
    first = (page - 1) * PAGE_SIZE
    shown = runs[first : first + PAGE_SIZE]
    st.caption(strings.SHOWN.format(first=first + 1, last=first + len(shown), total=len(runs)))
    loaded = [cache.load(run, price) for run in shown]
    header(any((entry.report or {}).get("cost", {}).get("wasted") is not None for entry in loaded))
    for run, entry in zip(shown, loaded, strict=True):
        row(run, entry)
    st.caption(strings.COLUMNS_CAPTION)


main()
