"""Energy by leaf, worked out by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from badput_ledger.books import open_books
from badput_ledger.price_options import Tariff
from badput_ledger.text import render

T0 = 1_800_000_000
S = 1_000_000_000


def run(make, *, until=60, counter=True, gpu="GPU-a"):
    """20 s start-up at 100 W, then 4 steps of 10 s, half of each a data stall, at 300 W."""
    pid = make.process(0, gpu_uuid=gpu, gpu_type="H100")
    make.steps(pid, 1, 4, 20, 10, data_ns=5.0, pre_data_ns=0.0, tokens=100)
    make.end(pid, 60)
    for at in range(0, until + 1, 5):
        joules = 100 * min(at, 20) + 300 * max(0, at - 20)
        make.add(
            "gpu_samples", host="h", gpu_uuid="GPU-a", time_ns=(T0 + at) * S,
            energy_j=5000.0 + joules if counter else None, power_w=200.0,
        )  # fmt: skip
    return make.write()


def energy_of(path, **more):
    with open_books(path, tariff=Tariff(**more)) as books:
        report = books.report()
        return report["cost"]["energy"], " ".join(render(report).split())


def test_joules_of_each_leaf_from_the_counter(make):
    """2 kJ of start-up; 12 kJ of steps, half of their time a data stall; 14 kJ for 400 tokens."""
    path = run(make)
    found, text = energy_of(path, co2_g_per_kwh=Decimal(360), price_per_kwh=Decimal("0.36"))
    assert (found["source"], found["coverage"]) == ("counter", 1.0)
    assert found["joules"] == pytest.approx(14_000)
    joules = {leaf: row["joules"] for leaf, row in found["leaves"].items()}
    assert joules == {
        "C.model": pytest.approx(2000), "G.data": pytest.approx(6000),
        "H.productive": pytest.approx(6000),
    }  # fmt: skip
    # 14 kJ are 14 / 3600 kWh: at 360 g 1.4 g, at 0.36 0.0014
    assert found["co2_g"] == pytest.approx(1.4)
    assert found["cost"] == pytest.approx(0.0014)
    assert found["joules_per_kept_token"] == pytest.approx(35)
    assert "energy 0.004 kWh (counter, 100.0% of the held time sampled)" in text


def test_without_a_counter_power_is_integrated(make):
    found, _ = energy_of(run(make, counter=False))
    assert found["source"] == "power_integral"
    assert found["joules"] == pytest.approx(60 * 200)
    assert found["co2_g"] is found["cost"] is None


def test_what_samples_do_not_cover_is_null(make):
    """Samples end at 30 of 60 s: start-up is known, the steps are not."""
    found, text = energy_of(run(make, until=30))
    assert found["leaves"]["C.model"]["joules"] == pytest.approx(2000)
    assert found["leaves"]["G.data"]["joules"] is None
    assert found["joules"] is None
    assert found["coverage"] == pytest.approx(0.5)
    assert "energy not known: samples cover 50.0% of the held time" in text


def test_without_telemetry_or_without_a_gpu_it_is_null_with_its_reason(make, tmp_path):
    pid = make.process(0)
    make.steps(pid, 1, 4, 0, 10)
    make.end(pid, 40)
    found, text = energy_of(make.write())
    assert found["joules"] is None
    assert found["reason"] == "no telemetry of GPUs was recorded"
    assert "energy" not in text
    found, _ = energy_of(run(type(make)(tmp_path / "other"), gpu=None))
    assert found["reason"] == "no rank says which GPU it had"
