"""badput gate: exit codes, sentences, bounds, and figures that are not known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger.commands.gate import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(make: Any) -> Path:
    """10 s of start-up, 90 kept steps of a second: 90 % kept time, nothing lost."""
    pid = make.process(0, init=4, job_id="j")
    make.steps(pid, 1, 90, 10, 1.0, tokens=1000, data_ns=0.1)
    make.end(pid, 100)
    return make.write()


@pytest.fixture
def risky(make: Any) -> Path:
    """The same, but its end is not known and the steps after 60 are at risk: 0.6 to 0.9."""
    pid = make.process(0, init=4, job_id="j")
    make.checkpoint(pid, "save", 60, 9, path="/c")
    make.steps(pid, 1, 90, 10, 1.0, tokens=1000)
    return make.write()


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_run_within_its_bounds_passes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--min-kept-time", "0.9", "--max-lost", "0", "--max-unaccounted", "0.5%"]
    given += ["--max-incidents", "0", "--max-lost-steps", "0", "--max-leaf", "C.launch=4%"]
    assert main([str(run), *given]) == 0
    lines = told(capsys)
    assert len(lines) == 6
    assert all(line.startswith("ok  ") for line in lines)


def test_a_bound_that_does_not_hold_is_1_with_its_sentence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--min-kept-time", "0.95", "--max-lost", "0.5"]) == 1
    assert told(capsys) == [
        "FAIL kept time is 90.00%, and at least 95.00% is asked for: it fails for certain.",
        "ok   lost work (D) as a share of the time is 0.00%, and at most 50.00% is asked for.",
    ]


def test_rounding_never_hides_on_which_side_of_a_bound_a_figure_lies(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--min-kept-time", "0.90000001"]) == 1
    assert "is 90.000000%, and at least 90.000001% is asked" in told(capsys)[0]


def test_within_the_bounds_is_told_from_certain(
    risky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(risky), "--min-kept-time", "0.8", "--json"]) == 0
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["ok"] is True
    assert check["certain"] is False
    assert check["lo"] == pytest.approx(0.6)
    assert check["hi"] == pytest.approx(0.9)
    assert check["sentence"].endswith("on either side of it: it may fail.")
    assert main([str(risky), "--min-kept-time", "0.8", "--certain"]) == 1
    assert told(capsys)[0].startswith("FAIL kept time is 90.00%")
    assert main([str(risky), "--max-lost", "0.1"]) == 0
    assert "bounds are 0.00% to 30.00%, on either side of it: it may fail" in told(capsys)[0]
    assert main([str(risky), "--min-kept-time", "0.95"]) == 1
    assert told(capsys)[0].endswith("on one side of it: it fails for certain.")


def test_the_dearest_token_counts_the_steps_that_may_be_lost(
    risky: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 100 s at a cent for 90,000 tokens; 60,000 if the rest is lost
    assert main([str(risky), "--price", "36", "--max-cost-per-mtok", "12", "--json"]) == 0
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["value"] == pytest.approx(1.0 / 0.09)
    assert check["hi"] == pytest.approx(1.0 / 0.06)
    assert check["certain"] is False


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--max-cost-per-mtok", "no price is known; give --price"),
        ("--max-cost", "no price is known; give --price"),
        ("--min-at-peak", "the run does not say its FLOPs"),
    ],
)
def test_a_figure_that_is_not_known_never_passes(
    run: Path, capsys: pytest.CaptureFixture[str], option: str, why: str
) -> None:
    assert main([str(run), option, "0" if "min" in option else "1000000"]) == 1
    (line,) = told(capsys)
    assert line.startswith("FAIL ")
    assert why in line


def test_a_leaf_that_nothing_measured_never_passes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--max-leaf", "G.bubble=100%"]) == 1
    assert "waits for activations and gradients were not recorded" in told(capsys)[0]
    assert main([str(run), "--max-leaf", "G.data=10%"]) == 0


def test_goodput_is_refused_where_it_is_not_measured_as_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--min-goodput", "0.5", "--measured", "G.data"]) == 0
    capsys.readouterr()
    assert main([str(run), "--min-goodput", "0.5", "--measured", "data,bubble"]) == 1
    assert "its measured set is not as told: G.bubble was not measured" in told(capsys)[0]
    assert main([str(run), "--min-goodput", "0.5", "--measured", "none"]) == 1
    assert "G.data was measured too" in told(capsys)[0]
    assert main([str(run), "--min-goodput", "0.5"]) == 0
    assert told(capsys)[1].endswith("--measured G.data)")


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--min-kept-time", "90"],
        ["--min-kept-time", "x"],
        ["--min-kept-time", "nan"],
        ["--max-lost", "-1"],
        ["--max-leaf", "G.data"],
        ["--max-leaf", "G.nonsense=1%"],
        ["--min-goodput", "0.1", "--measured", "H.productive"],
    ],
)
def test_bad_usage_is_2_and_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    assert main([str(run), *given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("badput gate: ")
    assert said.err.count("\n") == 1


def test_a_run_that_cannot_be_read_is_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none"), "--max-lost", "1"]) == 2
    (run / "facts" / "steps" / "bad.parquet").write_bytes(b"PAR1")
    assert main([str(run), "--max-lost", "1"]) == 2
    assert "bad.parquet" in capsys.readouterr().err


def test_an_empty_run_fails_with_the_reason(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make.process(0)
    assert main([str(make.write()), "--min-kept-time", "0", "--max-lost", "1"]) == 1
    assert all("no time is booked" in line for line in told(capsys))
