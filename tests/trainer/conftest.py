"""Tiny runs of the trainer, each a real launcher with real stage processes."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TINY = {
    "steps": 12,
    "microbatches": 4,
    "microbatch": 2,
    "context": 16,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "checkpoint-every": 4,
    "log-every": 1,
}


@dataclass(frozen=True)
class Outcome:
    """What a run of the trainer left."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def digests(self) -> list[str]:
        """sha256 of the weights, by stage."""
        return re.findall(r"^stage \d+ weights sha256 (\w+)$", self.out, re.MULTILINE)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


class Trainer:
    """Runs `badput train` on a small text in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = Path(argparse.__file__)

    def command(self, name: str, *flags: str, probe: bool = False, **changes: object) -> list[str]:
        settings = TINY | {key.replace("_", "-"): value for key, value in changes.items()}
        command = [sys.executable, "-m", "badput_trainer.train", "--run", str(self.folder / name)]
        command += ["--text", str(self.text), *flags]
        command += [] if probe else ["--no-probe"]
        for key, value in settings.items():
            command += [f"--{key}", str(value)]
        return command

    def env(self) -> dict[str, str]:
        spool = {"BADPUT_STRICT": "1", "BADPUT_SPOOL": str(self.folder / "spool")}
        return {k: v for k, v in os.environ.items() if k != "BADPUT_DIR"} | spool

    def run(self, name: str, *flags: str, probe: bool = False, **changes: object) -> Outcome:
        done = subprocess.run(
            self.command(name, *flags, probe=probe, **changes),
            capture_output=True,
            text=True,
            timeout=240,
            env=self.env(),
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr, self.folder / name)


@pytest.fixture(scope="session")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="session")
def plain(trainer: Trainer) -> Outcome:
    """The uninterrupted run that others are compared with."""
    outcome = trainer.run("plain")
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.fixture(scope="session")
def killed(trainer: Trainer) -> Outcome:
    """A recorded run that failed twice.

    Microbatch 6 lies in step 2, before the first checkpoint; microbatch 27 is the third of
    step 7, when the newest checkpoint is that of step 4.
    """
    outcome = trainer.run(
        "killed", "--fault", "0:6:exception", "--fault", "1:27:kill", probe=True, eval_every=6
    )
    assert outcome.code == 0, outcome.err
    return outcome
