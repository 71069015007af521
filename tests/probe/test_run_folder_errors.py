"""A run folder on a file system that fails, for a while or for ever.

It fails at the lowest place, in the calls of the C library, in the collector alone. Training goes
on, and each row is there once afterwards.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from badput.collect import main as collect
from badput.schema import TABLES

TRAIN = """
import badput, os, sys
badput.init(os.environ["RUN"])
number = 0
for line in sys.stdin:
    for _ in range(int(line)):
        number += 1
        with badput.step(tokens=number):
            pass
    badput.event("note", number=number)
    print(number, flush=True)
badput.close(timeout=5)
"""
CASES = [
    *(("open", name) for name in ("ESTALE", "EROFS", "EIO", "EDQUOT", "ENOSPC", "ENOENT")),
    *(("write", name) for name in ("ENOSPC", "EDQUOT", "EIO", "ESTALE")),
    *(("fsync", name) for name in ("EIO", "ENOSPC", "EDQUOT", "ESTALE")),
    *(("rename", name) for name in ("ENOENT", "EROFS", "EIO", "EDQUOT", "ESTALE")),
    *(("mkdir", name) for name in ("EROFS", "EDQUOT")),
    ("*", "ESTALE"),
]


@pytest.fixture(scope="session")
def library(gcc, tmp_path_factory):
    """The library that fails."""
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).resolve().parents[1] / "fake_fs" / "faults.c"
    subprocess.run([gcc, "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


class Faults:
    """The rules, and what failed by them."""

    def __init__(self, box, library):
        self.file = box.folder / "faults.txt"
        self.log = box.folder / "faults.txt.log"
        self.run = box.run
        self.say()
        wrapper = box.folder / "python"
        wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec "$REAL_PYTHON" "$@"\n')
        wrapper.chmod(0o755)
        box.env |= {
            "FAULT_FS": str(self.file), "BADPUT_PYTHON": str(wrapper),
            "REAL_PYTHON": sys.executable,
        }  # fmt: skip

    def say(self, *rules):
        fresh = self.file.with_suffix(".new")
        lines = [f"{call} {getattr(errno, name)} {self.run}\n" for call, name in rules]
        fresh.write_text("".join(lines))
        fresh.replace(self.file)

    def count(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def faults(own_box, library):
    return Faults(own_box, library)


def start(box):
    return box.start(TRAIN, stdin=-1, stdout=-1, stderr=-1)


def go(child, count):
    child.stdin.write(f"{count}\n")
    child.stdin.flush()
    return int(child.stdout.readline())


def once(box, total, notes):
    """Every step and every note is there exactly once, and nothing else is left."""
    steps = box.rows("steps")
    assert [r["step"] for r in steps] == list(range(1, total + 1))
    assert [r["tokens"] for r in steps] == list(range(1, total + 1))
    assert len(box.events("note")) == notes
    for table in TABLES:
        keys = [(r["process_id"], r["seq"]) for r in box.rows(table) if "seq" in r]
        if table not in ("traces", "collectives"):
            assert len(set(keys)) == len(keys), table
    assert list((box.run / "tmp").glob("*.parquet")) == []


@pytest.mark.parametrize("when", ["at first", "later"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_run_folder_that_fails_for_a_while_gets_each_row_once(
    own_box, faults, wait_until, case, when
):
    call, name = case
    if when == "later" and call == "mkdir":
        pytest.skip("the folders are made only once")
    if when == "at first":
        faults.say((call, name))
    child = start(own_box)
    assert go(child, 50) == 50
    if when == "later":
        wait_until(lambda: len(own_box.rows("steps")) == 50, "the first steps")
        faults.say((call, name))
    assert go(child, 70) == 120
    wait_until(lambda: faults.count() >= 2, "a second try")
    wait_until(lambda: "cannot write to" in own_box.log(), "the collector to complain")
    assert go(child, 5) == 125
    assert os.strerror(getattr(errno, name)) in own_box.log()
    assert str(own_box.run) in own_box.log()
    faults.say()
    wait_until(lambda: "can be written again" in own_box.log(), "the folder to be well")
    out, err = child.communicate("10\n")
    assert (child.returncode, int(out)) == (0, 135)
    assert "Traceback" not in err
    (end,) = own_box.ends()
    assert (end["attrs"]["reason"], end["attrs"]["dropped"]) == ("completed", 0)
    once(own_box, 135, 4)
    assert "Traceback" not in own_box.log()
    assert own_box.log().count("cannot write to") == 1


@pytest.mark.parametrize(("call", "name"), [("open", "EROFS"), ("fsync", "EIO"), ("*", "ESTALE")])
def test_a_run_folder_that_fails_for_ever_loses_only_what_found_no_room(
    own_box, faults, wait_until, call, name
):
    """The spool takes so much and no more; the rest is counted, and what it holds is collected."""
    site = own_box.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import badput.layout as lo\nlo.MAX_SEGMENTS = 3\n"
        "import sys\n"
        "if 'badput.collector' in ' '.join(sys.orig_argv):\n"
        "    import badput.collector as c\n    c.KEEP_S = c.IDLE_S = 0.5\n"
    )
    own_box.env["PYTHONPATH"] = str(site)
    faults.say((call, name))
    child = start(own_box)
    assert go(child, 120_000) == 120_000
    wait_until(lambda: "cannot write to" in own_box.log(), "the collector to complain")
    out, err = child.communicate("5\n")
    assert (child.returncode, int(out)) == (0, 120_005)
    assert err.count("cannot be written (") == 1
    assert os.strerror(getattr(errno, name)) in err
    assert "Traceback" not in err
    wait_until(lambda: not own_box.collectors(), "the collector to give up")
    assert "stays in" in own_box.log()
    assert "Traceback" not in own_box.log()
    assert len(own_box.spools()) == 1
    assert collect([str(own_box.spool)]) == 0
    steps = own_box.rows("steps")
    (end,) = own_box.events("end")
    lost = end["attrs"]["dropped"]
    assert lost > 0
    assert end["attrs"]["records"] + lost == 120_005 + 2 + 1  # with the notes, and the close
    assert len(steps) >= end["attrs"]["records"] - 3
    assert len({r["seq"] for r in steps}) == len(steps)
