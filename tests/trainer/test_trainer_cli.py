"""The command: help, bad usage, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from badput_trainer import train

linux = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


def test_help_says_what_a_fault_is_and_gives_examples(capsys):
    assert train.main(["--help"]) == 0
    out = capsys.readouterr().out
    for part in ("--stages", "--fault", "SIGKILL", "slow=3x80", "examples:", "exit codes:"):
        assert part in out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--steps", "many"], "--steps"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--keep", "2"], "--keep must be at least 3"),
        (["--stages", "9"], "--stages 9 needs at least 9 layers"),
        (["--width", "65"], "--width 65 cannot be divided"),
        (["--lr", "nan"], "--lr must be above 0 and at most 10"),
        (["--weight-decay", "inf"], "--weight-decay inf at --lr 0.003"),
        (["--seed", str(2**63)], "--seed must be below 2**63"),
        (["--schedule", "3bw"], "--schedule 3bw is unknown; it is one of 1f1b, gpipe, 2bw"),
        (
            ["--schedule", "2bw", "--stages", "4", "--microbatches", "2"],
            "--schedule 2bw with --stages 4 needs at least 3 --microbatches, not 2",
        ),
        (["--fault", "1:2:melt"], "--fault 1:2:melt is not rank:microbatch:kind"),
        (["--fault", "7:2:kill"], "names rank 7"),
        (["--restarts", "-1"], "--restarts must be at least 0"),
        (["--text", "no/such/file"], "--text no/such/file does not exist"),
        (["--text", os.devnull], "does not exist"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(flags, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train.main(flags) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_other_settings_are_not_continued(trainer, plain):
    refused = trainer.run("plain", lr=0.5)
    assert refused.code == 2
    assert "other settings" in refused.err


def test_a_finished_run_is_only_read_again(trainer, plain):
    again = trainer.run("plain")
    assert again.code == 0, again.err
    assert again.digests == plain.digests
    assert "step      1" not in again.out


def endless(trainer) -> tuple[subprocess.Popen[str], list[int]]:
    """A long run that has begun to train, and the pids of its stages."""
    command = trainer.command("endless", "--text", str(trainer.text), steps=1_000_000, keep=3)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=trainer.env())
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    return process, [int(pid) for pid in children]


def wait_until_gone(pids: list[int]) -> list[int]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and any(alive(p) for p in pids):
        time.sleep(0.05)
    return [p for p in pids if alive(p)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@linux
def test_stages_die_with_a_killed_launcher(trainer):
    process, stages = endless(trainer)
    process.kill()
    process.communicate()
    assert wait_until_gone(stages) == []


@linux
def test_a_stage_is_tied_to_its_launcher_before_it_loads_anything_slow():
    code = "import sys, badput_trainer.rank; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    gone = {**os.environ, "BADPUT_TRAINER_PARENT": "1", "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "badput_trainer.rank", "{}"], env=gone, check=False
    )
    assert done.returncode == 1


@linux
@pytest.mark.parametrize(
    "signals",
    [[signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT] * 3 + [signal.SIGTERM]],
    ids=["ctrl-c", "term", "hangup", "impatient"],
)
def test_a_stopped_launcher_takes_its_stages_along_and_says_so(trainer, signals):
    process, stages = endless(trainer)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signals[0]
    assert "stopped" in out.splitlines()
    assert "Traceback" not in out
    assert wait_until_gone(stages) == []


def test_output_that_cannot_be_written_does_not_stop_the_training(trainer, plain):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            trainer.command("mute", steps=4),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=trainer.env(),
            timeout=240,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert (trainer.folder / "mute" / "checkpoints" / "step-00000004" / "stage-1.json").exists()
