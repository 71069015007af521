"""``badput train``: the launcher of the reference trainer.

It starts one process for each pipeline stage, watches them, and after a failure starts
all of them again from the newest checkpoint that every stage has. It never imports
torch, so it is up at once; the stages do (``badput_trainer.rank``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import badput
from badput_trainer import checkpoint, data
from badput_trainer.config import OPTIMIZERS, ConfigError, DataConfig, ModelConfig, TrainConfig
from badput_trainer.rank import PARENT
from badput_trainer.schedule import DELAYS, ideal_bubble

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_S = 0.02
TERM_GRACE_S = 5.0
RESTART_PAUSE_S = 0.5

_ABOUT = """\
Train a small byte-level GPT on the sources of Python's standard library, as a pipeline of
real processes on this machine's CPU: minutes, no download, no GPU. It exists to produce
true runs for badput: pipeline bubbles, checkpoints, crashes, restarts, stragglers.
"""

_EXAMPLES = """\
faults (--fault RANK:MICROBATCH:KIND, as often as you like):
  Something goes wrong on purpose, on one rank, before the forward pass of one microbatch.
  Microbatches are counted from 1 over the whole run: with 8 a step, number 401 is the first
  of step 51 and 404 lies in its middle. A fault strikes once in a run, not again after the
  restart.
    kill            SIGKILL: the process is gone, nothing is tidied up
    exception       a Python exception
    slow=FxN        every pass takes F times as long, for N microbatches; such as slow=3x80

examples:
  badput train                                    200 steps on 2 stages, all fine
  badput train --run runs/killed --checkpoint-every 40 --fault 1:1084:kill
                                                  a crash in step 136, restarted after step 120
  badput train --run runs/slow --fault 1:801:slow=3x400
                                                  a straggler for the 50 steps 101 to 150
  badput train --run runs/killed --checkpoint-every 40 --steps 300
                                                  the killed run, continued to step 300
  badput report runs/killed                       where its time went

A run folder that holds checkpoints is continued from the newest one that all stages have.
exit codes: 0 trained to the end; 1 training failed and no restart was left; 2 bad usage
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`badput train --help` explains the options).")


class _StoppedError(Exception):
    """SIGINT, SIGTERM or SIGHUP asked the launcher to stop; the argument is the signal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``badput train``. Returns 0, 1 if training failed, 2 for bad usage."""
    try:
        options = _parser().parse_intermixed_args(argv)
        config = _configure(options)
    except (ConfigError, data.DataError) as error:
        print(f"badput train: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"badput train: cannot use {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    except SystemExit as done:  # --help
        return int(done.code or 0)
    return _launch(config, options.restarts)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="badput train",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    default = TrainConfig()
    _add(parser, "run", None, str, "folder of the run; an old one is continued (runs/train-TIME)")
    parser.add_argument("--no-probe", action="store_true", help="train without recording anything")
    _add(parser, "steps", default.steps, int, "optimizer steps of the whole run")
    _add(parser, "stages", default.stages, int, "pipeline stages, a process each")
    _add(parser, "microbatches", default.microbatches, int, "microbatches a step")
    _add(parser, "microbatch", default.microbatch, int, "sequences a microbatch")
    _add(parser, "context", default.model.context, int, "tokens (bytes) a sequence")
    _add(parser, "layers", default.model.layers, int, "transformer layers in all")
    _add(parser, "width", default.model.width, int, "width of the model")
    _add(parser, "heads", default.model.heads, int, "attention heads")
    _add(
        parser,
        "schedule",
        default.schedule,
        str,
        "1f1b or gpipe, both with flush; or 2bw, with one step of delay",
    )
    _add(parser, "optimizer", default.optimizer, str, ", ".join(OPTIMIZERS))
    usual = ", ".join(f"{name} {beta}" for name, beta in OPTIMIZERS.items())
    _add(parser, "momentum", None, float, f"of the gradient's running mean (usual: {usual})")
    _add(parser, "correction", default.correction, float, "alpha of the delay correction; 0: none")
    _add(parser, "lr", default.lr, float, "learning rate, constant")
    _add(parser, "weight-decay", default.weight_decay, float, "decoupled weight decay")
    _add(parser, "seed", default.seed, int, "of the initial weights and the batches")
    _add(parser, "text", None, str, "train on this file or folder of *.py files instead")
    _add(parser, "checkpoint-every", default.checkpoint_every, int, "steps; 0: no checkpoints")
    _add(parser, "checkpoint-dir", None, str, "where they go (RUN/checkpoints)")
    _add(parser, "keep", default.keep, int, "checkpoints to keep, at least 3")
    _add(parser, "restarts", 3, int, "how often to start again after a failure")
    _add(parser, "eval-every", default.eval_every, int, "steps; 0: no evaluation")
    _add(parser, "log-every", default.log_every, int, "steps between two lines of progress")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="R:M:KIND", help="a fault on purpose, below"
    )
    return parser


def _add(
    parser: argparse.ArgumentParser, name: str, default: object, kind: type, text: str
) -> None:
    shown = text if default is None else f"{text} (%(default)s)"
    metavar = "N" if kind is int else "X" if kind is float else "DIR" if "di" in name else "NAME"
    metavar = {"run": "DIR", "text": "PATH"}.get(name, metavar)
    parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=shown)


def _configure(options: argparse.Namespace) -> TrainConfig:
    """Check the options against each other and the disk. Raises ConfigError or DataError."""
    if options.restarts < 0:
        raise ConfigError(f"--restarts must be at least 0, not {options.restarts}.")
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    run = options.run or os.environ.get("BADPUT_DIR") or f"runs/train-{stamp}"
    direct = ("stages", "steps", "microbatches", "microbatch", "schedule", "seed", "lr", "keep")
    direct += (
        "optimizer",
        "momentum",
        "correction",
        "weight_decay",
        "checkpoint_every",
        "eval_every",
        "log_every",
    )
    model = ("layers", "width", "heads", "context")
    settings = {name: getattr(options, name) for name in direct}
    settings["model"] = ModelConfig(**{name: getattr(options, name) for name in model})
    settings["checkpoint_dir"] = options.checkpoint_dir or str(Path(run) / "checkpoints")
    settings["run"] = None if options.no_probe else run
    settings["name"] = Path(run).name
    settings["faults"] = tuple(options.fault)
    TrainConfig(**settings)  # complain of a bad flag before reading 30 MB of text
    text = data.read_text(options.text)
    data.split(text, options.context)
    config = TrainConfig(**settings, data=DataConfig(options.text, data.digest(text)))
    Path(config.checkpoint_dir).mkdir(parents=True, exist_ok=True)
    foreign = checkpoint.foreign_manifest(config.checkpoint_dir, config.hash)
    if foreign is not None:
        raise ConfigError(
            f"{config.checkpoint_dir} holds checkpoints of other settings or another text "
            f"({foreign.parent.name}); use another --run or --checkpoint-dir."
        )
    return config


def _launch(config: TrainConfig, restarts: int) -> int:
    """Attempt until one succeeds, ``restarts`` are used up or a signal comes."""
    job = secrets.token_hex(8)
    # Here too, not only for the stages: badput then knows the launcher and its ranks as one job.
    os.environ["TORCHELASTIC_RUN_ID"] = job
    if config.run is not None:
        badput.init(config.run, name=config.name, role="launcher", config=config.described())
        _say(f"run: {config.run}")
    flush_after = config.steps if DELAYS[config.schedule] else 1
    bubble = ideal_bubble(config.stages, config.microbatches, flush_after)
    _say(
        f"{config.stages} stages, {config.schedule}, {config.microbatches} microbatches a step "
        f"(ideal bubble {bubble:.0%}), {config.tokens_per_step} tokens a step"
    )
    with _signals_raise():
        try:
            code = _attempts(config, restarts)
            if code == 0:
                badput.event("complete")
            badput.close()
        except _StoppedError as stop:
            _say("stopped")
            code = 128 + stop.args[0]
        badput.close()  # outside the handler: its end is no exception to the books
    if config.run is not None:
        _say(f"books: badput report {config.run}")
    return code


def _attempts(config: TrainConfig, restarts: int) -> int:
    for attempt in range(restarts + 1):
        if _attempt(config, attempt):
            return 0
        left = restarts - attempt
        _say(f"the attempt failed; {left} restart{'' if left == 1 else 's'} left")
        if left:
            # No hot loop of crashes; and a process's birth is known to 10 ms only,
            # so without a pause the new ranks may seem older than the old ones' end.
            time.sleep(RESTART_PAUSE_S)
    return 1


def _say(line: str) -> None:
    # Whoever read our output may be gone; that is no reason to stop training. Nor is a name
    # that the terminal cannot show.
    with contextlib.suppress(OSError):
        if sys.stdout is not None:
            print(line.encode(errors="backslashreplace").decode(), flush=True)


def _attempt(config: TrainConfig, attempt: int) -> bool:
    """Start all stages and wait for them; True if all ended well. Leaves no process behind."""
    ranks: list[subprocess.Popen[bytes]] = []
    told: set[int] = set()
    port = _free_port()
    try:
        for rank in range(config.stages):
            ranks += [_start(config, rank, port, attempt)]
        while len(told) < len(ranks):
            if any(code not in (None, 0) for code in _exits(ranks, told)):
                return False
            time.sleep(POLL_S)
        return True
    finally:
        _end(ranks)
        _exits(ranks, told)


def _start(config: TrainConfig, rank: int, port: int, attempt: int) -> subprocess.Popen[bytes]:
    """Start the process of one stage, with the identity that torchrun would give it."""
    identity = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": config.stages,
        "LOCAL_WORLD_SIZE": config.stages,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        PARENT: os.getpid(),
    }
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    env.update({name: str(value) for name, value in identity.items()})
    command = [sys.executable, "-m", "badput_trainer.rank", config.to_json()]
    # A session of its own: Ctrl-C reaches the launcher alone, which then ends the stages.
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)


def _exits(ranks: list[subprocess.Popen[bytes]], told: set[int]) -> list[int | None]:
    """Exit codes so far (None: alive); each new one is told to badput and to the user."""
    codes = [process.poll() for process in ranks]
    for rank, code in enumerate(codes):
        if code is None or rank in told:
            continue
        told.add(rank)
        signal_number = -code if code < 0 else None
        exit_code = code if code >= 0 else None
        if code != 0:
            how = f"signal {signal_number}" if signal_number else f"exit code {code}"
            _say(f"rank {rank} ended with {how}")
        pid = ranks[rank].pid
        badput.event("exit", rank=rank, pid=pid, exit_code=exit_code, signal=signal_number)
    return codes


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Ask the stages that still live to stop, then make them; returns when all are gone."""
    for process in ranks:
        process.terminate()
    deadline = time.monotonic() + TERM_GRACE_S
    for process in ranks:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into _StoppedError, so that the stages end first."""

    def stop(number: int, _frame: object) -> None:
        for caught in numbers:
            signal.signal(caught, signal.SIG_IGN)  # the end itself is not interrupted
        raise _StoppedError(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        numbers.append(signal.SIGHUP)
    old = {n: signal.signal(n, stop) for n in numbers}
    try:
        yield
    finally:
        # Once asked to stop the process is on its way out: a further signal stays ignored, as
        # one that came while the handlers are put back would end it in the middle.
        if signal.getsignal(signal.SIGTERM) is stop:
            for number, handler in old.items():
                signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
