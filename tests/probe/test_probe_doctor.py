"""``badput doctor``: what works here, and what is told where it does not."""

from __future__ import annotations

import json

from badput.cli import main as badput_main


def doctor(capsys, *args):
    code = badput_main(["doctor", "--json", *args])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (code == 0)
    return code, {c["name"]: c for c in found["checks"]}


def test_everything_that_recording_needs_works_here(own_box, capsys):
    own_box.run.mkdir()
    code, found = doctor(capsys, str(own_box.run))
    assert code == 0, found
    assert found["self test"]["level"] == "ok"
    assert "100 steps of a killed process are in Parquet" in found["self test"]["text"]
    assert found["spool"]["text"].startswith(str(own_box.spool))
    assert found["run folder"]["level"] == "ok"
    assert list(own_box.run.iterdir()) == []
    assert list(own_box.spool.glob("doctor-*")) == []


def test_a_person_reads_lines(own_box, capsys):
    assert badput_main(["doctor", "--no-self-test"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "recording works here"
    assert all(line[:5].strip() in ("ok", "warn", "") for line in lines[:-1])


def test_a_spool_that_must_not_be_used_is_a_failure(own_box, capsys, monkeypatch):
    own_box.spool.symlink_to(own_box.folder)
    code, found = doctor(capsys, "--no-self-test")
    assert code == 1
    assert "not a real folder" in found["spool"]["text"]
    assert "BADPUT_SPOOL" in found["spool"]["todo"]


def test_a_run_folder_that_cannot_be_written_is_a_failure(own_box, capsys):
    file = own_box.folder / "file"
    file.write_text("x")
    code, found = doctor(capsys, str(file / "run"), "--no-self-test")
    assert code == 1
    assert "cannot be written" in found["run folder"]["text"]


def test_asking_about_a_folder_does_not_make_it(own_box, capsys):
    run = own_box.folder / "runs" / "typo"
    code, found = doctor(capsys, str(run), "--no-self-test")
    assert code == 0
    assert "does not exist yet" in found["run folder"]["text"]
    assert not run.parent.exists()


def test_spools_left_behind_and_complaints_are_named(own_box, capsys):
    code = (
        "import badput, os; from badput import session;"
        "session.ensure_collector = lambda root: False;"
        "badput.init(os.environ['RUN']); os._exit(1)"
    )
    own_box.run_child(code)
    (own_box.spool / "collector.log").write_text("x: cannot write to /y\n")
    done, found = doctor(capsys, "--no-self-test")
    assert done == 0
    assert found["spools"]["text"] == "1 spools of dead processes"
    assert found["spools"]["todo"] == f"badput collect {own_box.spool}"
    assert "cannot write to /y" in found["collector"]["text"]


def test_where_no_collector_can_be_started_the_self_test_says_so(own_box, capsys, monkeypatch):
    monkeypatch.setattr("badput.checks.SELF_TEST_S", 2.0)
    monkeypatch.setattr(
        "badput.checks._TEST",
        """
import sys
python, sys.executable = sys.executable, ""
import badput, os, time
badput.init(os.environ["RUN"])
print("done", flush=True)
time.sleep(600)
""",
    )
    code, found = doctor(capsys)
    assert code == 1
    assert "BADPUT_COLLECTOR=thread" in found["self test"]["todo"]


def test_bad_usage_is_exit_2(capsys):
    assert badput_main(["doctor", "--nonsense"]) == 2
    assert badput_main(["doctor", "--help"]) == 0
    assert "Exit codes" in capsys.readouterr().out
