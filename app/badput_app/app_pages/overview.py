"""One run: the answer first, then the breakdown, then the evidence."""

from __future__ import annotations

import streamlit as st

from badput_app import cache, components, fmt, sections, state, strings


def choose(runs: list[state.Run]) -> state.Run | None:
    """The run named in the URL or chosen in the sidebar; a lone run needs no choice."""
    wanted = st.query_params.get(components.RUN_KEY)
    by_key = {run.key: run for run in runs}
    with st.sidebar:
        key = st.selectbox(
            strings.RUN_LABEL,
            list(by_key),
            # Not the lone run: a value that is the default would not stand in the URL.
            index=None,
            placeholder=strings.RUN_PLACEHOLDER,
            key=components.RUN_KEY,
            bind="query-params",
        )
    if wanted and wanted not in by_key:
        st.warning(
            strings.UNKNOWN_RUN.format(name=fmt.markdown(wanted)), icon=":material/search_off:"
        )
    if key:
        return by_key.get(key)
    return runs[0] if len(runs) == 1 and not wanted else None


def title(run: state.Run, report: dict) -> None:
    """Name of the run and what it was, in one line."""
    info, units = report.get("run") or {}, report.get("units") or "rank"
    places = info.get("gpus") or info.get("world_size")
    facts = [
        run.source,
        f"{fmt.count(places)} {units}{'' if places == 1 else 's'}",
        str(info.get("gpu_type") or "GPU type unknown"),
        f"{fmt.instant(info.get('start'))} to {fmt.instant(info.get('end'))}",
    ]
    st.header(fmt.markdown(info.get("name") or run.name))
    st.caption(fmt.markdown(" · ".join(facts)))


def main() -> None:
    """Draw the page."""
    settings, runs = components.loaded_runs()
    run = choose(runs)
    price = components.price_input(settings)
    gaps = components.gaps_input()
    if run is None:
        st.info(strings.NO_RUN, title=strings.NO_RUN_TITLE)
        st.page_link("app_pages/runs.py", label=strings.BACK, icon=strings.RUNS_ICON)
        return
    loaded = cache.load(run, price, gaps)
    if loaded.report is None:
        st.header(fmt.markdown(run.name))
        st.error(fmt.markdown(loaded.error), icon=":material/error:")
        return
    report = loaded.report
    title(run, report)
    components.verdict(report)
    components.tiles(report)
    sections.waterfall(report)
    sections.timeline(report, loaded.segments)
    st.subheader(strings.INCIDENTS)
    components.incidents_list(report)
    st.subheader(strings.LEAVES_TITLE)
    components.leaves_table(report)
    st.subheader(strings.QUALITY)
    components.quality_list(report, loaded.broken)


main()
