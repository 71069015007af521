"""``badput train``: the launcher of the reference trainer.

It reads the options, refuses what cannot work, and hands over to ``launch``, which starts
a process for each stage (``badput_trainer.rank``); or, where torchrun has started it once
for each rank already, it becomes that rank. Until then nothing imports torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from badput_trainer import checkpoint, data, faults, launch, rank
from badput_trainer.config import (
    MODES,
    OPTIMIZERS,
    ConfigError,
    DataConfig,
    ModelConfig,
    TrainConfig,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_ABOUT = """\
Train a small byte-level GPT on the sources of Python's standard library, as a pipeline of
real processes on this machine's CPU: minutes, no download, no GPU. It exists to produce
true runs for badput: pipeline bubbles, checkpoints, crashes, restarts, stragglers.
"""

_FAULTS = """\
faults (--fault RANK:MICROBATCH:KIND, as often as you like):
  Something goes wrong on purpose, on one rank, before the forward pass of one microbatch.
  Microbatches are counted from 1 over the whole run: with 8 a step, number 401 is the first
  of step 51 and 404 lies in its middle. A fault strikes once in a run, not again after the
  restart.
"""

_EXAMPLES = """
examples:
  badput train                                    200 steps on 2 stages, all fine
  badput train --run runs/killed --checkpoint-every 40 --fault 1:1084:kill
                                                  a crash in step 136, restarted after step 120
  badput train --run runs/slow --fault 1:801:slow=3x400
                                                  a straggler for the 50 steps 101 to 150
  badput train --run runs/killed --checkpoint-every 40 --steps 300
                                                  the killed run, continued to step 300
  badput train --stages 4 --schedule 2bw --optimizer muon --correction 1 --steps 50 --prove
                                                  asynchronous, then compared bit by bit
  badput report runs/killed                       where its time went
  torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m badput_trainer.train -o runs/t
                                                  under torchrun, which then restarts it

A run folder that holds checkpoints is continued from the newest one that all stages have.
exit codes: 0 trained to the end; 1 training failed and no restart was left, or --prove found a
difference; 2 bad usage
"""


_REWIND = "go back where the loss is so many times its recent mean, and skip data; 0: never"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (`badput train --help` explains the options).")


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
    if rank.torchrun_world() is not None:
        return rank.run(config.to_json())
    code = launch.launch(config, options.restarts)
    return _compare(config) if options.prove and code == 0 else code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="badput train",
        description=_ABOUT,
        epilog=_FAULTS + _listed(faults.PLAIN | faults.COUNTED) + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    default = TrainConfig()
    # -o too: torchrun takes --run for an option of its own, wherever it stands.
    parser.add_argument(
        "-o",
        "--run",
        metavar="DIR",
        help="folder of the run; an old one is continued (runs/train-TIME); -o under torchrun",
    )
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
    _add(parser, "save", default.save, str, " or ".join(MODES))
    _add(parser, "keep", default.keep, int, "checkpoints to keep, at least 3")
    _add(parser, "restarts", 3, int, "how often to start again after a failure")
    _add(parser, "timeout", default.timeout, float, "seconds to wait for another rank")
    _add(parser, "rewind-above", default.rewind_above, float, _REWIND)
    _add(parser, "backend", default.backend, str, "gloo, or nccl with one GPU a stage")
    parser.add_argument(
        "--lanes", action="store_true", help="a process group for each direction and pair"
    )
    _add(parser, "eval-every", default.eval_every, int, "steps; 0: no evaluation")
    _add(parser, "log-every", default.log_every, int, "steps between two lines of progress")
    _add(parser, "jitter", default.jitter, float, "random sleep in every pass, up to so many ms")
    parser.add_argument(
        "--prove", action="store_true", help="then compare each bit with one process, no pipeline"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="R:M:KIND", help="a fault on purpose, below"
    )
    return parser


def _listed(kinds: dict[str, str]) -> str:
    return "".join(f"    {kind:<15} {what}\n" for kind, what in kinds.items())


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
    if options.prove and options.checkpoint_every == 0:
        raise ConfigError(
            "--prove compares the last checkpoint, and --checkpoint-every 0 saves none; "
            "give it a number of steps."
        )
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    run = options.run or os.environ.get("BADPUT_DIR")
    if run is None and rank.torchrun_world() is not None:
        raise ConfigError(
            "under torchrun the run needs a folder, -o DIR: all ranks and restarts share it."
        )
    run = run or f"runs/train-{stamp}"
    direct = ("stages", "steps", "microbatches", "microbatch", "schedule", "seed", "lr", "keep")
    direct += ("optimizer", "momentum", "correction", "weight_decay")
    direct += ("checkpoint_every", "eval_every", "log_every")
    direct += ("save", "timeout", "rewind_above", "backend", "lanes", "jitter")
    model = ("layers", "width", "heads", "context")
    settings = {name: getattr(options, name) for name in direct}
    settings["model"] = ModelConfig(**{name: getattr(options, name) for name in model})
    settings["checkpoint_dir"] = options.checkpoint_dir or str(Path(run) / "checkpoints")
    settings["run"] = None if options.no_probe else run
    settings["name"] = Path(run).name
    settings["faults"] = tuple(options.fault)
    rank.check_world(TrainConfig(**settings))  # complain before reading 30 MB of text
    text = data.read_text(options.text)
    data.split(text, options.context)
    config = TrainConfig(**settings, data=DataConfig(options.text, data.digest(text)))
    Path(config.checkpoint_dir).mkdir(parents=True, exist_ok=True)
    _refuse_foreign(config, Path(run))
    return config


def _refuse_foreign(config: TrainConfig, run: Path) -> None:
    """Raise ConfigError if the checkpoints are of other settings or of another run."""
    folder = Path(config.checkpoint_dir)
    foreign = checkpoint.foreign_manifest(folder, config.hash)
    if foreign is not None:
        what = checkpoint.difference(foreign, config.decisive) or foreign.parent.name
        raise ConfigError(
            f"{folder} holds checkpoints of other settings or another text ({what}); "
            f"use the same settings, or another --run or --checkpoint-dir."
        )
    # In the run's own folder they are its own, however that was renamed or copied.
    inside = folder.resolve().is_relative_to(run.resolve())
    owner = None if inside else checkpoint.foreign_run(folder, config.name)
    if owner is not None:
        raise ConfigError(
            f"{folder} holds checkpoints of another run, {owner}, not of {config.name}; "
            f"use another --checkpoint-dir."
        )


def _compare(config: TrainConfig) -> int:
    """Train again without a pipeline and compare; 0 if every bit is equal, else 1."""
    command = [sys.executable, "-m", "badput_trainer.oracle", config.to_json()]
    env = {**os.environ, rank.PARENT: str(os.getpid())}
    try:
        return subprocess.run(command, env=env, check=False).returncode
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
