"""Statistical efficiency and the waterfall, with values worked out by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badput_ledger.books import open_books
from badput_ledger.isotonic import falling, reached
from badput_ledger.noise import efficiency, estimates
from badput_ledger.text import render

numbers = st.floats(-1e6, 1e6)


def test_neighbours_that_rise_are_pooled():
    """3, 5 rise: their mean 4 at the middle; 1, 2, 0 : 1.5, then 0."""
    blocks = falling([(0, 3), (1, 5), (2, 1), (3, 2), (4, 0)])
    assert [(b.x, b.y, b.weight) for b in blocks] == [(0.5, 4, 2), (2.5, 1.5, 2), (4, 0, 1)]
    assert reached(blocks, 4) == 0.5
    assert reached(blocks, 2.75) == 1.5
    assert reached(blocks, 4.1) is None
    assert reached(blocks, -0.1) is None


@given(st.lists(numbers, min_size=1, max_size=40))
def test_the_curve_falls_and_keeps_the_sum(ys):
    blocks = falling([(float(i), y) for i, y in enumerate(ys)])
    assert all(a.y > b.y for a, b in pairwise(blocks))
    assert sum(b.weight for b in blocks) == len(ys)
    assert math.isclose(sum(b.y * b.weight for b in blocks), sum(ys), rel_tol=1e-9, abs_tol=1e-3)


def line(make, per_token, *, steps=100, **config):
    """Steps of 100 tokens whose loss falls by ``per_token`` from 10; held for 1 s each."""
    pid = make.process(0)
    for step in range(1, steps + 1):
        loss = 10 - per_token * (100 * step - 50)
        make.step(pid, step, step - 1, 1, tokens=100, loss=loss)
    make.end(pid, steps)
    make.add("runs", process_id=pid, time_ns=1, source="t", config=json.dumps(config))
    return make.write()


def against(make, tmp_path, per_token=0.0005, reference=0.001, *, here=None, there=None, **more):
    other = type(make)(tmp_path / "reference")
    line(other, reference, **(there or {}))
    path = line(make, per_token, **(here or {}))
    with open_books(path, **more) as books, open_books(other.path) as ref:
        books.reference = ref
        return books.report()


def test_a_run_that_learns_half_as_much_from_a_token(make, tmp_path):
    """10 - x / 2000 here, 10 - x / 1000 there: any loss took the reference half the tokens."""
    report = against(make, tmp_path, price=3600)
    found = report["learning"]["reference"]
    assert found["efficiency"] == pytest.approx(0.5)
    assert (found["lo"], found["hi"]) == (pytest.approx(0.5), pytest.approx(0.5))
    # the last of 20 bins of 5 steps is at 9750 tokens: loss 5.125
    assert found["loss"] == pytest.approx(10 - 9750 / 2000)
    assert found["effective_tokens"] == pytest.approx(9750 / 2)
    assert report["learning"]["source"] == "reference"
    assert report["learning"]["effective_tokens"] == pytest.approx(5000)
    learning = report["waterfall"]["stages"][-1]
    assert learning["gpu_seconds"] == pytest.approx(50)
    assert learning["cost"] == pytest.approx(50)
    assert "learning  50.0% of the reference" in render(report)


def test_a_run_that_outruns_the_reference_is_judged_as_far_as_that_went(make, tmp_path):
    """Twice as fast: at the reference's last bin (9750 tokens there) 4875 tokens here."""
    found = against(make, tmp_path, per_token=0.002)["learning"]["reference"]
    assert found["efficiency"] == pytest.approx(2)
    assert found["tokens"] == pytest.approx(9750 / 2)
    assert "never reached" in found["note"]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (
            ({"tokenizer": "bytes"}, {"tokenizer": "bpe"}, 0.001),
            "tokens are not the same: tokenizer",
        ),
        (({"steps": 19}, {}, 0.001), "this run: only 19 kept steps have a loss"),
        (({}, {"steps": 19}, 0.001), "the reference: only 19 kept steps have a loss"),
        (({}, {}, -0.001), "the losses do not overlap"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_reason(make, tmp_path, runs, said):
    here, there, reference = runs
    report = against(make, tmp_path, 0.001, reference, here=here, there=there)
    assert report["learning"]["efficiency"] is None
    assert said in report["learning"]["reference"]["reason"]
    assert said in " ".join(render(report).split())


def test_without_a_loss_or_a_reference_learning_is_null(make):
    pid = make.process(0)
    make.steps(pid, 1, 30, 0, 1, tokens=1)
    make.end(pid, 30)
    with open_books(make.write()) as books:
        report = books.report()
    learning = report["learning"]
    assert learning["efficiency"] is learning["effective_tokens"] is None
    assert "no reference run was given" in learning["reason"]
    assert "no step has a gradient norm" in learning["reason"]
    assert report["waterfall"]["stages"][-1]["reason"] == learning["reason"]


def test_the_estimators_of_gradient_and_noise():
    """|G|^2 = 4 and S = 80: 4 + 80 / 10 = 12 for 10 samples, 4 + 80 / 40 = 6 for 40."""
    assert estimates(12, 10, 6, 40) == pytest.approx((4, 80))
    assert efficiency(20, 40, 20) == pytest.approx(2 / 3)


def noisy(make, *, steps=40, small=12.0, big=6.0, n_small=10, **config):
    """Two replicas of 20 samples: a batch of 40."""
    for rank in range(2):
        pid = make.process(0, rank=rank, world=2)
        make.steps(
            pid, 1, steps, 0, 1, rank=rank, tokens=7, samples=20, grad_norm=math.sqrt(big),
            grad_norm_small=math.sqrt(small), samples_small=n_small,
        )  # fmt: skip
        make.end(pid, steps, rank=rank)
    make.add("runs", process_id=pid, time_ns=1, source="t", config=json.dumps(config))
    with open_books(make.write()) as books:
        return books.report()


def test_pollux_efficiency_from_two_gradient_norms(make):
    """phi = 80 / 4 = 20; a batch of 40 against a first one of 20: (20 + 20) / (20 + 40)."""
    report = noisy(make, first_batch=20)
    learning = report["learning"]
    assert learning["noise_scale"] == pytest.approx(20)
    assert (learning["batch"], learning["first_batch"]) == (40, 20)
    assert learning["efficiency"] == pytest.approx(2 / 3)
    assert learning["source"] == "noise_scale"
    assert report["waterfall"]["stages"][-1]["share_of_previous"] == pytest.approx(2 / 3)


def test_without_a_first_batch_that_of_the_first_kept_step_counts(make):
    learning = noisy(make)["learning"]
    assert learning["efficiency"] == 1
    assert learning["gradient_noise"]["first_batch_source"] == "the run's first kept step"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"steps": 19}, "only 19 kept steps have both norms"),
        ({"n_small": 40}, "only 0 kept steps have both norms and a part smaller than the batch"),
        ({"small": 40.0, "big": 6.0}, "the noise hides the gradient"),
    ],
)
def test_a_noise_scale_that_cannot_be_told(make, more, said):
    learning = noisy(make, **more)["learning"]
    assert learning["noise_scale"] is None
    assert said in learning["reason"]


def test_the_waterfall_takes_each_group_off_once(make):
    """10 s start-up, 10 steps of 10 s with 4 s data stall, 10 s teardown, at 1 a second.

    120 allocated and running, 100 in the loop and kept, 60 computing.
    """
    pid = make.process(0)
    make.steps(pid, 1, 10, 10, 10, data_ns=4.0, pre_data_ns=0.0)
    make.end(pid, 120)
    with open_books(make.write(), price=3600) as books:
        report = books.report()
    stages = {s["stage"]: s for s in report["waterfall"]["stages"]}
    assert [s["gpu_seconds"] for s in stages.values()] == [120, 120, 100, 100, 60, None, None]
    assert [s["cost"] for s in stages.values()] == [120, 120, 100, 100, 60, None, None]
    assert stages["in_the_loop"]["share_of_previous"] == 100 / 120
    assert stages["computing"]["share_of_allocated"] == 0.5
    assert stages["in_the_loop"]["minus"] == {"B.teardown": 10, "C.model": 10}
    assert "the run does not say its FLOPs" in stages["at_peak"]["reason"]
    assert "G.bubble" in stages["computing"]["note"]
    text = " ".join(render(report).split())
    assert "in the loop 100 83.3% 83.3% $100.00" in text
    assert "at peak is not known: the run does not say its FLOPs" in text


def test_time_at_the_peak_from_flops(make):
    """1e12 FLOPs a token x 600 tokens at 10 TFLOP/s are 60 s of 100 s; all of it kept."""
    pid = make.process(0)
    make.steps(pid, 1, 10, 0, 10, tokens=60, data_ns=4.0)
    make.end(pid, 100)
    make.add(
        "runs", process_id=pid, time_ns=1, source="t", flops_formula="per_token",
        flops_inputs=json.dumps({"flops_per_token": 1e12}), config=json.dumps({"peak_tflops": 10}),
    )  # fmt: skip
    with open_books(make.write()) as books:
        report = books.report()
    assert report["at_peak"]["value"] == 0.6
    assert report["at_peak"]["formula"] == "per_token"
    stage = report["waterfall"]["stages"][5]
    # computing is 60 s: exactly at the peak
    assert (stage["gpu_seconds"], stage["share_of_previous"]) == (60, 1)
