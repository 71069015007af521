"""Event logs of AI-Hypercomputer/resiliency, made up here, and a real one where it is at hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from badput_ledger.books import open_books
from badput_ledger.fsck import check
from badput_ledger.sources.cli import main

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2031, 5, 6, 7, 0, 0, tzinfo=UTC)


class EventLog:
    """Writes events at seconds after the start; times without a zone, as the tool does."""

    def __init__(self, job: str | None = "toy-n3") -> None:
        self.job = job
        self.rows: list[str] = []

    def say(self, kind: str, at: float, zone: str = "", **more: Any) -> EventLog:
        event = {"event_type": kind, "timestamp": date(at) + zone, **more}
        if self.job is not None:
            event["job_name"] = self.job
        return self.raw(json.dumps(event))

    def raw(self, text: str) -> EventLog:
        self.rows.append(text)
        return self

    def start(self, at: float, nodes: Any = (0, 1, 2)) -> EventLog:
        for n, node in enumerate(nodes):
            self.say("job_started", at + n * 0.5, node_rank=float(node))
        return self

    def load(self, at: float, step: float) -> EventLog:
        return self.say("checkpoint_loaded", at, step=step)

    def save(self, at: float, step: float) -> EventLog:
        return self.say("checkpoint_saved", at, step=step)

    def write(self, path: Path, tail: str = "\n") -> Path:
        path.write_text("\n".join(self.rows) + tail, encoding="utf-8")
        return path


def date(at: float) -> str:
    return (START + timedelta(seconds=at)).replace(tzinfo=None).isoformat()


@pytest.fixture
def log() -> EventLog:
    return EventLog()


def story(log: EventLog) -> EventLog:
    """40 steps after a load at 100; a start that loads nothing; one that goes on."""
    log.start(0).load(60, 100.0).save(260, 120.0).save(360, 140.0)
    log.start(400).start(500).load(560, 140.0).save(760, 160.0).save(860, 180.0)
    for node in (0, 1, 2):
        log.say("job_terminated", 900 + node, node_rank=node)
    return log


def test_the_format_is_found_and_the_attempts_are_told_apart(
    log: EventLog, do_import: Any, tmp_path: Path
) -> None:
    outcome = do_import(story(log).write(tmp_path / "e.log"), extra=("--gpus", "24"))
    assert outcome.code == 0
    assert outcome.reply["runs"][0]["format"] == "google-resiliency"
    assert outcome.reply["runs"][0]["gpus"] == 24
    run = outcome.run
    assert [p["world_size"] for p in run.attempts] == [24, 24, 24]
    assert run.ranges() == [(101, 140), None, (141, 180)]
    steps = sorted(run.steps, key=lambda r: r["start_ns"])
    assert [(r["step"], r["n_steps"], r["dur_ns"] // 10**9) for r in steps] == [
        (120, 20, 200),
        (140, 20, 100),
        (160, 20, 200),
        (180, 20, 100),
    ]
    assert {c["line"] for c in run.claims("load")} == {4, 13}
    assert {(c["line"], c["step"]) for c in run.claims("save")} == {
        (5, 120), (6, 140), (14, 160), (15, 180),
    }  # fmt: skip
    assert all('"checkpoint_saved"' in c["text"] for c in run.claims("save"))
    assert run.config["log_interval"] == 20
    assert any("1 start never loaded" in n for n in run.config["notes"])


def test_the_books_of_it_close_and_say_what_cannot_be_known(
    log: EventLog, do_import: Any, tmp_path: Path
) -> None:
    outcome = do_import(
        story(log).write(tmp_path / "e.log"), extra=("--gpus", "3", "--step-time", "5")
    )
    with open_books(outcome.run.path, price=3600.0) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    # 80 steps of 5 s; from the first event at 0 s to the last at 902 s
    assert report["definitions"]["google-resiliency"]["value"] == pytest.approx(
        400 / 902, abs=1e-12
    )
    assert report["total_gpu_seconds"] == 902 * 3
    leaves = report["leaves"]
    assert leaves["C.warmup"]["gpu_seconds"] == 2 * 100 * 3
    # from the save at 360 s to the start at 400 s: lost work, hang or teardown
    assert leaves["D.partial"]["gpu_seconds"] == 40 * 3
    for leaf in ("D.recomputed", "B.hang", "B.teardown", "C.launch"):
        assert leaves[leaf]["hi"] >= leaves[leaf]["gpu_seconds"] + 40 * 3, leaf
    assert leaves["D.partial"]["lo"] == 0
    assert report["steps"]["lost_lo"] == 0
    assert report["steps"]["lost_hi"] == 8 + 8  # 40 s at 5 s a step, twice
    by_outcome = {o["outcome"]: o for o in report["starts"]["by_outcome"]}
    assert by_outcome["not begun"]["starts"] == 1
    assert by_outcome["not begun"]["gpu_seconds"] == 100 * 3
    assert by_outcome["not begun"]["cost"] == pytest.approx(300)
    assert by_outcome["saved"]["starts"] == 2


def test_a_load_that_never_saved_is_lost_work_or_hang(
    log: EventLog, do_import: Any, tmp_path: Path
) -> None:
    log.start(0).load(60, 100.0).save(260, 120.0).save(360, 140.0)
    log.start(400).load(450, 140.0)
    log.start(500).load(560, 140.0).save(760, 160.0)
    run = do_import(log.write(tmp_path / "e.log"), extra=("--gpus", "3")).run
    with open_books(run.path) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    assert [s["outcome"] for s in report["starts"]["starts"]] == ["saved", "not saved", "saved"]
    assert report["leaves"]["D.partial"]["gpu_seconds"] == (40 + 50) * 3
    assert report["leaves"]["D.recomputed"]["hi"] == (40 + 50) * 3
    assert report["steps"]["lost_hi"] == 8 + 10
    assert report["kept_time"]["hi"] == report["kept_time"]["value"]


def test_order_copies_and_files_make_no_difference(
    log: EventLog, do_import: Any, tmp_path: Path
) -> None:
    rows = list(story(log).rows)
    first = do_import(log.write(tmp_path / "a.log"), out=tmp_path / "o1").run
    shuffled = EventLog()
    shuffled.rows = [*rows[::-1], *rows[:5]]
    again = do_import(shuffled.write(tmp_path / "b.log"), out=tmp_path / "o2")
    twice = [u for u in again.reply["unread"] if "the same event again" in u["what"]]
    assert {u["line"] for u in twice} == {len(rows) + n for n in range(1, 6)}
    halves = EventLog(), EventLog()
    halves[0].rows, halves[1].rows = rows[::2], rows[1::2]
    split = do_import(
        halves[0].write(tmp_path / "c.log"), halves[1].write(tmp_path / "d.log"),
        out=tmp_path / "o3",
    )  # fmt: skip

    def facts(run: Any) -> Any:
        steps = [(r["step"], r["n_steps"], r["start_ns"], r["dur_ns"]) for r in run.steps]
        loads = [(c["op"], c["step"], c["start_ns"]) for c in run.checkpoints]
        return sorted(steps), sorted(loads), [p["start_ns"] for p in run.attempts]

    assert facts(first) == facts(again.run) == facts(split.run)


def test_damaged_lines_cost_themselves_only(log: EventLog, do_import: Any, tmp_path: Path) -> None:
    story(log)
    bad = [
        '{"event_type": "job_started", "timest',
        "[1, 2]",
        '{"event_type": 7, "timestamp": "2031-05-06T07:00:00"}',
        '{"event_type": "checkpoint_saved", "timestamp": "2031-05-06T07:00:00", "step": "x"}',
        '{"event_type": "checkpoint_saved", "timestamp": "2031-05-06T07:00:00", "step": 1e400}',
        '{"event_type": "checkpoint_saved", "timestamp": "2031-05-06T07:00:00", "step": -4}',
        '{"event_type": "checkpoint_saved", "timestamp": "2031-05-06T07:00:00", "step": 2.5}',
        '{"event_type": "checkpoint_saved", "timestamp": 12, "step": 3}',
        '{"event_type": "checkpoint_saved", "timestamp": "2031-13-06T07:00:00", "step": 3}',
        '{"event_type": "checkpoint_saved", "timestamp": "9031-05-06T07:00:00", "step": 3}',
        '{"event_type": "job_started", "timestamp": "2031-05-06T07:00:00", "node_rank": true}',
        '{"event_type": "job_started", "timestamp": "2031-05-06T07:00:00", "node_rank": 1e300}',
        '{"event_type": "job_started", "timestamp": "2031-05-06T07:00:00", "job_name": []}',
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
        "\x00\x1b[31m{",
    ]
    good = len(log.rows)
    for text in bad:
        log.raw(text)
    outcome = do_import(log.write(tmp_path / "e.log"))
    assert outcome.code == 0
    lines = {u["line"] for u in outcome.reply["unread"] if u["line"] is not None}
    assert lines == {good + n for n in range(1, len(bad) + 1)}
    assert all(u["file"].endswith("e.log") and u["what"] for u in outcome.reply["unread"])
    assert outcome.run.ranges() == [(101, 140), None, (141, 180)]


def test_many_damaged_lines_are_counted(log: EventLog, do_import: Any, tmp_path: Path) -> None:
    story(log)
    for _ in range(500):
        log.raw("{")
    unread = do_import(log.write(tmp_path / "e.log")).reply["unread"]
    assert len(unread) == 21
    assert unread[0]["line"] is None or unread[-1]["line"] is None
    assert any("480 more lines" in u["what"] for u in unread)


def test_a_cut_last_line_is_not_read(log: EventLog, do_import: Any, tmp_path: Path) -> None:
    story(log).say("checkpoint_saved", 950, step=200.0)
    outcome = do_import(log.write(tmp_path / "e.log", tail=""))
    assert [u["line"] for u in outcome.reply["unread"]] == [len(log.rows)]
    assert outcome.run.ranges()[-1] == (141, 180)


@pytest.mark.parametrize(
    "rows",
    [
        ['{"event_type": "user_scheduled", "timestamp": "2031-05-06T07:00:00"}'],
        ['{"event_type": "job_started", "timestamp": "yesterday"}'],
    ],
)
def test_nothing_to_make_a_run_of_is_one_sentence(
    rows: list[str], tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "e.log"
    path.write_text("\n".join(rows) + "\n")
    assert main([str(path), "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []


def test_zones_are_read_and_mixing_them_is_told(do_import: Any, tmp_path: Path) -> None:
    log = EventLog()
    log.say("job_started", 7200, "+02:00", node_rank=0)  # the instant 0
    log.say("checkpoint_loaded", 30, "Z", step=0)
    log.say("checkpoint_saved", 80 - 5 * 3600 - 1800, "-0530", step=10)
    log.say("checkpoint_saved", 130, step=20)
    outcome = do_import(log.write(tmp_path / "e.log"))
    starts = sorted(r["start_ns"] for r in outcome.run.steps)
    begin = outcome.run.attempts[0]["start_ns"]
    assert [(s - begin) / 1e9 for s in starts] == [30, 80]
    assert any("zone" in n for n in outcome.run.config["notes"])


def test_the_queue_counts_where_it_is_logged(do_import: Any, tmp_path: Path) -> None:
    log = EventLog().say("user_scheduled", 0)
    log.start(100).load(150, 10.0).save(250, 20.0).save(350, 30.0)
    log.say("user_terminated", 350)
    run = do_import(log.write(tmp_path / "e.log"), extra=("--gpus", "6")).run
    with open_books(run.path) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    assert report["leaves"]["A.queue"]["gpu_seconds"] == 600
    assert report["total_gpu_seconds"] == 350 * 6
    ettr = report["definitions"]["ETTR without queue wait"]["value"]
    assert ettr == pytest.approx(200 * 6 / (250 * 6))


def test_a_new_node_that_starts_first_belongs_to_the_next_attempt(
    do_import: Any, tmp_path: Path
) -> None:
    log = EventLog().start(0).load(50, 10.0).save(150, 20.0)
    log.start(200, nodes=(3, 0, 1)).load(250, 20.0).save(350, 30.0)
    run = do_import(log.write(tmp_path / "e.log"), extra=("--gpus", "8")).run
    assert [p["world_size"] for p in run.attempts] == [6, 6]
    begin = run.attempts[0]["start_ns"]
    assert (run.attempts[1]["start_ns"] - begin) / 1e9 == 200
    with open_books(run.path) as books:
        assert books.report()["leaves"]["A.capacity"]["gpu_seconds"] == 350 * 2


def test_nodes_stay_nodes_where_nothing_tells_their_gpus(do_import: Any, tmp_path: Path) -> None:
    run = do_import(story(EventLog()).write(tmp_path / "e.log")).run
    with open_books(run.path, price=2.0) as books:
        report = books.report()
    assert report["units"] == "node"
    assert report["run"]["gpus"] is None
    assert report["cost"]["total"] is None
    named = do_import(story(EventLog("toy-n3-a3m")).write(tmp_path / "f.log"), out=tmp_path / "o2")
    assert named.reply["runs"][0]["gpus"] == 24
    assert [c["line"] for c in named.run.claims("gpus")] == [1]
    assert any("a3m" in n for n in named.reply["runs"][0]["notes"])


def test_gpus_that_the_nodes_cannot_share_are_refused(tmp_path: Path, capsys: Any) -> None:
    path = story(EventLog()).write(tmp_path / "e.log")
    assert main([str(path), "-o", str(tmp_path / "out"), "--gpus", "16"]) == 2
    assert "--gpus 16 cannot be shared by its 3 nodes" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "1e7"])
def test_a_step_time_that_cannot_be_is_refused(text: str, tmp_path: Path, capsys: Any) -> None:
    path = story(EventLog()).write(tmp_path / "e.log")
    with pytest.raises(SystemExit) as stop:
        main([str(path), "-o", str(tmp_path / "out"), "--step-time", text])
    assert stop.value.code == 2
    assert "no time of a step" in capsys.readouterr().err


def test_the_real_run_of_112_nodes(shared_logs: Path, do_import: Any) -> None:
    """Its authors' calculator prints 43.43365004195837 % at 8 s a step."""
    outcome = do_import(
        shared_logs / "google_resiliency" / "event_log_112_nodes.log", extra=("--step-time", "8")
    )
    assert outcome.code == 0
    assert outcome.reply["unread"] == []
    assert outcome.reply["runs"][0]["gpus"] == 896
    run = outcome.run
    assert len(run.processes) == 68
    loads = [c for c in run.checkpoints if c["op"] == "load"]
    assert len(loads) == 44
    assert any("(node 0: 68)" in n and "22 loads" in n for n in run.config["notes"])
    with open_books(run.path, price=2.5) as books:
        report = books.report()
        assert all(c["ok"] for c in check(books))
    found = report["definitions"]["google-resiliency"]
    assert found["value"] * 100 == pytest.approx(43.43365004195837, abs=1e-9)
    inputs = {i["name"]: i["value"] for i in found["inputs"]}
    assert inputs["last - first event"] == pytest.approx(35_364.285491, abs=1e-9)
    assert report["total_gpu_seconds"] == pytest.approx(35_364.285491 * 896)
    by_outcome = {o["outcome"]: o["starts"] for o in report["starts"]["by_outcome"]}
    assert by_outcome == {"not begun": 24, "not saved": 22, "saved": 22}
    leaves = report["leaves"]
    spent = sum(row["gpu_seconds"] or 0 for leaf, row in leaves.items() if leaf[0] not in "GH")
    assert spent / report["total_gpu_seconds"] == pytest.approx(1 - report["kept_time"]["value"])
    # lost work and hang cannot be told apart: each may be nothing, and each may be most of it
    for leaf in ("D.partial", "D.recomputed", "B.hang"):
        assert leaves[leaf]["lo"] == 0
        assert leaves[leaf]["hi"] > 0.17 * report["total_gpu_seconds"]
