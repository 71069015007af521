"""The hang watch: real ranks that stop moving, and those that only take their time."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from badput.collector import Collector
from badput.hang import HangWatch
from badput.kernel import look
from badput.limits import Limit, Pace, Place, base_limits, behind, excused
from badput.spawn import try_lock
from badput.stack_reader import find_spy, parse_dump, parse_spy

SHORT = {"BADPUT_HANG_S": "0.8", "BADPUT_HANG_SLOW_S": "600"}
BEGIN = """
import badput, os, sys, threading, time
badput.init(os.environ["RUN"])
for _ in range(30):
    with badput.step():
        time.sleep(0.01)
"""
MORE = """
for _ in range(40):
    with badput.step():
        time.sleep(0.05)
"""


def told(box, wait_until, kind):
    """The first event of a kind, once it is there."""
    wait_until(lambda: box.events(kind), f"an event {kind}")
    return box.events(kind)[0]


def hang_until_told(box, wait_until, body, **env):
    """Run a rank that hangs in ``body`` until its standard input says go; both events."""
    child = box.start(BEGIN + body + MORE, env={**SHORT, **env}, stdin=-1)
    hang = told(box, wait_until, "hang")
    child.communicate("go\n", timeout=60)
    end = told(box, wait_until, "hang_end")
    assert child.returncode == 0
    box.ends()
    assert len(box.events("hang")) == len(box.events("hang_end")) == 1
    return child, hang["attrs"], end["attrs"]


IN_A_LOCK = """
lock = threading.Lock()
lock.acquire()
def let_go():
    sys.stdin.readline()
    lock.release()
threading.Thread(target=let_go, daemon=True).start()
def wait_here():
    lock.acquire()
with badput.step():
    with badput.span("forward"):
        wait_here()
"""


def test_a_rank_that_waits_for_a_lock_is_told_with_its_stacks_and_so_is_its_end(box, wait_until):
    _, hang, end = hang_until_told(box, wait_until, IN_A_LOCK, BADPUT_STACKS="1")
    assert (hang["phase"], hang["step"]) == ("forward", 31)
    assert hang["threshold_ns"] >= 800_000_000
    assert hang["threshold"].startswith("0.8 s, or 10 times the usual step of 0.0")
    assert hang["age_ns"] > hang["threshold_ns"]
    assert hang["state"] == "S"
    assert hang["what"].startswith("rank 0 made no progress for ")
    assert hang["behind"] == []
    (main,) = [t for t in hang["stacks"] if any("wait_here" in f for f in t["frames"])]
    assert main["frames"][0] == "wait_here <string>:15"
    assert all("/" not in f for t in hang["stacks"] for f in t["frames"])
    assert end["duration_ns"] >= hang["age_ns"]
    assert end["since_ns"] == hang["since_ns"]
    assert (end["phase"], end["step"]) == ("forward", 31)
    assert (hang["in_step"], hang["whole_step"], end["in_step"]) == (True, False, True)
    report = box.books()
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["hang"]["survived"]) == ("hang", True)
    usual = hang["usual_step_ns"] / 1e9
    booked = report["leaves"]["B.hang"]["gpu_seconds"]
    # the end is seen a look late: steps that were done by then are steps
    assert hang["age_ns"] / 1e9 - usual <= booked <= end["duration_ns"] / 1e9 - usual


def test_a_rank_that_holds_the_interpreter_lock_in_c_shows_its_stack_too(box, wait_until):
    body = """
import ctypes
def sleep_in_c():
    buffer = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(0, buffer, 1)  # keeps the lock
with badput.step():
    sleep_in_c()
"""
    _, hang, _ = hang_until_told(box, wait_until, body, BADPUT_STACKS="1")
    assert any(f.startswith("sleep_in_c ") for t in hang["stacks"] for f in t["frames"])
    assert hang["phase"] == "step"


def test_a_rank_that_spins_is_told_as_busy(box, wait_until):
    body = """
done = []
threading.Thread(target=lambda: done.append(sys.stdin.readline()), daemon=True).start()
with badput.step():
    while not done:
        pass
"""
    _, hang, _ = hang_until_told(box, wait_until, body)
    assert hang["cpu"] > 0.05
    assert "stacks" not in hang


def test_a_stopped_rank_is_told_as_stopped(box, wait_until):
    child = box.start(BEGIN + MORE.replace("40", "4000"), env=SHORT)
    wait_until(lambda: box.rows("steps"), "steps")
    child.send_signal(signal.SIGSTOP)
    hang = told(box, wait_until, "hang")["attrs"]
    assert hang["state"] == "T"
    assert "its process is stopped by a signal (SIGSTOP)" in hang["what"]
    child.send_signal(signal.SIGCONT)
    told(box, wait_until, "hang_end")
    child.kill()
    child.wait()
    box.ends()
    assert len(box.events("hang")) == 1


def test_what_takes_its_time_is_no_hang(box):
    code = """
import badput, os, time
def slowly():
    time.sleep(2.5)
badput.init(os.environ["RUN"])
slowly()
with badput.span("load", step=4):
    slowly()
with badput.step():
    slowly()
for _ in range(30):
    with badput.step():
        time.sleep(0.01)
slowly()
with badput.span("eval"):
    slowly()
with badput.span("save", step=35):
    slowly()
with badput.span("my own"):
    slowly()
with badput.step(), badput.span("compile"):
    slowly()
"""
    assert box.run_child(code, env=SHORT).returncode == 0
    box.ends()
    assert box.events("hang") == []


def test_the_watch_can_be_switched_off(box):
    code = BEGIN + "with badput.step():\n    time.sleep(3)\n"
    assert box.run_child(code, env={**SHORT, "BADPUT_HANG_S": "0"}).returncode == 0
    box.ends()
    assert box.events("hang") == []


def test_a_step_that_never_ends_is_told_though_its_phases_change(box, wait_until):
    body = """
done = []
threading.Thread(target=lambda: done.append(sys.stdin.readline()), daemon=True).start()
with badput.step():
    while not done:
        with badput.span("wait_activation"):
            time.sleep(0.05)
"""
    _, hang, end = hang_until_told(box, wait_until, body)
    assert hang["step"] == 31
    assert hang["threshold"].startswith("3 times ")
    assert hang["threshold"].endswith(", for the whole step")
    assert end["duration_ns"] >= 2_400_000_000


def test_the_rank_that_the_others_wait_for_is_named(box, wait_until):
    code = (
        BEGIN
        + """
if os.environ["RANK"] == "1":
    with badput.step(), badput.span("data"):
        sys.stdin.readline()
else:
    with badput.step():
        pass
    with badput.step(), badput.span("comm"):
        sys.stdin.readline()
"""
    )
    ranks = [
        box.start(code, env={**SHORT, "RANK": str(n), "WORLD_SIZE": "2"}, stdin=-1) for n in (0, 1)
    ]
    wait_until(lambda: len(box.events("hang")) == 2, "two hangs")
    hangs = {e["rank"]: e["attrs"] for e in box.events("hang")}
    assert hangs[0]["behind"] == [1]
    assert hangs[0]["behind_at"] == {"1": "step 31, data"}
    assert "behind: rank 1 (step 31, data)" in hangs[0]["what"]
    ranks[1].kill()
    ranks[1].wait()
    ranks[0].communicate("go\n", timeout=60)


def test_ranks_that_wait_for_the_checkpoint_of_one_do_not_hang_and_a_hang_after_it_is_told(
    box, wait_until
):
    code = (
        BEGIN
        + """
if os.environ["RANK"] == "0":
    with badput.span("save", step=30):
        time.sleep(3)
with badput.step():
    time.sleep(0.1 if os.environ["RANK"] == "0" else 3.2)
with badput.step():
    sys.stdin.readline()
"""
    )
    ranks = [
        box.start(code, env={**SHORT, "RANK": str(n), "WORLD_SIZE": "4"}, stdin=-1) for n in (0, 1)
    ]
    wait_until(lambda: len(box.events("hang")) == 2, "two hangs")
    hangs = {e["rank"]: e["attrs"] for e in box.events("hang")}
    assert {n: h["step"] for n, h in hangs.items()} == {0: 32, 1: 32}
    assert hangs[0]["ranks_elsewhere"] == 2
    assert hangs[0]["what"].endswith("what the other 2 ranks do is not seen from this node")
    for rank in ranks:
        rank.communicate("go\n", timeout=60)
    box.ends()
    assert len(box.events("hang")) == 2


def test_a_rank_that_died_is_named_to_those_that_wait_for_it(box, wait_until):
    code = (
        BEGIN
        + """
sys.stdin.readline()
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
with badput.step(), badput.span("comm"):
    sys.stdin.readline()
"""
    )
    ranks = [box.start(code, env={**SHORT, "RANK": str(n)}, stdin=-1) for n in (0, 1)]
    wait_until(lambda: len({r["rank"] for r in box.rows("steps")}) == 2, "steps of both")
    ranks[1].communicate("go\n", timeout=60)
    told(box, wait_until, "end")
    ranks[0].stdin.write("go\n")
    ranks[0].stdin.flush()
    hang = told(box, wait_until, "hang")
    assert hang["rank"] == 0
    assert "rank 1 is gone" in hang["attrs"]["what"]
    assert list(hang["attrs"]["gone"]) == ["1"]
    ranks[0].communicate("go\n", timeout=60)


def test_a_rank_that_lived_between_two_looks_is_known_to_have_gone(own_box):
    """The watch looks once a second; who came and died since the last look must count too."""
    own_box.spool.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(own_box.spool, os.O_RDONLY)
    lock = try_lock(folder)  # no collector but the one below
    try:
        collector = Collector(own_box.spool)
        watch = HangWatch(own_box.spool, print)
        watch.tick({}, 0.0)
        code = BEGIN + "os.kill(os.getpid(), 9)"
        own_box.run_child(code, env={"RANK": "1", "BADPUT_CLOSE_S": "0"})
        collector.adopt()
        watch.tick(collector.tended, 0.0)
        (tended,) = collector.tended.values()
        tended.look()
        tended.round()
        watch.tick({}, 0.0)
        ((_, where),) = [watch._gone[tended.drain.run][1]]
        collector.close()
    finally:
        os.close(lock)
        os.close(folder)
    assert "in step 30, " in where


def test_the_next_collector_tells_the_end_of_a_hang_and_not_the_hang_again(own_box, wait_until):
    child = own_box.start(BEGIN + IN_A_LOCK + MORE, env=SHORT, stdin=-1)
    hang = told(own_box, wait_until, "hang")
    own_box.kill_collectors()
    more = BEGIN + "sys.stdin.readline()"
    other = own_box.start(more, env={**SHORT, "BADPUT_HANG_S": "600"}, stdin=-1)
    wait_until(lambda: len(own_box.rows("processes")) == 2, "the next collector")
    child.communicate("go\n", timeout=60)
    end = told(own_box, wait_until, "hang_end")
    other.communicate("go\n", timeout=60)
    own_box.ends(2)
    assert end["attrs"]["since_ns"] == hang["attrs"]["since_ns"]
    assert len(own_box.events("hang")) == 1


def test_time_in_which_nobody_looked_is_no_hang(own_box, wait_until):
    code = BEGIN + "with badput.step():\n    sys.stdin.readline()\n"
    child = own_box.start(code, env={**SHORT, "BADPUT_HANG_S": "4"}, stdin=-1)
    wait_until(lambda: len(own_box.rows("steps")) == 30, "steps")
    (collector,) = own_box.collectors()
    for pid in (collector, child.pid):
        os.kill(pid, signal.SIGSTOP)
    subprocess.run(["sleep", "7"], check=True)
    for pid in (child.pid, collector):
        os.kill(pid, signal.SIGCONT)
    child.communicate("go\n", timeout=60)
    own_box.ends()
    assert own_box.events("hang") == []


def test_a_machine_that_slept_is_said_and_no_hang(tmp_path, monkeypatch):
    from badput import clock

    said = []
    watch = HangWatch(tmp_path, said.append)
    watch.tick({}, 0.0)
    real = clock.boot
    monkeypatch.setattr(clock, "boot", lambda: real() + 3_600_000_000_000)
    watch._due = 0.0
    watch.tick({}, 0.0)
    assert "the machine slept for 3600 s; that is no hang" in said[0]
    assert (tmp_path / "collector.pid").read_text() == str(os.getpid())


def test_limits_grow_with_what_was_seen():
    pace = Pace(600, 1800)
    assert pace.limit("step", True).ns == 1800e9
    for number in range(30):
        pace.saw_step([number, 0, 90_000_000_000])
    assert pace.usual() == 90_000_000_000
    assert pace.limit("step", True).ns == 900e9
    assert pace.limit("backward", True).ns == 900e9
    assert pace.limit("data", False).ns == 1200e9
    assert pace.limit("eval", True).ns == pace.limit("loop", False).ns == 1800e9
    pace.saw_phase("eval", 1_000_000_000_000)
    pace.saw_phase("eval", 5)
    assert pace.limit("eval", False).ns == 10_000e9
    assert "10 times the longest eval of 1e+03 s" in pace.limit("eval", False).rule


@pytest.mark.parametrize(
    ("watch", "limits"),
    [
        (None, (600, 1800)),
        ({"hang_s": 5}, (5, 1800)),
        ({"hang_s": 5, "slow_s": 1}, (5, 5)),
        ({"hang_s": 0}, None),
        ({"hang_s": "x", "slow_s": float("nan")}, (600, 1800)),
        ({"hang_s": True}, (600, 1800)),
    ],
)
def test_limits_of_a_process(watch, limits):
    assert base_limits({} if watch is None else {"watch": watch}) == limits


@pytest.mark.parametrize(
    ("places", "late"),
    [
        ([(0, 5, "step")], []),
        ([(0, 5, "step"), (1, 5, "step")], []),
        ([(0, 5, "comm"), (1, 4, "data"), (2, 5, "comm")], [1]),
        ([(0, 5, "comm"), (1, 5, "backward"), (2, 5, "wait_gradient")], [1]),
        ([(0, 5, "step"), (1, 5, "save"), (2, 5, "step")], [1]),
        ([(0, 5, "eval"), (1, 5, "save")], []),
    ],
)
def test_who_is_behind(places, late):
    assert behind([Place(*p) for p in places]) == late


@pytest.mark.parametrize(
    ("other", "limit", "excuse"),
    [
        ((1, 5, "save"), 1800, True),  # rank 0 saves, the others wait in the same step
        ((1, 4, "eval"), 1800, True),
        ((1, 6, "save"), 1800, False),  # ahead: nobody waits for it
        ((1, 5, "step"), 600, False),  # no more time than this one
        ((0, 5, "save"), 1800, False),  # itself
    ],
)
def test_who_is_given_more_time(other, limit, excuse):
    mine = Limit(600, "")
    assert excused(Place(0, 5, "step"), mine, [(Place(*other), Limit(limit, ""))]) is excuse


def test_stacks_keep_no_folder_and_no_source():
    dump = (
        'Timeout (0:00:01)!\nThread 0x1 (most recent call first):\n  File "/a/o.py", line 1 in f\n'
        "Timeout (0:00:01)!\nThread 0x00a1 (most recent call first):\n"
        '  File "/home/me/s/train.py", line 31 in step\n  File "<string>", line 2 in <module>\n'
        "\nCurrent thread 0x00b2 (most recent call first):\n  <no Python frame>\n"
    )
    assert parse_dump(dump) == [
        {"thread": "0x00a1", "frames": ["step train.py:31", "<module> <string>:2"]},
        {"thread": "0x00b2", "frames": []},
    ]
    spy = 'Process 1: python\nThread 12 (idle): "MainThread"\n    step (secret/train.py:31)\n'
    assert parse_spy(spy) == [
        {"thread": "MainThread", "state": "idle", "frames": ["step train.py:31"]}
    ]
    assert parse_dump("") == parse_spy("") == []


def test_the_kernel_is_asked_without_failing():
    assert look(os.getpid())["state"] == "R"
    assert look(2**22 + 1) == {}


def test_stacks_by_py_spy_where_the_rank_allows_it(box, wait_until):
    if find_spy() is None:
        pytest.skip("py-spy is not installed")
    _, hang, _ = hang_until_told(box, wait_until, IN_A_LOCK, BADPUT_PTRACE="1")
    assert any(f.startswith("wait_here ") for t in hang["stacks"] for f in t["frames"])


def test_the_stack_thread_goes_with_close_and_gives_the_timer_back(box):
    code = (
        BEGIN
        + """
assert "badput-stacks" in {t.name for t in threading.enumerate()}
badput.close()
deadline = time.monotonic() + 60
while any(t.name == "badput-stacks" for t in threading.enumerate()):
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""
    )
    done = box.run_child(code, env={**SHORT, "BADPUT_STACKS": "1"})
    assert done.returncode == 0, done.stderr


def test_a_rank_that_closed_and_lives_on_hangs_no_more(box):
    code = BEGIN + "badput.close()\ntime.sleep(2.5)\n"
    assert box.run_child(code, env=SHORT).returncode == 0
    box.ends()
    assert box.events("hang") == []
