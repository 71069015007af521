"""``badput status`` and commands on events: real ranks, real parts, real commands."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from badput.cli import main as badput_main
from badput.event_text import kind_of, told
from badput.on_event import GOODPUT_STEPS, Goodput, Runner, Wanted, command_of, low, parse_command
from badput.parts import write_rows
from badput.seen import Seen
from badput.standing import _checkpoint
from badput.status_text import duration

BEGIN = """
import badput, os, sys, time
badput.init(os.environ["RUN"])
for number in range(1, 41):
    with badput.step():
        time.sleep(0.01)
    if number == 30:
        with badput.span("save", step=30, path="ckpt"):
            time.sleep(0.01)
"""
WAIT = """
with badput.step(), badput.span("comm"):
    sys.stdin.readline()
"""


def status(box, capsys, *args, code=0):
    """What the command says as JSON, with its exit code checked."""
    done = badput_main(["status", str(box.run), "--json", "--spool", str(box.spool), *args])
    out = capsys.readouterr().out
    assert done == code, out
    (run,) = json.loads(out)["runs"]
    return run


def test_a_living_run_is_shown_from_its_spools(box, capsys, wait_until):
    ranks = [
        box.start(BEGIN + WAIT, env={"RANK": str(n), "WORLD_SIZE": "3"}, stdin=-1) for n in (0, 1)
    ]
    wait_until(lambda: len(box.rows("steps")) == 80, "steps")
    wait_until(lambda: len(box.rows("checkpoints")) == 2, "checkpoints")
    run = status(box, capsys)
    assert (run["state"], run["source"], run["world_size"]) == ("running", "spools", 3)
    assert run["ranks"] == {"hung": 0, "dead": 0, "silent": 0, "running": 2, "done": 0}
    assert (run["ranks_unknown"], run["step"], run["restarts"]) == (1, 41, 0)
    assert {(r["step"], r["phase"]) for r in run["worst"]} == {(41, "comm")}
    assert run["step_time_s"]["usual"] > 0.005
    assert run["checkpoint"]["step"] == 30
    assert run["checkpoint"]["at_risk_steps"] == 11
    assert 0 < run["goodput"]["kept_time"] <= 1
    assert badput_main(["status", str(box.folder), "--spool", str(box.spool), "--ranks", "1"]) == 0
    text = capsys.readouterr().out
    assert f"{box.run}  RUNNING" in text
    assert "2 running, 1 left nothing yet of 3 (from the spools of this node)" in text
    assert "and 1 more ranks" in text
    ranks[1].send_signal(signal.SIGKILL)
    ranks[1].wait()
    wait_until(lambda: box.events("end"), "the end of rank 1")
    run = status(box, capsys, "--no-goodput", code=1)
    assert run["goodput"] is None
    assert run["state"] == "partly dead"
    assert run["worst"][0]["rank"] == 1
    assert run["worst"][0]["why"] == "ended (signal 9) in phase comm"
    ranks[0].communicate("go\n", timeout=60)


def test_a_hung_run_is_told_with_exit_1(box, capsys, wait_until):
    child = box.start(BEGIN + WAIT, env={"BADPUT_HANG_S": "0.5"}, stdin=-1)
    wait_until(lambda: box.events("hang"), "a hang")
    run = status(box, capsys, "--no-goodput", code=1)
    assert run["state"] == "hung"
    assert "made no progress" in run["worst"][0]["why"]
    assert run["events"][-1]["kind"] == "hang"
    child.communicate("go\n", timeout=60)
    box.ends()
    assert status(box, capsys, "--no-goodput")["state"] == "done"


def hand_made(box, ranks=1, *, host="elsewhere", age_s=5.0, end=None, hang=False):
    """Parts as ranks on another node would have left them."""
    now = time.time_ns() - int(age_s * 1e9)
    for rank in range(ranks):
        key = {"process_id": 1000 + rank, "rank": rank}
        who = {
            "role": "rank",
            "world_size": ranks,
            "start_ns": now - 10**10,
            "init_ns": now - 10**10,
        }
        write_rows(box.run, "processes", f"p{rank}", [{**key, **who, "host": host}])
        rows = [
            {**key, "seq": n, "step": n, "n_steps": 1, "start_ns": now - (20 - n) * 10**8,
             "dur_ns": 10**8 + rank * 10**6}
            for n in range(1, 20)
        ]  # fmt: skip
        write_rows(box.run, "steps", f"s{rank}", rows)
        event = {**key, "step": 19, "time_ns": now + 10**9}
        if end:
            write_rows(box.run, "events", f"e{rank}",
                       [{**event, "seq": 99, "kind": "end", "attrs": json.dumps(end)}])  # fmt: skip
        if hang:
            text = json.dumps({"what": "stuck \x1b[31m", "phase": "comm"})
            write_rows(box.run, "events", f"h{rank}",
                       [{**event, "seq": -1, "kind": "hang", "attrs": text}])  # fmt: skip


def test_ranks_of_other_nodes_are_judged_by_their_parts(box, capsys):
    hand_made(box)
    run = status(box, capsys, "--no-goodput")
    assert (run["state"], run["source"]) == ("running", "parts")
    assert run["newest_part_age_s"] >= 0
    hand_made(box, age_s=3600.0)
    run = status(box, capsys, "--no-goodput", code=1)
    assert run["state"] == "silent"
    assert "nothing from it for 3" in run["worst"][0]["why"]


def test_a_hang_told_by_another_node_shows_and_moves_no_cursor(box, capsys):
    hand_made(box, hang=True)
    assert status(box, capsys, "--no-goodput", code=1)["state"] == "hung"
    assert badput_main(["status", str(box.run), "--no-goodput", "--spool", str(box.spool)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_thousand_ranks_fit_the_screen_and_the_slowest_is_named(box, capsys):
    hand_made(box, ranks=1000)
    run = status(box, capsys, "--no-goodput")
    assert run["ranks"]["running"] == 1000
    assert len(run["worst"]) == 8
    assert run["slowest"]["rank"] == 999
    assert badput_main(["status", str(box.run), "--no-goodput", "--spool", str(box.spool)]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 30


def test_earlier_sessions_count_as_restarts_and_not_as_dead(box, capsys):
    hand_made(box, ranks=2, age_s=600, end={"reason": "killed", "signal": 9, "phase": "step"})
    now = time.time_ns() - 10**9
    row = {"process_id": 77, "rank": 0, "role": "rank", "start_ns": now, "init_ns": now}
    write_rows(box.run, "processes", "later", [{**row, "host": "elsewhere", "world_size": 2}])
    run = status(box, capsys, "--no-goodput")
    assert (run["restarts"], run["state"], run["ranks"]["dead"]) == (1, "running", 0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "absent", "no such folder"),
        (lambda p: p, "is not the folder of a run and holds none"),
        (lambda p: (p / "f").write_text("x") and p / "f", "is a file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(tmp_path, capsys, make, says):
    folder = make(tmp_path)
    assert badput_main(["status", str(folder), "--spool", str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("badput status: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_on_event_needs_watch_and_a_list_that_makes_sense(box, capsys):
    hand_made(box)
    for args, says in (
        (["--on-event", "true"], "--watch"),
        (["--watch", "--on-event", "true", "--on", "sunrise"], "is no event"),
        (["--watch", "--on-event", "true", "--on", "goodput<7"], "between 0 and 1"),
        (["--watch", "--on-event", "'"], "cannot be split"),
    ):
        assert badput_main(["status", str(box.run), *args]) == 2
        assert says in capsys.readouterr().err


def test_watch_runs_the_command_for_what_is_new(box, wait_until, tmp_path):
    hand_made(box)
    seen = tmp_path / "seen"
    script = f"import os, sys; open({str(seen)!r}, 'a').write(sys.stdin.read() + '\\n')"
    command = [
        sys.executable, "-m", "badput.cli", "status", str(box.run), "--json", "--watch", "0.2",
        "--no-goodput", "--on-event", shlex.join([sys.executable, "-c", script]),
    ]  # fmt: skip
    watching = subprocess.Popen(command, env=box.env, stdout=subprocess.PIPE, text=True)
    assert json.loads(watching.stdout.readline())["runs"][0]["state"] == "running"
    hand_made(box, hang=True)
    wait_until(lambda: seen.exists() and seen.read_text().count("\n") > 0, "the command")
    event = json.loads(seen.read_text())
    assert (event["kind"], event["run"], event["rank"]) == ("hang", str(box.run), 0)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 1


def test_a_watch_outlives_the_run_folder_and_goes_on_when_it_is_back(box):
    hand_made(box)
    command = [
        sys.executable, "-m", "badput.cli", "status", str(box.run), "--json", "--watch", "0.2",
        "--no-goodput", "--spool", str(box.spool),
    ]  # fmt: skip
    pipe = subprocess.PIPE
    watching = subprocess.Popen(command, env=box.env, stdout=pipe, stderr=pipe, text=True)

    def until(count):
        for line in watching.stdout:
            if len(json.loads(line)["runs"]) == count:
                return
        pytest.fail(f"it ended: {watching.stderr.read()}")

    until(1)
    shutil.rmtree(box.run)
    until(0)
    until(0)
    hand_made(box)
    until(1)
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert said == f"badput status: {box.run}: no such folder; give a run folder\n"


def test_what_is_shown_is_of_the_instant_after_the_books(box, capsys, monkeypatch, wait_until):
    """Books take seconds, in which a rank trains on, ends or hangs."""
    child = box.start(BEGIN + WAIT, stdin=-1)
    wait_until(lambda: len(box.rows("steps")) == 40, "steps")

    class Slow(Goodput):
        def done(self):
            if child.poll() is None:
                child.communicate("go\n", timeout=60)
                box.ends()
            return super().done()

    monkeypatch.setattr("badput.status.Goodput", Slow)
    run = status(box, capsys)
    assert (run["state"], run["step"]) == ("done", 41)
    assert run["goodput"]["kept_time"] is not None


def test_the_end_of_a_rank_that_no_collector_will_tell_says_what_to_do(own_box, capsys, wait_until):
    child = own_box.start(BEGIN + WAIT, stdin=-1)
    wait_until(lambda: len(own_box.rows("steps")) == 40, "steps")
    own_box.kill_collectors()
    child.kill()
    child.wait()
    run = status(own_box, capsys, "--no-goodput", code=1)
    why = f"no collector runs here to tell how it ended: badput collect {own_box.spool}"
    assert (run["state"], run["worst"][0]["why"]) == ("dead", why)


TOLD = [
    ("end", 1, {"reason": "killed", "signal": 9}, "rank 1 ended: killed (signal 9)"),
    ("end", 1, {"reason": "signal", "signal": 15}, "rank 1 ended: by signal 15"),
    ("end", 0, {"reason": "exit", "exit_code": 3}, "rank 0 ended: with exit code 3"),
    ("end", 0, {"reason": "exception", "exit_code": 1}, "rank 0 ended: exception (exit code 1)"),
    ("end", None, {"reason": "killed", "signal": 9}, "the launcher ended: killed (signal 9)"),
    ("end", 0, {"reason": "completed", "exit_code": 0}, None),
    ("end", 0, {"reason": "unknown"}, None),
    ("exit", None, {"program": "torchrun", "exit_code": 1},
     "the command torchrun ended: with exit code 1"),
    ("exit", None, {"program": "sh", "exit_code": None, "signal": 6},
     "the command sh ended: by signal 6"),
    ("exit", None, {"program": "sh", "exit_code": 0, "signal": None}, None),
    ("failure", 2, {"what": "uncaught ValueError"}, "uncaught ValueError"),
    ("note", 2, {"what": "x"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rank", "attrs", "what"), TOLD)
def test_who_ended_how_is_told_in_one_phrase(kind, rank, attrs, what):
    assert kind_of(kind, attrs) == ("failure" if what else None)
    row = {"kind": kind, "rank": rank, "step": 7, "time_ns": 5}
    event = told(row, attrs, "node1")
    assert (event["rank"], event["step"], event["time_ns"], event["host"]) == (rank, 7, 5, "node1")
    assert what is None or event["what"] == what


def test_a_command_that_fails_before_any_rank_wakes_somebody(own_box, wait_until):
    env = {**own_box.env, "BADPUT_ON_EVENT": "sh -c 'echo woken: $BADPUT_EVENT_WHAT'"}
    recording = [sys.executable, "-m", "badput.cli", "run", "-o", str(own_box.run), "--"]
    subprocess.run([*recording, "sh", "-c", "exit 3"], env=env, check=False, timeout=120)
    said = "woken: the command sh ended: with exit code 3"
    wait_until(lambda: said in own_box.log(), "the command for it")


def test_the_collector_runs_the_command_of_its_own_environment(own_box, wait_until, tmp_path):
    seen = tmp_path / "seen"
    script = (
        f"import os, sys; print(sys.stdin.read(), file=open({str(seen)!r}, 'a'));"
        "print(os.environ['BADPUT_EVENT_KIND'], os.environ['BADPUT_EVENT_WHAT'])"
    )
    command = shlex.join([sys.executable, "-c", script])
    env = {"BADPUT_ON_EVENT": command, "BADPUT_HANG_S": "0.5"}
    child = own_box.start(BEGIN + WAIT, env=env, stdin=-1)
    wait_until(seen.exists, "the command for the hang")
    child.kill()
    child.wait()
    wait_until(lambda: seen.read_text().count("\n") > 1, "the command for the failure")
    kinds = [json.loads(line)["kind"] for line in seen.read_text().splitlines()]
    assert kinds == ["hang", "failure"]
    wait_until(
        lambda: "failure rank 0 ended: killed (signal 9)" in own_box.log(), "its output in the log"
    )


def test_a_rank_that_died_before_its_collector_looked_is_a_failure_too(own_box, wait_until):
    env = {"BADPUT_ON_EVENT": "echo told of it", "BADPUT_ON": "failure"}
    code = "import badput, os; badput.init(os.environ['RUN']); raise RuntimeError"
    assert own_box.run_child(code, env=env).returncode == 1
    own_box.ends()
    wait_until(lambda: "told of it" in own_box.log(), "the command")


def test_a_spool_cannot_name_a_command(own_box, wait_until, tmp_path):
    mark = tmp_path / "mark"
    code = f"""
import badput, os
from badput import session
session.ensure_collector = lambda root: False
real = session.facts
session.facts = lambda *a: {{**real(*a), "BADPUT_ON_EVENT": "touch {mark}"}}
badput.init(os.environ["RUN"])
os._exit(3)
"""
    own_box.run_child(code)
    own_box.run_child("import badput, os; badput.init(os.environ['RUN']); raise ValueError")
    own_box.ends(2)
    assert not mark.exists()


def runner(log, *command):
    return Runner(list(command), Wanted.parse("hang,failure"), log.append)


def drive(one, wait_until):
    wait_until(lambda: not one.poll(), "the command to end")


def test_one_command_a_kind_and_run_in_a_while_and_no_shell(tmp_path, wait_until):
    log = []
    one = runner(log, sys.executable, "-c", "import os, sys; sys.exit(len(sys.stdin.read()) > 0)")
    for kind in ("hang", "hang", "restart", "failure"):
        one.offer(kind, "r; touch x", {"what": "a\nb\0c $(id)"})
        drive(one, wait_until)
    assert sum("started" in line for line in log) == 2
    assert sum("ended with code 1" in line for line in log) == 2


def test_a_command_that_takes_too_long_or_is_absent_is_said(wait_until, monkeypatch):
    monkeypatch.setattr("badput.on_event.TIMEOUT_S", 0.2)
    log = []
    slow = runner(log, sys.executable, "-c", "import time; time.sleep(600)")
    slow.offer("hang", "r", {"attrs": {"text": "x" * 200_000}})
    drive(slow, wait_until)
    assert any("took longer" in line for line in log)
    absent = runner(log, "/absent/command")
    absent.offer("hang", "r", {})
    drive(absent, wait_until)
    assert "cannot be started" in log[-1]


def test_a_command_in_the_environment_that_makes_no_sense_is_said_and_ignored(own_box):
    env = {"BADPUT_ON_EVENT": "true", "BADPUT_ON": "sunrise"}
    own_box.run_child("import badput, os; badput.init(os.environ['RUN'])", env=env)
    own_box.ends()
    why = "BADPUT_ON='sunrise' makes no sense: 'sunrise' is no event"
    assert f"BADPUT_ON_EVENT is ignored: {why}" in own_box.log()


def test_a_run_that_has_only_just_begun_has_no_low_goodput():
    log = []
    one = Runner(["true"], Wanted.parse("goodput<0.8"), log.append)
    found = {"kept_time": 0.1, "goodput": None, "why": None}
    for steps in (None, 0, GOODPUT_STEPS - 1):
        low(one, "r", {**found, "steps": steps}, None)
    assert not one.poll()
    low(one, "r", {**found, "steps": GOODPUT_STEPS}, None)
    assert one.poll()
    one.finish()
    assert "for goodput of r" in log[0]


AUTO = """
import badput, os, torch
badput.init(os.environ["RUN"], auto_steps=True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
with badput.span("save", step=30, path="ckpt"):
    pass
"""


def test_a_run_that_is_over_shows_its_last_finished_step_and_no_risk(box, capsys, wait_until):
    """In auto mode a step is always under way, at the end as well."""
    assert box.run_child(AUTO).returncode == 0
    box.ends()
    run = status(box, capsys)
    assert (run["state"], run["step"], run["step_least"]) == ("done", 30, 30)
    assert run["worst"][0]["step"] == 30
    assert (run["checkpoint"]["step"], run["checkpoint"]["at_risk_steps"]) == (30, 0)
    assert run["goodput"]["steps"] == 30
    assert badput_main(["status", str(box.run), "--no-goodput", "--spool", str(box.spool)]) == 0
    text = capsys.readouterr().out
    assert "risk" not in text
    assert "came after" not in text


def test_a_rewind_is_shown_with_its_step(box, capsys):
    code = BEGIN + 'badput.event("rewind", to_step=7)\n'
    assert box.run_child(code).returncode == 0
    box.ends()
    run = status(box, capsys, "--no-goodput")
    assert {"rewind": "to step 7"}.items() <= {e["kind"]: e["what"] for e in run["events"]}.items()
    assert badput_main(["status", str(box.run), "--no-goodput", "--spool", str(box.spool)]) == 0
    assert "10 steps came after it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "code", "how"),
    [
        ("exit 0", 0, "with code 0"),
        ("exit 3", 1, "with code 3"),
        ("kill -9 $$", 1, "by signal 9"),
    ],
)
def test_a_command_that_is_no_training_has_exited(box, capsys, command, code, how):
    recording = [sys.executable, "-m", "badput.cli", "run", "-o", str(box.run), "--"]
    subprocess.run([*recording, "sh", "-c", command], env=box.env, check=False, timeout=120)
    box.ends()
    spool = ["--spool", str(box.spool)]
    assert badput_main(["status", str(box.run), "--no-goodput", *spool]) == code
    text = capsys.readouterr().out
    assert f"EXITED {how}: no rank was seen, only the launcher of sh" in text
    assert f"Z exit {how.removeprefix('with ')}\n" in text
    assert badput_main(["report", str(box.run)]) == 0
    text = capsys.readouterr().out
    assert "Only a launcher was seen" in text
    assert f"sh ended {how.replace('code', 'exit code')}." in text


def test_durations_read_well():
    assert [duration(s) for s in (None, 0.0123, 5, 600, 36000, 864000)] == [
        "unknown", "12.3 ms", "5 s", "10 min", "10 h", "10 days",
    ]  # fmt: skip
    assert parse_command("a 'b c'") == ["a", "b c"]
    with contextlib.suppress(ValueError):
        parse_command("")
        pytest.fail("an empty command is refused")
    assert os.getpid()


def test_what_no_collector_has_drained_yet_is_shown(own_box, capsys, wait_until):
    """The tail of the spool: step, save and risk are of this instant."""
    child = own_box.start(BEGIN + WAIT, stdin=-1)
    wait_until(lambda: len(own_box.rows("steps")) == 40, "steps")
    own_box.kill_collectors()
    child.communicate("go\n", timeout=60)
    more = own_box.start(
        """
import badput, os, sys
badput.init(os.environ["RUN"])
print("go", flush=True)
sys.stdin.readline()
for n in range(101, 201):
    with badput.step(number=n):
        pass
    if n == 190:
        with badput.span("save", step=190, path="ckpt"):
            pass
print("done", flush=True)
sys.stdin.readline()
""",
        stdin=-1,
        stdout=-1,
    )
    assert more.stdout.readline() == "go\n"
    own_box.kill_collectors()
    more.stdin.write("go\n")
    more.stdin.flush()
    assert more.stdout.readline() == "done\n"
    drained = [r["step"] for r in own_box.rows("steps")]
    run = status(own_box, capsys, "--no-goodput")
    assert 200 not in drained
    assert (run["step"], run["checkpoint"]["step"]) == (200, 190)
    assert run["checkpoint"]["at_risk_steps"] == 10
    assert run["checkpoint"]["at_risk_s"] >= 0
    assert [r["step"] for r in own_box.rows("steps")] == drained
    more.communicate("go\n", timeout=60)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [({"state": "running", "last_step_age_s": 2.0}, 50.0),
     ({"state": "hung", "last_step_age_s": 20.0}, 30.0),
     ({"state": "dead", "last_step_age_s": 20.0}, 30.0),
     ({"state": "dead", "last_step_age_s": None}, None),
     ({"state": "done", "last_step_age_s": 20.0}, 0.0)],
)  # fmt: skip
@pytest.mark.parametrize("saved", [True, False])
def test_at_risk_means_the_same_in_every_state(rank, expected, saved):
    now = 1_000_000_000_000
    seen = Seen(Path("none"))
    if saved:
        seen.checkpoints[1, 1] = {
            "op": "save", "step": 30, "rank": 0, "durable_ns": now - 50_000_000_000,
        }  # fmt: skip
    found = _checkpoint(seen, [{"rank": 0, **rank}], now, 40, now - 50_000_000_000)
    assert found["at_risk_s"] == expected
    assert (found["at_risk_why"] is None) == (expected is not None)
    done = rank["state"] == "done"
    assert found["at_risk_steps"] == (0 if done else 10 if saved else 40)


def test_the_collectors_command_and_how_it_ended_are_shown(own_box, capsys, wait_until, tmp_path):
    command = f"{sys.executable} -c 'raise SystemExit(3)'"
    child = own_box.start(
        BEGIN + WAIT, env={"BADPUT_HANG_S": "0.5", "BADPUT_ON_EVENT": command}, stdin=-1
    )
    wait_until(lambda: (command_of(own_box.spool) or {}).get("last_code") == 3, "its code")
    run = status(own_box, capsys, "--no-goodput", code=1)
    assert run["on_event"]["command"] == sys.executable
    badput_main(["status", str(own_box.run), "--spool", str(own_box.spool), "--no-goodput"])
    assert "on failure, hang, restart; the last one ended with code 3" in capsys.readouterr().out
    child.communicate("go\n", timeout=60)


def test_a_collector_without_a_command_says_so_to_a_shell_that_has_one(
    own_box, capsys, wait_until, monkeypatch
):
    child = own_box.start(BEGIN + WAIT, stdin=-1)
    wait_until(lambda: command_of(own_box.spool) is not None, "the collector's word")
    monkeypatch.setenv("BADPUT_ON_EVENT", "/bin/page-me")
    badput_main(["status", str(own_box.run), "--spool", str(own_box.spool), "--no-goodput"])
    assert "the collector began in another job" in capsys.readouterr().out
    monkeypatch.setenv("BADPUT_SPOOL", str(own_box.spool))
    badput_main(["doctor", "--no-self-test"])
    assert "the collector that runs was started without it" in capsys.readouterr().out
    child.communicate("go\n", timeout=60)
