"""badput against its own conformance suite, and the suite against itself."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # benchmarks/ is no package of the distribution
    sys.path.insert(0, str(ROOT))

from benchmarks.conformance.check import differences  # noqa: E402
from benchmarks.conformance.timeline import ScenarioError, Timeline, read, scenarios  # noqa: E402

FILES = scenarios()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_books_are_the_truth_to_the_nanosecond(path: Path) -> None:
    assert differences(read(path)) == []


def test_a_wrong_truth_is_told(tmp_path: Path) -> None:
    text = FILES[0].read_text().replace('"H.productive" = 1000', '"H.productive" = 999')
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    found = differences(read(path))
    assert "H.productive is 1000 s, and the truth 999 s" in found
    assert any("the truth itself" in what for what in found)


def test_every_scenario_explains_its_arithmetic() -> None:
    assert len(FILES) >= 30
    for path in FILES:
        comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert any("=" in line or "total" in line for line in comments), path.name
        truth: Timeline = read(path)
        assert sum(truth.truth_ns.values()) == int(Decimal(truth.truth["total"]) * 10**9), path


def test_a_scenario_with_an_unknown_word_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(FILES[0].read_text().replace("tokens = 1000", "tokns = 1000", 1))
    with pytest.raises(ScenarioError, match="steps 1 to 1: tokns is unknown"):
        read(path)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_table_says_who_differs(tmp_path: Path, wrong: bool) -> None:
    text = FILES[0].read_text()
    path = tmp_path / "one.toml"
    path.write_text(text.replace('goodput = "1000/1100"', 'goodput = "1/2"') if wrong else text)
    command = [sys.executable, "-m", "benchmarks.conformance", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == int(wrong), done.stderr
    row = json.loads(done.stdout)["scenarios"][0]
    assert row["tools"]["badput"]["goodput"] == pytest.approx(10 / 11)
    assert bool(row["differences"]) == wrong
