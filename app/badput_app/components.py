"""Pieces that the pages are made of: they draw, they do not compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from badput_app import cache, fmt, state, strings, tables
from badput_ledger.price import GREATEST_PRICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from badput_ledger.books import Gaps

PRICE_KEY, RUN_KEY, UNIT_KEY, LEAVES_KEY, GAPS_KEY = "price", "run", "unit", "leaves", "gaps"
SEVERITY_ICONS = {"error": ":material/error:", "warning": ":material/warning:"}


def is_dark() -> bool:
    """Is the page shown in the dark theme?"""
    return st.context.theme.type == "dark"


def price_input(settings: state.Settings) -> float | None:
    """The price of a slot-hour in the sidebar; it lives in the URL, shared by all pages."""
    with st.sidebar:
        price = st.number_input(
            strings.PRICE_LABEL,
            min_value=0.0,
            max_value=float(GREATEST_PRICE),
            value=settings.price,
            step=0.1,
            format="%.2f",
            placeholder=strings.PRICE_PLACEHOLDER,
            help=strings.PRICE_HELP,
            key=PRICE_KEY,
            bind="query-params",
            icon=":material/attach_money:",
        )
        if settings.price_is_example and price == settings.price:
            st.caption(strings.PRICE_EXAMPLE.format(price=price))
    # Nobody is billed nothing: 0 means that no price was given.
    return price or None


def gaps_input() -> Gaps:
    """Whether unknown time between sessions was paid; it lives in the URL, like the price."""
    with st.sidebar:
        chosen = st.selectbox(
            strings.GAPS_LABEL,
            strings.GAPS,
            help=strings.GAPS_HELP,
            key=GAPS_KEY,
            bind="query-params",
        )
    return chosen or "unknown"


def verdict(report: Mapping[str, Any]) -> None:
    """The answer first: what happened, why, and what to do next."""
    words = report["verdict"]
    with st.container(border=True, gap="xsmall"):
        st.markdown(f"### {fmt.markdown(words['headline'])}")
        if words.get("why"):
            st.markdown(fmt.markdown(words["why"]))
        if words.get("next"):
            st.markdown(f"**{strings.NEXT_LABEL}:** {fmt.markdown(_in_app(words['next']))}")


def _in_app(text: str) -> str:
    """Advice that names the command's option names the control of the page instead."""
    return text.replace(strings.GAPS_OPTION, strings.GAPS_CONTROL)


def tiles(report: Mapping[str, Any]) -> None:
    """The headline figures, each with its unit and definition."""
    units = report.get("units") or "rank"
    total = report.get("total_gpu_seconds")
    scale, word, _ = fmt.time_scale(total)
    cost, steps = report.get("cost") or {}, report.get("steps") or {}
    tokens, kept = report.get("tokens") or {}, report.get("kept_time") or {}
    currency = cost.get("currency") or "USD"
    sessions = len(report.get("sessions") or [])
    restarts = max(0, sessions - 1)
    wasted = tables.wasted_seconds(report)
    per_token = cost.get("per_kept_token")
    priced = cost.get("total") is not None
    lost = f"{strings.OF_EXECUTED.format(total=fmt.count(steps.get('executed')))}{_between(steps)}"
    with st.grid(6, min_column_width=110):
        _tile(strings.KEPT, fmt.percent(kept.get("value")), _kept_below(report), strings.KEPT_HELP)
        _tile(
            strings.WASTED,
            fmt.money(cost.get("wasted"), currency) if priced else fmt.amount(wasted / scale),
            f"{fmt.amount(wasted / scale)} {units}-{word}" if priced else f"{units}-{word}",
            strings.WASTED_HELP,
        )
        _tile(strings.LOST, fmt.count(steps.get("lost")), lost, strings.LOST_HELP)
        _tile(
            strings.SESSIONS,
            fmt.count(sessions),
            strings.RESTARTS.get(restarts) or strings.RESTARTS_MANY.format(count=restarts),
            strings.SESSIONS_HELP,
        )
        _tile(
            strings.TOKENS,
            fmt.compact(tokens.get("kept")),
            strings.OF_PROCESSED.format(total=fmt.compact(tokens.get("processed"))),
            strings.TOKENS_HELP,
        )
        _tile(
            strings.COST,
            fmt.money(cost.get("total"), currency) if priced else strings.NO_PRICE,
            f"{fmt.money(per_token * 1e6, currency)} / 1 M kept tokens"
            if per_token is not None
            else f"{fmt.amount(None if total is None else total / scale)} {units}-{word}",
            strings.COST_HELP.format(unit=units) if priced else strings.NO_PRICE_HELP,
        )


def _tile(label: str, value: str, below: str, help_text: str) -> None:
    with st.container(border=True, height="stretch", gap=None):
        st.metric(label, value, help=help_text)
        st.caption(fmt.markdown(below))


def _kept_below(report: Mapping[str, Any]) -> str:
    """The bounds of kept time, or its share of what was held where some was not."""
    kept = report.get("kept_time") or {}
    share = tables.kept_of_held(report)
    if share is None or share == kept.get("value"):
        return _bounds(kept)
    return strings.OF_HELD.format(share=fmt.percent(share))


def _bounds(figure: Mapping[str, Any]) -> str:
    lo, hi = figure.get("lo"), figure.get("hi")
    if lo is None or hi is None or (lo, hi) == (figure.get("value"), figure.get("value")):
        return strings.OF_ALLOCATED
    return f"[{fmt.percent(lo)} to {fmt.percent(hi)}]"


def _between(steps: Mapping[str, Any]) -> str:
    lo, hi = steps.get("lost_lo"), steps.get("lost_hi")
    return "" if lo is None or hi is None or lo == hi else f", {fmt.count(lo)} to {fmt.count(hi)}"


def leaves_table(report: Mapping[str, Any]) -> None:
    """Every leaf with time, share, bounds, cost and definition, and the CSV download."""
    import pyarrow as pa

    everything = st.toggle(strings.ALL_LEAVES, key=LEAVES_KEY, bind="query-params")
    rows = tables.leaf_rows(report, empty=everything)
    units = report.get("units") or "rank"
    total = report.get("total_gpu_seconds")
    scale, word, short = fmt.time_scale(total)
    number = st.column_config.NumberColumn
    lo_hi = strings.BOUNDS_HELP
    unit = f"{units}-{word}"
    digits = f"%.{fmt.decimals(total, scale)}f"
    cost_help = strings.COST_HELP.format(unit=units)
    currency = (report.get("cost") or {}).get("currency") or "USD"
    st.caption(strings.LEAVES_CAPTION.format(total=f"{fmt.amount((total or 0) / scale)} {unit}"))
    text_columns = {"leaf", "definition"}
    table = pa.table(
        {
            k: pa.array(v, pa.string() if k in text_columns else pa.float64())
            for k, v in rows.items()
        }
    )
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        alt=strings.LEAVES_ALT,
        column_config={
            "leaf": st.column_config.TextColumn(strings.LEAF, width=115, pinned=True),
            word: number(unit, format=digits, width=100),
            "share": number(strings.SHARE, format="percent", width=75),
            "lo": number(f"{strings.LOW}, {short}", format=digits, help=lo_hi, width=88),
            "hi": number(f"{strings.HIGH}, {short}", format=digits, help=lo_hi, width=88),
            "cost": number(currency, format="%.4f", help=cost_help, width=75),
            "definition": st.column_config.TextColumn(strings.DEFINITION, width=335),
        },
    )
    run = report.get("run") or {}
    st.download_button(
        strings.CSV_LABEL,
        data=lambda: tables.leaves_csv(report),
        file_name=f"badput-{_file_name(run.get('name') or run.get('id') or 'run')}-leaves.csv",
        mime="text/csv",
        icon=":material/download:",
        help=strings.CSV_HELP,
        on_click="ignore",
    )


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)[:60]


def incidents_list(report: Mapping[str, Any]) -> None:
    """Every incident with what it cost and the rows or lines that say so."""
    incidents = report.get("incidents") or []
    if not incidents:
        st.caption(strings.NO_INCIDENTS)
    units = report.get("units") or "rank"
    currency = (report.get("cost") or {}).get("currency") or "USD"
    for incident in incidents:
        with st.container(border=True, gap="xsmall"):
            rank = incident.get("rank")
            where = "" if rank is None else f" · rank {rank}"
            st.markdown(
                f"**{fmt.markdown(incident.get('kind') or 'incident')}**{where} · "
                f"{fmt.instant(incident.get('time'))}"
            )
            if incident.get("cause"):
                st.markdown(fmt.markdown(incident["cause"]))
            money = incident.get("cost")
            st.caption(
                strings.INCIDENT_FACTS.format(
                    lost=fmt.count(incident.get("lost_steps")),
                    time=f"{fmt.seconds(incident.get('gpu_seconds'))} of {units} time",
                    cost=strings.NO_PRICE
                    if money is None
                    else fmt.markdown(fmt.money(money, currency)),
                )
            )
            evidence_list(incident.get("evidence") or [])


def evidence_list(items: list[Mapping[str, Any]]) -> None:
    """The lines or rows behind a claim, folded away."""
    with st.expander(f"{strings.EVIDENCE} ({len(items)})"):
        st.code(
            "\n".join(tables.evidence_text(i) for i in items[:50]) or strings.NO_EVIDENCE,
            language=None,
        )


def quality_list(report: Mapping[str, Any], broken: list[str]) -> None:
    """What was not measured or could not be read."""
    items = report.get("quality") or []
    if not items and not broken:
        st.caption(strings.NO_QUALITY)
    for item in items:
        icon = SEVERITY_ICONS.get(str(item.get("severity")), ":material/info:")
        st.markdown(f"{icon} {fmt.markdown(_in_app(str(item.get('what'))))}")
    if broken:
        st.warning(strings.SKIPPED, icon=":material/warning:")
        st.code("\n".join(broken[:50]), language=None)


def loaded_runs() -> tuple[state.Settings, list[state.Run]]:
    """The settings of this server and the runs that it can show."""
    settings = state.settings()
    return settings, cache.runs(tuple(str(p) for p in settings.paths))
