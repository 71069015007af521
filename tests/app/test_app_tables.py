"""Numbers as text, table rows and the CSV download."""

from __future__ import annotations

import csv
import io

import pytest

from badput_app import fmt, tables
from badput_ledger.taxonomy import LEAF_IDS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "$0.00"),
        (12.3456, "$12.35"),
        (1234567.8, "$1,234,568"),
        (0.0321, "$0.032"),
        (0.00033, "$0.00033"),
        (-5, "-$5.00"),
    ],
)
def test_money_keeps_small_amounts_and_shows_an_unknown_one_as_a_dash(
    value: float, text: str
) -> None:
    assert fmt.money(value) == text


def test_money_of_a_currency_without_a_symbol_is_named() -> None:
    assert fmt.money(3, "CHF") == "3.00 CHF"


@pytest.mark.parametrize(
    ("total", "word"), [(1e6, "hours"), (7200, "minutes"), (120, "seconds"), (0, "seconds")]
)
def test_a_run_is_shown_in_a_unit_that_fits_it(total: float, word: str) -> None:
    assert fmt.time_scale(total)[1] == word


def test_unknown_values_are_dashes_and_never_zero() -> None:
    for shown in (fmt.amount, fmt.seconds, fmt.percent, fmt.count, fmt.compact):
        assert shown(None) == "–"


def test_text_of_the_run_is_plain_text_in_markdown() -> None:
    assert fmt.markdown("[x](http://evil) $a$ <b>") == r"\[x\]\(http\://evil\) \$a\$ \<b\>"


def test_all_but_productive_time_is_wasted(report: dict) -> None:
    assert tables.wasted_seconds(report) == pytest.approx(7200 - 6140)
    assert tables.worst_leaf(report) == "pipeline bubble"
    assert tables.empty_groups(report) == ["not running"]


def test_the_table_lists_leaves_with_time_and_every_leaf_on_request(report: dict) -> None:
    short = tables.leaf_rows(report, empty=False)
    assert "A.queue" not in short["leaf"]
    assert sum(short["minutes"]) == pytest.approx(120)
    assert sum(short["share"]) == pytest.approx(1)
    assert tables.leaf_rows(report)["leaf"] == list(LEAF_IDS)
    # Possibly some time: the upper bound keeps the row.
    report["leaves"]["D.tail"]["hi"] = 9.0
    assert "D.tail" in tables.leaf_rows(report, empty=False)["leaf"]


def test_a_leaf_without_a_value_stays_unknown_in_the_table(report: dict) -> None:
    report["leaves"]["G.comm"] |= {"gpu_seconds": None, "lo": None, "hi": None, "cost": None}
    rows = tables.leaf_rows(report)
    at = rows["leaf"].index("G.comm")
    assert rows["minutes"][at] is rows["share"][at] is rows["cost"][at] is None


def test_the_csv_has_every_leaf_exactly_and_no_formula(report: dict) -> None:
    report["run"]["name"] = '=HYPERLINK("http://evil")'
    rows = list(csv.DictReader(io.StringIO(tables.leaves_csv(report))))
    assert [r["leaf"] for r in rows] == list(LEAF_IDS)
    assert sum(int(r["ns"]) for r in rows) == 7_200_000_000_000
    assert {r["run"] for r in rows} == {'\'=HYPERLINK("http://evil")'}


def test_evidence_names_the_line_or_the_row() -> None:
    line = {"file": "a.log", "line": 7, "text": "boom"}
    assert tables.evidence_text(line) == "a.log:7  boom"
    row = {"table": "events", "process_id": 3, "seq": 9}
    assert tables.evidence_text(row) == "events  process_id=3 seq=9"


def test_text_of_a_run_cannot_turn_the_line_around_or_become_an_emoji() -> None:
    assert fmt.markdown("a\u202eb\x1b[0m\nc") == r"a b \[0m c"
    assert fmt.escape("a\u202e<b>") == "a &lt;b&gt;"
    assert ":smile:" not in fmt.markdown("x :smile:").replace("\\", "")
    assert fmt.markdown("12:30:05") == r"12\:30\:05"
    assert fmt.markdown(" name ") == "name"  # spaces would undo the bold around it
