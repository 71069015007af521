"""Formats of the report: whole files or none, and hostile text that stays text in all of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.cli import fsck_main, report_main, sql_main
from badput_ledger.commands.compare import main as compare_main
from badput_ledger.markdown import escape, render

HOSTILE = "<script>alert(1)</script>\n# x | y `z` [a](http://b) @all =1+1 \x1b[31m\u202egnp.exe $x$"
"""Markup of HTML and Markdown, a table's border, line ends, colours, and text that turns round."""


@pytest.fixture
def hostile(make: Any) -> Path:
    """A run in whose every name somebody put what they could."""
    pid = make.process(0, init=2, job_id=HOSTILE, host=HOSTILE, gpu_type=HOSTILE)
    make.add("runs", process_id=pid, time_ns=1, name=HOSTILE, source=HOSTILE, config=json.dumps(
        {"notes": [HOSTILE], "price_per_gpu_hour": 1.5}))  # fmt: skip
    make.checkpoint(pid, "save", 10, 9, path=HOSTILE)
    make.span(pid, HOSTILE, 35, 2)
    at = make.steps(pid, 1, 20, 10, 1.0, tokens=10, loss=1.5)
    make.event(pid, "failure", at, what=HOSTILE, signature=HOSTILE)
    make.event(pid, HOSTILE, 12, text=HOSTILE)
    make.add("evidence", claim="failure", process_id=pid, file=HOSTILE, line=3, text=HOSTILE)
    make.end(pid, at + 1, reason="exception", exit_code=1)
    return make.write()


def printed(run: Path, capsys: pytest.CaptureFixture[str], *given: str) -> str:
    assert report_main([str(run), *given]) == 0
    return capsys.readouterr().out


def test_hostile_text_is_harmless_in_a_terminal(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(hostile, capsys)
    assert "alert(1)" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert json.loads(printed(hostile, capsys, "--json"))["run"]["name"] == HOSTILE


def test_hostile_text_is_harmless_in_markdown(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(hostile, capsys, "--format", "md")
    assert "alert(1)" in text
    assert all(c.isprintable() or c in "\n\u2060" for c in text)
    assert not re.search(r"(?<!\\)[<\[`]", text)
    assert not re.search(r"@(?!\u2060)", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1, block
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert all(re.fullmatch(r"### [A-Za-z ,]+", h) for h in headings)


def test_hostile_text_is_no_formula_in_a_table_for_a_spreadsheet(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = make.process(0)
    for at, name in enumerate(("=1+1", "+1", "-1", "@x", "\t=1", "a\n=1")):
        make.span(pid, name, at, 0.5)
    run = str(make.write())
    assert sql_main([run, "SELECT name FROM spans", "--format", "csv"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert line[:1] not in "=+-@\t" or line.startswith('=1"'), line


@pytest.mark.parametrize("form", ["text", "md"])
def test_a_comparison_of_hostile_runs_is_harmless(
    hostile: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    given = [str(hostile), str(hostile), "--format", form, "--so-far"]
    assert compare_main(given) == 0
    text = capsys.readouterr().out
    assert "alert(1)" in text
    assert all(c.isprintable() or c in "\n\u2060" for c in text)
    if form == "md":
        assert not re.search(r"(?<!\\)[<\[`]", text)
        assert not re.search(r"@(?!\u2060)", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c*", "a\\_b\\*c\\*"),
        ("10:30:15", "10:30:15"),
        (":smile:", ":\u2060smile:"),
        ("see #12", "see \\#\u206012"),
        ("- item", "\\- item"),
        ("-0.5", "-0.5"),
        ("<b>", "\\<b\\>"),
        ("x" * 400, "x" * 299 + "…"),
        ("", ""),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_markdown_begins_with_the_verdict_and_has_every_booked_leaf(hostile: Path) -> None:
    with open_books(hostile) as books:
        report = books.report()
    text = render(report)
    assert text.startswith(f"**{escape(report['verdict']['headline'])}**")
    for leaf, row in report["leaves"].items():
        assert (f"| {leaf} |" in text) == bool(row["gpu_seconds"])


def test_output_is_a_whole_file_or_none(hostile: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    target.write_text("old")
    assert report_main([str(hostile), "--format", "md", "-o", str(target)]) == 0
    assert target.read_text().startswith("**")
    assert report_main([str(tmp_path / "none"), "-o", str(target)]) == 2
    assert target.read_text().startswith("**")
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("where", ["no/such/folder/x", "."])
def test_an_output_that_cannot_be_written_is_one_sentence(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    assert report_main([str(hostile), "-o", str(tmp_path / where)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_output_to_a_device_works(hostile: Path) -> None:
    assert report_main([str(hostile), "-o", "/dev/null"]) == 0
    assert report_main([str(hostile), "-o", "/dev/full"]) == 2
    assert Path("/dev/null").is_char_device()


def test_numbers_that_json_lacks_are_null(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from badput_ledger.books import Books

    real = Books.report
    more = {"x": [{"y": float("nan")}, float("inf"), 1.5]}
    monkeypatch.setattr(Books, "report", lambda self: real(self) | more)
    said = json.loads(printed(hostile, capsys, "--json"), parse_constant=pytest.fail)
    assert said["x"] == [{"y": None}, None, 1.5]


def test_a_run_folder_whose_name_is_not_utf8_is_read(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = hostile.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert fsck_main([str(odd)]) == 0
    for form in ("text", "json", "md"):
        capsys.readouterr()
        assert report_main([str(odd), "--format", form]) == 0
        capsys.readouterr().out.encode("utf-8")
    assert report_main([str(odd) + "x"]) == 2
    assert "caf\\xe9x: no such folder" in capsys.readouterr().err


def test_a_terminal_without_unicode_gets_a_replacement(hostile: Path) -> None:
    command = [sys.executable, "-m", "badput.cli", "report", str(hostile), "--currency", "EUR"]
    done = subprocess.run(
        [*command, "--price", "2", "--format", "md"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u20ac" in done.stdout


def test_every_format_has_the_starts_the_cost_of_sessions_and_the_grade(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start that saves (110 s), one that does not (10 s), at 3600 an hour: a dollar a s."""
    pid = make.process(0, init=0)
    at = make.steps(pid, 1, 20, 0, 5)
    make.checkpoint(pid, "save", 20, at, 10, path="/c/20")
    make.span(pid, "save", at, 10)
    make.end(pid, 110, reason="killed", signal=9)
    make.end(make.process(110, init=110), 120, reason="killed", signal=9)
    run = make.write()
    text = printed(run, capsys, "--price", "3600")
    assert "starts    1 saved a checkpoint; 1 finished no step" in text
    assert [line.split()[-2] for line in text.splitlines() if line.startswith(("s1", "s2"))] == [
        "$110.00",
        "$10.00",
    ]
    said = printed(run, capsys, "--price", "3600", "--format", "md").replace("\\", "")
    assert "| s1 | 1..20 | 20 | 0 | – | $110.00 | killed |" in said
    assert "| s2 | none | 0 | 0 | 0.0 s | $10.00 | killed |" in said
    assert "- starts: 1 saved a checkpoint; 1 finished no step" in said
    page = printed(run, capsys, "--price", "3600", "--format", "html")
    grade = next(line for line in text.splitlines() if line.startswith("quality "))[8]
    assert f"- quality {grade}: " in said
    for cell in (f"grade {grade}", "made a checkpoint durable", "$110.00", "$10.00"):
        assert f">{cell}</td>" in page
    head = "| session | steps | kept | lost | gap before | ended |"
    assert head in printed(run, capsys, "--format", "md")


def test_the_text_lists_the_incidents_that_took_most(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """25 starts that die after 1 to 25 s, each charged to the end before it: 5 to 24 took most."""
    at = 0
    for n in range(1, 26):
        make.end(make.process(at, init=at), at + n, reason="killed", signal=9)
        at += n
    text = printed(make.write(), capsys)
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  i")]
    assert [x for x in listed if x[1:].isdigit()] == [f"i{n}" for n in range(5, 25)]
    assert "  and 5 that took less, in --json" in text
