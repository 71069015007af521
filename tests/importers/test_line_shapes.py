"""Numbers read from lines of one shape are those that ``float`` and ``int`` read."""

from __future__ import annotations

import math
import random
import re

import pytest

from badput_ledger.sources import text
from badput_ledger.sources.clock import stamp
from badput_ledger.sources.shapes import NO_TIME, Fields, Rows
from badput_ledger.sources.text import TextLog, Wanted

LINE = re.compile(r"at (\S+ \S+) n= *([\d,]+) x= *(\S+)(?: y=(\S+))?$")


def find(line):
    match = LINE.match(line)
    names = ("time", "n", "x", "y")
    return match and {k: match.span(i) for i, k in enumerate(names, 1) if match.group(i)}


FIELDS = Fields(find, {"time": "time", "n": "int", "x": "float", "y": "float"})


def scanned(path, data):
    """(line, column values) of every row and (line, text) of every other line, in order."""
    path.write_bytes(data)
    found = []
    for item in TextLog(path).scan(Wanted((b"at ",)), FIELDS):
        if isinstance(item, Rows):
            columns = {name: values.tolist() for name, values in item.columns.items()}
            for i, line in enumerate(item.line.tolist()):
                found.append((line, {name: values[i] for name, values in columns.items()}))
                assert LINE.match(item.text(i))
        else:
            found.append(item)
    return found


@pytest.mark.parametrize("block", [50, 1000, 1 << 20])
def test_every_number_is_what_float_reads(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text, "BLOCK", block)
    chance = random.Random(5)
    forms = ("{:.4f}", "{:.6E}", "{:9.2f}", "{:.15g}", "{:,.1f}", "{:e}", "{:.3e}")
    wanted = []
    lines = []
    for n in range(1, 400):
        x = chance.choice(forms).format(chance.uniform(-9, 9) * 10.0 ** chance.randrange(-30, 30))
        if len(x) > 40 or n % 50 == 0:
            x = chance.choice(["nan", "inf", "-inf"])
        day, milli = chance.randrange(1, 28), chance.randrange(1000)
        clock = f"2031-05-{day:02d} 10:{n % 60:02d}:07,{milli:03d}"
        colour = "\x1b[38;2;1;22;255m" if n % 3 else ""
        lines.append(f"at {clock} n={n * 997:8,} x={colour}{x}")
        wanted.append((n, stamp(clock), n * 997, float(x.replace(",", ""))))
    got = scanned(tmp_path / "a.log", "\n".join(lines).encode() + b"\n")
    rows = [(n, r["time"], r["n"], r["x"]) for n, r in got if isinstance(r, dict)]
    assert len(rows) > 300
    assert all(math.isnan(r["y"]) for _, r in got if isinstance(r, dict))
    by_line = {w[0]: w for w in wanted}
    for row in rows:
        assert repr(row) == repr(by_line[row[0]])
    # What is left is left as text, with nothing lost.
    assert [n for n, _ in got] == list(range(1, 400))


def test_lines_between_rows_come_in_their_place(tmp_path):
    row = b"at 2031-05-01 00:00:00 n=1 x=1.5\n"
    data = row + b"noise\n" + row + b"at the end\n" + row + b"\xff at x\n" + b"bar\rat b\r" + row
    got = scanned(tmp_path / "a.log", data)
    assert [n for n, _ in got] == [1, 3, 4, 5, 6, 7, 7]
    assert [isinstance(v, dict) for _, v in got] == [True, True, False, True, False, False, False]


def test_impossible_dates_have_no_time(tmp_path):
    dates = (
        "2031-02-30 00:00:00",
        "2031-02-03 24:00:00",
        "2031-02-03 00:61:00",
        "1931-02-03 00:00:00",
    )
    data = "".join(f"at {d} n=1 x=1\n" for d in dates).encode()
    assert [r["time"] for _, r in scanned(tmp_path / "a.log", data)] == [NO_TIME] * 4


def test_lines_with_windows_ends_are_rows(tmp_path):
    ((_, row),) = scanned(tmp_path / "a.log", b"at 2031-05-01 00:00:00 n=1,024 x=-.5e-3 y=2\r\n")
    assert (row["n"], row["x"], row["y"]) == (1024, -0.0005, 2.0)
