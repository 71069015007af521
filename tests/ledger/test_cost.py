"""What held time cost, with every value worked out by hand."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from badput.parts import write_rows
from badput_ledger.books import BooksError, open_books
from badput_ledger.cost import HOUR_NS
from badput_ledger.cost_split import apportion
from badput_ledger.price import Rate
from badput_ledger.price_options import Tariff

# The timelines that the books' own properties are tested on.
_spec = importlib.util.spec_from_file_location(
    "made_up_runs", Path(__file__).with_name("test_books_properties.py")
)
assert _spec is not None
assert _spec.loader is not None
_made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_made_up)
NO_SHRINK, runs = _made_up.NO_SHRINK, _made_up.runs

TWO_PRICES = """
[[price]]
gpu = "*"
purchase = "reserved"
per_gpu_hour = 3600
to = 2027-01-15T08:00:25Z
[[price]]
gpu = "*"
purchase = "reserved"
per_gpu_hour = 7200
from = 2027-01-15T08:00:25Z
"""
"""One unit of money a second until 25 s after T0, then two."""


def books_of(make, text, **more):
    path = make.path.parent / "prices.toml"
    path.write_text(text)
    return open_books(make.write(), tariff=Tariff(path, **more))


def test_a_change_of_price_cuts_the_step_that_it_falls_into(make):
    """Five steps of 10 s, 4 s of each a data stall; 25 s at 1 and 25 s at 2 are 75.

    Data: 2 x 4 s at 1; of the third step 2 s at 1 and 2 s at 2; 2 x 4 s at 2: 8 + 6 + 16 = 30.
    """
    pid = make.process(0, gpu_type="NVIDIA A100")
    make.steps(pid, 1, 5, 0, 10, data_ns=4.0, tokens=100)
    make.end(pid, 50)
    with books_of(make, TWO_PRICES) as books:
        report = books.report()
        assert books.costs.total() == 75
        assert books.costs.leaf("G.data") == 30
        assert books.costs.leaf("H.productive") == 45
    cost = report["cost"]
    assert (cost["total"], cost["wasted"], cost["per_kept_token"]) == (75, 30, 0.15)
    assert cost["price_per_gpu_hour"] is None
    assert [(r["per_gpu_hour"], r["held_gpu_seconds"], r["cost"]) for r in cost["rates"]] == [
        (3600, 25, 25),
        (7200, 25, 50),
    ]


def test_spans_gaps_and_the_wait_before_a_step_are_cut_too(make):
    """Start-up 0-20, a wait 20-30 for the first step 30-40; the change at 25.

    C.model 20 at 1; C.data 5 at 1 and 5 at 2; the step 10 at 2.
    """
    pid = make.process(0)
    make.step(pid, 1, 30, 10, pre_data_ns=10.0)
    make.end(pid, 40)
    with books_of(make, TWO_PRICES) as books:
        assert books.costs.leaf("C.model") == 20
        assert books.costs.leaf("C.data") == 15
        assert books.costs.leaf("H.productive") == 20
        assert books.costs.total() == 55


def test_a_gap_between_two_steps_is_cut_where_the_price_changes(make):
    """Steps 0-20 and 30-40. The second one is 20 s with the loop before it, 5 of them at 1.

    A quarter of each of its leaves is at 1: of 10 s loop and 10 s step 2.5 at 1 and 7.5 at 2.
    """
    pid = make.process(0)
    make.step(pid, 1, 0, 20, pre_data_ns=0.0)
    make.step(pid, 2, 30, 10, pre_data_ns=0.0)
    make.end(pid, 40)
    with books_of(make, TWO_PRICES) as books:
        assert books.costs.leaf("G.host") == 17.5
        assert books.costs.leaf("H.productive") == 20 + 17.5


def test_held_time_only(make):
    """10 s to a session, 30 s of unknown hold, 10 s: at 1 until 25 s and at 2 after it."""
    for begin in (0, 40):
        pid = make.process(begin)
        make.steps(pid, 1 + begin // 40, 1 + begin // 40, begin, 10)
        make.end(pid, begin + 10)
    with books_of(make, TWO_PRICES) as books:
        assert books.costs.total() == 10 + 15 + 2 * 15 + 20
    with open_books(make.path, gaps="released", tariff=books.tariff) as books:
        assert books.costs.total() == 10 + 20
        assert books.costs.leaf("A.requeue") == 0


PER_TYPE = """
currency = "EUR"
[[price]]
gpu = "NVIDIA H100*"
purchase = "spot"
per_gpu_hour = 7200
[[price]]
gpu = "NVIDIA A100*"
purchase = "spot"
per_gpu_hour = 3600
"""


def mixed(make, second="NVIDIA H100 80GB HBM3"):
    for rank, kind in enumerate(("NVIDIA A100-SXM4-40GB", second)):
        pid = make.process(0, rank=rank, world=2, gpu_type=kind)
        make.steps(pid, 1, 4, 0, 10, rank=rank, tokens=100)
        make.end(pid, 40, rank=rank)


def test_each_place_has_the_price_of_its_own_gpu(make):
    mixed(make)
    with books_of(make, PER_TYPE) as books:
        cost = books.report()["cost"]
    assert (cost["total"], cost["currency"]) == (40 + 80, "EUR")
    assert {r["gpu_type"]: r["cost"] for r in cost["rates"]} == {
        "NVIDIA A100-SXM4-40GB": 40,
        "NVIDIA H100 80GB HBM3": 80,
    }


def test_a_missing_price_is_null_with_its_reason_and_never_zero(make):
    mixed(make, "NVIDIA B200")
    with books_of(make, PER_TYPE) as books:
        report = books.report()
    cost = report["cost"]
    assert cost["total"] is cost["wasted"] is cost["per_kept_token"] is None
    assert report["leaves"]["H.productive"]["cost"] is None
    assert report["leaves"]["E.save"]["cost"] is None
    assert cost["known"] == 40
    assert cost["unpriced_gpu_seconds"] == 40
    assert "no price for NVIDIA B200" in cost["reason"]
    assert any("no price for NVIDIA B200" in n["what"] for n in report["quality"])


def test_what_each_session_and_incident_cost(make):
    """Session 1 dies at 30 after 20 s of steps; session 2 begins at 40 and runs to 60."""
    one = make.process(0, job_id="a")
    make.steps(one, 1, 2, 0, 10)
    make.end(one, 30, reason="killed", signal=9)
    two = make.process(40, job_id="a")
    make.steps(two, 1, 2, 40, 10)
    make.end(two, 60)
    with books_of(make, TWO_PRICES) as books:
        report = books.report()
    cost = {s["id"]: s["cost"] for s in report["cost"]["sessions"]}
    # s1: 25 at 1, 5 at 2; s2 with the gap before it: 30 at 2
    assert cost == {"s1": 35, "s2": 60}
    (incident,) = report["incidents"]
    # both steps lost (20), 5 at 1 and 5 at 2 to the end, 10 s of gap at 2
    assert incident["cost"] == 20 + 5 + 10 + 20
    assert sum(s["cost"] for s in report["cost"]["sessions"]) == report["cost"]["total"]


def test_a_single_price_needs_no_table_and_overrides_the_environments(make, monkeypatch):
    pid = make.process(0)
    make.steps(pid, 1, 2, 0, 10)
    make.end(pid, 20)
    path = make.path.parent / "prices.toml"
    path.write_text(PER_TYPE)
    monkeypatch.setenv("BADPUT_PRICES", str(path))
    with open_books(make.write(), price=3600) as books:
        assert books.costs.total() == 20
    with open_books(make.path) as books:
        assert books.report()["cost"]["source"] == str(path)
    with pytest.raises(BooksError, match="either --price or --prices"):
        open_books(make.path, price=1, tariff=Tariff(path))


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.lists(st.integers(0, 1000), max_size=3),
)
def test_apportioning_keeps_every_part_and_every_period(parts, marks):
    total = sum(parts)
    edges = [0, *sorted(min(m, total) for m in marks), total]
    periods = [b - a for a, b in pairwise(edges)]
    named = {str(i): ns for i, ns in enumerate(parts)}
    shares = apportion(named, periods)
    assert [sum(s.values()) for s in shares] == periods
    assert {k: sum(s[k] for s in shares) for k in named} == named
    assert all(ns >= 0 for s in shares for ns in s.values())


class StepPrice:
    """One unit of money a nanosecond, then two, three, ..."""

    currency = source = "test"

    def __init__(self, changes: list[int]) -> None:
        self._changes = changes

    def changes(self) -> list[int]:
        return self._changes

    def rate(self, gpu_type: str | None, at_ns: int) -> Rate:
        del gpu_type
        return Rate(Decimal((bisect_right(self._changes, at_ns) + 1) * HOUR_NS), "test")


@settings(max_examples=25, phases=NO_SHRINK, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs(), st.lists(st.integers(1_001, 1_300), min_size=1, max_size=3, unique=True))
def test_whatever_happened_the_leaves_cost_what_the_total_does(rows, changes):
    """Prices 1, 2, 3, ... a nanosecond, changing at instants anywhere in the run."""
    edges = [None, *sorted(changes), None]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for table, made in rows.items():
            write_rows(path / "run", table, "part", made)
        with open_books(path / "run") as books:
            books.price = StepPrice(sorted(changes))
            costs = books.costs
            report = books.report()
            given_ = books.rows("SELECT start_ns, end_ns FROM allocations WHERE billed")
            booked = {r["leaf"]: int(r["billed_ns"]) for r in books.rows("FROM leaves")}
        spent = dict.fromkeys(booked, 0)
        for charge in costs.charges:
            spent[charge.held.leaf] += charge.held.ns
            assert charge.held.ns > 0
        assert spent == booked
        expected = sum(
            (index + 1) * max(0, min(stop, b or 1 << 62) - max(start, a or 0))
            for index, (a, b) in enumerate(pairwise(edges))
            for start, stop in ((g["start_ns"], g["end_ns"]) for g in given_)
        )
        total = costs.total()
        assert total == Fraction(expected)
        leaves = [costs.leaf(leaf) for leaf in report["leaves"]]
        assert sum(c for c in leaves if c is not None) == total
        json.dumps(report["cost"], allow_nan=False)
