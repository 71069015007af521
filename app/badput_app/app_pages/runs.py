"""All runs below the folders that were opened, the one that started last first."""

from __future__ import annotations

import streamlit as st

from badput_app import cache, components, fmt, state, strings, tables

PAGE_SIZE = 20
WIDTHS = (1.5, 1.5, 1, 1.1, 1.1, 1, 0.9, 1)


def empty(paths: tuple[object, ...]) -> None:
    """Nothing was found: say where it was looked for and how to record a run."""
    st.info(
        strings.EMPTY.format(paths=", ".join(fmt.markdown(p) for p in paths)),
        title=strings.EMPTY_TITLE,
    )
    st.code(strings.EMPTY_CODE, language="python")
    st.markdown(strings.EMPTY_TRY)
    st.code(strings.EMPTY_COMMANDS, language="bash")


def total(reports: list[dict], several: bool) -> None:
    """The answer for everything listed: what it took and what of that bought progress."""
    both = tables.sums(reports)
    if not both.runs:
        return
    runs = fmt.plural(both.runs, "run")
    if both.spent and both.wasted is not None and len(both.currencies) == 1:
        currency = next(iter(both.currencies))
        spent, wasted = both.spent, both.wasted
        text = strings.TOTAL_MONEY.format(
            spent=fmt.money(spent, currency),
            runs=fmt.plural(both.priced, "run"),
            bought=fmt.money(spent - wasted, currency),
            wasted=fmt.money(wasted, currency),
            share=fmt.percent(wasted / spent),
        )
    elif both.seconds and len(both.units) == 1:
        scale, word, _ = fmt.time_scale(both.seconds)
        unit = f"{next(iter(both.units))}-{word}"
        wasted = max(0.0, both.seconds - both.useful)
        text = strings.TOTAL_TIME.format(
            total=fmt.amount(both.seconds / scale, unit),
            runs=runs,
            bought=fmt.amount(both.useful / scale),
            wasted=fmt.amount(wasted / scale),
            share=fmt.percent(wasted / both.seconds),
        )
    else:
        return
    st.markdown(f"### {fmt.markdown(text)}")
    left = both.runs - both.priced if both.spent else 0
    notes = [strings.TOTAL_PAGE] if several else []
    notes += [strings.TOTAL_UNPRICED.format(runs=fmt.plural(left, "run"))] if left else []
    if notes:
        st.caption(" ".join(notes))


def header(priced: bool) -> None:
    """The names of the columns."""
    wasted = strings.WASTED_MONEY if priced else strings.WASTED_TIME
    spent = strings.SPENT_MONEY if priced else strings.SPENT_TIME
    with st.container(border=True):
        for column, name in zip(st.columns(WIDTHS), strings.COLUMNS, strict=True):
            column.caption(fmt.markdown(name.format(wasted=wasted, spent=spent)))


def row(run: state.Run, loaded: cache.Loaded) -> None:
    """One run: its name and why it lost what it lost, then its figures in columns.

    One that cannot be read is its name and the sentence why.
    """
    with st.container(border=True, gap="xsmall"):
        if loaded.report is None:
            st.markdown(f"{fmt.markdown(run.name)} :red-badge[{strings.BROKEN}]")
            st.markdown(fmt.markdown(loaded.error))
            return
        st.page_link(
            "app_pages/overview.py",
            label=f"**{fmt.markdown(run.name)}**",
            icon=strings.OVERVIEW_ICON,
            query_params={**dict(st.query_params), components.RUN_KEY: run.key},
            help=str(run.path),
        )
        cells = st.columns(WIDTHS, vertical_alignment="center")
        for cell, text in zip(cells, values(loaded.report), strict=True):
            cell.markdown(fmt.markdown(text))
        short = (loaded.report.get("verdict") or {}).get("short")
        st.caption(fmt.markdown(" · ".join(t for t in (run.source, short) if t)))


def values(report: dict) -> list[str]:
    """The cells of a run."""
    cost, info = report.get("cost") or {}, report.get("run") or {}
    units = report.get("units") or "rank"
    wasted = tables.wasted_seconds(report)
    total = report.get("total_gpu_seconds")
    held = report.get("held_gpu_seconds") or total
    scale, _, short = fmt.time_scale(total)
    currency = cost.get("currency") or "USD"
    if cost.get("wasted") is not None:
        spent, lost = fmt.money(cost["total"], currency), fmt.money(cost["wasted"], currency)
    else:
        spent = f"{fmt.amount(None if held is None else held / scale)} {units}-{short}"
        lost = f"{fmt.amount(wasted / scale)} {units}-{short}"
    places = info.get("gpus") or info.get("world_size")
    return [
        fmt.instant(info.get("start")).removesuffix(":00 UTC").removesuffix(" UTC")[:16],
        state_text(report),
        fmt.percent(tables.kept_of_held(report)),
        spent,
        lost,
        f"{fmt.count(places)} {units}s" if places != 1 else f"1 {units}",
        fmt.count(len(report.get("sessions") or [])),
        fmt.count((report.get("steps") or {}).get("lost")),
    ]


def state_text(report: dict) -> str:
    """How the run stands, and how often it failed before."""
    reason = tables.run_state(report)
    text = strings.STATES.get(reason, str(reason))
    sessions = len(report.get("sessions") or [])
    failed = tables.failures(report)
    if reason == "completed" and failed:
        return f"{text} after {fmt.plural(failed, 'failure')}"
    if sessions > 1:
        return f"{text}, {fmt.plural(sessions - 1, 'restart')}"
    return text


def main() -> None:
    """Draw the page."""
    settings, runs = components.loaded_runs()
    price = components.price_input(settings)
    gaps = components.gaps_input()
    st.header(strings.RUNS_TITLE)
    if not runs:
        empty(settings.paths)
        return
    runs = state.newest_first(runs)
    pages = -(-len(runs) // PAGE_SIZE)
    page = st.pagination(pages, key="page") if pages > 1 else 1
    first = (page - 1) * PAGE_SIZE
    shown = runs[first : first + PAGE_SIZE]
    loaded = [cache.load(run, price, gaps) for run in shown]
    total([entry.report for entry in loaded if entry.report is not None], pages > 1)
    st.caption(strings.SHOWN.format(first=first + 1, last=first + len(shown), total=len(runs)))
    header(any((entry.report or {}).get("cost", {}).get("wasted") is not None for entry in loaded))
    for run, entry in zip(shown, loaded, strict=True):
        row(run, entry)
    st.caption(strings.COLUMNS_CAPTION)


main()
