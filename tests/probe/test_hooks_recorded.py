"""What hooks record is right in itself: durations within their steps, worlds, collectives."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

GC = """
import badput, gc, os, time
badput.init(os.environ["RUN"], hooks="gc")
class Slow:  # a collection that takes long because of what it destroys
    def __init__(self): self.me = self
    def __del__(self): time.sleep(0.05)
for number in (1, 2, 3):
    with badput.step():
        if number == 2:
            Slow()
            with badput.span("forward"):
                gc.collect()
Slow()
gc.collect()  # outside a step: no step's overhead
with badput.step():
    pass
badput.close(5)
"""

WORLD = """
import badput, os
import torch.distributed as dist
badput.init(os.environ["RUN"], hooks="process_group", rank=0, world_size=2)
for size, rank in ((1, 0), (1, 0)):
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.HashStore())
    with badput.step():
        pass
    dist.destroy_process_group()
badput.close(5)
"""

RANK = """
import badput, os, time
import torch
import torch.distributed as dist
badput.init(os.environ["RUN"], hooks="collectives process_group")
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"],
                        rank=int(os.environ["RANK"]), world_size=2)
value = torch.ones(1000)
for number in range(4):
    with badput.step():
        if os.environ["RANK"] == "1" and number:
            time.sleep(0.2)  # the slow one: the other waits for it in the collective
        dist.all_reduce(value)
        work = dist.all_reduce(value, async_op=True)
        work.wait()
dist.barrier()
dist.destroy_process_group()
badput.close(5)
"""


def test_a_long_collection_is_overhead_of_its_own_step_and_of_no_span(box):
    done = box.run_child(GC)
    assert done.returncode == 0, done.stderr
    box.ends()
    rows = {r["step"]: r for r in box.rows("steps")}
    assert sorted(rows) == [1, 2, 3, 4]
    pause = rows[2]["overhead_ns"]
    assert 50_000_000 <= pause <= rows[2]["dur_ns"]
    assert rows[2]["forward_ns"] + pause <= rows[2]["dur_ns"]
    assert rows[1]["overhead_ns"] is None  # nothing was known then
    assert (rows[3]["overhead_ns"] or 0) <= rows[3]["dur_ns"]
    assert (rows[4]["overhead_ns"] or 0) <= rows[4]["dur_ns"]


def test_a_world_of_another_size_is_told_once(box):
    done = box.run_child(WORLD)
    assert done.returncode == 0, done.stderr
    box.ends()
    (process,) = box.rows("processes")
    assert (process["rank"], process["world_size"]) == (0, 2)
    (event,) = box.events("world")
    assert event["attrs"] == {"rank": 0, "world_size": 1, "backend": "gloo"}
    begun = [r for r in box.rows("spans") if r["name"] == "rendezvous"]
    assert len(begun) == 2
    assert begun[0]["start_ns"] <= event["time_ns"] <= begun[1]["start_ns"]


def test_collectives_of_two_processes_show_who_waited_for_whom(box):
    env = {"STORE": str(box.folder / "store"), "WORLD_SIZE": "2"}
    ranks = [box.start(RANK, stderr=-1, env={**env, "RANK": str(r)}) for r in (0, 1)]
    for child in ranks:
        assert child.wait(timeout=120) == 0, child.stderr.read()
        child.stderr.close()
    box.ends(2)
    steps = {(r["rank"], r["step"]): r for r in box.rows("steps")}
    found = {}
    for row in box.rows("collectives"):
        found.setdefault((row["rank"], row["step"]), []).append(row)
    for key, step in steps.items():
        mine = sorted((r for r in found[key] if r["name"] == "all_reduce"),
                      key=lambda r: r["start_ns"])  # fmt: skip
        assert len(mine) == 2, key
        for row in mine:
            assert row["bytes"] == 4000
            assert row["dur_ns"] > 0
            assert step["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["dur_ns"] <= step["start_ns"] + step["dur_ns"]
        assert mine[0]["start_ns"] + mine[0]["dur_ns"] <= mine[1]["start_ns"]
        assert step["comm_ns"] <= sum(r["dur_ns"] for r in mine)
    for number in (2, 3, 4):
        both = [min(found[rank, number], key=lambda r: r["start_ns"]) for rank in (0, 1)]
        # Nobody leaves before all have entered: the one clock of the node shows it.
        assert max(r["start_ns"] for r in both) <= min(r["start_ns"] + r["dur_ns"] for r in both)
