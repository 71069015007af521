"""``badput run`` stands between a command and the world like a shell: terminal, signals, end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "badput.cli", "run"]
LISTENER = """
import os, signal, sys, time
signals = {int(n) for n in sys.argv[2].split(",")}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
with open(sys.argv[1], "a", buffering=1) as out:
    print("pid", os.getpid(), file=out)
    quiet = 0
    while quiet < 8:  # until nothing came for a while after the first one
        got = signal.sigtimedwait(signals, 0.1)
        if got is not None:
            print("got", got.si_signo, file=out)
            quiet = 1
        elif quiet:
            quiet += 1
sys.exit(9)
"""
ALL = "1,2,3,10,12,15"


@pytest.fixture
def listener(box, tmp_path, wait_until):
    """Start `badput run` on a program that notes the signals it gets."""
    told = tmp_path / "told"
    script = tmp_path / "listener.py"
    script.write_text(LISTENER)
    running = []

    def begin(in_front=(), **more):
        command = [*in_front, *RUN, "-o", str(box.run), "--", sys.executable, "-S", str(script)]
        child = subprocess.Popen([*command, str(told), ALL], env=box.env, **more)
        running.append(child)
        wait_until(told.exists, "the program to begin")
        wait_until(lambda: "pid" in told.read_text(), "the program to listen")
        time.sleep(0.1)  # from the program's first line to the relay's wait is a moment
        return child

    begin.got = lambda: [int(w[4:]) for w in told.read_text().splitlines() if w[:3] == "got"]
    begin.pid = lambda: int(told.read_text().split()[1])
    yield begin
    for child in running:
        if child.poll() is None:
            child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(begin.pid(), signal.SIGKILL)


@pytest.mark.parametrize("number", [1, 2, 3, 10, 12, 15])
def test_a_signal_to_us_reaches_the_command_once(listener, number):
    child = listener()
    child.send_signal(number)
    assert child.wait(60) == 9
    assert listener.got() == [number]


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_to_the_group_reaches_the_command_once(listener, number):
    child = listener(start_new_session=True)
    os.killpg(child.pid, number)
    assert child.wait(60) == 9
    assert listener.got() == [number]
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # nobody is left, no zombie either


def test_the_command_has_the_terminal_and_ctrl_c_reaches_it_once(listener):
    ours, theirs = pty.openpty()
    child = listener(
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    for fd in range(3):
        file = Path(f"/proc/{listener.pid()}/fd/{fd}").readlink()
        assert str(file).startswith("/dev/pts/")
    os.write(ours, b"\x03")
    assert child.wait(60) == 9
    assert listener.got() == [signal.SIGINT]
    os.close(ours)
    os.close(theirs)


def test_what_sends_to_us_and_to_the_group_reaches_the_command_once(listener):
    if not shutil.which("timeout"):
        pytest.skip("no timeout(1)")
    child = listener(in_front=["timeout", "-s", "TERM", "3"])
    child.wait(60)
    assert listener.got() == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored(listener):
    if not shutil.which("nohup"):
        pytest.skip("no nohup(1)")
    child = listener(in_front=["nohup"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 9
    assert listener.got() == [signal.SIGTERM]


def test_the_command_outlives_us_when_we_are_killed(listener, wait_until):
    child = listener(start_new_session=True)
    child.kill()
    child.wait(60)
    os.kill(listener.pid(), signal.SIGTERM)
    wait_until(lambda: listener.got() == [signal.SIGTERM], "the program's own signal")

    def gone():
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(gone, "the last of the group to go")


def run(box, *command, **more):
    return subprocess.run(
        [*RUN, "-o", str(box.run), "--", *command],
        env=box.env, capture_output=True, text=True, check=False, timeout=60, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -15 $$", -15), ("kill -2 $$", -2)],
)
def test_we_end_as_the_command_did(box, script, code):
    done = run(box, "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    box.ends(1)
    (said,) = box.events("exit")
    assert said["attrs"]["exit_code"] == (code if code >= 0 else None)
    assert said["attrs"]["signal"] == (-code if code < 0 else None)
    assert said["attrs"]["program"] == "sh"


def test_input_and_output_are_the_commands(box):
    done = run(box, "sh", "-c", "cat; echo oops >&2", input="hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "oops\n")


def test_the_commands_own_defaults_are_those_of_a_shell(box):
    code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    assert run(box, sys.executable, "-c", code).stdout == "set()\n"
    done = run(box, "sh", "-c", "yes | head -1; grep SigIgn /proc/self/status")
    first, _, ignored = done.stdout.split()
    assert first == "y"
    assert int(ignored, 16) & ((1 << 31) - 1) == 0  # two above are the C library's own


def test_what_cannot_be_run_is_one_sentence(box, tmp_path):
    plain = tmp_path / "train.py"
    plain.write_text("")
    odd = tmp_path / "odd"
    odd.write_text("#!/no/such/interpreter\n")
    odd.chmod(0o755)
    blank = tmp_path / "blank"
    blank.write_bytes(b"\0\0")
    blank.chmod(0o755)
    for command, code in [
        ("no-such-program", 127), ("./no/such", 127), (str(plain), 126), (str(tmp_path), 126),
        (str(odd), 127), (str(blank), 126),
    ]:  # fmt: skip
        done = run(box, command)
        assert done.returncode == code, command
        assert done.stderr.startswith("badput run: ")
        assert command in done.stderr
        assert done.stderr.count("\n") == 1
    nothing = subprocess.run([*RUN, "--"], capture_output=True, text=True, check=False)
    assert nothing.returncode == 2
    assert "badput run -- torchrun" in nothing.stderr


def test_switched_off_it_only_runs_the_command(box):
    box.env["BADPUT_DISABLE"] = "1"
    code = "import os, sys; print('BADPUT_AUTO' in os.environ, 'badput' in sys.modules)"
    done = run(box, sys.executable, "-c", code)
    assert done.stdout == "False False\n"
    assert not box.run.exists()
