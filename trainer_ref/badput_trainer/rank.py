"""``python -m badput_trainer.rank CONFIG_JSON``: the process of one stage, tied to its launcher.

Loading torch takes seconds. A launcher that is killed meanwhile must not leave its stages
behind, so this comes first and loads nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from badput_trainer.config import TrainConfig

PARENT = "BADPUT_TRAINER_PARENT"
"""Environment variable with the launcher's pid: a stage does not outlive its launcher."""

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run the stage. Returns 0, or 1 after a failure or when the launcher is gone."""
    if not tied_to_launcher():
        return 1
    return run(argv[0])


def run(config_json: str) -> int:
    """Run the stage that the environment names; 2 if this machine cannot."""
    from badput_trainer import worker

    return worker.main([config_json])


def torchrun_world() -> int | None:
    """The number of ranks that torchrun started, this being one of them; None without torchrun."""
    if PARENT in os.environ or "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else None


def check_world(config: TrainConfig) -> None:
    """Raise ConfigError if torchrun started too few or too many ranks for the stages."""
    from badput_trainer.config import ConfigError

    world = torchrun_world()
    if world is not None and world != config.stages:
        raise ConfigError(
            f"--stages {config.stages} needs {config.stages} ranks, one for each stage, but "
            f"torchrun started {world}; use --nproc-per-node {config.stages}."
        )


def tied_to_launcher() -> bool:
    """Ask the kernel to kill this process with its launcher; False if that is gone already."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return True  # started by hand
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == int(parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
