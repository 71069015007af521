"""A saved position that cannot be right: what is recorded is neither lost nor doubled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from badput import drain as draining
from badput.collect import main
from badput.drain import Drain

STEPS = 30_000
CODE = f"""
import badput, os
from badput import session
session.ensure_collector = lambda root: False
badput.init(os.environ["RUN"], hooks="none")
for n in range({STEPS}):
    with badput.step():
        pass
    if n % 1000 == 0:
        badput.event("note", n=n)
os._exit(1)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A spool of two segments."""
    folder = tmp_path_factory.mktemp("whole")
    env = {**os.environ, "BADPUT_SPOOL": str(folder / "spool"), "RUN": str(folder / "run")}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, check=False)
    assert done.returncode == 1
    (path,) = (folder / "spool").glob("?" * 16)
    return path


def partly(whole, box, monkeypatch):
    """A copy of it of which half is drained, so that its first segment is gone."""
    path = box.folder / "left" / whole.name
    shutil.copytree(whole, path)
    monkeypatch.setattr(draining, "BATCH_LIMIT", 7000)
    monkeypatch.setattr(draining, "_ROUNDS", 2)
    monkeypatch.chdir(box.folder)
    one = Drain(path, str(box.run))
    one.tell("note", 1, {"who": "first"})
    one.drain()
    early = one.position.text()
    one.drain()
    one.close()
    assert not (path / "seg-00000000").exists()
    return path, early


def change(**values):
    def apply(path, early):
        saved = json.loads((path / "ack.json").read_text())
        saved |= {k: v(saved[k]) if callable(v) else v for k, v in values.items()}
        (path / "ack.json").write_text(json.dumps(saved))

    return apply


def write(text):
    return lambda path, early: (path / "ack.json").write_text(text)


def link(path, early):
    (path / "ack.json").rename(path / "away")
    (path / "ack.json").symlink_to(path / "away")


def pipe(path, early):
    (path / "ack.json").unlink()
    os.mkfifo(path / "ack.json")


DAMAGE = {
    "sound": lambda path, early: None,
    "no JSON": write("{"),
    "nothing": write(""),
    "empty object": write("{}"),
    "list": write("[]"),
    "deep": write("[" * 100_000),
    "not UTF-8": lambda path, early: (path / "ack.json").write_bytes(b"\xff"),
    "null": write('{"segment": null, "offset": -1}'),
    "a list for a time": change(last_sign=[]),
    "segment below 0": change(segment=-1),
    "segment far ahead": change(segment=10**6),
    "next segment": change(segment=lambda n: n + 1, offset=64),
    "first segment": change(segment=0),
    "true": change(segment=True),
    "offset in a record": change(offset=lambda n: n + 8),
    "offset of the record before": change(offset=lambda n: n - 40),
    "offset at the end": change(offset=1 << 20),
    "offset beyond": change(offset=1 << 40),
    "seq ahead": change(seq=lambda n: n + 500),
    "seq behind": change(seq=lambda n: n - 500),
    "beyond 64 bits": change(told=1 << 70),
    "older": lambda path, early: (path / "ack.json").write_text(early),
    "names": change(names=["x"]),
    "open": change(open={"x": 1}),
    "end": change(end={"reason": "completed"}),
    "gone": lambda path, early: (path / "ack.json").unlink(),
    "link": link,
    "pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_no_record_is_lost_or_doubled_by_a_position_that_makes_no_sense(
    whole, box, monkeypatch, capsys, damage
):
    path, early = partly(whole, box, monkeypatch)
    damage(path, early)
    one = Drain(path, str(box.run))
    assert (one.note is None) == (damage is DAMAGE["sound"])
    one.tell("note", 2, {"who": "second"})
    one.drain()
    one.close()
    assert main([str(path.parent), "--into", str(box.run)]) == 0
    rows = [r["seq"] for t in ("steps", "events") for r in box.rows(t) if r["seq"] >= 0]
    end = max(rows)
    assert sorted(rows) == list(range(end + 1))
    assert [r["step"] for r in box.rows("steps")] == list(range(1, STEPS + 1))
    (ended,) = box.events("end")
    assert ended["attrs"]["records"] == end
    told = [(r["seq"], r["attrs"]["who"]) for r in box.events("note") if r["seq"] < 0]
    assert told == [(-2, "second"), (-1, "first")]
    assert "Traceback" not in capsys.readouterr().err
