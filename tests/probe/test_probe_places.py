"""Descriptors, limits, folders and names that are in the way: nothing is lost or taken."""

from __future__ import annotations

import os
import shutil
import stat
import time

import pytest

from badput import spool


def test_a_spool_folder_of_others_is_never_changed_but_gets_a_folder_inside(tmp_path, monkeypatch):
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setenv("BADPUT_SPOOL", str(shared))
    for mode in (0o1777, 0o777, 0o775):
        shared.chmod(mode)
        assert spool.default_root() == str(shared / f"badput-{os.getuid()}")
    shared.chmod(0o555)
    os.close(spool.open_root(spool.default_root()))
    assert stat.S_IMODE(shared.stat().st_mode) == 0o555
    shared.chmod(0o777)
    with pytest.raises(spool.SpoolError, match="can be written by other users"):
        spool.open_root(str(shared))
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777


def test_a_relative_tmpdir_is_one_place_wherever_the_program_goes(own_box):
    (own_box.folder / "tmp").mkdir()
    own_box.spool = own_box.folder / "tmp" / f"badput-{os.getuid()}"
    child = own_box.run_child(
        """
import badput, os
badput.init(os.environ["RUN"])
os.chdir("/")
with badput.step():
    pass
badput.close(5)
""",
        env={"BADPUT_SPOOL": "", "TMPDIR": "tmp"},
        cwd=own_box.folder,
    )
    assert child.stderr == ""
    own_box.ends()
    assert len(own_box.rows("steps")) == 1


def test_nothing_of_ours_takes_the_place_of_a_closed_standard_descriptor(box, tmp_path):
    child = box.start(
        """
import badput, os
os.closerange(0, 3)
badput.init(os.environ["RUN"])
for _ in range(6000):  # into a second segment
    with badput.step():
        pass
taken = [n for n in range(3) if os.path.exists(f"/proc/self/fd/{n}")]
fd = os.open(os.environ["OUT"], os.O_WRONLY | os.O_CREAT)
os.write(fd, repr(taken).encode())
badput.close(5)
""",
        env={"OUT": str(tmp_path / "out")},
    )
    assert child.wait() == 0
    assert (tmp_path / "out").read_text() == "[]"
    box.ends()
    assert len(box.rows("steps")) == 6000


def test_descriptors_that_the_program_opened_in_the_place_of_ours_stay_open(box, tmp_path):
    (tmp_path / "mine").mkdir()
    child = box.run_child(
        """
import badput, gc, os
badput.init(os.environ["RUN"])
os.closerange(3, 64)
own = [os.open(os.environ["MINE"], os.O_RDONLY) for _ in range(10)]
for _ in range(6000):
    with badput.step():
        pass
badput.close(5)
gc.collect()
for fd in own:
    os.fstat(fd)
print("all there")
""",
        env={"MINE": str(tmp_path / "mine")},
    )
    assert child.stdout == "all there\n"
    box.ends()
    assert list((tmp_path / "mine").iterdir()) == []
    assert [r["step"] for r in box.rows("steps")] == list(range(1, len(box.rows("steps")) + 1))


@pytest.mark.parametrize("limit", range(3, 16))
def test_too_few_descriptors_leave_nothing_behind(box, limit):
    child = box.run_child(
        f"""
import os, resource
import badput
def fds(): return len(os.listdir("/proc/self/fd"))
before = fds()
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, 64))
badput.init(os.environ["RUN"])
off = badput._recorder is None
with badput.step():
    pass
badput.close(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(off, fds() - before)
""",
        env={"BADPUT_STRICT": "0"},
    )
    assert child.returncode == 0, child.stderr
    off, more = child.stdout.split()
    if off == "True":
        assert more == "0"
        assert not [s for s in box.spools() if (s / "facts.json").exists()]


def test_a_umask_that_hides_files_from_their_owner_changes_nothing(own_box):
    child = own_box.start(
        "import badput, os, sys\nos.umask(0o777)\nbadput.init(os.environ['RUN'])\n"
        "with badput.step(): pass\nsys.stdin.read()",
        stdin=-1,
    )
    deadline = time.monotonic() + 60
    while not own_box.rows("processes") and time.monotonic() < deadline:
        time.sleep(0.05)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in own_box.spool.rglob("*")}
    child.communicate("")
    own_box.ends()
    assert all(mode & 0o600 == 0o600 for mode in modes.values()), modes
    parts = list(own_box.run.rglob("*"))
    assert parts
    assert all(p.stat().st_mode & 0o700 >= 0o600 for p in parts)


def test_exec_ends_one_incarnation_and_the_next_begins_after_it(box, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import badput, os, sys, time
badput.init(os.environ["RUN"])
turn = int(sys.argv[1])
with badput.step(number=turn):
    time.sleep(0.1)
while not os.path.isdir(os.environ["RUN"]):
    time.sleep(0.05)
time.sleep(0.5)  # the collector looks a few times a second
if turn < 3:
    os.execv(sys.executable, [sys.executable, __file__, str(turn + 1)])
badput.close(5)
""")
    child = box.run_child(
        f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}, '1'])"
    )
    assert child.stderr == ""
    ends = {e["process_id"]: e["time_ns"] for e in box.ends(3)}
    lives = sorted((p["start_ns"], ends[p["process_id"]]) for p in box.rows("processes"))
    assert len({p["pid"] for p in box.rows("processes")}) == 1
    begins, deaths = zip(*lives, strict=True)
    # At most as long as the collector took to look again, one runs into the next.
    assert begins[0] < begins[1] < begins[2]
    assert begins[0] < deaths[0] < deaths[1] < deaths[2]


def test_a_half_made_spool_of_a_killed_process_goes_when_it_is_old(own_box):
    half = [own_box.spool / f".new-{n:016x}" for n in (1, 2)]
    for path in half:
        path.mkdir(parents=True, mode=0o700)
        (path / "control").write_bytes(b"")
    own_box.spool.chmod(0o700)
    os.utime(half[0], (1, 1))
    own_box.run_child("import badput, os; badput.init(os.environ['RUN']); badput.close(5)")
    own_box.ends()
    assert [path.exists() for path in half] == [False, True]


@pytest.mark.parametrize("whole_root", [False, True])
def test_a_spool_removed_under_a_running_process_still_has_an_end(own_box, wait_until, whole_root):
    child = own_box.start(
        "import badput, os, sys\nbadput.init(os.environ['RUN'])\nwith badput.step(): pass\n"
        "sys.stdin.readline()\n"
        "for _ in range(10000):\n    with badput.step(): pass\n"
        "print('trained')",
        stdin=-1,
        stdout=-1,
        env={"BADPUT_STRICT": "0"},
    )
    wait_until(lambda: len(own_box.rows("steps")) == 1, "the first step")
    for path in [own_box.spool] if whole_root else list(own_box.spool.glob("?" * 16)):
        shutil.rmtree(path, ignore_errors=True)  # a collector may be at work in it
        wait_until(lambda p=path: shutil.rmtree(p, ignore_errors=True) or not p.exists(), "the end")
    out, _ = child.communicate("\n")
    assert (out, child.returncode) == ("trained\n", 0)
    (end,) = own_box.ends()
    assert end["attrs"]["spool_removed"] is True
    assert len(own_box.rows("steps")) == 1
    wait_until(lambda: not own_box.collectors(), "the collector to leave")


def test_a_run_folder_whose_name_is_not_utf8_is_written(box):
    box.run = box.folder / os.fsdecode(b"run-\xff 'x' [1] k=v\n")
    child = box.run_child("""
import badput, os
badput.init(os.environb[b"RUN"])
with badput.step(tokens=1):
    pass
badput.close(5)
""", env={"RUN": str(box.run)})  # fmt: skip
    assert child.stderr == ""
    (part,) = wait_for_parts(box.run / "facts" / "steps")
    assert part.stat().st_size > 0


def wait_for_parts(folder):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(folder.glob("*.parquet")):
        time.sleep(0.05)
    return list(folder.glob("*.parquet"))
