"""Every page in every state that a user can meet, on real run folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from badput import parts
from badput_app import cache, state, strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RUNS, OVERVIEW = "app_pages/runs.py", "app_pages/overview.py"


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    cache.runs.clear()
    cache._load.clear()
    yield
    cache.runs.clear()
    cache._load.clear()


@pytest.fixture
def visit(root: Path) -> Callable[..., AppTest]:
    """Open a page at an address, as a link would."""

    def run(page: str, **params: str) -> AppTest:
        entry = root / "app" / "badput_app" / "streamlit_app.py"
        app = AppTest.from_file(str(entry), default_timeout=60)
        for key, value in params.items():
            app.query_params[key] = value
        app.run()
        if page != RUNS:
            app.switch_page(page)
        app.run()
        assert not app.exception, app.exception
        return app

    return run


def texts(app: AppTest) -> str:
    """All that the page says, markdown escapes taken out."""
    parts = [e.value for kind in (app.markdown, app.caption, app.info, app.error) for e in kind]
    parts += [e.value for kind in (app.header, app.subheader, app.warning) for e in kind]
    return "\n".join(str(p) for p in parts).replace("\\", "")


def test_the_list_shows_a_run_and_leads_to_its_overview(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run, price=2.0)
    app = visit(RUNS)
    links = app.get("page_link")
    assert [link.proto.label.replace("\\", "") for link in links] == ["**tiny-killed**"]
    assert "run=tiny" in links[0].proto.query_string
    shown = texts(app)
    for value in ("probe", "completed after 1 failure", "2 ranks", "62.5 %", "$0.0"):
        assert value in shown
    # 160 rank-seconds at two dollars an hour, half of them productive.
    assert "$0.089 spent on 1 run: $0.044 bought progress, $0.044 (50.0 %) did not." in shown
    assert "2026-09-21 14:13" in shown
    assert "1 failure:" in shown or "lost most to" in shown


def test_runs_are_listed_by_their_start_and_not_by_the_age_of_their_files(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    for name, start in (("middle", 2), ("newest", 3), ("oldest", 1)):
        run = write_run(tmp_path / "runs" / name, name=name)
        shutil.rmtree(run / "facts" / "runs")
        row = {"process_id": 11, "time_ns": start * 10**18, "name": name, "source": "probe"}
        parts.write_rows(run, "runs", "a", [row])
    opened(tmp_path / "runs")
    labels = [link.proto.label for link in visit(RUNS).get("page_link")]
    assert labels == ["**newest**", "**middle**", "**oldest**"]


def test_whether_gaps_were_paid_lives_in_the_address(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    run = write_run(tmp_path / "runs" / "tiny")
    part = next((run / "facts" / "processes").glob("*.parquet"))
    table = pq.read_table(part, partitioning=None).to_pylist()
    for row in table:
        row["job_id"] = None  # no job that came back: nobody knows who held the gap
    part.unlink()
    parts.write_rows(run, "processes", "a", table)
    opened(tmp_path / "runs", price=3600.0)
    before = visit(OVERVIEW, run="tiny")
    assert before.selectbox(key="gaps").value == "unknown"
    assert {m.label: m.value for m in before.metric}["Cost"] == "$160.00"
    assert visit(RUNS, gaps="released").selectbox(key="gaps").value == "released"
    app = before.selectbox(key="gaps").select("released").run()
    assert app.query_params["gaps"] in ("released", ["released"])
    # 8 s between the two sessions, on two ranks
    assert {m.label: m.value for m in app.metric}["Cost"] == "$144.00"
    assert "of held time" in texts(app)
    assert "--gaps" not in texts(app)


def test_the_overview_answers_first(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run, price=2.0)
    app = visit(OVERVIEW, run="tiny")
    assert app.markdown[0].value.startswith("### ")
    tiles = {m.label: m.value for m in app.metric}
    assert list(tiles) == ["Kept time", "Wasted", "Lost steps", "Sessions", "Tokens", "Cost"]
    # Steps 21 to 30 of the first session were done again by the second.
    assert tiles["Lost steps"] == "10"
    assert tiles["Sessions"] == "2"
    # 160 rank-seconds: half of them productive, 100 inside kept steps.
    assert tiles["Kept time"] == "62.5 %"
    assert "80.0 rank-seconds" in texts(app)
    assert tiles["Cost"].startswith("$0.0")
    charts = app.get("plotly_chart")
    assert len(charts) == 2
    assert all(chart.proto.alt for chart in charts)
    assert "GPU-" not in texts(app)
    assert "rank-seconds" in texts(app)


def test_the_incident_is_listed_with_its_evidence(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run)
    app = visit(OVERVIEW, run="tiny")
    assert "10 steps lost" in texts(app)
    assert any("process_id=" in block.value for block in app.code)


def test_without_a_price_there_are_no_dollars_and_a_reason(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run)
    app = visit(OVERVIEW, run="tiny", unit="Dollars")
    assert app.segmented_control(key="unit").disabled
    assert strings.NO_PRICE_HELP in texts(app)
    assert {m.label: m.value for m in app.metric}["Cost"] == strings.NO_PRICE
    assert "$" not in texts(app).replace(strings.NO_PRICE_HELP, "")
    assert "rank-seconds" in app.get("plotly_chart")[0].proto.spec


def test_the_price_and_the_unit_live_in_the_address(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run)
    assert visit(RUNS, price="3.5").number_input(key="price").value == 3.5
    app = visit(OVERVIEW, run="tiny", unit="Dollars")
    assert app.segmented_control(key="unit").disabled
    app.number_input(key="price").set_value(3600.0).run()
    assert not app.segmented_control(key="unit").disabled
    spec = app.get("plotly_chart")[0].proto.spec
    assert "USD" in spec
    assert "rank-" not in spec
    # 160 rank-seconds at a dollar each.
    assert {m.label: m.value for m in app.metric}["Cost"] == "$160.00"
    assert app.query_params["price"] in ("3600.0", ["3600.0"])


def test_an_example_price_is_marked_until_it_is_changed(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run, price=2.5, example=True)
    app = visit(RUNS)
    assert "**example**" in texts(app)
    app.number_input(key="price").set_value(3.0).run()
    assert "**example**" not in texts(app)


def test_the_price_that_the_run_states_is_used(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    write_run(tmp_path / "runs" / "priced", price=3.0)
    opened(tmp_path / "runs")
    app = visit(OVERVIEW)
    assert {m.label: m.value for m in app.metric}["Cost"].startswith("$")


def test_an_empty_folder_says_how_to_record_a_run(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path
) -> None:
    opened(tmp_path)
    app = visit(RUNS)
    assert str(tmp_path) in texts(app)
    assert "badput.init" in app.code[0].value
    assert strings.NO_RUN in texts(visit(OVERVIEW))


def test_a_corrupt_run_is_a_row_with_a_sentence_and_the_others_stay(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    bad = killed_run / "bad" / "facts" / "processes"
    bad.mkdir(parents=True)
    (bad / "x.parquet").write_bytes(b"not parquet")
    opened(killed_run)
    app = visit(RUNS)
    assert strings.BROKEN in texts(app)
    assert len(app.get("page_link")) == 1
    page = visit(OVERVIEW, run="bad")
    assert len(page.error) == 1
    assert not page.metric


def test_a_cut_off_part_is_named_and_the_rest_is_shown(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    part = next((killed_run / "tiny" / "facts" / "steps").glob("*.parquet"))
    shutil.copy(part, part.with_name("z.parquet"))
    part.with_name("z.parquet").write_bytes(part.read_bytes()[:-20])
    opened(killed_run)
    app = visit(OVERVIEW, run="tiny")
    assert len(app.metric) == 6
    assert any("z.parquet" in block.value for block in app.code)


def test_a_run_without_permission_is_a_row_too(tmp_path: Path, killed_run: Path) -> None:
    (killed_run / "shut").mkdir(mode=0)
    for folder in (killed_run, *list(killed_run.parents)[:4]):
        if folder != killed_run.anchor and os.access(folder, os.W_OK):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from badput_app import state\n"
        # Load whatever is loaded late while the interpreter's own files can still be read.
        "state.list_runs((Path(sys.argv[1]),))\n"
        # Root may read everything, so it becomes somebody else first.
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "runs = state.list_runs((Path(sys.argv[1]),))\n"
        "print(sorted(r.path.name for r in runs))\n"
    )
    command = [sys.executable, "-c", code, str(killed_run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "['shut', 'tiny']", done.stderr


def test_without_a_run_in_the_address_the_page_asks_for_one(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name)
    opened(tmp_path / "runs")
    app = visit(OVERVIEW)
    assert strings.NO_RUN in texts(app)
    app.selectbox(key="run").select("b").run()
    assert not app.exception
    assert len(app.metric) == 6


def test_a_run_that_is_not_there_is_named_and_no_path_is_followed(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    write_run(tmp_path / "secret")
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name)
    opened(tmp_path / "runs")
    app = visit(OVERVIEW, run="../secret")
    assert "There is no run ../secret" in texts(app)
    assert not app.metric


def test_names_of_the_run_are_text_and_not_markup(
    visit: Callable[..., AppTest], opened: Callable[..., None], tmp_path: Path, write_run: Callable
) -> None:
    write_run(tmp_path / "runs" / "x", name="[click](http://evil.example) **b**")
    opened(tmp_path / "runs")
    app = visit(OVERVIEW)
    assert app.header[0].value == r"\[click\]\(http\://evil.example\) \*\*b\*\*"


def test_all_leaves_on_request_and_a_download(
    visit: Callable[..., AppTest], opened: Callable[..., None], killed_run: Path
) -> None:
    opened(killed_run)
    app = visit(OVERVIEW, run="tiny")
    few = app.dataframe[0].value
    assert "D.recomputed" in list(few["leaf"])
    assert "A.queue" not in list(few["leaf"])
    app.toggle(key="leaves").set_value(True).run()
    assert len(app.dataframe[0].value) == 37
    assert app.get("download_button")


def test_two_runs_of_one_name_get_two_keys(tmp_path: Path, write_run: Callable) -> None:
    for folder in ("one", "two"):
        write_run(tmp_path / folder / "runs" / "same")
    roots = (tmp_path / "one" / "runs", tmp_path / "two" / "runs")
    assert [r.key for r in state.list_runs(roots)] == ["same", "same~2"]
    assert [r.key for r in state.list_runs((roots[0] / "same",))] == ["same"]


def test_a_growing_run_gets_a_new_stamp(killed_run: Path) -> None:
    run = killed_run / "tiny"
    before = state.stamp(run)
    part = next((run / "facts" / "steps").glob("*.parquet"))
    shutil.copy(part, part.with_name("b.parquet"))
    assert state.stamp(run) != before
    assert state.stamp(run / "nowhere") == (0, 0)


@pytest.mark.parametrize(("run", "incidents"), [("killed", True), ("straggler", False)])
def test_the_sample_runs_open_with_the_example_price(
    visit: Callable[..., AppTest],
    opened: Callable[..., None],
    root: Path,
    run: str,
    incidents: bool,
) -> None:
    opened(root / "sample_logs", price=2.5, example=True)
    app = visit(OVERVIEW, run=run)
    tiles = {m.label: m.value for m in app.metric}
    assert (tiles["Lost steps"] != "0") is incidents
    assert tiles["Cost"].startswith("$")
    assert "**example**" in texts(app)
    assert len(app.get("plotly_chart")) == 2
