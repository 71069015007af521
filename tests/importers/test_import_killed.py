"""Run folders are whole whenever the importer dies."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from badput_ledger.sources import place

_SERVER = """
import os, sys
import pyarrow.parquet, badput_ledger.sources.cli as cli  # once, so that each import is short
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(cli.main(line.split()))
    print(child, flush=True)
    sys.stdin.readline()  # until then its number cannot become another process's
    print(os.waitpid(child, 0)[1], flush=True)
"""


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def importer():
    """Starts an import in a process of its own: (pid, a function that waits for its status)."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:

        def start(*args):
            server.stdin.write(" ".join(map(str, args)) + "\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())

            def wait():
                server.stdin.write("\n")
                server.stdin.flush()
                return int(server.stdout.readline())

            return pid, wait

        yield start
        server.stdin.close()


def test_twenty_kills_at_any_moment_leave_a_whole_run_or_none_before_the_first(
    titan, tmp_path, do_import, importer
):
    titan.launch(1).steps(1, 400).save(1)
    logs = [titan.write(tmp_path / "short.log")]
    titan.steps(401, 800).finish()
    logs.append(titan.write(tmp_path / "long.log"))
    wanted = []
    for number, log in enumerate(logs):
        # One name for both, as for one log that grew: it stands in the evidence.
        (tmp_path / "a.log").write_bytes(log.read_bytes())
        done = do_import(tmp_path / "a.log", out=tmp_path / f"whole{number}")
        wanted.append(tree(done.run.path))
    name = done.run.path.name
    assert wanted[0] != wanted[1]

    out = tmp_path / "out"
    begin = time.monotonic()
    assert importer(tmp_path / "a.log", "-o", tmp_path / "warm")[1]() == 0
    usual = time.monotonic() - begin
    chance = random.Random()
    killed = there = 0
    for turn in range(200):
        (tmp_path / "a.log").write_bytes(logs[turn % 2].read_bytes())
        pid, wait = importer(tmp_path / "a.log", "-o", out)
        time.sleep(chance.uniform(0, 1.3) * usual)
        os.kill(pid, signal.SIGKILL)
        killed += wait() == signal.SIGKILL
        runs = [p for p in out.glob("*") if not p.name.startswith(".")]
        assert there <= len(runs) <= 1
        if runs:
            there = 1
            assert runs[0].name == name
            assert tree(runs[0]) in wanted
        if killed >= 20 and there:
            break
    assert killed >= 20

    assert importer(tmp_path / "a.log", "-o", out)[1]() == 0
    assert [p.name for p in out.iterdir()] == [name]


def _put(tmp_path, content):
    with place.building(tmp_path, "run") as build:
        (build / "what").write_text(content)


def _killed(action):
    """Run ``action`` in a child that dies in it."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def _die(*_args, **_more):
    os._exit(9)


def _no_such_call(*_args):
    raise OSError(errno.EINVAL, "Invalid argument")


def test_a_kill_right_after_the_exchange_leaves_the_new_run(tmp_path, monkeypatch):
    _put(tmp_path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(place.shutil, "rmtree", _die)
        _killed(lambda: _put(tmp_path, "new"))
    assert (tmp_path / "run/what").read_text() == "new"
    _put(tmp_path, "newer")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_without_an_exchange_the_old_run_steps_aside_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "_rename", _no_such_call)
    _put(tmp_path, "old")
    _put(tmp_path, "new")
    assert (tmp_path / "run/what").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    rename = type(tmp_path).rename

    def once(path, target):
        if ".old" not in str(target):
            os._exit(9)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "rename", once)
        _killed(lambda: _put(tmp_path, "newer"))
    assert not (tmp_path / "run").exists()  # the one moment that cannot be helped there
    with pytest.raises(FileNotFoundError), place.building(tmp_path, "run") as build:
        (build / "absent").read_text()
    assert (tmp_path / "run/what").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_import_leaves_alone_what_a_living_one_builds(tmp_path):
    with place.building(tmp_path, "run") as one:
        (one / "what").write_text("one")
        _put(tmp_path, "two")
        assert (one / "what").read_text() == "one"
        assert (tmp_path / "run/what").read_text() == "two"
    assert (tmp_path / "run/what").read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_file_in_the_place_of_a_run_is_not_touched(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(OSError, match="in the way"):
        _put(tmp_path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_text() == "mine"
