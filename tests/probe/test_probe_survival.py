"""What survives what: kills of the trainer, of the collector, forks, odd exits."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

FAST_STEPS = """
import badput, mmap, os, struct
with open(os.environ["COUNTER"], "r+b") as handle:
    counter = mmap.mmap(handle.fileno(), 8)
badput.init(os.environ["RUN"])
number = 0
while True:
    with badput.step(tokens=number):
        pass
    number += 1
    counter[:8] = struct.pack("<Q", number)
"""


class Counter:
    """A number that a child counts up in a shared page, and that outlives it."""

    def __init__(self, path):
        path.write_bytes(bytes(8))
        with path.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), 8)

    def value(self):
        return struct.unpack("<Q", self._map[:8])[0]


def check_steps(rows, finished):
    """Every finished step is there once, in order, and at most the one under way beside them."""
    steps = [r["step"] for r in rows]
    assert steps == list(range(1, len(steps) + 1))
    assert finished <= len(steps) <= finished + 1
    assert [r["tokens"] for r in rows] == list(range(len(rows)))
    assert len({r["seq"] for r in rows}) == len(rows)


def test_twenty_kills_at_random_moments_lose_no_finished_step(box, tmp_path, wait_until):
    random.seed(7)
    finished = {}
    for turn in range(20):
        counter = Counter(tmp_path / f"counter{turn}")
        child = box.start(FAST_STEPS, env={"COUNTER": str(tmp_path / f"counter{turn}")})
        wait_until(lambda c=counter: c.value() > 0, "a first step")
        time.sleep(random.uniform(0, 0.06))
        child.kill()
        child.wait()
        finished[child.pid] = counter.value()
    ends = box.ends(20)
    assert len(ends) == 20
    assert {e["attrs"]["reason"] for e in ends} <= {"killed", "unknown"}, (
        "unknown: it died before its collector looked"
    )
    pids = {r["process_id"]: r["pid"] for r in box.rows("processes")}
    rows = box.rows("steps")
    for process_id, pid in pids.items():
        check_steps([r for r in rows if r["process_id"] == process_id], finished[pid])


def test_a_killed_collector_is_replaced_by_the_next_init_and_nothing_doubles(
    own_box, tmp_path, wait_until
):
    counter = Counter(tmp_path / "counter")
    slower = FAST_STEPS.replace("        pass", "        time.sleep(0.0002)").replace(
        "import badput", "import time, badput"
    )
    child = own_box.start(slower, env={"COUNTER": str(tmp_path / "counter")})
    for _ in range(3):
        wait_until(lambda: own_box.rows("steps") != [], "a first part")
        before = len(own_box.rows("steps"))
        wait_until(lambda b=before: len(own_box.rows("steps")) > b, "more steps")
        own_box.kill_collectors()
        assert (
            own_box.run_child("import badput, os; badput.init(os.environ['RUN'])").returncode == 0
        )
    child.kill()
    child.wait()
    own_box.ends(4)
    process_id = next(r["process_id"] for r in own_box.rows("processes") if r["pid"] == child.pid)
    rows = [r for r in own_box.rows("steps") if r["process_id"] == process_id]
    check_steps(rows, counter.value())
    ends = [e for e in own_box.events("end") if e["process_id"] == process_id]
    assert len(ends) == 1


@pytest.mark.parametrize(("last_line", "reason"), [("", "completed"), ("sys.exit(3)", "exit")])
def test_an_interpreter_that_takes_long_to_end_is_not_taken_for_another_program(
    box, last_line, reason
):
    """Python frees the maps, which drops the lock too, long before the process is gone."""
    child = box.run_child(f"""
import badput, ctypes, os, sys, time
badput.init(os.environ["RUN"])
with badput.step():
    pass
while not os.path.isdir(os.environ["RUN"]):
    time.sleep(0.05)
libc = ctypes.CDLL(None)
libc["__cxa_atexit"](libc.sleep, ctypes.c_void_p(2), None)  # as libraries' own ends do
{last_line}
""")
    (end,) = box.ends()
    assert (end["attrs"]["reason"], end["attrs"]["exit_code"]) == (reason, child.returncode)


@pytest.mark.parametrize(
    ("last_line", "reason", "code", "number"),
    [
        ("", "completed", 0, None),
        ("sys.exit(3)", "exit", 3, None),
        ("os._exit(4)", "exit", 4, None),
        ("os._exit(0)", "completed", 0, None),
        ("raise RuntimeError('x')", "exception", 1, None),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", None, 9),
        ("os.kill(os.getpid(), signal.SIGTERM)", "signal", None, 15),
        ("badput.close(); os.kill(os.getpid(), 9)", "completed", None, None),
    ],
)
def test_the_end_says_how_the_process_ended(box, last_line, reason, code, number):
    child = box.run_child(f"""
import badput, os, signal, sys, time
badput.init(os.environ["RUN"])
with badput.step():
    pass
with badput.span("eval"):
    time.sleep(0.5)  # long enough for a collector to watch: after the death it is too late
    while not os.path.isdir(os.environ["RUN"]):
        time.sleep(0.05)
{last_line}
""")
    assert "badput" not in child.stderr.replace("badput.", "")
    (end,) = box.ends()
    attrs = end["attrs"]
    assert attrs["reason"] == reason
    if "close" not in last_line:
        assert (attrs["exit_code"], attrs["signal"]) == (code, number)
    assert attrs["phase"] == "loop"
    assert attrs["step"] == 1
    assert attrs["closed"] == ("close" in last_line)
    assert attrs["dropped"] == 0
    assert attrs["phase_since_ns"] <= attrs["last_sign_ns"] <= end["time_ns"]


@pytest.mark.parametrize(
    ("where", "phase", "step"),
    [
        ("", "init", 0),
        ("with badput.span('rendezvous'): die()", "rendezvous", 0),
        ("with badput.step(): die()", "step", 1),
        ("\nwith badput.step(): pass\nwith badput.step(), badput.span('wait_gradient'): die()",
         "wait_gradient", 2),
        ("\nwith badput.step(): pass\ndie()", "loop", 1),
        ("\nwith badput.step(): pass\nwith badput.span('save', step=1): die()", "save", 1),
        ("\nwith badput.step(): pass\nfor _ in badput.data(dying()): pass", "data", 1),
    ],
)  # fmt: skip
def test_the_end_knows_the_phase_that_a_kill_cut_off(box, where, phase, step):
    box.run_child(f"""
import badput, os
def die(): os.kill(os.getpid(), 9)
def dying():
    die()
    yield 1
badput.init(os.environ["RUN"])
{where}
die()
""")
    (end,) = box.ends()
    assert (end["attrs"]["phase"], end["attrs"]["step"]) == (phase, step)
    spans = box.rows("spans")
    if phase in ("rendezvous", "save"):
        assert [(s["name"], s["dur_ns"]) for s in spans] == [(phase, None)]
        assert spans[0]["start_ns"] == end["attrs"]["phase_since_ns"]
    else:
        assert spans == []
    if phase == "save":
        (point,) = box.rows("checkpoints")
        assert (point["op"], point["step"], point["ok"], point["durable_ns"]) == (
            "save",
            1,
            None,
            None,
        )


def test_a_forked_child_records_nothing_until_it_calls_init(box):
    child = box.run_child("""
import badput, os
badput.init(os.environ["RUN"])
with badput.step(tokens=1):
    pid = os.fork()
    if pid == 0:
        badput.event("note", text="from the child")
        for _ in range(10):
            with badput.step(tokens=2):
                pass
        with badput.span("save", step=1):
            pass
        badput.close()
        badput.init(os.environ["RUN"], rank=1)
        with badput.step(tokens=3):
            pass
        badput.close()
        os._exit(0)
    os.waitpid(pid, 0)
with badput.step(tokens=4):
    pass
badput.close()
""")
    assert child.stderr == ""
    box.ends(2)
    assert sorted((r["rank"], r["step"], r["tokens"]) for r in box.rows("steps")) == [
        (0, 1, 1), (0, 2, 4), (1, 1, 3),
    ]  # fmt: skip
    assert box.events("note") == []
    assert box.rows("spans") == []


def test_a_fork_inside_a_step_does_not_write_into_the_parents_spool(box):
    child = box.run_child("""
import badput, os
badput.init(os.environ["RUN"])
for _ in badput.data(range(3)):
    with badput.step() as step:
        pid = os.fork()
        if pid == 0:
            step.log(loss=1.0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
badput.close()
""")
    assert child.stderr == ""
    (end,) = box.ends()
    assert [(r["step"], r["loss"]) for r in box.rows("steps")] == [(1, None), (2, None), (3, None)]
    assert (end["attrs"]["damaged"], end["attrs"]["records"]) == (0, 4)


def test_the_collector_is_no_child_of_the_program_and_outlives_its_process_group(
    own_box, wait_until
):
    child = own_box.start(
        """
import badput, os, time
badput.init(os.environ["RUN"])
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child", flush=True)
except ChildProcessError:
    print("no child", flush=True)
with badput.step():
    time.sleep(60)
""",
        start_new_session=True,
        stdout=-1,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "no child\n"
    wait_until(lambda: len(own_box.rows("processes")) == 1, "the process row")
    assert len(own_box.collectors()) == 1
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (end,) = own_box.ends()
    assert (end["attrs"]["reason"], end["attrs"]["phase"]) == ("killed", "step")


def test_many_ranks_start_one_collector_and_it_leaves_when_all_is_done(own_box, wait_until):
    code = "import badput, os; badput.init(os.environ['RUN']); badput.close()"
    children = [own_box.start(code, env={"RANK": str(r), "WORLD_SIZE": "4"}) for r in range(4)]
    assert [c.wait() for c in children] == [0, 0, 0, 0]
    own_box.ends(4)
    assert len(own_box.collectors()) == 1
    wait_until(lambda: not own_box.collectors(), "the idle collector to leave")
    assert {r["rank"] for r in own_box.rows("processes")} == {0, 1, 2, 3}


def test_a_spawned_worker_that_runs_the_main_module_again_is_no_rank(box, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import badput, multiprocessing, os
badput.init(os.environ["RUN"])
def work(): pass
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
    badput.close()
""")
    done = subprocess.run([sys.executable, script], env=box.env, check=False, timeout=60)
    assert done.returncode == 0
    box.ends()
    assert len(box.rows("processes")) == 1
