"""Which rate of a price table holds, and what makes a table unusable."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from badput_ledger.errors import BooksError
from badput_ledger.price import Rate, parse_price
from badput_ledger.price_table import read_table

DAY = 86_400_000_000_000
JAN = 1_767_225_600_000_000_000  # 2026-01-01
ROOT = Path(__file__).resolve().parents[2]


def table(tmp_path, text, **more):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return read_table(path, **more)


def entry(gpu="NVIDIA H100*", amount="2.10", **more):
    more = {"purchase": '"spot"'} | more
    lines = [f"{key.rstrip('_')} = {value}" for key, value in more.items()]
    return "\n".join(["[[price]]", f'gpu = "{gpu}"', f"per_gpu_hour = {amount}", *lines, ""])


def test_a_number_is_the_decimal_that_was_written(tmp_path):
    rate = table(tmp_path, entry(amount="2.1")).rate("NVIDIA H100 80GB HBM3", JAN)
    assert isinstance(rate, Rate)
    assert rate.per_hour == Decimal("2.1")
    assert parse_price("2.1") == Decimal("2.1")


def test_a_rate_holds_from_its_first_instant_to_before_its_last(tmp_path):
    text = entry(amount="1", to="2026-01-02") + entry(amount="2", from_="2026-01-02")
    prices = table(tmp_path, text)
    got = [prices.rate("NVIDIA H100", at) for at in (JAN + DAY - 1, JAN + DAY)]
    assert [r.per_hour for r in got if isinstance(r, Rate)] == [1, 2]
    assert prices.changes() == [JAN + DAY]


def test_instants_may_carry_a_zone(tmp_path):
    prices = table(tmp_path, entry(from_="2026-01-01T01:00:00.5+01:00"))
    assert prices.changes() == [JAN + 500_000_000]


def test_a_name_beats_a_glob_and_a_longer_glob_a_shorter(tmp_path):
    text = entry("*", "1") + entry("nvidia*", "2") + entry("NVIDIA H100*", "3")
    prices = table(tmp_path, text + entry("NVIDIA H100 NVL", "4"))
    kinds = {"NVIDIA H100 NVL": 4, "NVIDIA H100 80GB": 3, "NVIDIA A100": 2, "cpu": 1, None: 1}
    for kind, amount in kinds.items():
        rate = prices.rate(kind, JAN)
        assert isinstance(rate, Rate), kind
        assert rate.per_hour == amount, kind


@pytest.mark.parametrize(
    ("kind", "at", "purchase", "said"),
    [
        ("NVIDIA B200", JAN, None, "no price for NVIDIA B200"),
        (None, JAN, None, "no price for a GPU of unknown type"),
        ("NVIDIA H100", JAN - 1, None, "no price for NVIDIA H100 at 2025-12-31T23:59:59"),
        ("NVIDIA H100", JAN, "reserved", "no reserved price for NVIDIA H100"),
        ("NVIDIA H100", JAN, None, "has on-demand and spot prices for NVIDIA H100"),
    ],
)
def test_a_price_that_is_not_there_is_a_reason(tmp_path, kind, at, purchase, said):
    first = entry(from_="2026-01-01")
    prices = table(tmp_path, first + entry(amount="9", purchase='"on-demand"'), purchase=purchase)
    if at < JAN:
        prices = table(tmp_path, first)
    reason = prices.rate(kind, at)
    assert isinstance(reason, str)
    assert said in reason


def test_the_purchase_kind_comes_from_the_caller_or_else_the_file(tmp_path):
    text = 'purchase = "spot"\n' + entry() + entry(amount="9", purchase='"on-demand"')
    for purchase, amount in ((None, Decimal("2.1")), ("on-demand", 9)):
        rate = table(tmp_path, text, purchase=purchase).rate("NVIDIA H100", JAN)
        assert isinstance(rate, Rate)
        assert rate.per_hour == amount


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("price = 3", "has no [[price]] entry"),
        ("[[price]", "is not TOML"),
        (entry(amount='"many"'), "per_gpu_hour is 'many'"),
        (entry(amount="true"), "per_gpu_hour is 'True'"),
        (entry(amount="-1"), "per_gpu_hour is '-1'"),
        (entry(amount="nan"), "per_gpu_hour is 'NaN'"),
        (entry(purchase='"leased"'), "it is one of on-demand, spot, reserved"),
        (entry(from_='"2026-01-01"'), "give a date such as 2026-01-31, without quotes"),
        (entry(from_="2026-01-02", to="2026-01-02"), "from lies after to"),
        (entry(gpus="8"), "has gpus, which no price table has"),
        ("curency = 'EUR'\n" + entry(), "has curency, which no price table has"),
        ("currency = 'a very long name'\n" + entry(), "give a short name such as USD"),
        (entry() + entry("nvidia h100*"), "has two spot prices for 'nvidia h100*'"),
        (entry() + entry("A*", currency='"EUR"'), "mixes EUR and USD"),
        (entry() + "[energy]\nco2_g_per_kwh = -1", "co2_g_per_kwh is '-1'"),
        ('[[price]]\npurchase = "spot"\nper_gpu_hour = 1', "gpu is missing"),
        ('[[price]]\npurchase = "spot"\ngpu = "A"', "per_gpu_hour is missing"),
    ],
)
def test_a_table_that_cannot_be_used_says_why_and_where(tmp_path, text, said):
    with pytest.raises(BooksError, match=r"prices\.toml") as error:
        table(tmp_path, text)
    assert said in str(error.value)


def test_two_globs_that_say_the_same_of_one_gpu_are_refused(tmp_path):
    prices = table(tmp_path, entry("*H100") + entry("N100*", "1") + entry("NVIDIA*", "3"))
    with pytest.raises(BooksError, match="make one of them more specific"):
        table(tmp_path, entry("*H100", "1") + entry("NVID*", "2")).rate("NVIDIA H100", JAN)
    assert isinstance(prices.rate("NVIDIA H100", JAN), Rate)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BooksError, match=r"nowhere\.toml cannot be read: No such file"):
        read_table(tmp_path / "nowhere.toml")


def test_the_example_in_the_docs_is_a_table_that_says_it_is_an_example():
    path = ROOT / "docs" / "prices.example.toml"
    assert read_table(path).rates
    assert "EXAMPLE" in path.read_text()
