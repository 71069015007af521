"""Checkpoints that hooks see: which are some, asynchronous ones, and what the books make of it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

import badput

torch = pytest.importorskip("torch")


@pytest.fixture
def saving(box: Any) -> Any:
    badput.init(box.run, hooks="checkpoint,optimizer")
    yield box
    badput.close()


def test_what_is_a_checkpoint(saving: Any, tmp_path: Any) -> None:
    large, small = {"w": torch.zeros(1 << 19)}, {"w": torch.zeros(8)}
    for _ in range(3):
        with badput.step():
            pass
    torch.save(large, tmp_path / "large.pt")
    torch.save(small, tmp_path / "small.pt")
    torch.save(large, io.BytesIO())
    with (tmp_path / "open.pt").open("wb") as file:
        torch.save(large, file)
    with badput.span("save", path="mine"):
        torch.save(small, tmp_path / "part1.pt")
        torch.save(small, tmp_path / "part2.pt")
    with pytest.raises(RuntimeError, match="directory"), badput.step():
        torch.save(large, tmp_path / "no" / "such" / "folder.pt")
    torch.load(tmp_path / "large.pt")
    torch.load(tmp_path / "small.pt")
    badput.close(timeout=5)
    saving.ends()
    rows = saving.rows("checkpoints")
    told = [(r["op"], (r["path"] or "").rpartition("/")[2], r["step"], r["ok"]) for r in rows]
    assert told == [
        ("save", "large.pt", 3, True), ("save", "open.pt", 3, True), ("save", "mine", 3, True),
        ("save", "folder.pt", 3, False), ("load", "large.pt", None, True),
    ]  # fmt: skip
    assert all(r["bytes"] > 0 for r in rows if r["ok"])


def test_steps_go_on_from_a_checkpoint_that_says_where(saving: Any, tmp_path: Any) -> None:
    torch.save({"w": torch.zeros(1 << 19), "step": 10}, tmp_path / "last.pt")
    torch.load(tmp_path / "last.pt")
    with badput.step():
        pass
    torch.load(tmp_path / "last.pt")  # a later one is no resume
    with badput.step():
        pass
    badput.close(timeout=5)
    saving.ends()
    assert [r["step"] for r in saving.rows("steps")] == [11, 12]


def test_a_path_is_told_whole(saving: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a/b.pt", tmp_path / "c.pt", "s3://bucket/d", 5):
        with badput.span("save", path=path, step=1):
            pass
    badput.close(timeout=5)
    saving.ends()
    told = [r["path"] for r in saving.rows("checkpoints")]
    assert told == [f"{tmp_path}/a/b.pt", f"{tmp_path}/c.pt", "s3://bucket/d", "5"]


ASYNC = """
import os, signal, sys, torch, badput
import torch.distributed as dist, torch.distributed.checkpoint as dcp
start, stop, job = map(int, sys.argv[1:] or os.environ["STEPS"].split())
badput.init(os.environ["RUN"])
folder = os.environ["RUN"] + "-saved"
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

class Never(dcp.FileSystemWriter):
    def finish(self, *args, **kwargs):
        signal.pause()

state = {"w": torch.zeros(8)}
if start > 1:
    dcp.load(state, checkpoint_id=f"{folder}/{start - 1}")
for number in range(start, stop + 1):
    with badput.step(number=number):
        pass
    if number == 100:
        dcp.async_save(state, checkpoint_id=f"{folder}/{number}").result()
    if number == 200 and stop == 250:
        dcp.async_save(state, storage_writer=Never(f"{folder}/{number}"))
if stop == 250:
    os.kill(os.getpid(), signal.SIGKILL)
badput.close(5)
os._exit(0)
"""


def test_an_asynchronous_save_that_never_ended_is_no_point_to_resume_from(box: Any) -> None:
    pytest.importorskip("duckdb")
    from badput_ledger.books import open_books

    first = box.run_child(ASYNC, env={"STEPS": "1 250 1", "BADPUT_JOB_ID": "j"})
    assert first.returncode == -9, first.stderr
    box.ends(1)
    rows = box.rows("checkpoints")
    assert [(r["step"], r["ok"], r["durable_ns"] is not None) for r in rows] == [
        (100, True, False), (100, True, True), (200, True, False), (200, None, False),
    ]  # fmt: skip
    assert rows[1]["dur_ns"] == 0
    spans = [json.loads(r["attrs"]).get("background", False) for r in box.rows("spans")
             if r["name"] == "save"]  # fmt: skip
    assert spans == [False, True, False, True]
    second = box.run_child(ASYNC, env={"STEPS": "101 300 1", "BADPUT_JOB_ID": "j"})
    assert second.returncode == 0, second.stderr
    box.ends(2)
    with open_books(box.run) as books:
        report = books.report()
    saves = {c["step"]: c["durable"] for c in report["checkpoints"] if c["op"] == "save"}
    assert saves == {100: True, 200: False}
    assert report["steps"]["lost"] == 150
    assert report["steps"]["kept"] == 300
