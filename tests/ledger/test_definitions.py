"""Published definitions from the same books, and the bridges to them."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badput_ledger.books import open_books
from badput_ledger.definitions import ORDER, Summary, results, summarize
from badput_ledger.definitions.cli import definitions_main
from badput_ledger.definitions.flops import comparable, flops_per_token
from badput_ledger.definitions.peaks import peak_of
from badput_ledger.definitions.summary import Life
from badput_ledger.taxonomy import LEAF_IDS

if TYPE_CHECKING:
    from pathlib import Path

    from badput_ledger.definitions.result import Result

S = 10**9
H100 = "NVIDIA H100 80GB HBM3"


def summary(**leaves: int) -> Summary:
    """Books with these seconds a leaf (``C_launch=60``) on 4 places."""
    ns = dict.fromkeys(LEAF_IDS, 0)
    for name, seconds in leaves.items():
        ns[name.replace("_", ".", 1)] = seconds * S
    return Summary(leaves=ns, places=4, wall_ns=sum(ns.values()) // 4)


def of(books: Summary, name: str) -> Result:
    return next(r for r in results(books) if r.name == name)


def sums(result: Result) -> bool:
    return result.bridge is None or (
        result.bridge.open == 0 and result.bridge.value == result.value
    )


def plain_run() -> Summary:
    return summary(
        A_queue=100, A_requeue=50, A_capacity=20, B_hang=30, B_teardown=10, C_launch=60,
        C_warmup=30, D_recomputed=200, E_save=40, E_eval=25, F_skipped=15, F_padding=5, G_data=35,
        G_bubble=45, H_productive=1335,
    )  # fmt: skip


def test_definitions_that_sort_leaves() -> None:
    total = 2000
    books = plain_run()
    assert books.total == total * S
    expected = {
        "ETTR with queue wait": Fraction(1415, 2000),
        "ETTR without queue wait": Fraction(1415, 1850),
        "Llama 3 effective training time": Fraction(1435, 2000),
        "ml-goodput-measurement": Fraction(1435, 1900),
        # t_w = 1900; lost 230, resume 90, reschedule 80, save 40
        "NVIDIA cluster-readiness-engine": Fraction(1900 - 230 - 90 - 80 - 40, 1900 - 80),
        "MLPerf Storage accelerator utilisation": Fraction(1400, 1435),
    }
    for name, value in expected.items():
        assert of(books, name).value == value, name
        assert sums(of(books, name)), name


def test_a_bridge_names_each_leaf_and_its_effect() -> None:
    rows = of(plain_run(), "ETTR without queue wait").plain()["bridge"]
    assert {r["leaf"]: r["gpu_seconds"] for r in rows} == {"A.queue": 100, "A.requeue": 50}
    effects = sum((Fraction(r["exact"]) for r in rows), Fraction(0))
    assert effects == Fraction(1415, 1850) - Fraction(1415, 2000)
    assert rows[0]["effect"] == pytest.approx(float(Fraction(rows[0]["exact"])))


def test_google_resiliency_counts_steps_once() -> None:
    books = replace(
        plain_run(), max_saved_step=140, min_loaded_step=100, step_time_s=Fraction("8.5"),
        lives=(Life(30, 4, None), Life(10, 3, None)),
    )  # fmt: skip
    found = of(books, "google-resiliency")
    assert found.value == Fraction(40 * 17, 2) / 500
    rows = {r["leaf"]: r["gpu_seconds"] for r in found.plain()["bridge"]}
    assert rows == {"H.productive": 30 * 4 * 8.5 + 10 * 3 * 8.5 - 1415, "A.capacity": 10 * 8.5}
    assert sums(found)
    assert of(replace(books, step_time_s=None), "google-resiliency").reason.count("--step-time")
    for missing in ("max_saved_step", "min_loaded_step"):
        assert of(replace(books, **{missing: None}), "google-resiliency").value is None


def test_expected_ettr_by_hand() -> None:
    """2 failures in 450 s of running on 4 places; restarts 25 s, a save every 82.5 s."""
    books = replace(
        summary(
            A_queue=200, B_hang=80, C_launch=120, D_recomputed=100, E_save=60, H_productive=1440
        ),
        starts=3, failures=2, saves=5, nodes=2, null={"E.snapshot": "not recorded"},
    )  # fmt: skip
    found = of(books, "expected ETTR")
    # running = 1800 / 4 = 450 s, u0 = 200 / 8 = 25 s, dt = 1600 / 4 / 5 = 80 s, w = 60 / 20 = 3 s
    assert found.value == (1 - Fraction(2, 450) * (25 + 40)) / (1 + Fraction(3, 80))
    inputs = {i.name: i.value for i in found.inputs}
    assert inputs["u0, restart"] == 25
    assert inputs["r_f, failures"] == Fraction(2 * 86_400, 450 * 2)
    assert sums(found)
    unknown = replace(books, null={"E.save": "no", "E.snapshot": "no"})
    assert "blocks" in (of(unknown, "expected ETTR").reason or "")


def test_expected_ettr_below_zero_is_told_and_not_clipped() -> None:
    books = replace(summary(B_hang=4000, E_save=4, H_productive=400), starts=2, failures=9, saves=1)
    found = of(books, "expected ETTR")
    assert found.value is not None
    assert found.value < 0
    assert "below 0" in found.plain()["error"]


def work(**more: Any) -> Summary:
    """1,000 GPU-seconds of kept time at 40 % of an H100's peak: 6N of 1e9 parameters."""
    tokens = round(1000 * 989.4e12 * 0.4 / 6e9)
    books = summary(C_launch=1000, G_comm=100, H_productive=900)
    kept = {"gpu_ns": {H100: 1000 * S}, "kept_tokens": tokens}
    inputs = {"params": 1_000_000_000, "recompute": "full"}
    return replace(books, **({"formula": "dense6N", "formula_inputs": inputs} | kept | more))


def test_mfu_hfu_and_the_products() -> None:
    books = work()
    assert float(of(books, "MFU").value or 0) == pytest.approx(0.4, abs=1e-9)
    assert of(books, "HFU").value == of(books, "MFU").value * Fraction(4, 3)  # type: ignore[operator]
    for name in ("ML Productivity Goodput", "AWS goodput"):
        found = of(books, name)
        assert float(found.value or 0) == pytest.approx(0.2, abs=1e-9)
        factors = [i.value for i in found.inputs[:3]]
        assert factors[0] * factors[1] * factors[2] == found.value
    rows = {r["leaf"]: r["gpu_seconds"] for r in of(books, "MFU").plain()["bridge"]}
    assert rows["G.comm"] == -100
    assert rows["C.launch"] == 1000
    assert rows["H.productive"] == pytest.approx(400 - 900)
    assert all(sums(r) for r in results(books))


def test_more_than_the_peak_is_an_error_and_not_clipped() -> None:
    found = of(work(kept_tokens=round(1000 * 989.4e12 * 1.04 / 6e9)), "MFU").plain()
    assert found["value"] == pytest.approx(1.04)
    assert "above 100 %" in found["error"]


@pytest.mark.parametrize(
    ("formula", "inputs", "flops"),
    [
        ("per_token", {"flops_per_token": 12.5}, Fraction(25, 2)),
        ("dense6N", {"params": 100}, 600),
        ("palm12", {"params": 100, "layers": 2, "heads": 3, "head_dim": 5, "seq_len": 7},
         600 + 12 * 2 * 15 * 7),
        ("causal6", {"params": 100, "layers": 2, "heads": 3, "head_dim": 5, "seq_len": 7},
         600 + 6 * 2 * 15 * 7),
        ("dense6N", {"params_active": 3, "params_total": 30, "experts": 8}, 18),
    ],
)  # fmt: skip
def test_flop_formulas(formula: str, inputs: dict[str, Any], flops: Fraction) -> None:
    assert flops_per_token(formula, inputs)[1] == flops


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"formula": None}, "does not say its FLOPs"),
        ({"formula": "mine"}, "none of per_token"),
        ({"formula_inputs": {}}, "params is missing"),
        ({"formula_inputs": {"params": -1}}, "params is missing"),
        ({"formula_inputs": {"params": 30, "experts": 8}}, "active parameters"),
        ({"kept_tokens": None}, "no tokens"),
        ({"gpu_ns": {"NVIDIA H100": S}}, "H100 alone may be"),
        ({"gpu_ns": {}}, "no step was kept"),
    ],
)
def test_mfu_without_its_inputs_is_null_with_a_reason(change: dict[str, Any], why: str) -> None:
    for name in ("MFU", "HFU", "AWS goodput", "ML Productivity Goodput"):
        found = of(work(**change), name)
        assert found.value is None
        assert why in (found.reason or "")


def test_mixed_gpus_weigh_by_their_time_and_a_given_peak_wins() -> None:
    mixed = work(gpu_ns={H100: 500 * S, "NVIDIA A100-SXM4-80GB": 500 * S})
    peak = next(i.value for i in of(mixed, "MFU").inputs if i.name == "peak of a GPU")
    assert peak == (Fraction("989.4") + 312) / 2
    own = work(gpu_ns={"Some NPU": S}, peak_tflops=Fraction(500))
    assert float(of(own, "MFU").value or 0) == pytest.approx(0.4 * 989.4 / 500, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        (H100, "989.4"), ("NVIDIA H100 PCIe", "756.5"), ("NVIDIA H100 NVL", "835.5"),
        ("NVIDIA H100", None), ("NVIDIA H200", "989.4"), ("NVIDIA H200 NVL", "835.5"),
        ("NVIDIA GH200 480GB", "989.4"), ("NVIDIA B200", "2250"), ("NVIDIA GB200", "2500"),
        ("NVIDIA A100-SXM4-40GB", "312"), ("NVIDIA A10", "125"), ("NVIDIA A10G", "70"),
        ("NVIDIA L4", "121"), ("NVIDIA L40S", "362"), ("Tesla T4", None),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None), ("T400", None), ("cpu", None), ("", None),
    ],
)  # fmt: skip
def test_peaks_are_dense_and_found_by_whole_words(name: str, tflops: str | None) -> None:
    peak, why = peak_of(name)
    assert peak == (None if tflops is None else Fraction(tflops))
    assert why


def test_figures_of_two_formulas_are_not_compared() -> None:
    assert comparable("palm12", "palm12") is None
    assert "different figures" in (comparable("palm12", "causal6") or "")
    assert "not known" in (comparable(None, "causal6") or "")


def test_pollux_needs_the_noise_scale() -> None:
    books = replace(plain_run(), kept_samples=5000)
    assert "noise scale" in (of(books, "Pollux").reason or "")
    learning = {"noise_scale": 300, "batch": 100, "first_batch": 20}
    found = of(replace(books, learning=learning), "Pollux")
    assert found.value == Fraction(5000, 500) * Fraction(320, 400)
    assert found.unit == "samples/s"


def test_samples_of_kept_steps_count_once_a_replica(make: Any) -> None:
    """Two ranks of one replica and one of another; steps 11 to 20 are done again."""
    for start, first, last in ((0, 1, 20), (500, 11, 30)):
        for rank, replica in ((0, 0), (1, 0), (2, 1)):
            pid = make.process(start, rank=rank, world=3, replica=replica)
            end = make.steps(pid, first, last, start, 10, rank=rank, samples=8)
            make.end(pid, end, rank=rank, reason="completed" if start else "killed")
    with open_books(make.write()) as books:
        learning = {"noise_scale": 1000.0, "batch": 16, "first_batch": 16}
        found = summarize(books, learning=learning)
        assert found.kept_samples == 30 * 16
        assert summarize(books).kept_samples is None
    assert of(found, "Pollux").value == Fraction(480 * S, found.wall_ns)


def test_empty_books_have_no_value_and_a_reason_for_each() -> None:
    for found in results(Summary(leaves=dict.fromkeys(LEAF_IDS, 0))):
        assert found.value is None
        assert found.reason


leaf_times = st.dictionaries(st.sampled_from(LEAF_IDS), st.integers(0, 10**24), min_size=1)


@settings(max_examples=300, deadline=None)
@given(
    times=leaf_times,
    lives=st.lists(
        st.builds(Life, st.integers(0, 10**6), st.integers(1, 99), st.integers(1, 10**12)),
        max_size=4,
    ),
    places=st.integers(1, 10**5),
    wall=st.integers(1, 10**18),
    steps=st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)),
    step_time=st.fractions(Fraction(1, 1000), 10**4),
    failures=st.integers(0, 50),
)
def test_every_bridge_sums_exactly(
    *,
    times: dict[str, int],
    lives: list[Life],
    places: int,
    wall: int,
    steps: tuple[int, int],
    step_time: Fraction,
    failures: int,
) -> None:
    books = Summary(
        leaves=dict.fromkeys(LEAF_IDS, 0) | times, places=places, wall_ns=wall, lives=tuple(lives),
        starts=failures + 1, failures=failures, saves=3, nodes=2, max_saved_step=max(steps),
        min_loaded_step=min(steps), step_time_s=step_time, kept_tokens=steps[0], formula="palm12",
        formula_inputs={"params": 7, "layers": 1, "heads": 1, "head_dim": 1, "seq_len": 1,
                        "recompute": True},
        gpu_ns={H100: 1},
    )  # fmt: skip
    for found in results(books):
        assert sums(found), found.name
        if found.bridge is not None:
            rows = found.bridge.rows()
            effects = sum((Fraction(r["exact"]) for r in rows), Fraction(0))
            assert effects == found.bridge.value - found.bridge.ours
            assert all(r["leaf"] and r["what"] for r in rows)


@pytest.mark.parametrize("name", ["killed", "straggler"])
def test_the_sample_runs(root: Path, name: str, capsys: Any) -> None:
    run = root / "sample_logs" / name
    with open_books(run) as books:
        summary = summarize(books, step_time_s=0.1)
        found = results(summary)
        report = books.report()
    assert [r.name for r in found] == list(ORDER) == list(report["definitions"])
    assert sum(summary.gpu_ns.values()) == summary.kept
    for result in found:
        assert sums(result), result.name
        assert (result.value is None) == (result.reason is not None)
        if result.bridge is not None:
            assert float(result.bridge.ours) == pytest.approx(report["kept_time"]["value"])
    assert definitions_main([str(run), "--json", "--step-time", "0.1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["definitions"]) == list(ORDER)
    for entry in said["definitions"].values():
        assert {"value", "formula", "source", "note", "inputs", "bridge"} <= set(entry)


def test_the_command_prints_each_one(root: Path, capsys: Any) -> None:
    run = str(root / "sample_logs" / "killed")
    assert definitions_main([run]) == 0
    out = capsys.readouterr().out
    for name in ORDER:
        assert f"\n{name}: " in out
    assert "from kept time" in out
    assert definitions_main([run, "--only", "nvidia"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA cluster-readiness-engine: " in out
    assert "Pollux" not in out


def test_mistakes_are_one_sentence(tmp_path: Path, root: Path, capsys: Any) -> None:
    assert definitions_main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert definitions_main([str(root / "sample_logs" / "killed"), "--only", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
    for argv in (["--step-time", "0"], ["--peak-tflops", "x"]):
        with pytest.raises(SystemExit) as stop:
            definitions_main([str(root / "sample_logs" / "killed"), *argv])
        assert stop.value.code == 2


def test_flops_given_to_the_probe_become_mfu(make: Any) -> None:
    """20 steps of 10 s at 1,000 tokens on one A100: 312 TFLOP/s for 200 s."""
    pid = make.process(0, init=0, gpu_type="NVIDIA A100-SXM4-40GB")
    make.add(
        "runs", process_id=pid, time_ns=1, source="probe", flops_formula="per_token",
        flops_inputs=json.dumps({"flops_per_token": 312e12 / 1000 * 10 / 4}),
    )  # fmt: skip
    end = make.steps(pid, 1, 20, 0, 10, tokens=1000)
    make.end(pid, end)
    with open_books(make.write()) as books:
        report = books.report()
    assert report["definitions"]["MFU"]["value"] == pytest.approx(0.25)
    assert "recompute" in report["definitions"]["HFU"]["reason"]
