"""``badput import`` as a user meets it: what it writes, prints and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from badput.parts import is_run
from badput_ledger.sources.cli import main


@pytest.fixture
def good(titan, tmp_path):
    titan.launch(1).steps(1, 5).save(1).finish()
    return titan.write(tmp_path / "good.log")


def refuse(capsys, args):
    """The one sentence with which ``args`` are refused."""
    code = main([str(a) for a in args])
    err = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in err
    assert err.startswith("badput import: ")
    return err


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_importing_twice_gives_the_same_bytes_and_one_run(good, tmp_path, do_import):
    out = tmp_path / "out"
    first = do_import(good)
    before = tree(out)
    second = do_import(good)
    assert first.reply == second.reply
    assert tree(out) == before
    assert [p.name for p in out.iterdir()] == [first.reply["runs"][0]["id"]]


def test_a_grown_log_replaces_its_run(good, titan, tmp_path, do_import):
    first = do_import(good)
    titan.launch(6, load="/data/runs/alpha/checkpoint/step-5").steps(6, 9)
    second = do_import(titan.write(tmp_path / "good.log"))
    assert first.reply["runs"][0]["path"] == second.reply["runs"][0]["path"]
    assert second.run.ranges() == [(1, 5), (6, 9)]


def test_the_same_file_or_a_longer_copy_of_it_counts_once(good, titan, tmp_path, do_import):
    titan.steps(6, 8)
    longer = titan.write(tmp_path / "longer.log")
    assert do_import(good, good).run.ranges() == [(1, 5)]
    assert do_import(good, longer).run.ranges() == [(1, 8)]


def test_nothing_is_left_when_writing_fails(good, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert main([str(good), "-o", str(out)]) == 0
    before = tree(out)

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("badput_ledger.sources.facts.write_rows", full)
    capsys.readouterr()
    assert "no space left" in refuse(capsys, [good, "-o", out])
    assert tree(out) == before


def test_json_says_path_id_and_format(good, do_import):
    reply = do_import(good).reply
    (run,) = reply["runs"]
    assert run["format"] == "torchtitan"
    assert run["path"].endswith(run["id"])
    assert reply["unread"] == []


def test_text_names_sessions_steps_restarts_and_the_next_command(good, titan, tmp_path, capsys):
    titan.wait(5).launch(4).steps(4, 9)
    line = next(n for n, text in enumerate(titan.lines, 1) if text.startswith("W") and n > 5)
    log = titan.write(tmp_path / "again.log")
    assert main([str(log), "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "2 sessions, 11 steps" in out
    assert f"{log}:{line}" in out
    assert "badput report " in out


def test_what_the_user_knows_goes_into_the_run(good, do_import):
    done = do_import(
        good, extra=("--price", "2.5", "--name", "mine", "--tokens-per-step", "1234", "--gpus", "9")
    )
    assert done.run.config["price_per_gpu_hour"] == 2.5
    assert done.run.runs[0]["name"] == "mine"
    assert {r["tokens"] for r in done.run.steps} == {1234}
    assert any("--gpus 9 was not used" in note for note in done.run.config["notes"])


def test_a_folder_of_logs_is_read_and_other_files_in_it_are_left(good, tmp_path, do_import):
    folder = tmp_path / "logs"
    folder.mkdir()
    good.rename(folder / "good.log")
    (folder / "notes.txt").write_text("bought more coffee\n")
    assert do_import(folder).run.ranges() == [(1, 5)]


def test_bad_input_is_one_sentence_that_names_it(tmp_path, capsys):
    out = tmp_path / "out"
    empty = tmp_path / "empty.log"
    empty.touch()
    other = tmp_path / "other.log"
    other.write_text("epoch 1\x1b]0;evil\x07 loss 3\n" * 20)
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(256)) * 100)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no such file" in refuse(capsys, [tmp_path / "absent.log", "-o", out])
    assert "empty" in refuse(capsys, [empty, "-o", out])
    assert "binary" in refuse(capsys, [binary, "-o", out])
    assert "none of its 0 log files" in refuse(capsys, [nothing, "-o", out])
    assert "not a regular file" in refuse(capsys, [pipe, "-o", out])
    sentence = refuse(capsys, [other, "-o", out])
    assert "torchtitan" in sentence
    assert "epoch 1" in sentence
    assert "\x1b" not in sentence
    assert "\x07" not in sentence


def test_out_that_is_a_file_is_refused(good, capsys):
    assert "is a file" in refuse(capsys, [good, "-o", good])
    assert "is a file" in refuse(capsys, [good, "-o", good / "below"])


def test_one_bad_file_does_not_lose_the_others(good, tmp_path, capsys):
    out = tmp_path / "out"
    code = main([str(tmp_path / "absent.log"), str(good), "-o", str(out), "--json"])
    text = capsys.readouterr()
    assert code == 2
    assert "absent.log" in text.err
    (run,) = json.loads(text.out)["runs"]
    assert is_run(run["path"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--gpus", "0"),
        ("--gpus", "two"),
        ("--price", "cheap"),
        ("--price", "nan"),
        ("--price", "-1"),
    ],
)
def test_a_number_that_is_none_is_refused(good, tmp_path, capsys, option, value):
    with pytest.raises(SystemExit) as stop:
        main([str(good), "-o", str(tmp_path / "out"), f"{option}={value}"])
    assert stop.value.code == 2
    assert value in capsys.readouterr().err


def test_files_and_folders_without_permission_are_one_sentence_each(good, tmp_path):
    locked = tmp_path / "locked.log"
    locked.write_bytes(good.read_bytes())
    shut = tmp_path / "shut"
    shut.mkdir()
    script = (
        "import os, sys\n"
        "from badput_ledger.sources.cli import main\n"
        "main([sys.argv.pop(1), '-o', sys.argv.pop(1)])\n"  # loads all modules as the owner
        "if os.getuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    locked.chmod(0)
    shut.chmod(0o555)
    good.chmod(0o644)
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    for args, word in (([locked, "-o", open_], "locked.log"), ([good, "-o", shut / "x"], "shut")):
        done = subprocess.run(
            [sys.executable, "-c", script, str(good), str(tmp_path / "warm"), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert word in done.stderr
        assert "permission" in done.stderr
        assert "Traceback" not in done.stderr
