"""The wall clock moves while a process runs: durations stay, and the move is told."""

from __future__ import annotations

import pytest

TRAIN = """
import badput, os, sys
badput.init(os.environ["RUN"])
with badput.step():
    pass
print("ready", flush=True)
sys.stdin.readline()
with badput.step():
    pass
os._exit(0)
"""
SHIFTED = """
import os, time
_real, _boot = time.time_ns, time.clock_gettime_ns
def wall():
    try:
        with open(os.environ["SHIFT"]) as handle:
            return _real() + int(handle.read())
    except (OSError, ValueError):
        return _real()
import badput.clock
badput.clock.wall = wall
"""


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_is_told_once_and_moves_nothing(own_box, wait_until, hours):
    site = own_box.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SHIFTED)
    shift = own_box.folder / "shift"
    own_box.env.update(PYTHONPATH=str(site), SHIFT=str(shift))
    child = own_box.start(TRAIN, stdin=-1, stdout=-1)
    child.stdout.readline()
    wait_until(lambda: own_box.rows("steps") != [], "the first step")
    assert own_box.events("clock") == []
    by = hours * 3600 * 10**9
    (own_box.folder / "new").write_text(str(by))
    (own_box.folder / "new").rename(shift)
    wait_until(lambda: own_box.events("clock") != [], "the move to be told")
    own_box.kill_collectors()
    done = own_box.run_child("import badput, os; badput.init(os.environ['RUN']); badput.close()")
    assert done.returncode == 0
    child.communicate("\n")
    ends = own_box.ends(2)
    (told,) = own_box.events("clock")
    assert abs(told["attrs"]["shift_ns"] - by) < 10**9
    assert abs(told["attrs"]["boot_shift_ns"]) < 10**9
    steps = own_box.rows("steps")
    mine = [r for r in steps if r["process_id"] == told["process_id"]]
    assert [r["step"] for r in mine] == [1, 2]
    assert 0 < mine[1]["start_ns"] - mine[0]["start_ns"] < 10 * 60 * 10**9
    assert all(0 < r["dur_ns"] < 60 * 10**9 for r in mine)
    (end,) = [e for e in ends if e["process_id"] == told["process_id"]]
    assert mine[1]["start_ns"] < end["time_ns"] < mine[1]["start_ns"] + 10 * 60 * 10**9
    assert mine[0]["start_ns"] < told["time_ns"] < end["time_ns"]
