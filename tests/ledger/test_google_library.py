"""ml-goodput-measurement, its own code, on timelines that both tools understand.

Where it is right it says what badput's definition of the same name says; where it is wrong the
difference is made of named leaves. Its cloud client alone is a stub
(benchmarks/conformance/google_child.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.definitions import results, summarize

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # benchmarks/ is no package of the distribution
    sys.path.insert(0, str(ROOT))

from benchmarks.conformance import facts, google_ml_goodput  # noqa: E402
from benchmarks.conformance.timeline import SCENARIOS, S, Timeline, read  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.conformance.tools import Score

CLEAN = """
title = "ends with its last step"
[[session]]
start = 0
acts = [
  { do = "launch", s = 7 }, { do = "rendezvous", s = 5 }, { do = "model", s = 30 },
  { do = "data_init", s = 11 }, { do = "steps", first = 1, last = 1, s = 40 },
  { do = "steps", first = 2, last = 60, s = 10 }, { do = "end", how = "completed" },
]
[truth]
"""
ROLLBACK = """
title = "one rollback of steps that come again"
[[session]]
start = 0
acts = [
  { do = "launch", s = 7 }, { do = "model", s = 30 },
  { do = "steps", first = 1, last = 1, s = 25 }, { do = "steps", first = 2, last = 40, s = 10 },
  { do = "end", s = 4, how = "killed", signal = 9, phase = "step", phase_since = 452, step = 41 },
]
[[session]]
start = 700
acts = [
  { do = "launch", s = 7 }, { do = "load", s = 30, step = 20 },
  { do = "steps", first = 21, last = 21, s = 25 }, { do = "steps", first = 22, last = 60, s = 10 },
  { do = "end", how = "completed" },
]
[truth]
"""
EVALUATION = """
title = "evaluations between steps"
[[session]]
start = 0
acts = [
  { do = "launch", s = 7 }, { do = "model", s = 30 },
  { do = "steps", first = 1, last = 20, s = 10 }, { do = "eval", s = 55 },
  { do = "steps", first = 21, last = 40, s = 10 }, { do = "eval", s = 44 },
  { do = "steps", first = 41, last = 60, s = 10 }, { do = "end", how = "completed" },
]
[truth]
"""
RIGHT = {"clean": CLEAN, "rollback": ROLLBACK, "evaluation": EVALUATION}

WRONG: dict[str, tuple[float, dict[str, float]]] = {
    # what it says in percent, and the leaves that it counts as productive (a minus: kept time
    # that it does not count), in seconds
    "01_clean": (91.82, {"B.teardown": 10}),
    "02_restart_at_checkpoint": (
        98.75,
        {
            "A.requeue": 3600,  # no step number repeats, so it sees no restart
            "C.launch": 5,
            "C.rendezvous": 5,
            "C.model": 30,
            "C.load": 20,
            "C.warmup": 60,  # of both starts: the hour makes its usual step longer than the first
            "B.teardown": 10,
        },
    ),
    # 21..40 of the first life stay productive when the third life takes them back; step 40 of
    # the third is dropped where the second life's step 41 is found behind it
    "03_deeper_rollback": (50.21, {"D.recomputed": 200, "H.productive": -10, "B.teardown": 10}),
    # the stalls make its usual step longer, and the first step's excess smaller
    "04_data_stalls": (93.79, {"C.warmup": 300 / 98, "B.teardown": 10}),
    "06_crash_loop": (25.96, {"B.teardown": 10}),
    "07_hang": (11.49, {"B.teardown": 10}),
}
"""By the scenario's name; the arithmetic of each timeline is in its file."""


@pytest.fixture(scope="module")
def google(
    absent: Callable[[str, str], Any],
) -> Iterator[google_ml_goodput.GoogleMlGoodput]:
    try:
        tool = google_ml_goodput.GoogleMlGoodput()
    except ImportError as error:
        absent("ml-goodput-measurement", str(error))
    yield tool
    tool.close()


def both(tool: Any, timeline: Timeline, folder: Path) -> tuple[Score, Any, dict[str, int]]:
    """The library's answer, badput's definition of its name, and the leaves."""
    (folder / "theirs").mkdir()
    score = tool.score(timeline, folder / "theirs")
    with open_books(facts.write(timeline, folder / "run")) as books:
        summary = summarize(books)
    ours = next(r for r in results(summary) if r.name == "ml-goodput-measurement")
    return score, ours, summary.leaves


@pytest.mark.parametrize("name", RIGHT)
def test_it_agrees_where_it_is_right(google: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text(RIGHT[name])
    score, ours, _ = both(google, read(path), tmp_path)
    assert score.why_not is None
    assert score.goodput == pytest.approx(float(ours.value), abs=1e-6)


@pytest.mark.parametrize("name", WRONG)
def test_it_differs_by_these_leaves_where_it_is_wrong(
    google: Any, name: str, tmp_path: Path
) -> None:
    says, leaves = WRONG[name]
    timeline = read(SCENARIOS / f"{name}.toml")
    score, ours, booked = both(google, timeline, tmp_path)
    assert score.goodput is not None
    assert 100 * score.goodput == pytest.approx(says, abs=0.006)
    total = google_ml_goodput.timeline_ns(timeline) / S
    difference = score.goodput * total - float(ours.bridge.good) / S
    assert difference == pytest.approx(sum(leaves.values()), abs=0.01)
    for leaf, seconds in leaves.items():
        assert abs(seconds) <= booked[leaf] / S, f"{leaf} has no {seconds} s"


def test_a_straggler_is_productive_there(google: Any, tmp_path: Path) -> None:
    """By design: it reports step deviation apart."""
    score, _, _ = both(google, read(SCENARIOS / "05_straggler.toml"), tmp_path)
    assert score.goodput is not None
    assert 100 * score.goodput == pytest.approx(94.69, abs=0.006)


def test_its_buckets_may_hold_more_than_the_time(google: Any, tmp_path: Path) -> None:
    score, _, _ = both(google, read(SCENARIOS / "06_crash_loop.toml"), tmp_path)
    assert score.goodput is not None
    total = google_ml_goodput.timeline_ns(read(SCENARIOS / "06_crash_loop.toml")) / S
    assert score.goodput + sum(score.buckets.values()) / total > 1.005


def test_a_hang_has_no_name_there(google: Any, tmp_path: Path) -> None:
    score, _, booked = both(google, read(SCENARIOS / "07_hang.toml"), tmp_path)
    assert score.buckets["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] > 7200
    assert booked["B.hang"] == 7190 * S


def test_an_exception_of_the_library_is_its_answer(google: Any, tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    path.write_text(
        'title = "no start"\n[[session]]\nstart = 0\nacts = [{do = "end", s = 0}]\n[truth]'
    )
    timeline = read(path)
    score = google.score(timeline, tmp_path)
    assert score.goodput is None
    assert "Total job time is zero" in (score.why_not or "")


def test_without_the_package_the_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BADPUT_PEERS", str(tmp_path))
    with pytest.raises(ImportError, match="make benchmarks-peers"):
        google_ml_goodput.GoogleMlGoodput()
