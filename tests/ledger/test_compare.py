"""badput compare: signed rows that sum exactly, what is refused, and the verdict."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badput_ledger.books import open_books
from badput_ledger.commands.compare import main
from badput_ledger.compare import compare, side_of, whole_parts
from badput_ledger.errors import BooksError

if TYPE_CHECKING:
    from pathlib import Path

MEASURES = ("gpu_ns", "cost_nano", "gpu_ns_per_mtok", "cost_nano_per_mtok")


def a_run(
    maker: Any,
    *,
    steps: int = 40,
    dur: float = 1.0,
    lost: int = 0,
    name: str | None = None,
    over: bool = True,
    gpu: str = "H100",
    formula: str | None = None,
    tokens: int | None = 1000,
    **step: Any,
) -> Path:
    """Launch, steps, and if ``lost`` a crash after a checkpoint and those steps once more."""
    more = step if tokens is None else {"tokens": tokens, **step}
    facts = {"gpu_type": gpu, "job_id": "j", "endpoint": "h:1"}
    pid = maker.process(0, init=7, **facts)
    maker.add("runs", process_id=pid, time_ns=1, name=name, source="probe", flops_formula=formula)
    at = 10.0
    if lost:
        maker.checkpoint(pid, "save", steps // 2, 9, path="/c")
        at = maker.steps(pid, 1, steps // 2 + lost, at, dur, **more)
        maker.end(pid, at + 1, reason="killed", signal=9)
        pid = maker.process(at + 3, init=at + 5, **facts)
        maker.checkpoint(pid, "load", steps // 2, at + 5, path="/c")
        at = maker.steps(pid, steps // 2 + 1, steps, at + 8, dur, **more)
    else:
        at = maker.steps(pid, 1, steps, at, dur, **more)
    if over:
        maker.end(pid, at + 0.3)
    return maker.write()


@pytest.fixture
def maker(tmp_path: Path, make: Any) -> Any:
    return lambda name: type(make)(tmp_path / name)


def compared(a: Path, b: Path, *, prices: Any = (None, None), currencies: Any = ("USD", "USD"),
             **more: Any) -> dict[str, Any]:  # fmt: skip
    sides = []
    for label, path, price, currency in zip("AB", (a, b), prices, currencies, strict=True):
        with open_books(path, price=price, currency=currency) as books:
            sides.append(side_of(label, books))
    return compare(*sides, **more)


def test_signed_rows_sum_exactly_to_the_total_difference(maker: Any) -> None:
    a = a_run(maker("a"), steps=41, lost=7, dur=1.037, tokens=997)
    b = a_run(maker("b"), steps=97, dur=0.913, tokens=1009)
    found = compared(a, b, prices=(2.37, 1.91))
    assert set(found["measures"]) == set(MEASURES)
    for measure in MEASURES:
        for side in ("a", "b", "diff"):
            parts = [int(r[side][measure]) for r in found["rows"]]
            assert sum(parts) == int(found["total"][side][measure]), (measure, side)
        total = found["total"]
        assert int(total["diff"][measure]) == int(total["b"][measure]) - int(total["a"][measure])
    # and they are the books' own numbers
    with open_books(a, price=2.37) as books:
        report = books.report()
    assert found["total"]["a"]["gpu_ns"] == report["total_gpu_ns"]
    assert int(found["total"]["a"]["cost_nano"]) / 1e9 == pytest.approx(report["cost"]["total"])
    per = int(found["total"]["a"]["cost_nano_per_mtok"]) / 1e9
    assert per == pytest.approx(report["cost"]["per_kept_token"] * 1e6)
    lost = next(r for r in found["rows"] if r["leaf"] == "D.recomputed")
    assert int(lost["diff"]["gpu_ns"]) == -int(lost["a"]["gpu_ns"])


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12), st.integers(1, 10**12))
def test_whole_parts_sum_to_the_rounded_sum_and_move_less_than_one(
    values: list[float], tokens: int
) -> None:
    exact = {str(i): Fraction(v) for i, v in enumerate(values)}
    parts = whole_parts(exact, tokens)
    shares = {k: v * 1_000_000 / tokens for k, v in exact.items()}
    assert sum(parts.values()) == round(sum(shares.values()))
    assert all(abs(parts[k] - shares[k]) < 1 for k in parts)


def test_the_verdict_names_the_better_run_by_money_and_the_leaf_behind_it(maker: Any) -> None:
    a = a_run(maker("a"), name="before", lost=15)
    b = a_run(maker("b"), name="after")
    said = compared(a, b, prices=(36.0, 36.0))["verdict"]
    assert said["better"] == "B"
    assert said["basis"] == "cost_nano_per_mtok"
    assert said["leaf"] == "D.recomputed"
    # A: 7 + 3 + 35 + 1 + 2 + 2 + 3 + 20 + 0.3 s for 40,000 tokens, at a cent a second
    assert said["headline"] == (
        "B (after) is better: $12.57 for a million kept tokens against $18.32, 31.4% less."
    )
    assert "D.recomputed (recomputed): $0.00 against $3.75" in said["why"]
    swapped = compared(b, a, prices=(36.0, 36.0))["verdict"]
    assert swapped["better"] == "A"
    assert swapped["leaf"] == "D.recomputed"


def test_without_prices_time_for_a_token_decides_and_without_tokens_kept_time(maker: Any) -> None:
    a, b = a_run(maker("a"), dur=1.2), a_run(maker("b"), dur=1.0)
    found = compared(a, b)
    assert found["verdict"]["basis"] == "gpu_ns_per_mtok"
    assert found["verdict"]["leaf"] == "H.productive"
    assert [r["what"] for r in found["refused"]] == ["cost"]
    bare = a_run(maker("c"), tokens=None, lost=10)
    found = compared(b, bare)
    assert {r["what"] for r in found["refused"]} == {"cost", "per kept token"}
    assert found["verdict"]["basis"] == "kept_time"
    assert found["verdict"]["better"] == "A"
    assert found["verdict"]["leaf"] == "D.recomputed"


def test_a_run_is_equal_to_itself(maker: Any) -> None:
    a = a_run(maker("a"))
    found = compared(a, a, prices=(1.0, 1.0))
    assert found["verdict"]["better"] is None
    assert found["verdict"]["headline"].startswith("Neither is better")
    assert all(int(r["diff"]["gpu_ns"]) == 0 for r in found["rows"])


def test_more_evidence_does_not_make_a_run_worse(maker: Any) -> None:
    """B measured its waits for data, A did not: the same steps, so the same row."""
    a, b = a_run(maker("a")), a_run(maker("b"), data_ns=0.4)
    found = compared(a, b)
    assert found["goodput"] is None
    (why,) = [r["why"] for r in found["refused"] if r["what"] == "goodput"]
    assert "only B (b) measured G.data" in why
    rows = {r["leaf"]: r for r in found["rows"]}
    assert "G.data" not in rows
    assert rows["H.productive"]["with"] == ["G.data"]
    assert int(rows["H.productive"]["diff"]["gpu_ns"]) == 0
    assert found["verdict"]["better"] is None


def test_different_gpus_need_prices_in_one_currency(maker: Any) -> None:
    a, b = a_run(maker("a")), a_run(maker("b"), gpu="A100", lost=15)
    with pytest.raises(BooksError, match=r"ran on H100, B .b. on A100.*--price-a and --price-b"):
        compared(a, b)
    with pytest.raises(BooksError, match="their hours are not alike"):
        compared(a, b, prices=(3.0, 3.0), currencies=("USD", "EUR"))
    found = compared(a, b, prices=(4.0, 1.0))
    assert found["verdict"]["better"] == "B"
    assert any("the GPUs differ" in n for n in found["notes"])


def test_currencies_and_formulas_that_differ_are_named(maker: Any) -> None:
    a, b = a_run(maker("a"), formula="6N"), a_run(maker("b"), formula="palm")
    found = compared(a, b, prices=(1.0, 1.0), currencies=("USD", "EUR"))
    refused = {r["what"]: r["why"] for r in found["refused"]}
    assert refused["cost"] == "A (a) is priced in USD and B (b) in EUR; give both in one currency"
    assert "A (a): 6N; B (b): palm" in refused["at_peak"]
    assert "cost_nano" not in found["measures"]


def test_a_run_that_is_still_going_is_refused_unless_asked_for(maker: Any) -> None:
    a, b = a_run(maker("a")), a_run(maker("b"), over=False)
    with pytest.raises(BooksError, match=r"nothing says that B .b. is over.*--so-far"):
        compared(a, b)
    assert any("so far" in n for n in compared(a, b, so_far=True)["notes"])


def test_a_difference_within_the_bounds_is_said_to_be_one(maker: Any) -> None:
    """A's end is not known, and its last 20 steps may be lost: it may also be the dearer one."""
    one = maker("a")
    pid = one.process(0, init=7, gpu_type="H100")
    one.checkpoint(pid, "save", 20, 9, path="/c")
    one.steps(pid, 1, 40, 10, 1.0, tokens=1000)
    a, b = one.write(), a_run(maker("b"), dur=1.2)
    found = compared(a, b, so_far=True)
    assert found["verdict"]["better"] == "A"
    assert not found["verdict"]["certain"]
    assert "within their bounds they may also be equal" in found["verdict"]["headline"]


def test_the_command_prints_every_format_and_refuses_with_2(
    maker: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(a_run(maker("a"), lost=15)), str(a_run(maker("b")))
    assert main([a, b, "--price", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("B (b) is better")
    assert all(len(line) <= 100 for line in text.splitlines())
    assert main([a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "badput.compare/1"
    assert main([a, b, "--format", "md", "--price-a", "1", "--price-b", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count(" | ") for line in lines if line.startswith("| ")}) == 1
    assert main([a, b, "--price-a", "much"]) == 2
    assert "'much' is not a number" in capsys.readouterr().err
    assert main([a, str(a_run(maker("c"), gpu="A100"))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
