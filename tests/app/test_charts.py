"""Figures: what they show, and that they keep to their budgets."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from badput_app import charts
from badput_app.charts import palette
from badput_app.charts.waterfall import waterfall_bars
from badput_ledger.taxonomy import GROUPS, LEAF_IDS

if TYPE_CHECKING:
    from pathlib import Path

T0, S = 1_790_000_000_000_000_000, 1_000_000_000


def piece(session: str, rank: int, leaf: str, start_ns: int, end_ns: int) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(session=session, rank=rank, leaf=leaf, start_ns=start_ns, end_ns=end_ns)


def test_the_waterfall_goes_from_allocated_to_productive_without_a_jump(report: dict) -> None:
    bars = waterfall_bars(report, dollars=False, dark=False)
    assert [b.label for b in bars][:3] == ["allocated", "failure and teardown", "restart"]
    assert bars[-1].label == "productive"
    assert bars[0].length * 60 == pytest.approx(7200)
    level = bars[0].length
    for bar in bars[1:-1]:
        assert bar.start + bar.length == pytest.approx(level)
        level = bar.start
    assert bars[-1].length == pytest.approx(level)
    assert bars[-1].length * 60 == pytest.approx(6140)


def test_the_waterfall_in_dollars_is_the_time_at_the_price(report: dict) -> None:
    time = waterfall_bars(report, dollars=False, dark=False)
    money = waterfall_bars(report, dollars=True, dark=False)
    # 2 dollars an hour, bars in minutes
    assert [b.length for b in money] == pytest.approx([b.length / 60 * 2 for b in time])
    assert money[0].text.startswith("$4.00")


def test_a_group_with_nothing_in_it_has_no_bar(report: dict) -> None:
    labels = [b.label for b in waterfall_bars(report, dollars=False, dark=False)]
    assert GROUPS["A"] not in labels
    report["leaves"]["A.requeue"]["gpu_seconds"] = 1.0
    assert GROUPS["A"] in [b.label for b in waterfall_bars(report, dollars=False, dark=False)]


def test_a_leaf_that_was_not_measured_adds_nothing(report: dict) -> None:
    report["leaves"]["G.comm"] |= {"gpu_seconds": None, "cost": None}
    assert waterfall_bars(report, dollars=False, dark=False)[0].length * 60 == pytest.approx(7200)


def test_a_run_without_any_time_is_drawn_and_not_a_crash(report: dict) -> None:
    for leaf in report["leaves"].values():
        leaf |= {"gpu_seconds": 0.0, "cost": 0.0}
    report["total_gpu_seconds"] = 0.0
    figure = charts.waterfall_figure(report)
    assert list(figure.data[0].y) == ["allocated", "productive"]


def test_the_axis_names_ranks_where_there_is_no_gpu(report: dict) -> None:
    report["units"] = "rank"
    assert charts.waterfall_figure(report).layout.xaxis.title.text == "rank-minutes"
    assert charts.waterfall_figure(report, dollars=True).layout.xaxis.title.text == "USD"


def test_steps_that_touch_are_one_bar_and_the_lanes_are_the_ranks(segments: list) -> None:
    figure, width = charts.timeline_figure(segments)
    assert width == 0
    by_name = {t.name: t for t in figure.data}
    assert set(by_name) == {"restart", "in the loop, not training", "kept steps"}
    # 40 steps in four runs between saves, on each of two ranks.
    assert len(by_name["kept steps"].y) == 8
    assert set(by_name["kept steps"].y) == {"rank 0", "rank 1"}
    assert sum(by_name["kept steps"].x) == pytest.approx(2 * 40 * 1000)


def test_a_timeline_never_has_more_bars_than_the_budget() -> None:
    pieces = []
    for rank in range(4):
        for n in range(3000):
            leaf = "H.productive" if n % 2 else "G.data"
            pieces.append(piece("s1", rank, leaf, T0 + n * S, T0 + (n + 1) * S))
    figure, width = charts.timeline_figure(pieces)
    bars = sum(len(t.y) for t in figure.data if t.type == "bar")
    assert 0 < bars <= charts.MAX_BARS
    assert width >= 6 * S
    assert len(figure.to_json()) < 1_000_000


def test_a_bin_shows_the_leaf_that_took_most_of_it() -> None:
    pieces = []
    for n in range(4000):
        at = T0 + n * 10 * S
        pieces.append(piece("s1", 0, "G.data", at, at + 2 * S))
        pieces.append(piece("s1", 0, "H.productive", at + 2 * S, at + 10 * S))
    figure, width = charts.timeline_figure(pieces)
    assert width > 0
    assert [t.name for t in figure.data] == ["kept steps"]


def test_many_ranks_share_one_lane_for_each_session() -> None:
    pieces = [piece(s, r, "H.productive", T0, T0 + S) for s in ("s1", "s2") for r in range(100)]
    figure, _ = charts.timeline_figure(pieces)
    assert list(figure.data[0].y) == ["s1", "s2"]


def test_an_incident_is_marked_on_the_lane_of_its_rank_with_what_it_cost(segments: list) -> None:
    incident = {
        "time": "2026-09-21T13:14:20Z",
        "session": "s1",
        "rank": 1,
        "kind": "killed",
        "cause": "signal 9",
        "lost_steps": 10,
        "gpu_seconds": 20.0,
        "cost": None,
    }
    figure, _ = charts.timeline_figure(segments, [incident])
    mark = figure.data[-1]
    assert mark.name == "incident"
    assert list(mark.y) == ["rank 1"]
    assert "signal 9" in mark.customdata[0]
    assert "lost steps: 10" in mark.customdata[0]
    # No price: a dash, not $0.
    assert "cost: –" in mark.customdata[0]


def test_hover_text_of_the_run_cannot_bring_its_own_markup(segments: list) -> None:
    evil = '<a href="https://evil.example">x</a>'
    incident = {"time": "2026-09-21T13:14:20Z", "kind": evil, "cause": evil}
    pieces = [*segments, piece(evil, 0, "H.productive", T0 + 900 * S, T0 + 901 * S)]
    figure, _ = charts.timeline_figure(pieces, [incident])
    assert "<a " not in json.dumps(figure.to_dict(), default=str)


@pytest.mark.parametrize("dark", [False, True])
def test_no_figure_uses_webgl(report: dict, segments: list, dark: bool) -> None:
    figures = [
        charts.waterfall_figure(report, dark=dark),
        charts.timeline_figure(segments, dark=dark)[0],
    ]
    for figure in figures:
        assert {t.type for t in figure.data} <= {"bar", "scatter"}


def test_every_group_has_one_fixed_colour_in_both_charts_and_themes(
    report: dict, segments: list
) -> None:
    assert set(palette.GROUP_COLORS) == set(GROUPS)
    assert len(set(palette.GROUP_COLORS.values())) == len(GROUPS)
    for dark in (False, True):
        bars = {b.label: b.color for b in waterfall_bars(report, dollars=False, dark=dark)}
        figure, _ = charts.timeline_figure(segments, dark=dark)
        for trace in figure.data:
            label = "productive" if trace.name == "kept steps" else trace.name
            assert trace.marker.color == bars[label]
    for group in set(GROUPS) - {"F"}:
        assert palette.group_color(group, dark=True) == palette.group_color(group, dark=False)


def test_the_theme_has_exactly_ten_chart_colours_and_they_are_the_palette(root: Path) -> None:
    config = tomllib.loads((root / "app/badput_app/.streamlit/config.toml").read_text())
    light = config["theme"]["light"]["chartCategoricalColors"]
    dark = config["theme"]["dark"]["chartCategoricalColors"]
    assert tuple(light) == palette.CATEGORICAL
    assert len(dark) == 10
    assert dark == [palette.DARK.black if c == palette.BLACK else c for c in light]


def test_the_theme_fetches_nothing(root: Path) -> None:
    text = (root / "app/badput_app/.streamlit/config.toml").read_text()
    assert "http" not in text
    config = tomllib.loads(text)
    assert config["browser"]["gatherUsageStats"] is False
    assert config["server"]["address"] == "127.0.0.1"


def test_the_legend_has_room_above_the_lanes_and_the_date_below(segments) -> None:
    figure, _ = charts.timeline_figure(segments)
    few = figure.layout.height
    assert figure.layout.margin.b >= 44  # the time and the date under it
    one = segments[0]
    many = [one._replace(leaf=leaf, start_ns=one.start_ns + i) for i, leaf in enumerate(LEAF_IDS)]
    incident = {"time": "2026-09-21T14:13:20Z", "rank": 0, "session": "s1"}
    figure, _ = charts.timeline_figure([*segments, *many], [incident])
    rows = -(-len(figure.data) // 3)
    assert rows >= 3
    assert figure.layout.margin.t >= 20 * rows
    assert figure.layout.height > few
