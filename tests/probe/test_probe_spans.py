"""Spans that do not nest: tasks, threads, generators, spans entered twice or cut off; traces."""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
import threading

import pytest

import badput
from badput import guard, spans, steps, tracing
from badput.schema import STEP_CATEGORIES


@pytest.fixture
def ticks(monkeypatch):
    """The clock of steps and spans counts: each reading is 1 ms after the one before."""
    clock = itertools.count(10**6, 10**6)
    monkeypatch.setattr(steps, "_now", lambda: next(clock))
    monkeypatch.setattr(spans, "_now", lambda: next(clock))
    return clock


@pytest.fixture
def run(box, ticks, monkeypatch):
    badput.init(box.run)
    badput._recorder.first_step()
    badput.step().__exit__(None, None, None)
    monkeypatch.setattr(badput, "_now", lambda: next(ticks))

    def finish():
        badput.close(timeout=5)
        box.ends()
        return box.rows("steps")[1:]

    yield finish
    badput.close(timeout=0)


def times(row):
    """Milliseconds by category, and all of the step."""
    found = {c: row[f"{c}_ns"] // 10**6 for c in STEP_CATEGORIES if row[f"{c}_ns"]}
    return found, row["dur_ns"] // 10**6


def test_interleaved_tasks_count_each_instant_once(run):
    async def task(name, before, during):
        for _ in range(before):
            await asyncio.sleep(0)
        with badput.span(name):
            for _ in range(during):
                next_tick()
                await asyncio.sleep(0)

    def next_tick():
        spans._now()

    async def both():
        await asyncio.gather(task("forward", 0, 4), task("backward", 2, 4), task("comm", 3, 1))

    with badput.step():
        asyncio.run(both())
    with badput.step(), badput.span("forward"):
        pass
    first, second = run()
    found, total = times(first)
    assert set(found) == {"forward", "backward", "comm"}
    assert all(value > 0 for value in found.values())
    assert sum(found.values()) == total - 2, "all but the instants before and after the spans"
    assert times(second) == ({"forward": 1}, 3)


def test_a_span_that_outlives_its_step_ends_with_it_there(run):
    late = badput.span("comm")
    with badput.step():
        with badput.span("forward"):
            late.__enter__()
        spans._now()
    late.__exit__(None, None, None)
    with badput.step():
        late.__enter__()
    with badput.step():
        late.__exit__(None, None, None)
    first, second, third = run()
    assert times(first) == ({"forward": 1, "comm": 3}, 5)
    assert times(second) == ({"comm": 1}, 2)
    assert times(third) == ({}, 2)


def test_a_span_entered_twice_counts_once(run):
    span = badput.span("forward")
    with badput.step():
        with span, span, span:
            pass
        with span:
            pass
    (row,) = run()
    assert times(row) == ({"forward": 4}, 7)


def test_exceptions_and_generators_cut_off_leave_nothing_behind(run):
    def batches():
        with badput.span("host"):
            yield 1
            yield 2

    with badput.step():
        with pytest.raises(ZeroDivisionError), badput.span("forward"), badput.span("comm"):
            1 / 0  # noqa: B018
        stream = batches()
        next(stream)
        del stream
    with badput.step():
        left = batches()
        next(left)
    with badput.step():
        left.close()
    assert badput._recorder.stack == []
    first, second, third = run()
    assert times(first) == ({"forward": 2, "comm": 1, "host": 1}, 7)
    assert times(second) == ({"host": 1}, 2)
    assert times(third) == ({}, 2)


def test_a_span_whose_end_never_ran_does_not_hold_the_phase(run):
    recorder = badput._recorder
    badput.span("rendezvous").__enter__()  # as if a signal handler's exception had come there
    with badput.span("eval"):
        pass
    assert recorder.stack == []
    with badput.step():
        badput.span("comm").__enter__()
        with badput.span("forward"):
            pass
    (row,) = run()
    assert times(row)[0] == {"forward": 1}


def test_spans_of_other_threads_take_nothing_from_the_step(run, box):
    def work():
        with badput.span("forward"), badput.span("save", step=1):
            pass

    with badput.step():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (row,) = run()
    assert times(row)[0] == {}
    found = box.rows("spans")
    assert sorted(r["name"] for r in found) == ["forward"] * 4 + ["save"] * 4
    assert all('"background": true' in r["attrs"] for r in found)


def test_what_is_pickled_or_copied_does_nothing(run):
    with badput.step() as view, badput.span("forward") as span:
        for thing in (view, span, badput._recorder.step):
            for other in (pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing)):
                assert type(other) is badput.Nothing
    assert len(run()) == 1


def traced(box):
    return [(r["step"], r["name"], r["depth"], r["microbatch"]) for r in box.rows("traces")]


def one_step():
    with badput.step():
        for n in range(2):
            with badput.span("forward", microbatch=n), badput.span("comm"):
                pass
        for _ in badput.data([1]):
            pass


def test_a_window_keeps_the_single_spans_of_its_steps(run, box):
    one_step()
    badput.trace(steps=2, every=2)
    for _ in range(5):
        one_step()
    assert badput._recorder.trace is None, "nothing is left to pay for after the window"
    rows = run()
    number = rows[1]["step"]
    wanted = [("comm", 1, None), ("forward", 0, 0), ("comm", 1, None), ("forward", 0, 1)]
    wanted += [("data", 0, None)] * 3
    assert traced(box) == [(n, *w) for n in (number, number + 2) for w in wanted]
    assert all(r["dur_ns"] > 0 for r in box.rows("traces"))
    inside = [r for r in box.rows("traces") if r["step"] == number]
    assert all(r["start_ns"] >= rows[1]["start_ns"] for r in inside)


def test_the_spans_of_a_step_are_bounded_and_the_rest_is_counted(run, box, monkeypatch):
    monkeypatch.setattr(tracing, "MAX_SPANS", 450)
    badput.trace(1)
    with badput.step():
        for n in range(500):
            with badput.span("forward", microbatch=n):
                pass
    run()
    assert [r[3] for r in traced(box)] == list(range(450))
    (note,) = box.events("note")
    assert note["attrs"]["lost_spans"] == 50


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("3:2", [3, 4]),
        ("every=2,steps=2", [1, 3]),
        ("start=2,every=3,steps=2", [2, 5]),
        ("steps=1", [1]),
        ("0:0", []),
        ("3", None),
        ("a:b", None),
        ("steps=2,each=3", None),
        ("steps=-1", None),
        ("every=0,steps=2", None),
    ],
)
def test_the_environment_opens_a_window_or_says_why_not(box, monkeypatch, text, steps):
    monkeypatch.setenv("BADPUT_TRACE", text)
    badput.init(box.run)
    for _ in range(6):
        with badput.step(), badput.span("forward"):
            pass
    badput.close(timeout=5)
    box.ends()
    assert [r["step"] for r in box.rows("traces")] == (steps or [])
    assert len(box.rows("steps")) == 6
    assert (steps is None) == ("trace" in guard._said)
