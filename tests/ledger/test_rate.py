"""Compute below the peak rate, divided by FLOPs: every number worked out by hand.

One A100, 312 TFLOP/s: 20 steps of 10 s at 1,000 tokens. At 0.78 TFLOP a token the kept tokens
take 20,000 x 0.78 / 312 = 50 s at the peak, of 200 s.
"""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.compare import compare, side_of
from badput_ledger.fsck import check
from badput_ledger.gate import GATES, Bound, judge
from badput_ledger.price import Rate

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
A100 = "NVIDIA A100-SXM4-40GB"
T0 = 1_800_000_000 * S


def run(make: Any, per_token: float = 0.78e12, gpu: str = A100, **more: Any) -> int:
    """The process of the run above; ``more`` are inputs of the formula."""
    pid = make.process(0, init=0, gpu_type=gpu)
    flops(make, pid, flops_per_token=per_token, **more)
    return pid


def flops(make: Any, pid: int, **inputs: Any) -> None:
    make.add("runs", process_id=pid, time_ns=1, source="probe", flops_formula="per_token",
             flops_inputs=json.dumps(inputs))  # fmt: skip


def seconds(report: dict[str, Any]) -> dict[str, float]:
    return {k: v["gpu_seconds"] for k, v in report["leaves"].items() if v["gpu_seconds"]}


def bounds(report: dict[str, Any], leaf: str) -> tuple[float, float]:
    row = report["leaves"][leaf]
    return row["lo"], row["hi"]


def test_full_recomputation_takes_a_quarter_of_the_compute(make: Any) -> None:
    pid = run(make, recompute="full")
    make.end(pid, make.steps(pid, 1, 20, 0, 10, tokens=1000))
    with open_books(make.write(), price=3600) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    assert seconds(report) == {"G.recompute": 50, "G.kernel": 100, "H.productive": 50}
    # At the peak the recomputed third takes 50 / 3 s; at most it is all that is not useful.
    assert bounds(report, "G.recompute") == (pytest.approx(50 / 3), 150)
    assert bounds(report, "G.kernel") == (0, pytest.approx(150 - 50 / 3))
    assert bounds(report, "H.productive") == (50, 50)
    assert report["at_peak"]["value"] == 0.25
    for figure in ("kept_time", "goodput"):
        assert [report[figure][k] for k in ("value", "lo", "hi")] == [1, 1, 1]
    assert report["goodput"]["measured"][-2:] == ["G.recompute", "G.kernel"]
    assert report["definitions"]["HFU"]["value"] == pytest.approx(1 / 3)
    # Slow compute is no waste of the kind that the verdict is about.
    assert report["cost"]["wasted"] == 0
    assert report["verdict"]["why"] == "Nothing was lost."
    bridge = report["definitions"]["MFU"]["bridge"]
    assert sum(Fraction(row["exact"]) for row in bridge) == Fraction(-3, 4)


def test_without_recomputation_all_of_it_is_inefficiency(make: Any) -> None:
    pid = run(make, recompute="none")
    make.end(pid, make.steps(pid, 1, 20, 0, 10, tokens=1000))
    with open_books(make.write()) as books:
        report = books.report()
    assert report["leaves"]["G.recompute"]["gpu_seconds"] == 0
    assert seconds(report) == {"G.kernel": 150, "H.productive": 50}
    assert bounds(report, "G.kernel") == (150, 150)


def test_where_nothing_says_of_recomputation_it_may_be_in_the_inefficiency(make: Any) -> None:
    pid = run(make)
    make.end(pid, make.steps(pid, 1, 20, 0, 10, tokens=1000))
    with open_books(make.write()) as books:
        report = books.report()
    assert report["leaves"]["G.recompute"]["gpu_seconds"] is None
    assert "recompute" in report["leaves"]["G.recompute"]["reason"]
    assert seconds(report) == {"G.kernel": 150, "H.productive": 50}
    assert bounds(report, "G.kernel") == (0, 150)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"per_token": 4e12}, "take longer at the peak"),
        ({"gpu": "Some NPU"}, "no dense bf16 peak"),
    ],
)
def test_more_than_the_peak_and_no_peak_leave_both_unknown(
    make: Any, more: dict[str, Any], why: str
) -> None:
    pid = run(make, **more)
    make.end(pid, make.steps(pid, 1, 20, 0, 10, tokens=1000))
    with open_books(make.write()) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    assert seconds(report) == {"H.productive": 200}
    for leaf in ("G.recompute", "G.kernel"):
        assert why in report["leaves"][leaf]["reason"]


def test_recomputation_above_the_peak_is_unknown_alone(make: Any) -> None:
    """160 of 200 s at the peak: with a third more work 213."""
    pid = run(make, per_token=2.496e12, recompute="full")
    make.end(pid, make.steps(pid, 1, 20, 0, 10, tokens=1000))
    with open_books(make.write()) as books:
        report = books.report()
    assert "recompute, FLOPs or peak" in report["leaves"]["G.recompute"]["reason"]
    assert seconds(report) == {"G.kernel": 40, "H.productive": 160}
    assert report["definitions"]["HFU"]["error"]


def test_padding_is_no_work_and_neither_are_lost_steps(make: Any) -> None:
    """Half of the tokens is padding; 5 steps are lost: 15 kept steps, 75 s, 7,500 tokens."""
    pid = run(make, recompute="none")
    make.steps(pid, 1, 15, 0, 10, tokens=1000, padding=500)
    make.checkpoint(pid, "save", 10, 150, 0, path="/c/10")
    make.end(pid, 150, reason="killed", signal=9)
    other = make.process(150, init=150, gpu_type=A100)
    make.checkpoint(other, "load", 10, 150, 0, path="/c/10")
    make.end(other, make.steps(other, 11, 15, 150, 10, tokens=1000, padding=500))
    with open_books(make.write()) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
        kept = books.rows("FROM token_counts WHERE fate = 'kept'")
    assert sum(r["tokens"] - r["padding"] for r in kept) == report["tokens"]["kept"] == 7500
    expected = {"D.recomputed": 50, "F.padding": 75, "G.kernel": 56.25, "H.productive": 18.75}
    assert seconds(report) == expected
    assert report["definitions"]["MFU"]["value"] == 18.75 / 150
    tokens = {i["name"]: i["value"] for i in report["definitions"]["MFU"]["inputs"]}
    assert tokens["kept tokens"] == 7500


def test_each_session_has_its_own_rate(make: Any) -> None:
    """The second is twice as fast: 20 steps of 10 s, then 20 of 5 s; 50 s each at the peak."""
    first = run(make, recompute="none")
    make.steps(first, 1, 20, 0, 10, tokens=1000)
    make.checkpoint(first, "save", 20, 200, 0, path="/c/20")
    make.end(first, 200, reason="killed", signal=9)
    other = make.process(200, init=200, gpu_type=A100)
    make.checkpoint(other, "load", 20, 200, 0, path="/c/20")
    make.end(other, make.steps(other, 21, 40, 200, 5, tokens=1000))
    with open_books(make.write()) as books:
        rows = books.rows("FROM session_leaves WHERE ns <> 0")
    assert {(r["session"], r["leaf"]): r["ns"] / S for r in rows} == {
        ("s1", "G.kernel"): 150, ("s1", "H.productive"): 50,
        ("s2", "G.kernel"): 50, ("s2", "H.productive"): 50,
    }  # fmt: skip


def test_ranks_share_what_the_replica_did_and_its_price_is_cut_with_the_time(make: Any) -> None:
    """Two ranks of one replica: 400 s of compute, 50 at the peak; the price doubles at 100 s."""
    for rank in (0, 1):
        pid = make.process(0, init=0, rank=rank, world=2, replica=0, gpu_type=A100,
                           gpu_uuid=f"GPU-{rank}")  # fmt: skip
        make.end(pid, make.steps(pid, 1, 20, 0, 10, rank=rank, tokens=1000), rank=rank)
        flops(make, pid, flops_per_token=0.78e12, recompute="full")

    class Two:
        source, currency = "test", "USD"

        def changes(self) -> list[int]:
            return [T0 + 100 * S]

        def rate(self, gpu_type: str | None, at_ns: int) -> Rate:
            assert gpu_type == A100
            return Rate(Decimal(7200 if at_ns >= T0 + 100 * S else 3600), "test")

    with open_books(make.write()) as books:
        books.price = Two()  # type: ignore[assignment]
        report = books.report()
        ranks = books.rows("FROM rank_leaves WHERE leaf = 'H.productive' ORDER BY rank")
    assert [r["ns"] for r in ranks] == [25 * S, 25 * S]
    assert seconds(report) == {"G.recompute": 100, "G.kernel": 250, "H.productive": 50}
    costs = {k: v["cost"] for k, v in report["leaves"].items() if v["gpu_seconds"]}
    assert costs == {"G.recompute": 150, "G.kernel": 375, "H.productive": 75}


def test_steps_at_risk_may_take_their_compute_with_them(make: Any) -> None:
    """12 kept steps, saved at 10, still going: 2 steps of 10 s may be lost, 5 s of them at peak."""
    pid = run(make, recompute="none")
    make.steps(pid, 1, 10, 0, 10, tokens=1000)
    make.checkpoint(pid, "save", 10, 100, 0, path="/c/10")
    make.steps(pid, 11, 12, 100, 10, tokens=1000)
    with open_books(make.write()) as books:
        report = books.report()
    assert seconds(report) == {"G.kernel": 90, "H.productive": 30}
    assert report["kept_time"]["lo"] == pytest.approx(100 / 120)
    assert report["goodput"]["lo"] == pytest.approx(100 / 120)
    for leaf, least in (("H.productive", 25), ("G.kernel", 75)):
        low, high = bounds(report, leaf)
        assert low <= least <= report["leaves"][leaf]["gpu_seconds"] <= high


def test_compare_and_gate_take_the_rate_for_what_it_is(make: Any, tmp_path: Path) -> None:
    """Goodput holds slow compute either way: with FLOPs or without, it is compared."""
    found = []
    for name, given in (("a", True), ("b", True), ("c", False)):
        make = type(make)(tmp_path / name)
        pid = make.process(0, init=0, gpu_type=A100)
        if given:
            flops(make, pid, flops_per_token=0.78e12, recompute="none")
        make.end(pid, make.steps(pid, 1, 20, 0, 10 if name == "a" else 8, tokens=1000))
        with open_books(make.write()) as books:
            found.append(side_of(name.upper(), books))
    both = compare(found[0], found[1])
    assert both["at_peak"]["a"]["value"] == 0.25
    assert both["at_peak"]["diff"] == pytest.approx(50 / 160 - 0.25)
    assert {r["leaf"]: r["with"] for r in both["rows"]} == {"G.kernel": [], "H.productive": []}
    one = compare(found[0], found[2])
    assert one["at_peak"] is None
    assert [r["what"] for r in one["refused"]] == ["cost", "at_peak"]
    assert one["goodput"]["diff"] == 0
    (row,) = one["rows"]
    assert row["with"] == ["G.recompute", "G.kernel"]
    goodput = next(g for g in GATES if g.name == "goodput")
    for measured, ok in ((set[str](), True), ({"G.kernel"}, True), ({"G.data"}, False)):
        said = judge(found[0].report, [Bound(goodput, 0.9)], measured=measured)
        assert said["ok"] is ok
