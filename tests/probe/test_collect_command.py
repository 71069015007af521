"""``badput collect``: what was left behind, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from badput.cli import main as badput_main
from badput.collect import main

LEFT_BEHIND = """
import badput, os, sys
from badput import session
session.ensure_collector = lambda root: False
badput.init(os.environ["RUN"])
for _ in range(5):
    with badput.step():
        pass
os._exit(1)
"""


def test_a_spool_that_was_left_behind_is_collected_once(box, capsys):
    root = box.folder / "left"
    assert box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)}).returncode == 1
    assert badput_main(["collect", str(root)]) == 0
    out = capsys.readouterr().out
    assert "6 records" not in out
    assert f"5 records into {box.run}; the process ended (unknown) in phase loop" in out
    assert "parts written" in out
    assert [r["step"] for r in box.rows("steps")] == [1, 2, 3, 4, 5]
    (end,) = box.events("end")
    # nobody saw it end: that it was found now must not become time of the run
    assert end["time_ns"] == end["attrs"]["last_sign_ns"] < end["attrs"]["found_ns"]
    assert main([str(root)]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_one_spool_can_go_into_another_run_folder(box, capsys):
    root = box.folder / "left"
    box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)})
    (one,) = root.glob("?" * 16)
    box.run = box.folder / "other"
    assert main([str(one), "--into", str(box.run)]) == 0
    assert len(box.rows("steps")) == 5


def test_a_living_process_is_drained_and_keeps_its_spool(box, capsys):
    root = box.folder / "left"
    code = LEFT_BEHIND.replace("os._exit(1)", "print('go', flush=True); input(); os._exit(1)")
    child = box.start(code, env={"BADPUT_SPOOL": str(root)}, stdin=-1, stdout=-1)
    child.stdout.readline()
    assert main([str(root)]) == 0
    assert f"pid {child.pid} still runs" in capsys.readouterr().out
    assert len(box.rows("steps")) == 5
    child.communicate("\n")
    assert main([str(root)]) == 0
    assert len(box.rows("steps")) == 5
    assert list(root.glob("?" * 16)) == []


def refusal(capsys, *args):
    code = main(list(map(str, args)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("badput collect: ")
    return code, captured.err


def test_bad_input_gets_one_sentence_and_exit_2(tmp_path, capsys):
    code, text = refusal(capsys, tmp_path / "absent")
    assert (code, "does not exist" in text) == (2, True)
    file = tmp_path / "file"
    file.write_text("x")
    code, text = refusal(capsys, file)
    assert (code, "is a file" in text) == (2, True)
    code, text = refusal(capsys, tmp_path)
    assert (code, "holds no spools" in text) == (2, True)


def test_a_damaged_spool_is_named_and_the_others_are_collected(box, capsys):
    root = box.folder / "left"
    box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)})
    bad = root / "0123456789abcdef"
    bad.mkdir()
    assert main([str(root)]) == 1
    captured = capsys.readouterr()
    assert "0123456789abcdef" in captured.err
    assert captured.err.count("\n") == 1
    assert len(box.rows("steps")) == 5


def test_a_folder_without_permission_is_one_sentence(open_folder):
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    locked = open_folder / "locked"
    locked.mkdir(mode=0o700)
    # The first call loads all modules: the other user may not be able to read the interpreter.
    code = (
        "import contextlib, io, os, sys\n"
        "from badput.collect import main\n"
        "with contextlib.redirect_stderr(io.StringIO()): main(['/absent'])\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"sys.exit(main([{str(locked)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot be read" in done.stderr


def test_help_explains_the_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "SPOOL_DIR" in capsys.readouterr().out


def edit(spool, **values):
    facts = json.loads(spool.joinpath("facts.json").read_text())
    spool.joinpath("facts.json").write_text(json.dumps({**facts, **values}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda spool: spool.joinpath("facts.json").write_text(
            spool.joinpath("facts.json").read_text().replace('"version"', '"vision"')
        ),
        lambda spool: edit(spool, run=""),
        lambda spool: edit(spool, run="here"),
        lambda spool: edit(spool, run=["/tmp"]),
        lambda spool: edit(spool, run="/a\0b"),
        lambda spool: (spool.joinpath("control").unlink(), os.mkfifo(spool / "control")),
        lambda spool: (
            spool.joinpath("seg-00000000").rename(spool / "away"),
            spool.joinpath("seg-00000000").symlink_to(spool / "away"),
        ),
        lambda spool: (spool.joinpath("seg-00000000").unlink(), os.mkfifo(spool / "seg-00000000")),
        lambda spool: (spool.joinpath("facts.json").unlink(), os.mkfifo(spool / "facts.json")),
        lambda spool: (
            spool.joinpath("facts.json").unlink(),
            spool.joinpath("facts.json").symlink_to("/etc/passwd"),
        ),
    ],
    ids=[
        "unknown fact", "no run", "relative run", "list for a run", "null byte", "control a pipe",
        "segment a link", "segment a pipe", "a pipe", "a link",
    ],
)  # fmt: skip
def test_a_spool_that_makes_no_sense_costs_one_sentence_and_stops_no_other(
    box, capsys, damage, monkeypatch
):
    monkeypatch.chdir(box.folder)
    root = box.folder / "left"
    for _ in range(2):
        box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)})
    bad, good = sorted(root.glob("?" * 16))
    damage(bad)
    assert main([str(root)]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"badput collect: {bad.name}: ")
    assert f"{good.name}: 5 records" in captured.out
    assert list(root.glob("?" * 16)) == [bad]
    assert not (box.folder / "facts").exists()
    assert "cannot write to" not in captured.err


def test_a_spool_without_a_run_folder_can_be_given_one(box, capsys):
    root = box.folder / "left"
    box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)})
    (one,) = root.glob("?" * 16)
    edit(one, run="")
    assert main([str(root)]) == 1
    err = capsys.readouterr().err
    assert "names '' as its run folder, which is no absolute path" in err
    assert "--into" in err
    assert main([str(root), "--into", str(box.run)]) == 0
    assert len(box.rows("steps")) == 5


def test_only_a_copy_of_ours_is_taken_for_one(box, tmp_path):
    """What collect removes in the end must not be for a file in the spool to say."""
    root, precious = box.folder / "left", tmp_path / "precious"
    box.run_child(LEFT_BEHIND, env={"BADPUT_SPOOL": str(root)})
    precious.mkdir()
    (precious / "thesis.txt").write_text("keep")
    (one,) = root.glob("?" * 16)
    (one / "copied.json").write_text(json.dumps({"to": str(precious)}))
    assert main([str(root)]) == 0
    assert (precious / "thesis.txt").read_text() == "keep"
    assert sorted(p.name for p in precious.iterdir()) == ["thesis.txt"]
    assert len(box.rows("steps")) == 5
