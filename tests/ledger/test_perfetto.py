"""The Perfetto trace: its structure, its nesting, and that its slices are the books."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger import perfetto
from badput_ledger.books import open_books
from badput_ledger.cli import report_main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(make: Any) -> Path:
    """Two ranks on two nodes, killed and restarted, with a save between steps and traces."""
    for rank in (0, 1):
        host = f"node{rank}"
        pid = make.process(0, rank=rank, world=2, init=2, host=host)
        make.span(pid, "model", 3, 4, rank=rank)
        make.checkpoint(pid, "save", 20, 9, path="/c", rank=rank)
        at = make.steps(pid, 1, 40, 10.000000123, 0.5, rank=rank, tokens=10, loss=2.5)
        make.span(pid, "save", at, 2, rank=rank)
        make.steps(pid, 41, 50, at + 2.1, 0.5, rank=rank, tokens=10, loss=float("nan"))
        for number, (name, start, dur, depth) in enumerate(
            [("forward", 10.1, 0.2, 0), ("attention", 10.15, 0.1, 1), ("backward", 10.3, 0.9, 0)]
        ):
            make.add("traces", process_id=pid, seq=900, number=number, rank=rank, step=1, name=name,
                     start_ns=make.at(start), dur_ns=round(dur * 1e9), depth=depth)  # fmt: skip
        make.end(pid, 38, reason="killed", signal=9, rank=rank)
        pid = make.process(60, rank=rank, world=2, init=62, host=host)
        make.checkpoint(pid, "load", 20, 63, path="/c", rank=rank)
        at = make.steps(pid, 21, 60, 64, 0.5, rank=rank, tokens=10, loss=2.0)
        make.end(pid, at + 0.1, rank=rank)
    return make.write()


@pytest.fixture(autouse=True)
def _instants(make: Any) -> None:
    make.at = lambda seconds: 1_800_000_000 * 10**9 + round(seconds * 1e9)


def trace_of(run: Path, tmp_path: Path) -> dict[str, Any]:
    target = tmp_path / "trace.json"
    assert report_main([str(run), "--format", "perfetto", "-o", str(target)]) == 0
    return json.loads(target.read_text(), parse_float=Decimal)


def spans(trace: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]]:
    """Slices of each thread as (start ns, stop ns, event)."""
    found: dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for e in trace["traceEvents"]:
        if e["ph"] == "X":
            start, dur = Decimal(e["ts"]) * 1000, Decimal(e["dur"]) * 1000
            assert start == int(start)
            assert dur == int(dur) > 0
            found[e["pid"], e["tid"]].append((int(start), int(start + dur), e))
    return found


def names(trace: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == what
    }


def check_books(run: Path, trace: dict[str, Any]) -> None:
    """Time of each rank and leaf in the trace equals the books' to the nanosecond."""
    threads = names(trace, "thread_name")
    found: dict[tuple[str, str], int] = defaultdict(int)
    for key, slices in spans(trace).items():
        for start, stop, e in slices:
            if "leaf" in e["args"]:
                found[threads[key], e["args"]["leaf"]] += stop - start
    with open_books(run) as books:
        want: dict[tuple[str, str], int] = defaultdict(int)
        for piece in books.timeline():
            want[f"rank {piece.rank}", piece.leaf] += piece.end_ns - piece.start_ns
        total = books.report()["total_gpu_ns"]
    assert found == want
    assert sum(found.values()) == int(total)


def check_nesting(trace: dict[str, Any]) -> None:
    for slices in spans(trace).values():
        stack: list[int] = []
        for start, stop, _ in slices:
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or stop <= stack[-1]
            stack.append(stop)


def test_slices_are_the_books_to_the_nanosecond(run: Path, tmp_path: Path) -> None:
    trace = trace_of(run, tmp_path)
    check_books(run, trace)
    check_nesting(trace)
    assert trace["otherData"]["notes"] == []


def test_events_are_in_order_and_of_the_format(run: Path, tmp_path: Path) -> None:
    trace = trace_of(run, tmp_path)
    events = trace["traceEvents"]
    assert {e["ph"] for e in events} == {"X", "C", "i", "M"}
    times = [Decimal(e["ts"]) for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    assert times[0] >= 0
    for e in events:
        assert {"name", "pid", "tid", "ts", "args"} <= set(e)
        assert isinstance(e["name"], str)
        assert e["pid"] > 0
    assert set(names(trace, "process_name").values()) == {"run run", "node0", "node1"}
    assert {"rank 0", "rank 1", "sessions"} <= set(names(trace, "thread_name").values())


def test_steps_and_traced_spans_lie_inside_each_other(run: Path, tmp_path: Path) -> None:
    slices = spans(trace_of(run, tmp_path))
    lane = next(v for v in slices.values() if any(e["name"] == "forward" for _, _, e in v))
    at = {e["name"]: (start, stop) for start, stop, e in lane}
    step = at["step 1"]
    assert step[0] < at["forward"][0] < at["attention"][0] < at["attention"][1] < step[1]
    # one that ran on beyond its step is cut there
    assert at["backward"][1] == step[1]
    assert sum(e["name"].startswith("step ") for _, _, e in lane) == 50 + 40


def test_steps_that_share_a_row_share_a_slice(make: Any, tmp_path: Path) -> None:
    pid = make.process(0, init=1)
    for n in (10, 20, 30):
        make.step(pid, n, n / 10, 1.0, n=10)
    make.end(pid, 4)
    trace = trace_of(make.write(), tmp_path)
    named = [e["name"] for e in trace["traceEvents"] if e["name"].startswith("step")]
    assert named == ["steps 1..10", "steps 11..20", "steps 21..30"]


def test_spans_of_two_threads_that_overlap_are_cut_and_not_crossed(
    make: Any, tmp_path: Path
) -> None:
    pid = make.process(0, init=1)
    make.steps(pid, 1, 3, 1, 1.0)
    for number, (start, dur) in enumerate([(1.1, 0.3), (1.2, 0.4), (1.3, 0.1)]):
        make.add("traces", process_id=pid, seq=900, number=number, rank=0, step=1,
                 name=f"t{number}", start_ns=make.at(start), dur_ns=round(dur * 1e9))  # fmt: skip
    make.end(pid, 4)
    trace = trace_of(make.write(), tmp_path)
    check_nesting(trace)
    assert sum(e["name"].startswith("t") for e in trace["traceEvents"] if e["ph"] == "X") == 3


def test_bins_are_no_wider_than_they_must_be(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = make.process(0, init=1)
    at = 1.0
    for step in range(1, 201):
        make.step(pid, step, at, 1.0)
        make.span(pid, "save", at + 1, 0.5)
        at += 1.5
    make.end(pid, at)
    run = make.write()
    monkeypatch.setattr(perfetto, "MAX_SLICES", 100)
    trace = trace_of(run, tmp_path)
    check_books(run, trace)
    check_nesting(trace)
    shown = [e for e in trace["traceEvents"] if "leaf" in e["args"]]
    assert 25 <= len(shown) <= 100


def test_counters_and_instants(run: Path, tmp_path: Path) -> None:
    events = trace_of(run, tmp_path)["traceEvents"]
    loss = [e["args"]["loss"] for e in events if e["ph"] == "C" and e["name"] == "loss"]
    assert loss == [Decimal("2.5")] * 40 + [Decimal("2.0")] * 40  # NaN is no number of JSON
    speed = {e["args"]["tokens/s"] for e in events if e["name"] == "tokens/s"}
    assert {float(s) for s in speed} == {40.0}  # 10 tokens in half a second, two replicas
    ends = [e for e in events if e["ph"] == "i" and e["name"] == "end"]
    assert {e["args"]["reason"] for e in ends} == {"killed", "completed"}


@pytest.mark.parametrize("limit", [12, 40])
def test_above_the_limit_time_is_put_together_and_stays_exact(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    full = trace_of(run, tmp_path)
    pieces = sum("leaf" in e["args"] for e in full["traceEvents"])
    monkeypatch.setattr(perfetto, "MAX_SLICES", limit)
    trace = trace_of(run, tmp_path)
    shown = sum("leaf" in e["args"] for e in trace["traceEvents"])
    check_books(run, trace)
    check_nesting(trace)
    assert len(trace["otherData"]["notes"]) == 1
    if pieces > limit:
        assert shown < pieces
        assert "put together" in trace["otherData"]["notes"][0]
    else:
        assert "none is shown" in trace["otherData"]["notes"][0]
    assert not any(e["name"].startswith("step ") for e in trace["traceEvents"])


def test_counters_and_events_are_bounded_and_the_file_says_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MAX_POINTS", 10)
    monkeypatch.setattr(perfetto, "MAX_INSTANTS", 1)
    trace = trace_of(run, tmp_path)
    assert sum(e["name"] == "loss" for e in trace["traceEvents"]) <= 11
    assert sum(e["ph"] == "i" for e in trace["traceEvents"]) == 1
    assert len(trace["otherData"]["notes"]) == 3


def test_hostile_names_are_text(make: Any, tmp_path: Path) -> None:
    bad = '</script>"\\\n\x1b\u202e'
    pid = make.process(0, init=1, host=bad)
    make.add("runs", process_id=pid, time_ns=1, name=bad, source="probe")
    at = make.steps(pid, 1, 3, 1, 1.0)
    make.event(pid, bad, 2, **{bad: bad})
    make.end(pid, at)
    trace = trace_of(make.write(), tmp_path)
    texts = [e["name"] for e in trace["traceEvents"]]
    texts += [str(v) for e in trace["traceEvents"] for v in e["args"].values()]
    assert any("</script>" in t for t in texts)
    assert all(c.isprintable() for t in texts for c in t)


def test_a_launcher_without_ranks_still_makes_a_trace(make: Any, tmp_path: Path) -> None:
    pid = make.process(0, rank=None, role="launcher")
    make.exit(pid, 5, exit_code=1)
    trace = trace_of(make.write(), tmp_path)
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "i"] == ["exit"]
