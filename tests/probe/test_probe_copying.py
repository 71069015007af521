"""Thread mode: the spool is copied into the run folder where no collector may be started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import pytest

from badput.cli import main as badput_main

THREAD = {"BADPUT_COLLECTOR": "thread"}
BEGIN = """
import badput, os, sys, threading, time
badput.init(os.environ["RUN"])
for number in range(1, 51):
    with badput.step(tokens=number):
        pass
"""


def copies(box):
    return sorted((box.run / "spools").glob("?" * 16))


def collect(box, capsys, folder=None):
    assert badput_main(["collect", str(folder or box.run)]) == 0
    return capsys.readouterr().out


def steps(box):
    return [r["step"] for r in box.rows("steps")]


def test_close_leaves_a_whole_copy_and_no_process_was_started(own_box, capsys):
    code = BEGIN + (
        "began = time.monotonic(); badput.close(); assert time.monotonic() - began < 6\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    done = own_box.run_child(code, env=THREAD)
    assert done.returncode == 0, done.stderr
    assert own_box.collectors() == []
    assert own_box.rows("steps") == []
    out = collect(own_box, capsys)
    assert "the process ended (completed)" in out
    assert steps(own_box) == list(range(1, 51))
    assert not (own_box.run / "spools").exists()
    (end,) = own_box.events("end")
    assert end["attrs"]["closed"]


def test_a_normal_end_without_close_leaves_everything(own_box, capsys):
    assert own_box.run_child(BEGIN, env=THREAD).returncode == 0
    collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 51))


def test_a_kill_and_the_loss_of_the_node_cost_at_most_what_was_not_copied(
    own_box, capsys, wait_until
):
    child = own_box.start(BEGIN + "input()", env=THREAD, stdin=-1)
    wait_until(lambda: copies(own_box), "a copy")
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    shutil.rmtree(own_box.spool)  # the container's disk went too
    assert "phase" in collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 51))
    assert own_box.events("end")[0]["attrs"]["reason"] == "unknown"


def test_after_a_kill_the_next_collector_adds_what_was_not_copied(own_box, wait_until):
    code = (
        BEGIN.replace("import badput", "import badput, badput.copying")
        + """
deadline = time.monotonic() + 60
while not os.path.isdir(os.environ["RUN"] + "/spools"):
    assert time.monotonic() < deadline
    time.sleep(0.01)
badput.copying.PAUSE_S = (600, 600)
time.sleep(0.2)
for number in range(50):
    with badput.step():
        pass
os.kill(os.getpid(), 9)
"""
    )
    own_box.run_child(code, env=THREAD)
    own_box.run_child("import badput, os; badput.init(os.environ['RUN'])")
    own_box.ends(2)
    assert steps(own_box) == list(range(1, 101))
    wait_until(lambda: copies(own_box) == [], "the copy to go")


def test_many_segments_are_copied_and_given_back_to_the_writer(own_box, capsys):
    code = """
import badput, os, time
from badput import copying
copying.PAUSE_S = (0.01, 0.01)
badput.init(os.environ["RUN"])
for number in range(60_000):
    with badput.step(tokens=number, samples=3):
        pass
badput.close(5)
"""
    done = own_box.run_child(code, env=THREAD)
    assert done.returncode == 0, done.stderr
    (copy,) = copies(own_box)
    assert len(list(copy.glob("seg-*"))) > 2
    (spool,) = own_box.spools()
    assert len(list(spool.glob("seg-*"))) <= 2
    collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 60_001))


def test_a_living_process_can_be_collected_and_goes_on(own_box, capsys, wait_until):
    code = BEGIN + "input()\n" + BEGIN.partition("\n")[2].partition("\n")[2].partition("\n")[2]
    child = own_box.start(code, env=THREAD, stdin=-1)
    wait_until(lambda: copies(own_box), "a copy")
    assert f"pid {child.pid} still runs" in collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 51))
    child.communicate("\n", timeout=60)
    assert child.returncode == 0
    collect(own_box, capsys)
    assert len(steps(own_box)) == len(set(steps(own_box))) > 50


def test_a_copy_of_another_node_that_was_just_renewed_is_alive(own_box, capsys, wait_until):
    child = own_box.start(BEGIN + "input()", env=THREAD, stdin=-1)
    wait_until(lambda: copies(own_box), "a copy")
    (copy,) = copies(own_box)
    facts = json.loads((copy / "facts.json").read_text())
    facts["process"]["boot_id"] = "another"
    (copy / "facts.json").write_text(json.dumps(facts))
    child.kill()
    child.communicate()
    assert "still runs" in collect(own_box, capsys)
    old = time.time() - 3600
    os.utime(copy / "control", (old, old))
    assert "ended (unknown)" in collect(own_box, capsys)


def test_where_no_process_can_be_started_the_thread_steps_in_and_says_so(own_box, capsys):
    code = (
        """
import sys
sys.executable = ""
"""
        + BEGIN
        + "badput.close()"
    )
    done = own_box.run_child(code)
    assert done.returncode == 0
    assert "no collector can be started" in done.stderr
    assert f"badput collect {own_box.run}" in done.stderr
    collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 51))


def test_a_forked_child_neither_copies_nor_keeps_the_lock(own_box, capsys, wait_until):
    code = (
        BEGIN
        + """
if os.fork() == 0:
    assert [t.name for t in threading.enumerate()] == ["MainThread"]
    time.sleep(600)
os.kill(os.getpid(), 9)
"""
    )
    child = own_box.start(code, env=THREAD, start_new_session=True)
    child.wait()
    wait_until(lambda: "50 records" in collect(own_box, capsys, own_box.spool), "the lock")
    os.killpg(child.pid, signal.SIGKILL)
    assert steps(own_box) == list(range(1, 51))


def test_a_run_folder_that_cannot_be_written_is_tried_again(own_box, capsys):
    code = (
        """
import os
open(os.environ["RUN"], "w").close()
"""
        + BEGIN
        + """
time.sleep(1.5)
os.unlink(os.environ["RUN"])
badput.close(5)
"""
    )
    done = own_box.run_child(code, env=THREAD)
    assert done.returncode == 0
    assert "cannot copy" in done.stderr
    collect(own_box, capsys)
    assert steps(own_box) == list(range(1, 51))


@pytest.mark.parametrize("command", ["report", "fsck"])
def test_the_books_say_that_spools_wait(own_box, capsys, command):
    own_box.run_child(BEGIN, env=THREAD)
    assert badput_main([command, str(own_box.run)]) == 2
    assert f"badput collect {own_box.run}" in capsys.readouterr().err
    collect(own_box, capsys)
    own_box.run_child(BEGIN, env=THREAD)
    badput_main([command, str(own_box.run), "--json"])
    if command == "report":
        said = [n["what"] for n in json.loads(capsys.readouterr().out)["quality"]]
        assert f"1 spools of ranks are not collected yet: badput collect {own_box.run}" in said


def test_a_copy_of_a_killed_rank_says_that_its_spool_may_hold_more(own_box, capsys, wait_until):
    code = """
import badput, os, signal, sys, time
badput.init(os.environ["RUN"])
for _ in range(20):
    with badput.step():
        time.sleep(0.01)
print("ready", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {"BADPUT_COLLECTOR": "thread"}
    child = own_box.start(code, env=env, stdin=-1, stdout=-1)
    assert child.stdout.readline() == "ready\n"
    copied = own_box.run / "spools"
    wait_until(lambda: any(copied.glob("?" * 16)), "a copy")
    child.communicate("go\n", timeout=60)
    args = ["status", str(own_box.run), "--spool", str(own_box.folder / "none")]
    badput_main(args)
    text = capsys.readouterr().out
    assert "DEAD" in text
    assert f"from copies in the run folder; first: badput collect {own_box.run}" in text
    assert "goodput  not known: its spools are not collected yet" in text
    assert badput_main(["collect", str(own_box.run)]) == 0
    assert "what it recorded after its last copy is still in the spool" in capsys.readouterr().out
    (note,) = [n for n in own_box.books()["quality"] if "come from copies" in n["what"]]
    assert note["what"].startswith("the records of 1 processes that did not close")
    assert badput_main(["collect", str(own_box.spool)]) == 0  # the node's own
    assert not [n for n in own_box.books()["quality"] if "come from copies" in n["what"]]


def test_a_run_that_said_it_was_complete_is_done_and_has_no_dead(own_box, capsys):
    code = """
import badput, os
badput.init(os.environ["RUN"])
with badput.step():
    pass
badput.event("complete")
"""
    own_box.run_child(code, env={"BADPUT_COLLECTOR": "thread"})
    assert badput_main(["collect", str(own_box.run)]) == 0
    assert badput_main(["status", str(own_box.run), "--no-goodput"]) == 0
    text = capsys.readouterr().out
    assert "DONE" in text
    assert "1 done of 1" in text
