"""``badput run``: start a training command with the probe inside, and record how it ended."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import badput
from badput import auto, hooks, identity, relay
from badput.neutral import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

BOOT = str(Path(__file__).resolve().parent / "boot")
_DESCRIPTION = """\
Run a training command with the probe inside, without changing its script:

  badput run -o runs/llama -- torchrun --nproc-per-node 8 train.py

Each rank is recorded as if it had called badput.init(); a step is what the optimizer steps. The
command's start and end are recorded too. Its streams, signals and exit code are its own."""
_EPILOG = """\
Without -o the run folder is BADPUT_DIR, else a new one below runs/, named after --name, the Slurm
job, or the command and the time. A command that is started again, on many nodes or after a
failure, needs the same -o each time. Python's -I, -E and -S keep the probe out: then only the
command's start and end are recorded. BADPUT_DISABLE=1 runs the command as if badput were not
there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code, or 127 if it is not found and 126 if it cannot be run."""
    args = _parser().parse_args(sys.argv[1:] if argv is None else list(argv))
    command: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command or not command[0]:
        print(
            "badput run: what is to be run? Give the command after --, as in: "
            "badput run -- torchrun train.py",
            file=sys.stderr,
        )
        return 2
    path = shutil.which(command[0])
    if path is None:
        code, sentence = _not_runnable(command[0])
        emit(f"badput run: {sentence}", sys.stderr)
        return code
    if os.environ.get("BADPUT_DISABLE") == "1":
        return _only_run(path, command)
    folder = args.output or os.environ.get("BADPUT_DIR")
    if not folder:
        folder = str(Path("runs") / (args.name or _new_name(command)))
        emit(f"badput run: the run folder is {folder}", sys.stderr)
    if args.hooks and (wrong := hooks.unknown(args.hooks)):
        known = ", ".join((*hooks.NAMES, "default", "all", "none"))
        emit(f"badput run: there is no hook {wrong[0]!r}; there are {known}", sys.stderr)
        return 2
    if problem := _folder_problem(folder):
        emit(f"badput run: {problem}", sys.stderr)
        return 2
    return _run(path, command, os.path.abspath(folder), args)  # noqa: PTH100 - keeps links


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="badput run",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="badput run [-o RUN_DIR] [--name NAME] [--hooks NAMES] [--] COMMAND [ARG ...]",
    )
    parser.add_argument("-o", "--output", metavar="RUN_DIR", help="run folder to record into")
    parser.add_argument("--name", help="the run's name in reports")
    parser.add_argument("--hooks", metavar="NAMES", help="hooks to use, as in BADPUT_HOOKS")
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER)
    return parser


def _run(path: str, command: list[str], folder: str, args: argparse.Namespace) -> int:
    witness = relay.Witness()  # first, while no thread is there to fork beside
    try:
        badput.init(folder, name=args.name, role="launcher")
        told: list[int] = []

        def started(pid: int) -> None:
            told.append(pid)
            inside = not _keeps_out(command)
            badput.event("start", program=_base(command), pid=pid, probe=inside)

        try:
            status = relay.run(path, command, _environment(folder, args.hooks), witness, started)
        except OSError as error:
            if told:
                raise
            emit(f"badput run: {path} cannot be run: {error.strerror}", sys.stderr)
            return 127 if isinstance(error, FileNotFoundError) else 126
        by_signal = os.WIFSIGNALED(status)
        badput.event(
            "exit",
            pid=told[0],
            program=_base(command),
            exit_code=None if by_signal else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if by_signal else None,
        )
    finally:
        badput.close()
        witness.close()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return relay.leave(status)


def _environment(folder: str, hooks: str | None) -> dict[str, str]:
    """The command's environment: ours, and what lets the probe in."""
    env = dict(os.environ)
    path = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p != BOOT]
    if path == [""]:  # it was not set; an empty place in it would be the working folder
        path = []
    number = auto.process_id()
    env |= {
        "PYTHONPATH": os.pathsep.join([BOOT, *path]),
        "BADPUT_AUTO": "1",
        "BADPUT_DIR": folder,
        "BADPUT_LAUNCHER": str(os.getpid()),
        "BADPUT_OUTER": ",".join(
            f"{n}={env[n]}" for n in identity.RANK_VARIABLES if env.get(n, "").isalnum()
        ),
        "BADPUT_PARENT": "" if number is None else str(number),
        "BADPUT_PYTHON": sys.executable,
    }
    if hooks is not None:
        env["BADPUT_HOOKS"] = hooks
    return env


def _only_run(path: str, command: list[str]) -> int:
    try:
        os.execv(path, command)  # noqa: S606 - what the user asked for
    except OSError as error:
        emit(f"badput run: {path} cannot be run: {error.strerror}", sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _not_runnable(name: str) -> tuple[int, str]:
    """Exit code, as shells have it, and sentence for a command that cannot be run."""
    file = Path(name)
    if os.sep in name and file.is_dir():
        return 126, f"{name} is a folder; give a program."
    if file.is_file() and (os.sep in name or name.endswith(".py")):
        if name.endswith(".py"):
            return 126, f"{name} is no program; run it with: badput run -- python {name}"
        return 126, f"{name} is not executable; chmod +x it, or name what runs it."
    where = "is not there" if os.sep in name else "is not found on PATH"
    return 127, f"{name} {where}; give the command as you would without badput run."


def _folder_problem(folder: str) -> str | None:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return f"{folder} is not a folder; give another one with -o."
    except OSError:
        return None  # not now; the probe waits for it
    return None


def _new_name(command: list[str]) -> str:
    job = identity.launcher()["job_id"]
    if job is not None:  # the same again after a requeue, and on every node
        return "job-" + re.sub(r"[^\w.-]+", "-", job)
    script = next((w for w in command if w.endswith(".py")), command[0])
    stem = re.sub(r"[^\w.-]+", "-", Path(script).name.removesuffix(".py")).strip("-.") or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _base(command: list[str]) -> str:
    """The program's name without folder: of the command line nothing else is recorded."""
    return command[0].rpartition(os.sep)[2]


def _keeps_out(command: list[str]) -> bool:
    """True if the command is a Python whose options make it ignore PYTHONPATH or site."""
    if not re.fullmatch(r"(python|pypy)[\d.]*", _base(command)):
        return False
    for word in command[1:]:
        if word == "-" or not word.startswith("-") or word.startswith("--"):
            break
        letters = re.match(r"-([^cmWX]*)", word)
        if letters and set(letters[1]) & set("IES"):
            print(
                f"badput run: with {word} Python loads no probe; only the command's start and "
                "end are recorded.",
                file=sys.stderr,
            )
            return True
    return False
