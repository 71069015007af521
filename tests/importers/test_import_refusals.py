"""Files that are none, cannot be read or go away: one sentence each, and the others go on."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from badput.parts import is_run
from badput_ledger.sources.cli import main
from badput_ledger.sources.text import TextLog


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem"])
def test_devices_are_refused_at_once(tmp_path, capsys, path):
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    assert main([path, "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert path in err
    assert err.count("\n") == 1


def test_a_file_that_vanishes_or_fails_while_it_is_read_keeps_no_other_out(
    titan, tmp_path, do_import, monkeypatch
):
    titan.launch(1).steps(1, 5)
    good = titan.write(tmp_path / "good.log")
    titan.folder = "/data/runs/gone"
    titan.launch(1).steps(1, 5)
    gone = titan.write(tmp_path / "gone.log")
    blocks = TextLog.blocks

    def fail(self, size=None):
        if self.path == gone and size is None:  # found, begun, and then
            raise FileNotFoundError(2, "No such file or directory", str(gone))
        yield from blocks(self, size)

    monkeypatch.setattr(TextLog, "blocks", fail)
    done = do_import(gone, good)
    assert done.code == 2
    assert f"{gone}: no such file" in done.err
    assert done.run.ranges() == [(1, 5)]


def test_a_file_that_fails_halfway_counts_as_far_as_it_was_read(
    titan, tmp_path, do_import, monkeypatch
):
    titan.launch(1).steps(1, 5)
    log = titan.write(tmp_path / "a.log")
    blocks = TextLog.blocks

    def stale(self, size=None):
        yield from blocks(self, size)
        raise OSError(116, "Stale file handle", str(log))

    monkeypatch.setattr(TextLog, "blocks", stale)
    done = do_import(log)
    assert done.code == 2
    assert "stale file handle" in done.err
    assert done.run.ranges() == [(1, 5)]


def test_out_inside_a_run_is_refused(titan, tmp_path, do_import, capsys):
    titan.launch(1).steps(1, 5)
    log = titan.write(tmp_path / "a.log")
    run = do_import(log).run.path
    for out in (run, run / "facts", run / "facts/steps/new"):
        assert main([str(log), "-o", str(out)]) == 2
        assert "is a run folder, or lies in one" in capsys.readouterr().err
    assert not (run / "facts/steps/new").exists()


def test_errors_go_to_stderr_and_json_to_stdout_in_every_case(titan, tmp_path, do_import, capsys):
    titan.launch(1).steps(1, 5)
    good = titan.write(tmp_path / "good.log")
    (tmp_path / "other.log").write_text("epoch 1\n")
    (tmp_path / "empty").mkdir()
    absent = tmp_path / "absent.log"
    for files, code in (
        ([good], 0),
        ([absent], 2),
        ([absent, good], 2),
        ([tmp_path / "other.log"], 2),
        ([tmp_path / "empty"], 2),
        (["", good], 2),
        (["a\0b", good], 2),
        (["x" * 5000], 2),
        ([good / "below"], 2),
    ):
        done = do_import(*files)
        assert done.code == code
        assert set(done.reply) == {"runs", "unread", "errors"}
        assert bool(done.reply["errors"]) == bool(code)
        assert bool(done.err) == bool(code)
        assert "Traceback" not in done.err
        assert bool(done.runs) == (good in files)
    for bad in (["--gpus", "0"], ["--format", "none"], ["--nonsense"]):
        with pytest.raises(SystemExit) as stop:
            main([str(good), "-o", str(tmp_path / "out"), "--json", *bad])
        assert stop.value.code == 2
        text = capsys.readouterr()
        assert json.loads(text.out)["runs"] == []
        assert text.err


def test_a_damaged_gzip_is_imported_as_far_as_it_goes_and_is_an_error(titan, tmp_path, do_import):
    titan.launch(1).steps(1, 400)
    data = gzip.compress(titan.write(tmp_path / "a.log").read_bytes())
    (tmp_path / "b.gz").write_bytes(data[: len(data) // 2])
    done = do_import(tmp_path / "b.gz")
    assert done.code == 2
    assert "cut" in done.err
    assert is_run(done.run.path)


def test_file_names_of_any_bytes_are_shown_and_kept_safely(titan, tmp_path, do_import, capsys):
    titan.launch(1).steps(1, 5)
    name = os.fsencode(tmp_path) + b"/\xff\x1b[31m\nx.log"
    titan.write(tmp_path / "a.log").rename(os.fsdecode(name))
    done = do_import(Path(os.fsdecode(name)))
    assert done.run.ranges() == [(1, 5)]
    assert all(e["file"].isprintable() for e in done.run.evidence)
    assert main([os.fsdecode(name), os.fsdecode(name) + "y", "-o", str(tmp_path / "out")]) == 2
    text = capsys.readouterr()
    assert all(line.isprintable() for line in (text.out + text.err).splitlines())


def test_a_file_of_a_folder_that_cannot_be_read_keeps_no_other_out(
    titan, tmp_path, do_import, monkeypatch
):
    folder = tmp_path / "logs"
    folder.mkdir()
    titan.launch(1).steps(1, 5).write(folder / "a.log")
    titan.write(folder / "locked.log")
    head = TextLog.head

    def refuse(self, *args):
        if self.path.name == "locked.log":
            raise PermissionError(13, "Permission denied", str(self.path))
        return head(self, *args)

    monkeypatch.setattr(TextLog, "head", refuse)
    done = do_import(folder)
    assert done.code == 2
    assert "locked.log: permission denied" in done.err
    assert done.run.ranges() == [(1, 5)]
