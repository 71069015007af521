"""What the collector does when a disk is full, a run folder hangs, or cannot be written at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from badput import collector
from badput import layout as lo
from badput.collect import main as collect
from badput.drain import Drain
from badput.reader import SPARE, SpoolReader

TRAIN = """
import badput, os, sys, time
badput.init(os.environ["RUN"])
for number in range(int(os.environ.get("STEPS", "5"))):
    with badput.step(tokens=number):
        pass
print("ready", flush=True)
if sys.stdin.readline().strip() == "die":
    os._exit(1)
for number in range(5):
    with badput.step(tokens=number):
        pass
badput.close(timeout=5)
"""


def patched(box, code):
    """Have ``code`` run in every Python that the box starts, the collector included."""
    folder = box.folder / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    box.env["PYTHONPATH"] = str(folder)


def start(box, **env):
    child = box.start(TRAIN, stdin=-1, stdout=-1, stderr=-1, env=env)
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"needs to mount a tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    """Leave no space at all."""
    with (folder / "filler").open("wb", buffering=0) as handle:
        try:
            while handle.write(bytes(4096)):
                pass
        except OSError:
            pass


def test_a_full_spool_disk_does_not_stop_the_draining(own_box, small_disk, wait_until):
    own_box.spool = small_disk / "spool"
    own_box.env["BADPUT_SPOOL"] = str(own_box.spool)
    child = start(own_box)
    wait_until(lambda: len(own_box.rows("steps")) == 5, "the first steps")
    fill(small_disk)
    child.communicate("go\n")
    assert child.returncode == 0
    own_box.ends()
    assert len(own_box.rows("steps")) == 10
    assert "cannot write to" not in own_box.log()
    assert "given up" not in own_box.log()


def test_a_position_that_found_no_space_is_the_one_that_counts(own_box, small_disk, wait_until):
    own_box.spool = small_disk / "spool"
    own_box.env["BADPUT_SPOOL"] = str(own_box.spool)
    child = start(own_box)
    wait_until(lambda: len(own_box.rows("steps")) == 5, "the first steps")
    own_box.kill_collectors()
    (path,) = own_box.spools()
    fill(small_disk)
    reader = SpoolReader(path)
    position = reader.load_position()
    position.seq += 1000
    reader.save_position(position)
    assert reader.load_position().seq == position.seq
    (path / SPARE).write_bytes(b"\0" * 100)  # as a power loss may leave it
    assert reader.load_position().seq == position.seq - 1000
    (small_disk / "filler").unlink()
    reader.save_position(position)
    assert reader.load_position().seq == position.seq
    reader.close()
    child.kill()
    child.communicate()


def test_without_a_saved_position_draining_goes_on_and_nothing_is_thrown_away(
    own_box, monkeypatch, wait_until
):
    child = start(own_box, STEPS="60000")
    wait_until(lambda: len(own_box.rows("steps")) == 60000, "the steps")
    own_box.kill_collectors()
    child.communicate("go\n")
    own_box.kill_collectors()
    left = own_box.spools()
    if not left:  # the collector that close started was quick
        return
    drain = Drain(left[0])

    def refuse(position):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(drain.reader, "save_position", refuse)
    segments = sorted(p.name for p in left[0].glob("seg-*"))
    drain.drain(writer_dead=True)
    assert drain.save_error is not None
    assert sorted(p.name for p in left[0].glob("seg-*")) == segments
    drain.close()
    assert collect([str(own_box.spool)]) == 0
    steps = own_box.rows("steps")
    assert len({r["seq"] for r in steps}) == 60005


def test_a_run_folder_that_hangs_stops_no_other_run(own_box, wait_until):
    patched(own_box, """
import os, time
_fsync = os.fsync
def fsync(fd):
    while "/slow/" in os.readlink(f"/proc/self/fd/{fd}") and os.path.exists(os.environ["HANG"]):
        time.sleep(0.05)
    return _fsync(fd)
os.fsync = fsync
""")  # fmt: skip
    hang = own_box.folder / "hang"
    hang.touch()
    own_box.env["HANG"] = str(hang)
    slow = own_box.start(TRAIN, stdin=-1, stdout=-1, env={"RUN": str(own_box.folder / "slow/run")})
    slow.stdout.readline()
    wait_until((own_box.folder / "slow/run/tmp").exists, "the slow write to begin")
    quick = start(own_box)
    quick.communicate("die\n")
    own_box.ends()
    assert len(own_box.rows("steps")) == 5
    slow.communicate("die\n")
    time.sleep(0.5)
    hang.unlink()
    own_box.run = own_box.folder / "slow/run"
    (end,) = own_box.ends()
    assert (end["attrs"]["exit_code"], end["attrs"]["records"]) == (1, 5)
    assert len(own_box.rows("steps")) == 5


@pytest.mark.parametrize("kind", ["a file in the way", "a link to itself"])
def test_a_run_path_that_never_works_is_said_once_and_its_spool_kept_for_collect(
    own_box, wait_until, kind
):
    patched(own_box, "import badput.collector as c\nc.KEEP_S = 0.5\nc.IDLE_S = 0.5\n")
    way = own_box.folder / "way"
    if kind == "a file in the way":
        way.write_text("")
    else:
        way.symlink_to(way)
    own_box.run = way / "run"
    own_box.env["RUN"] = str(own_box.run)
    child = start(own_box)
    wait_until(lambda: "cannot write to" in own_box.log(), "the collector to complain")
    _, err = child.communicate("go\n")
    assert child.returncode == 0
    assert err.count("cannot be written (") == 1
    assert str(own_box.run) in err
    wait_until(lambda: not own_box.collectors(), "the collector to give up")
    assert "stays in" in own_box.log()
    assert own_box.log().count("cannot write to") == 1
    assert len(own_box.spools()) == 1
    own_box.run = own_box.folder / "elsewhere"
    assert collect([str(own_box.spool), "--into", str(own_box.run)]) == 0
    assert len(own_box.rows("steps")) == 10
    assert len(own_box.events("end")) == 1


def test_what_found_no_room_is_counted_and_told_once_there_is_space_again(own_box, wait_until):
    patched(own_box, "import badput.layout as lo\nlo.MAX_SEGMENTS = 3\n")
    own_box.run.write_text("")
    child = own_box.start(TRAIN, stdin=-1, stdout=-1, stderr=-1, env={"STEPS": "120000"})
    assert child.stdout.readline() == "ready\n"
    wait_until(lambda: "cannot write to" in own_box.log(), "the collector to complain")
    own_box.run.unlink()
    wait_until(lambda: own_box.events("dropped") != [], "the count")
    (told,) = own_box.events("dropped")
    assert told["attrs"]["count"] > 0
    child.communicate("go\n")
    (end,) = own_box.ends()
    steps = own_box.rows("steps")
    lost = sum(e["attrs"]["count"] for e in own_box.events("dropped"))
    assert lost == end["attrs"]["dropped"]
    assert len(steps) + lost == 120005
    assert "can be written again" in own_box.log()


def test_the_writer_is_told_the_state_of_its_run_folder_and_again_when_it_is_well(
    own_box, wait_until
):
    own_box.run.write_text("")
    child = start(own_box)
    (path,) = own_box.spools()

    def state():
        return lo.STATE.unpack_from((path / "control").read_bytes(), lo.STATE_AT)[0]

    wait_until(lambda: state() != 0, "the state")
    assert os.strerror(state()) in ("File exists", "Not a directory")
    own_box.run.unlink()
    wait_until(lambda: state() == 0, "the state to be well again")
    _, err = child.communicate("go\n")
    assert err == ""
    own_box.ends()


def test_a_run_folder_without_any_permission_is_written_once_it_has_some(own_box, wait_until):
    if os.getuid() != 0:
        own_box.run.mkdir(mode=0)
    else:  # root may write anywhere; an immutable folder is what stops it, where there is one
        own_box.run.mkdir()
        done = subprocess.run(["chattr", "+i", own_box.run], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"root may write anywhere, and chattr +i says {done.stderr.decode()}")
    child = start(own_box)
    wait_until(lambda: "cannot write to" in own_box.log(), "the collector to complain")
    if os.getuid() == 0:
        subprocess.run(["chattr", "-i", own_box.run], check=True)
    own_box.run.chmod(0o755)
    child.communicate("go\n")
    own_box.ends()
    assert len(own_box.rows("steps")) == 10


def test_a_collector_compacts_what_it_wrote_and_leaves_nothing_replaced(own_box, wait_until):
    patched(own_box, "import badput.worker as w\nw.FEW = 2\nw.FRESH = 4\n"
                     "import badput.collector as c\nc.FLUSH_S = (0.2, 0.2, 0.2)\n")  # fmt: skip
    code = """
import badput, os, sys
badput.init(os.environ["RUN"])
for line in sys.stdin:
    for _ in range(10):
        with badput.step(): pass
badput.close(timeout=5)
"""
    child = own_box.start(code, stdin=-1)
    for turn in range(1, 7):  # six parts, whatever the speed
        child.stdin.write("go\n")
        child.stdin.flush()
        wait_until(lambda n=10 * turn: len(own_box.rows("steps")) == n, "the steps")
    child.communicate()
    own_box.ends()
    wait_until(lambda: not own_box.collectors(), "the collector to leave")
    assert "parts of steps became" in own_box.log()
    rows = own_box.rows("steps")
    assert [r["step"] for r in rows] == list(range(1, 61))
    folder = own_box.run / "facts" / "steps"
    names = [p.name for p in folder.iterdir()]
    assert any(n.startswith("compact-") for n in names)
    assert len(names) < 12
    assert sum(e["attrs"]["records"] for e in own_box.events("end")) == 61


def test_a_spool_that_could_not_be_read_is_tried_again(own_box, wait_until, capsys):
    own_box.run_child(TRAIN.replace("badput.init", "s.ensure_collector = lambda r: 0\nbadput.init")
                      .replace("time\n", "time\nfrom badput import session as s\n")
                      .replace("badput.close(timeout=5)", "os._exit(0)"), input="go\n")  # fmt: skip
    (path,) = own_box.spools()
    (path / "facts.json").rename(path / "away")
    made = collector.Collector(own_box.spool)
    for _ in range(3):
        made.adopt()
    assert made.tended == {}
    assert capsys.readouterr().err.count("left alone") == 1
    (path / "away").rename(path / "facts.json")

    def adopted():
        made.adopt()
        return path.name in made.tended

    wait_until(adopted, "the spool to be taken on")
    made.tended[path.name].close()


def test_duties_are_closed_when_the_spool_root_is_removed(tmp_path, monkeypatch):
    closed = []

    class Duty:
        name = "one"

        def tick(self, tended, now):
            shutil.rmtree(root)

        def close(self):
            closed.append(1)

    root = tmp_path / "root"
    monkeypatch.setattr(collector, "duties", lambda root, log: [Duty()])
    monkeypatch.setattr(collector, "settle_down", lambda: None)
    assert collector.main([str(root)]) == 0
    assert closed == [1]
