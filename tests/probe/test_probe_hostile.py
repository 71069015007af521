"""Programs that do odd things must run to their end, lose no step and keep what is theirs."""

from __future__ import annotations

import json
import pickle

import pytest

import badput
from badput.values import MAX_PAYLOAD, plain, to_json

HANDLERS = {
    "function": "def ring(*_): raise AlarmError",
    "one that resets itself": """
def ring(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise AlarmError
""",
    "object": """
class Ring:
    def __call__(self, number, frame): raise AlarmError
ring = Ring()
""",
    "partial": """
import functools
def _ring(extra, *_): raise AlarmError
ring = functools.partial(_ring, 1)
""",
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=list(HANDLERS))
def test_a_handlers_exception_always_arrives_and_later_steps_are_still_recorded(box, handler):
    child = box.run_child(
        f"""
import badput, os, signal, time
class AlarmError(Exception): pass
badput.init(os.environ["RUN"])
{handler}
done = arrived = 0
for _ in range(60):
    signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.002)
    try:
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            for _ in range(50):
                with badput.step() as step:
                    pass
                done += 1
    except AlarmError:
        arrived += 1
for _ in range(100):
    with badput.step():
        pass
    done += 1
print(arrived, done)
badput.close(5)
""",
        env={"BADPUT_STRICT": "0"},
    )
    assert child.stderr == ""
    arrived, done = map(int, child.stdout.split())
    assert arrived == 60
    (end,) = box.ends()
    steps = [r["step"] for r in box.rows("steps")]
    assert steps == list(range(1, len(steps) + 1))
    assert done <= len(steps) + end["attrs"]["dropped"] <= done + arrived


def test_a_step_in_a_step_stays_ignored_however_the_outer_one_is_held(box):
    child = box.run_child("""
import badput, contextlib, os
badput.init(os.environ["RUN"])
def inner():
    with badput.step(tokens=1) as step:
        step.log(loss=1.0)
with badput.step(tokens=2) as step:
    inner()
    inner()
    step.log(loss=2.0)
with badput.step(tokens=2):
    inner()
with contextlib.ExitStack() as stack:
    stack.enter_context(badput.step(tokens=2))
    inner()
held = badput.step(tokens=2)
held.__enter__()
inner()
held.__exit__(None, None, None)
def items():
    with badput.step(tokens=2):
        yield 1
for _ in items():
    inner()
badput.close(5)
""")
    assert child.stderr == "badput: a step inside a step is ignored\n"
    box.ends()
    rows = [(r["step"], r["tokens"]) for r in box.rows("steps")]
    assert rows == [(n, 2) for n in range(1, 6)]


def test_steps_in_two_threads_at_once_never_damage_the_record(box):
    child = box.run_child(
        """
import badput, os, sys, threading
sys.setswitchinterval(1e-6)
badput.init(os.environ["RUN"])
def work():
    for _ in range(2000):
        with badput.step(tokens=7) as step:
            step.log(loss=1.0)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(500):
    with badput.step(tokens=9):
        pass
badput.close(5)
"""
    )
    assert child.returncode == 0
    (end,) = box.ends()
    assert end["attrs"]["damaged"] == 0
    rows = box.rows("steps")
    assert [r["seq"] for r in rows] == list(range(len(rows)))
    assert sum(r["tokens"] == 9 for r in rows) == 500


def test_a_step_that_another_thread_is_writing_is_not_given_up(box):
    """Not even if the references agree by chance, nor if it began between look and change."""
    child = box.run_child(
        """
import badput, os, sys, threading
from badput import recorder, steps
badput.init(os.environ["RUN"])
with badput.step(tokens=1):
    pass
unwind, inside, go = recorder.Recorder.unwind, threading.Event(), threading.Event()
def slow(*parts):
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        go.wait(20)
    return unwind(*parts)
recorder.Recorder.unwind = slow        # called while a step with samples ends
def work():
    with badput.step(tokens=2, samples=1):
        pass
def begin_one():
    inside.clear(), go.clear()
    threading.Thread(target=work).start()
    assert inside.wait(20)
def let_it_end():
    go.set()
    for thread in threading.enumerate()[1:]:
        if thread.name.startswith("Thread") and "work" in thread.name:
            thread.join()

begin_one()                            # the other thread is in the middle of its record
rest = badput._step.refs
for refs in range(rest, rest + 8):     # one of them is what is counted now
    badput._step.refs = refs
    with badput.step(tokens=3):
        pass
badput._step.refs = rest
let_it_end()

first = badput._first_step
def late():
    found = first()
    begin_one()                        # it begins after the look at ``open``
    return found
badput._step.open = steps.OPEN         # as a step that nobody holds
badput._first_step = late
with badput.step(tokens=3):
    pass
badput._first_step = first
let_it_end()
for _ in range(500):
    with badput.step(tokens=9):
        pass
badput.close(5)
"""
    )
    assert child.returncode == 0
    (end,) = box.ends()
    assert end["attrs"]["damaged"] == 0
    tokens = [r["tokens"] for r in box.rows("steps")]
    assert tokens == [1, 2, 2, *[9] * 500]


def test_a_span_inside_a_generator_cannot_switch_recording_off(box):
    child = box.run_child(
        """
import badput, os
badput.init(os.environ["RUN"])
def batches():
    while True:
        sum(range(1000))
        with badput.span("forward"):
            yield 1
for _ in range(40):
    with badput.step():
        for n, _ in enumerate(badput.data(batches())):
            if n == 2:
                break
badput.close(5)
"""
    )
    assert child.stderr == ""
    box.ends()
    assert len(box.rows("steps")) == 40


def test_what_data_gives_can_do_what_the_iterable_can(box):
    class Loader:
        """Winds itself back with each iter, as many loaders do."""

        def __iter__(self):
            self.left = 2
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

    badput.init(box.run)
    loader = badput.data(Loader())
    assert [list(loader), list(loader)] == [[1, 0], [1, 0]]
    stream = badput.data(iter([1, 2]))
    assert (next(stream), list(stream)) == (1, [2])
    items = badput.data([1, 2, 3])
    assert (items[0], len(items), 2 in items, list(reversed(items))) == (1, 3, True, [3, 2, 1])
    assert badput.data(n for n in [1])
    assert not badput.data([])
    assert pickle.loads(pickle.dumps(iter(badput.data([5])))).__next__() == 5
    loader.epoch = 3
    assert loader.epoch == 3

    async def stream_of_one():
        yield 1

    unmeasured = stream_of_one()
    assert badput.data(unmeasured) is unmeasured
    with pytest.raises(TypeError):
        len(badput.data(n for n in [1]))
    badput.close(timeout=0)


def test_numbers_beyond_reason_and_reserved_events_do_no_harm(box):
    child = box.run_child(
        """
import badput, os, time
badput.init(os.environ["RUN"])
for _ in range(20):
    with badput.step(number=time.time_ns()):
        pass
for n in range(7, 0, -1):
    with badput.step(number=n):
        pass
badput.event("rewind", to_step=2**60)
with badput.span("load", step=2**60):
    pass
with badput.step():
    pass
badput.event("end")
badput.event("dropped", kind="x")
badput.event("hang", what="forged")
class Waits:
    def __str__(self):
        raise SystemExit("asked for its text")
badput.event(Waits())
with badput.span(Waits()) as span:
    span.set(a=1)
with badput.span("x", name="y") as span:
    span.set(self=1)
badput.close(5)
""",
        env={"BADPUT_STRICT": "0"},
    )
    assert "failed" not in child.stderr
    box.ends()
    assert [r["step"] for r in box.rows("steps")] == [*range(1, 21), 7, 6, 5, 4, 3, 2, 1, 2]
    kinds = sorted(r["kind"] for r in box.rows("events"))
    assert kinds == ["end", "note", "note", "note", "rewind"]
    assert "event() wants a name and got Waits" in child.stderr
    assert "span() wants a name and got Waits" in child.stderr
    attrs = [json.loads(s["attrs"]) for s in box.rows("spans") if s["name"] == "x"]
    assert attrs == [{"name": "y", "self": 1}]


def test_a_value_that_grows_without_end_is_cut():
    level = [0] * 1000
    for _ in range(4):
        level = [level] * 1000
    assert len(json.dumps(plain(level))) < 1 << 20
    attrs = {"text": "x" * (1 << 20), "level": level, "step": 7, "durable": False}
    data = to_json({"n": "save", "a": attrs})
    assert len(data) <= MAX_PAYLOAD
    assert json.loads(data)["a"]["step"] == 7
    assert json.loads(data)["a"]["durable"] is False


def test_a_value_whose_own_code_raises_costs_only_itself(box, monkeypatch):
    class Odd(float):
        def __float__(self):
            raise ZeroDivisionError

        __sub__ = is_integer = __float__

    class OddDict(dict):
        def items(self):
            raise ZeroDivisionError

    monkeypatch.delenv("BADPUT_STRICT")
    badput.init(box.run)
    for _ in range(20):
        with badput.step(tokens=Odd(1)) as step:
            step.log(loss=Odd(1))
        badput.event("note", odd=Odd(1), kept=1, other=OddDict())
    badput.close(timeout=5)
    box.ends()
    assert len(box.rows("steps")) == 20
    assert {e["attrs"]["kept"] for e in box.events("note")} == {1}
