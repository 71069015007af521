"""badput annotate: what it changes in the books, what it refuses, and that the facts stay."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from badput_ledger.books import open_books
from badput_ledger.commands.annotate import main
from badput_ledger.commands.gate import main as gate_main
from badput_ledger.fsck import check
from badput_ledger.markdown import render as markdown
from badput_ledger.text import render

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_800_000_000 * 10**9
"""When every made-up run begins, in ns since the epoch."""


@pytest.fixture
def run(make: Any) -> Path:
    """Steps 1..40, killed at 51 s; a gap of 1000 s that nothing explains; on from 21 to 60.

    Two ranks. A checkpoint at 20.
    """
    for rank in (0, 1):
        pid = make.process(0, rank=rank, world=2, init=2)
        make.checkpoint(pid, "save", 20, 9, path="/c", rank=rank)
        make.steps(pid, 1, 40, 10, 1.0, rank=rank, tokens=10)
        make.end(pid, 51, reason="killed", signal=9, rank=rank)
        pid = make.process(1051, rank=rank, world=2, init=1053)
        make.checkpoint(pid, "load", 20, 1054, path="/c", rank=rank)
        make.steps(pid, 21, 60, 1056, 1.0, rank=rank, tokens=10)
        make.end(pid, 1096, rank=rank)
    return make.write()


def books_of(run: Path, **given: Any) -> dict[str, Any]:
    """The report, after fsck found nothing."""
    with open_books(run, price=3600.0, **given) as books:
        assert [c for c in check(books) if not c["ok"]] == []
        return books.report()


def seconds(report: dict[str, Any], leaf: str) -> float | None:
    return report["leaves"][leaf]["gpu_seconds"]


def digest(run: Path) -> str:
    files = sorted(p for p in (run / "facts").rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def test_a_planned_stop_takes_its_part_of_the_gap(run: Path) -> None:
    before = books_of(run)
    assert seconds(before, "A.stop") is None
    assert "badput annotate RUN --stop" in before["leaves"]["A.stop"]["reason"]
    facts = digest(run)
    assert main([str(run), "--stop", "+100s..+400s", "--note", "maintenance", "--by", "ann"]) == 0
    after = books_of(run)
    assert seconds(after, "A.stop") == 600
    assert seconds(after, "A.requeue") == pytest.approx(seconds(before, "A.requeue") - 600)
    assert after["total_gpu_ns"] == before["total_gpu_ns"]
    assert after["leaves"]["A.stop"]["evidence"] == "annotation"
    assert digest(run) == facts
    (said,) = after["annotations"]
    assert said["evidence"] == "annotation"
    assert (said["id"], said["by"], said["note"]) == ("a1", "ann", "maintenance")
    text = render(after)
    assert "said by people, not recorded" in text
    assert "maintenance (ann)" in " ".join(text.split())
    stop = next(line for line in text.splitlines() if line.startswith("  stop"))
    assert stop.endswith("(said)")


def test_a_stop_that_was_marked_has_its_own_denominator_and_is_printed(run: Path) -> None:
    """A weekend between two sessions: listed, and left out where somebody said that it was one."""
    before = books_of(run)
    assert "without_stops" not in before["kept_time"]
    assert main([str(run), "--stop", "+51s..+1051s", "--note", "weekend"]) == 0
    after = books_of(run)
    # 60 kept steps of a second on each of two ranks; 1096 s, 1000 of them stopped
    assert after["kept_time"]["value"] == pytest.approx(60 / 1096)
    assert after["kept_time"]["without_stops"] == pytest.approx(60 / 96)
    text = " ".join(render(after).split())
    assert "62.50% without planned stops of 33.3 GPU-minutes" in text
    assert gate_main([str(run), "--min-kept-time", "0.6"]) == 1
    assert gate_main([str(run), "--min-kept-time-without-stops", "0.6"]) == 0
    assert "62.50%" in markdown(after)


def test_a_stop_that_reaches_into_sessions_counts_only_where_nothing_ran(run: Path) -> None:
    assert main([str(run), "--stop", "+20s..+1060s"]) == 0
    after = books_of(run)
    assert seconds(after, "A.stop") == 2000
    assert seconds(after, "D.recomputed") == 40


def test_held_and_released_decide_what_is_paid(run: Path) -> None:
    assert main([str(run), "--released", "+51s..+551s"]) == 0
    after = books_of(run)
    assert after["total_gpu_seconds"] - after["held_gpu_seconds"] == 1000
    with open_books(run) as books:
        rows = books.rows("SELECT held, evidence FROM allocations WHERE held = 'no'")
    assert {(r["held"], r["evidence"]) for r in rows} == {("no", "annotation a1")}
    assert main([str(run), "--held", "+551s.."]) == 0
    after = books_of(run, gaps="released")
    assert after["total_gpu_seconds"] - after["held_gpu_seconds"] == 1000
    # the same allocation came back, so it is a relaunch
    assert seconds(after, "C.launch") == pytest.approx(4 + 4 + 1000 - 0)
    assert seconds(after, "A.requeue") == 1000


def test_what_ran_was_held_whatever_a_person_says(run: Path) -> None:
    assert main([str(run), "--released", "+20s..+551s"]) == 0
    after = books_of(run)
    assert after["total_gpu_seconds"] - after["held_gpu_seconds"] == 1000


def test_what_a_source_said_of_a_place_stays(make: Any) -> None:
    pid = make.process(0, init=1)
    make.steps(pid, 1, 9, 1, 1.0)
    make.end(pid, 10)
    for start, end, held in ((-50, 0, "yes"), (10, 40, "unknown")):
        make.add("allocations", slot=0, start_ns=T0 + start * 10**9, end_ns=T0 + end * 10**9,
                 held=held, evidence="accounting")  # fmt: skip
    run = make.write()
    assert books_of(run)["held_gpu_seconds"] == 90
    assert main([str(run), "--released", "..."]) == 2
    assert main([str(run), "--released", ".."]) == 0
    assert books_of(run)["held_gpu_seconds"] == 60


def test_a_person_knows_better_that_the_same_job_gave_its_gpus_back(make: Any) -> None:
    for start in (0, 100):
        pid = make.process(start, init=start + 1, job_id="7")
        make.steps(pid, 1 + start // 10, 10 + start // 10, start + 2, 1.0)
        make.end(pid, start + 12, reason="killed" if not start else "completed")
    run = make.write()
    assert books_of(run)["held_gpu_seconds"] == 112
    assert main([str(run), "--released", "+12s..+100s"]) == 0
    assert books_of(run)["held_gpu_seconds"] == 24


def test_diagnosis_in_a_gap_belongs_to_the_incident_before_it(run: Path) -> None:
    before = books_of(run)["incidents"][0]
    # the last second of the first session is the step under way, which it stays
    assert main([str(run), "--diagnosis", "+50.5s..+200s"]) == 0
    after = books_of(run)
    assert seconds(after, "B.diagnosis") == 2 * 149
    incident = after["incidents"][0]
    assert incident["phases"]["B.diagnosis"] == 2 * 149
    assert incident["gpu_seconds"] == pytest.approx(before["gpu_seconds"])


def test_diagnosis_takes_the_place_of_hang_and_teardown(make: Any) -> None:
    pid = make.process(0, init=1)
    at = make.steps(pid, 1, 30, 2, 1.0)
    make.event(pid, "hang", at + 60, what="no progress")
    make.end(pid, at + 100, reason="killed", signal=9)
    run = make.write()
    before = books_of(run)
    assert (seconds(before, "B.hang"), seconds(before, "B.teardown")) == (59, 40)
    assert main([str(run), "--diagnosis", "+72s..+122s"]) == 0
    after = books_of(run)
    found = [seconds(after, f"B.{x}") for x in ("hang", "diagnosis", "teardown")]
    assert found == [39, 50, 10]
    assert seconds(after, "D.partial") == seconds(before, "D.partial")


def test_a_rollback_on_purpose_is_a_rewind(run: Path) -> None:
    assert seconds(books_of(run), "D.recomputed") == 40
    assert main([str(run), "--rewind", "20", "--note", "loss spike"]) == 0
    after = books_of(run)
    assert seconds(after, "D.rewind") == 40
    assert seconds(after, "D.recomputed") == 0
    assert after["steps"]["lost"] == 20
    assert after["steps"]["kept"] == 60
    assert after["leaves"]["D.rewind"]["evidence"] == "annotation"


def test_a_rollback_within_a_session_is_a_rewind(make: Any) -> None:
    pid = make.process(0, init=1)
    at = make.steps(pid, 1, 30, 2, 1.0)
    at = make.steps(pid, 11, 40, at, 1.0)
    make.end(pid, at)
    run = make.write()
    assert seconds(books_of(run), "D.recomputed") == 20
    assert main([str(run), "--rewind", "10"]) == 0
    assert seconds(books_of(run), "D.rewind") == 20
    assert main([str(run), "--rewind", "10"]) == 2


def test_spares_are_places_that_nobody_else_saw(run: Path) -> None:
    before = books_of(run)
    assert main([str(run), "--spare", "1"]) == 0
    after = books_of(run)
    assert after["total_gpu_seconds"] == before["total_gpu_seconds"] * 1.5
    assert seconds(after, "A.spare") == 51 + 45
    assert seconds(after, "A.requeue") == 3000
    assert main([str(run), "--remove", "a1"]) == 0
    assert books_of(run)["total_gpu_ns"] == before["total_gpu_ns"]
    assert main([str(run), "--spare", "1@+0s..+11s"]) == 0
    after = books_of(run)
    assert after["total_gpu_seconds"] == before["total_gpu_seconds"] + 11
    assert seconds(after, "A.spare") == 11


def test_spares_that_a_source_listed_are_only_named(make: Any) -> None:
    pid = make.process(0, init=1)
    make.steps(pid, 1, 9, 1, 1.0)
    make.end(pid, 10)
    for slot in (0, 1, 2):
        make.add("allocations", slot=slot, start_ns=make.tables["processes"][0]["start_ns"],
                 end_ns=None, held="yes")  # fmt: skip
    run = make.write()
    assert seconds(books_of(run), "A.capacity") == 20
    assert main([str(run), "--spare", "1"]) == 0
    after = books_of(run)
    assert after["total_gpu_seconds"] == 30
    assert (seconds(after, "A.capacity"), seconds(after, "A.spare")) == (10, 10)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--stop", "+1h..+2h"], "outside the run, which lasted from"),
        (["--stop", "+5s..+3s"], "not after its start"),
        (["--stop", "yesterday"], "is no interval; give A..B"),
        (["--stop", "x..y"], "'x' is no time"),
        (["--stop", "+12s..+20s"], "no gap between sessions in that time. Gaps: 2027-"),
        (["--diagnosis", "+12s..+20s"], "no gap and no failure in that time"),
        (["--released", "+12s..+20s"], "there is nothing to decide"),
        (["--rewind", "7"], "no steps after 7 were given up; they went back to 20"),
        (["--rewind", "last"], "give the step"),
        (["--spare", "0"], "from 1 to"),
        (["--spare", "two"], "give a number of places"),
        (["--held", "+60s..+90s", "--released", "+80s..+99s"], "contradicts"),
        (["--stop", "+60s..+90s", "--diagnosis", "+80s..+99s"], "contradicts"),
        (["--remove", "a7"], "there is no annotation a7; there is: none"),
        (["--note", ""], "a note has 1 to"),
        (["--note", "\ud800"], "UTF-8"),
        ([], "say what you know"),
        (["--remove", "a1", "--note", "x"], "--remove goes with --by alone"),
    ],
)
def test_nonsense_is_one_sentence_and_nothing_is_written(
    run: Path, capsys: pytest.CaptureFixture[str], given: list[str], why: str
) -> None:
    assert main([str(run), *given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1
    assert not (run / "annotations.jsonl").exists()


def test_what_contradicts_an_earlier_annotation_is_refused_by_its_id(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--held", "+60s..+90s"]) == 0
    assert main([str(run), "--released", "+80s..+100s"]) == 2
    assert "of annotation a1; take that back first (--remove a1)" in capsys.readouterr().err
    assert main([str(run), "--released", "+90s..+100s"]) == 0


def test_times_may_be_absolute_or_relative_to_either_end(run: Path) -> None:
    # the run lasts from 2027-01-15T08:00:00Z for 1096 s
    given = ["2027-01-15T08:01:40Z..2027-01-15T09:03:20+01:00", "+1m40s..+3m20s", "-996s..-896s"]
    for text in given:
        assert main([str(run), "--stop", text]) == 0
    said = books_of(run)["annotations"]
    assert {(a["start"], a["end"]) for a in said} == {
        ("2027-01-15T08:01:40Z", "2027-01-15T08:03:20Z")
    }


def test_only_ever_added_to_and_listed_without_what_was_taken_back(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--note", "first"]) == 0
    first = (run / "annotations.jsonl").read_bytes()
    assert main([str(run), "--note", "second", "--by", "bo"]) == 0
    assert main([str(run), "--remove", "a1"]) == 0
    assert (run / "annotations.jsonl").read_bytes().startswith(first)
    capsys.readouterr()
    assert main([str(run), "--list", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["id"], one["note"], one["by"]) == ("a2", "second", "bo")
    assert main([str(run), "--note", "third"]) == 0
    assert capsys.readouterr().out.startswith("a4 ")  # a3 was the removal
    assert [p.name for p in run.iterdir() if p.name.startswith(".")] == []


def test_a_damaged_line_costs_itself_and_is_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--stop", "+100s..+200s"]) == 0
    path = run / "annotations.jsonl"
    good = path.read_bytes()
    bad = [b"{", b"[1]", b'{"id": "a9", "written_ns": 1, "kind": "stop"}', b"\xff", b"[" * 99999,
           b'{"id": "a8", "written_ns": 1, "kind": "spare", "places": -4}']  # fmt: skip
    path.write_bytes(b"\n".join([*bad, good]))
    with open_books(run) as books:
        assert len(books.broken) == len(bad)
        assert all("annotations.jsonl: line" in b for b in books.broken)
        assert seconds(books.report(), "A.stop") == 200
    capsys.readouterr()
    assert main([str(run), "--note", "still"]) == 2
    assert path.read_bytes().startswith(b"\n".join(bad))


def test_many_writers_at_once_lose_nothing(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from badput_ledger.annotations import Annotation, add_annotations\n"
        "for i in range(20): add_annotations(Path(sys.argv[1]), "
        "[Annotation('', 'note', note=f'{sys.argv[2]}-{i}')])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(run), str(n)]) for n in range(4)]
    assert [w.wait(timeout=120) for w in writers] == [0] * 4
    rows = [json.loads(x) for x in (run / "annotations.jsonl").read_text().splitlines()]
    assert [r["id"] for r in rows] == [f"a{n}" for n in range(1, 81)]
    assert {r["note"] for r in rows} == {f"{n}-{i}" for n in range(4) for i in range(20)}


def test_hostile_notes_stay_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--note", "<script>\x1b[31m\n\u202e", "--by", "=1\n"]) == 0
    assert main([str(run), "--list"]) == 0
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    assert all(c.isprintable() or c == "\n" for c in render(books_of(run)))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stop", "diagnosis", "held", "released", "spare", "rewind"]),
            st.integers(0, 1_096_000_000_000),
            st.integers(1, 1_096_000_000_000),
            st.integers(1, 3),
        ),
        max_size=6,
    )
)
def test_whatever_the_file_says_the_books_close(
    run: Path, said: list[tuple[str, int, int, int]]
) -> None:
    """Contradictions, which the command refuses, are in the file all the same."""
    lines = []
    for number, (kind, start, length, places) in enumerate(said):
        row = {"id": f"a{number}", "written_ns": 1, "kind": kind, "places": places, "step": 20}
        row |= {"start_ns": T0 + start, "end_ns": T0 + start + length}
        lines.append(json.dumps(row))
    (run / "annotations.jsonl").write_text("\n".join(lines))
    for gaps in ("unknown", "released"):
        report = books_of(run, gaps=gaps)
        assert len(report["annotations"]) == len(said)
        assert report["held_gpu_seconds"] <= report["total_gpu_seconds"]
    (run / "annotations.jsonl").unlink()
