"""What a program says arrives in Parquet, exactly."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from copy import deepcopy

import pytest

import badput
from badput.schema import STEP_CATEGORIES


@pytest.fixture
def recording(box):
    badput.init(box.run, name="a run", rank=3, world_size=8)
    yield box
    badput.close(timeout=0)


def by_step(box):
    return {r["step"]: r for r in box.rows("steps")}


def test_steps_arrive_with_everything_that_was_said(recording):
    before = time.time_ns()
    for number in range(1, 4):
        with badput.step(tokens=100 + number, samples=4, padding=7, source="wiki") as step:
            step.log(loss=2.0 / number, grad_norm=0.5, applied=number != 2, committed=True)
    with badput.step():
        pass
    badput.close(timeout=5)
    recording.ends()
    rows = by_step(recording)
    assert sorted(rows) == [1, 2, 3, 4]
    assert [rows[n]["tokens"] for n in (1, 2, 3, 4)] == [101, 102, 103, None]
    assert [rows[n]["loss"] for n in (1, 2, 3, 4)] == [2.0, 1.0, 2.0 / 3, None]
    assert [rows[n]["applied"] for n in (1, 2, 3, 4)] == [True, False, True, None]
    assert [rows[n]["committed"] for n in (1, 2, 3, 4)] == [True, True, True, None]
    assert [rows[n]["source"] for n in (1, 2, 3, 4)] == ["wiki", "wiki", "wiki", None]
    assert rows[1]["samples"] == 4
    assert rows[1]["padding"] == 7
    assert rows[4]["samples"] is None
    assert rows[4]["padding"] is None
    assert rows[4]["grad_norm"] is None
    assert {r["rank"] for r in rows.values()} == {3}
    assert {r["n_steps"] for r in rows.values()} == {1}
    assert before <= rows[1]["start_ns"] <= time.time_ns()
    starts = [rows[n]["start_ns"] for n in (1, 2, 3, 4)]
    assert starts == sorted(starts)
    assert all(r["dur_ns"] > 0 for r in rows.values())


def test_the_process_and_the_run_are_described(box, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    flops = ("causal6", {"params": 10})
    badput.init(
        box.run, name="x", flops=flops, config={"lr": 0.1}, stage=1, stages=2, schedule="1f1b"
    )
    badput.close(timeout=5)
    end = box.ends()[0]
    (process,) = box.rows("processes")
    (run,) = box.rows("runs")
    assert process["pid"] == os.getpid()
    assert (process["rank"], process["world_size"], process["local_rank"]) == (5, 8, 1)
    assert (process["stage"], process["stages"], process["replica"]) == (1, 2, 2)
    assert process["endpoint"] == "node0:29500"
    assert process["job_id"] is None
    assert process["attempt"] == 2
    assert process["start_ns"] <= process["init_ns"] <= end["time_ns"]
    assert process["role"] == "rank"
    assert (run["name"], run["source"], run["flops_formula"]) == ("x", "probe", "causal6")
    assert json.loads(run["flops_inputs"]) == {"params": 10}
    assert json.loads(run["config"]) == {"lr": 0.1}


def test_a_launcher_has_no_rank_and_tells_how_ranks_ended(box):
    badput.init(box.run, role="launcher")
    badput.event("exit", rank=1, pid=7, exit_code=None, signal=9)
    badput.close(timeout=5)
    box.ends()
    (process,) = box.rows("processes")
    assert (process["role"], process["rank"]) == ("launcher", None)
    (event,) = box.events("exit")
    assert event["attrs"] == {"rank": 1, "pid": 7, "exit_code": None, "signal": 9}


def test_time_in_nested_spans_is_exclusive(recording):
    with badput.step():
        with badput.span("forward"):
            time.sleep(0.02)
            with badput.span("comm"):
                time.sleep(0.03)
                with badput.span("my own name"):
                    time.sleep(0.01)
        with badput.span("forward"):
            time.sleep(0.01)
    with badput.step():
        pass
    badput.close(timeout=5)
    recording.ends()
    first, second = by_step(recording)[1], by_step(recording)[2]
    assert first["forward_ns"] >= 30e6
    assert first["comm_ns"] >= 30e6
    assert first["other_ns"] >= 10e6
    parts = [first[f"{c}_ns"] or 0 for c in STEP_CATEGORIES]
    assert sum(parts) <= first["dur_ns"]
    assert (second["forward_ns"], second["comm_ns"], second["other_ns"]) == (0, 0, 0)
    assert first["backward_ns"] is None
    assert recording.rows("spans") == []


def test_waiting_for_data_is_booked_before_the_step_or_in_it(recording):
    def slow():
        for item in range(3):
            time.sleep(0.02)
            yield item

    for _ in badput.data(slow()):
        with badput.step():
            pass
    with badput.step():
        for _ in badput.data(slow()):
            pass
    badput.close(timeout=5)
    recording.ends()
    rows = by_step(recording)
    assert all(20e6 <= rows[n]["pre_data_ns"] < 60e6 for n in (1, 2, 3))
    assert 60e6 <= rows[4]["data_ns"] <= rows[4]["dur_ns"]
    assert rows[1]["data_ns"] is None


def test_data_passes_everything_on(recording):
    class Loader(list):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

    loader = Loader([1, 2])
    wrapped = badput.data(loader)
    wrapped.set_epoch(4)
    assert loader.epoch == 4
    assert len(wrapped) == 2
    assert list(wrapped) == [1, 2] == list(wrapped)

    def broken():
        yield 1
        raise LookupError("theirs")

    waiting = iter(badput.data(broken()))
    assert next(waiting) == 1
    with pytest.raises(LookupError, match="theirs"):
        next(waiting)


def test_spans_outside_steps_become_rows_and_checkpoints(recording):
    with badput.span("load", step=41, path="ckpt/41"):
        time.sleep(0.01)
    with badput.step():
        pass
    with badput.span("save", path="ckpt/42") as span:
        span.set(step=42, bytes=1000)
    with badput.step(), badput.span("save", step=43, durable=False):
        pass
    with pytest.raises(OSError, match="disk"), badput.span("save", step=44):
        raise OSError("disk")
    badput.close(timeout=5)
    recording.ends()
    assert sorted(by_step(recording)) == [42, 43]
    spans = recording.rows("spans")
    assert [(s["name"], s["in_step"], s["step"]) for s in spans] == [
        ("load", False, 0), ("save", False, 42), ("save", True, 42), ("save", False, 43),
    ]  # fmt: skip
    assert spans[0]["dur_ns"] >= 10e6
    points = recording.rows("checkpoints")
    assert [(c["op"], c["step"], c["ok"]) for c in points] == [
        ("load", 41, True), ("save", 42, True), ("save", 43, True), ("save", 44, False),
    ]  # fmt: skip
    assert points[1]["durable_ns"] == points[1]["start_ns"] + points[1]["dur_ns"]
    assert points[1]["bytes"] == 1000
    assert [c["durable_ns"] is None for c in points] == [True, False, True, True]
    assert by_step(recording)[43]["save_ns"] > 0


def test_steps_go_on_from_a_number_a_load_or_a_rewind(recording):
    with badput.step(number=10):
        pass
    with badput.step():
        pass
    badput.event("rewind", to_step=4)
    with badput.step():
        pass
    badput.close(timeout=5)
    recording.ends()
    assert [r["step"] for r in recording.rows("steps")] == [10, 11, 5]
    assert recording.events("rewind")[0]["attrs"] == {"to_step": 4}


def test_a_step_that_raises_is_not_a_finished_step(recording):
    with badput.step():
        pass
    with pytest.raises(ValueError, match="user"), badput.step(tokens=5), badput.span("forward"):
        raise ValueError("user's secret")
    with badput.step(tokens=6):
        pass
    badput.close(timeout=5)
    recording.ends()
    rows = by_step(recording)
    assert sorted(rows) == [1, 2]
    assert rows[2]["tokens"] == 6
    (failed,) = recording.rows("spans")
    assert failed["name"] == "failed_step"
    assert json.loads(failed["attrs"]) == {"step": 2, "exception": "ValueError"}
    (failure,) = recording.events("failure")
    assert failure["attrs"]["signature"].startswith("ValueError at test_probe_records.py:")
    assert "secret" not in json.dumps(failure["attrs"])


def test_events_keep_their_attributes_and_odd_values_do_no_harm(recording):
    badput.event(
        "note", text="é \ud800 ' \"", number=float("nan"), thing=object(), path=recording.run
    )
    badput.event("note", huge="x" * 200_000)
    badput.close(timeout=5)
    recording.ends()
    first, second = recording.events("note")
    assert first["attrs"]["number"] == "nan"
    assert first["attrs"]["thing"] == "<object>"
    assert first["attrs"]["path"] == str(recording.run)
    assert second["attrs"]["huge"].startswith("xxx")


def test_spans_of_other_threads_take_nothing_from_the_training_thread(recording):
    def background():
        for _ in range(200):
            with badput.span("save", step=1):
                pass

    threads = [threading.Thread(target=background) for _ in range(3)]
    with badput.step():
        for thread in threads:
            thread.start()
    for _ in range(3000):
        with badput.step():
            pass
    for thread in threads:
        thread.join()
    badput.close(timeout=5)
    recording.ends()
    assert sorted(by_step(recording)) == list(range(1, 3002))
    spans = recording.rows("spans")
    assert len(spans) == 600
    assert all(s["in_step"] and json.loads(s["attrs"])["background"] for s in spans)
    assert all(r["save_ns"] is None for r in recording.rows("steps"))
    assert len({(r["process_id"], r["seq"]) for r in recording.rows("steps") + spans}) == 3601


def test_pickles_and_copies_of_our_objects_do_nothing(recording):
    step = badput.step()
    span = badput.span("x")
    data = badput.data([1, 2])
    for thing in (step, span):
        for copy in (pickle.loads(pickle.dumps(thing)), deepcopy(thing)):
            with copy:
                pass
    assert pickle.loads(pickle.dumps(data)) == [1, 2]
    badput.close(timeout=5)
    recording.ends()
    assert recording.rows("steps") == []
    assert recording.rows("spans") == []
