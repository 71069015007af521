"""The host never notices: before init, with a broken probe, with impossible places to write."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time

import pytest

import badput
from badput import guard, recorder, session, spans, spool, steps


def use_everything(run):
    """A small program that uses every public call, and its own exceptions."""
    badput.init(run)
    seen = []
    for tokens in badput.data([None, 1]):
        with badput.step(tokens=tokens):
            pass
    for item in badput.data([1, 2, 3]):
        with badput.step(tokens=5, source="s", samples=1) as step:
            with badput.span("forward"):
                seen.append(item)
            step.log(loss=1.0, applied=True)
    with badput.step(tokens=2.0):
        pass
    with badput.span("save", step=3) as span:
        span.set(path="x")
    badput.event("note", text="t")
    with pytest.raises(ZeroDivisionError), badput.step(), badput.span("forward"):
        seen.append(1 / 0)
    with pytest.raises(ZeroDivisionError), badput.span("eval"):
        seen.append(1 / 0)
    badput.close(timeout=0)
    return seen


def test_before_init_everything_does_nothing(tmp_path, monkeypatch, box):
    monkeypatch.chdir(tmp_path)
    assert use_everything(None) == [1, 2, 3]
    data = [1]
    assert badput.data(data) is data
    assert list(tmp_path.iterdir()) == []


def test_disable_switches_everything_off(box, monkeypatch):
    monkeypatch.setenv("BADPUT_DISABLE", "1")
    assert use_everything(box.run) == [1, 2, 3]
    assert box.spools() == []
    assert not box.run.exists()


def test_import_is_light():
    code = (
        "import sys; before = set(sys.modules); import badput; "
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}; print(sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("['badput']", "['__future__', 'badput']")


def test_init_loads_nothing_heavy(box):
    done = box.run_child("""
import badput, os, sys
badput.init(os.environ["RUN"])
with badput.step(): pass
badput.close()
heavy = {"pyarrow", "numpy", "psutil", "torch", "duckdb", "pathlib", "asyncio", "dataclasses_json"}
print(sorted(heavy & set(sys.modules)))
""")
    box.ends()
    assert done.stdout.strip() in ("[]", "['pathlib']")  # site may load pathlib by itself


def test_a_training_process_grows_by_less_than_10_mib(box):
    done = box.run_child("""
import json, os, threading
def resident():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
import badput
badput.init(os.environ["RUN"])
for n in range(20_000):
    with badput.step(tokens=n) as step:
        with badput.span("forward"):
            pass
        step.log(loss=1.0)
print(resident() - before)
badput.close(timeout=0)
""")
    assert done.stderr == ""
    assert int(done.stdout) < 10 << 20
    box.ends()


BROKEN = [
    (session, "start"),
    (session, "facts"),
    (session, "ensure_collector"),
    (session, "stop"),
    (spool.Spool, "write"),
    (spool.Spool, "room"),
    (spool.Spool, "note"),
    (spool, "make_segment"),
    (recorder.Recorder, "append"),
    (recorder.Recorder, "event"),
    (recorder.Recorder, "set_phase"),
    (recorder.Recorder, "first_step"),
    (recorder.Recorder, "phase_of"),
    (recorder.Recorder, "close"),
    (steps, "_now"),
    (steps, "_body"),
    (steps, "_into"),
    (steps, "_hot_into"),
    (steps, "_whole_into"),
    (steps.Step, "take"),
    (steps.Step, "take_tokens"),
    (steps.Step, "_write"),
    (steps.Step, "_failed"),
    (spans.Span, "_enter"),
    (spans.Span, "_exit"),
    (spans.Span, "__init__"),
    (spans.Data, "__init__"),
    (steps.Step, "wait"),
]


@pytest.mark.parametrize(("owner", "name"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_a_broken_probe_leaves_the_program_alone(box, monkeypatch, capsys, owner, name):
    def broken(*_, **__):
        raise RuntimeError("broken on purpose")

    monkeypatch.delenv("BADPUT_STRICT")
    monkeypatch.setattr(owner, name, broken)
    try:
        assert use_everything(box.run) == [1, 2, 3]
        assert sum(guard.counts().values()) > 0
    finally:
        monkeypatch.undo()
        badput.close(timeout=0)


def test_after_repeated_failures_the_probe_is_off_and_says_each_thing_once(box):
    done = box.run_child(
        """
import badput, os
from badput import steps
badput.init(os.environ["RUN"])
def broken(*_): raise RuntimeError("broken on purpose")
steps._now = broken
for _ in range(100):
    with badput.step(): pass
assert badput._recorder is None
""",
        env={"BADPUT_STRICT": "0"},
    )
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "step end failed (RuntimeError: broken on purpose)" in lines[0]
    assert "recording is off" in lines[1]
    box.ends()


def test_tensors_and_other_odd_values_are_left_out_without_touching_them(box, monkeypatch, capsys):
    class Tensor:
        def _sync(self, *_):
            raise AssertionError("the value was touched")

        __float__ = __int__ = __index__ = __bool__ = item = __repr__ = __str__ = _sync

    fake = type(sys)("torch")
    fake.Tensor = Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    badput.init(box.run, hooks="none")  # hooks would take the fake for what they know
    with badput.step(tokens=Tensor(), samples=1.5, padding=-1) as step:
        step.log(loss=Tensor(), grad_norm="x", applied=Tensor(), typo=1)
    with badput.step(tokens=1 << 80):
        pass
    badput.event("note", value=Tensor())
    badput.close(timeout=5)
    box.ends()
    rows = box.rows("steps")
    for name in ("tokens", "samples", "padding", "loss", "grad_norm", "applied"):
        assert rows[0][name] is None, name
    assert rows[1]["tokens"] is None
    assert box.events("note")[0]["attrs"] == {"value": "<Tensor>"}


def test_an_exception_of_the_users_signal_handler_passes_through(box, monkeypatch):
    class AlarmError(Exception):
        pass

    def ring(*_):
        raise AlarmError

    monkeypatch.delenv("BADPUT_STRICT")
    badput.init(box.run)
    previous = signal.signal(signal.SIGVTALRM, ring)
    missed = 0
    try:
        for _ in range(30):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.003)
            try:
                deadline = time.monotonic() + 2
                while time.monotonic() < deadline:
                    with badput.step(), badput.span("forward"):
                        pass
                missed += 1
            except AlarmError:
                pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    badput.close(timeout=5)
    assert missed == 0
    box.ends()
    rows = box.rows("steps")
    assert [r["step"] for r in rows] == list(range(1, len(rows) + 1))


def test_an_event_from_a_signal_handler_in_the_middle_of_a_step_is_kept(box):
    noted = []
    numbers = itertools.count()

    def note(*_):
        number = next(numbers)
        badput.event("note", n=number)
        noted.append(number)

    badput.init(box.run)
    previous = signal.signal(signal.SIGVTALRM, note)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        while len(noted) < 100:
            with badput.step():
                pass
            badput.event("other")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    badput.close(timeout=5)
    (end,) = box.ends()
    assert sorted(e["attrs"]["n"] for e in box.events("note")) == sorted(noted)
    assert end["attrs"]["damaged"] == end["attrs"]["dropped"] == 0


def test_init_twice_keeps_the_first_and_close_begins_anew(box):
    badput.init(box.run)
    badput.init(box.run)
    with badput.step():
        pass
    badput.close(timeout=0)
    badput.close()
    badput.init(box.run)
    badput.close(timeout=5)
    box.ends(2)
    first, second = sorted(box.rows("processes"), key=lambda r: r["init_ns"])
    assert first["process_id"] != second["process_id"]
    assert second["start_ns"] == second["init_ns"] > first["init_ns"]


def test_the_exception_hook_and_signal_handlers_are_left_as_they_were(box):
    hook = sys.excepthook
    handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
    threads = threading.active_count()
    badput.init(box.run)
    assert {s: signal.getsignal(s) for s in signal.valid_signals()} == handlers
    assert threading.active_count() == threads
    badput.close(timeout=0)
    assert sys.excepthook is hook


def test_close_returns_soon_when_no_collector_answers(box, monkeypatch):
    monkeypatch.setattr(session, "ensure_collector", lambda _: False)
    monkeypatch.setenv("BADPUT_SPOOL", str(box.folder / "lonely"))
    badput.init(box.run)
    begin = time.monotonic()
    badput.close(timeout=60)
    assert time.monotonic() - begin < 5.5
    assert list((box.folder / "lonely").iterdir()) != []
