"""Kills from above: the kernel for want of memory, and everything at once."""

from __future__ import annotations

import mmap
import os
import struct
import uuid
from pathlib import Path

import pytest

from badput.collect import main as collect

STEPS = """
import badput, mmap, os, struct, time
with open(os.environ["COUNTER"], "r+b") as handle:
    counter = mmap.mmap(handle.fileno(), 8)
badput.init(os.environ["RUN"])
hoard, number = [], 0
while True:
    with badput.step(tokens=number) as step:
        if number % 2:
            with badput.span("forward"):
                hoard.append(bytearray(os.urandom(EAT)))
            step.log(loss=1.0)
        time.sleep(0.0005)
    number += 1
    counter[:8] = struct.pack("<Q", number)
    if number == 200 and "GROUP" in os.environ:
        with open(os.environ["GROUP"], "w") as group:
            group.write(str(os.getpid()))
"""
LIMIT = 64 << 20


@pytest.fixture
def counter(tmp_path):
    """Finished steps, counted in a page that outlives the child."""
    path = tmp_path / "counter"
    path.write_bytes(bytes(8))
    with path.open("r+b") as handle:
        page = mmap.mmap(handle.fileno(), 8)
    return path, lambda: struct.unpack("<Q", page[:8])[0]


@pytest.fixture
def memory_group():
    """A control group that holds little memory, or a skip that says why there is none."""
    name = f"badput-test-{uuid.uuid4().hex[:8]}"
    tried = []
    for parent, limits in (
        ("/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
        ("/sys/fs/cgroup", ("memory.max", "memory.swap.max")),
    ):
        folder = Path(parent) / name
        try:
            folder.mkdir()
        except OSError as error:
            tried.append(str(error))
            continue
        try:
            (folder / limits[0]).write_text(str(LIMIT))
            swap = folder / limits[1]
            if swap.exists():
                swap.write_text("0" if limits[1] == "memory.swap.max" else str(LIMIT))
        except OSError as error:
            tried.append(str(error))
            folder.rmdir()
            continue
        yield folder / "cgroup.procs"
        folder.rmdir()
        return
    pytest.skip(f"no control group with a memory limit can be made here: {'; '.join(tried)}")


def check(rows, finished):
    steps = sorted((r["step"], r["tokens"]) for r in rows)
    assert steps == [(n + 1, n) for n in range(len(steps))]
    assert finished <= len(steps) <= finished + 1
    assert len({r["seq"] for r in rows}) == len(rows)


def test_a_kill_by_the_kernel_for_want_of_memory_loses_no_finished_step(
    own_box, counter, memory_group
):
    path, finished = counter
    code = STEPS.replace("EAT", "1 << 20")
    child = own_box.start(code, env={"COUNTER": str(path), "GROUP": str(memory_group)})
    assert child.wait(timeout=120) == -9
    (end,) = own_box.ends()
    assert end["attrs"]["reason"] in ("killed", "unknown")
    assert finished() >= 200
    check(own_box.rows("steps"), finished())


def test_when_everything_is_killed_at_once_the_spool_has_the_rest(
    own_box, counter, wait_until, capsys
):
    path, finished = counter
    child = own_box.start(STEPS.replace("EAT", "1"), env={"COUNTER": str(path)})
    wait_until(lambda: own_box.rows("steps") != [], "a first part")
    before = finished()
    wait_until(lambda: finished() > before + 100, "steps that are in no part yet")
    own_box.kill_collectors()
    child.kill()
    child.wait()
    assert len(own_box.spools()) == 1
    assert collect([os.fspath(own_box.spool)]) == 0, capsys.readouterr()
    check(own_box.rows("steps"), finished())
    assert len(own_box.events("end")) == 1
    assert own_box.spools() == []
