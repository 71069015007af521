"""The proof: ``python -m badput_trainer.proof``, some minutes.

Every configuration is trained by real stage processes and compared with the oracle, bit by
bit: all weights that the stages hold, the optimizer's state, the delay of each microbatch.
Then stages with one mistake each must not be equal (``mutants``), and synchronous runs of
torch.distributed.pipelining, whose schedules share no line with ours, must be.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from badput_trainer import data
from badput_trainer.config import DataConfig, ModelConfig, TrainConfig
from badput_trainer.crew import Crew, CrewError
from badput_trainer.mutants import MUTANTS
from badput_trainer.oracle import Oracle, differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

JITTER_MS = 3.0
TEXT = Path(argparse.__file__)


def base() -> TrainConfig:
    """A run small enough to be made a hundred times."""
    text = DataConfig(str(TEXT), data.digest(TEXT.read_bytes()))
    shape = ModelConfig(layers=4, width=32, heads=2, context=16)
    return TrainConfig(
        model=shape, data=text, steps=6, microbatch=2, checkpoint_every=0, log_every=1000
    )


def grid() -> list[TrainConfig]:
    """The 64 configurations, those with as many stages in a row."""
    modes = [("gpipe", 0.0), ("1f1b", 0.0), ("2bw", 0.0), ("2bw", 1.0)]
    return [
        replace(
            base(),
            stages=p,
            microbatches=m,
            optimizer=optimizer,
            schedule=schedule,
            correction=alpha,
            jitter=jitter,
        )
        for p, m, optimizer, (schedule, alpha), jitter in itertools.product(
            (2, 4), (4, 8), ("adamw", "muon"), modes, (0.0, JITTER_MS)
        )
    ]


def title(config: TrainConfig) -> str:
    """A configuration in one line."""
    schedule = config.schedule + (" + correction" if config.correction else "")
    jitter = ", random sleeps" if config.jitter else ""
    shape = f"p={config.stages} m={config.microbatches}"
    return f"{shape} {config.optimizer:<5} {schedule}{jitter}"


class Judge:
    """Runs configurations on crews and compares them with oracles, each made once."""

    def __init__(self) -> None:
        self._oracles: dict[str, Oracle] = {}
        self._crew: tuple[int, Crew] | None = None

    def differences(self, config: TrainConfig, kind: str = "ours") -> list[str]:
        """Where the run differs from the oracle. Raises CrewError if it fails."""
        oracle = self._oracle(config)
        try:
            states = self._crew_of(config.stages).run(config, kind)
        except CrewError:
            self.close()
            raise
        wrong: list[str] = []
        for stage, found in enumerate(states):
            expected = oracle.state(stage, config.stages)
            if kind == "peer":  # it has weights alone
                expected = {
                    "slots": [{**slot, "version": config.steps} for slot in expected["slots"]]
                }
            wrong += [f"stage {stage}{d}" for d in differences(expected, found)]
        return wrong

    def close(self) -> None:
        """End the crew."""
        if self._crew is not None:
            self._crew[1].__exit__()
            self._crew = None

    def _crew_of(self, stages: int) -> Crew:
        if self._crew is None or self._crew[0] != stages:
            self.close()
            self._crew = (stages, Crew(stages))
        return self._crew[1]

    def _oracle(self, config: TrainConfig) -> Oracle:
        alike = replace(config, stages=1, jitter=0.0)
        oracle = self._oracles.get(alike.hash)
        if oracle is None:
            corpus = data.load(config.data.path, config.data.sha256, config.model.context)
            oracle = self._oracles[alike.hash] = Oracle(alike, corpus)
            oracle.train(config.steps)
        return oracle


def prove_grid(judge: Judge) -> Iterator[tuple[bool, str]]:
    """All configurations: (as it should be, sentence)."""
    for config in grid():
        wrong = judge.differences(config)
        yield not wrong, f"{title(config)}: {wrong[0] if wrong else 'equal to the oracle'}"


def prove_peer(judge: Judge) -> Iterator[tuple[bool, str]]:
    """Synchronous schedules of torch.distributed.pipelining."""
    for p, m, schedule in itertools.product((2, 4), (4, 8), ("gpipe", "1f1b")):
        config = replace(base(), stages=p, microbatches=m, schedule=schedule)
        wrong = judge.differences(config, "peer")
        how = wrong[0] if wrong else "equal to the oracle"
        yield not wrong, f"torch.distributed.pipelining {title(config)}: {how}"


def prove_mutants(judge: Judge) -> Iterator[tuple[bool, str]]:
    """Each mistake must be noticed, by an assertion or by other bits; none without mistake is."""
    config = replace(base(), stages=2, microbatches=4, schedule="2bw", correction=1.0)
    yield not judge.differences(config), f"without a mistake {title(config)}: equal to the oracle"
    for name in MUTANTS:
        try:
            wrong = judge.differences(config, name)
        except CrewError as error:
            yield "AssertionError" in str(error), f"mistake {name}: {error}"
        else:
            yield bool(wrong), f"mistake {name}: {wrong[0] if wrong else 'NOT noticed'}"


PARTS = {"grid": prove_grid, "peer": prove_peer, "mutants": prove_mutants}


def main(argv: Sequence[str] | None = None) -> int:
    """Prove all of it, or the parts named. Returns 0, or 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m badput_trainer.proof", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, if none is named")
    parts = parser.parse_args(argv).parts or list(PARTS)
    torch.set_num_threads(1)
    began, right, wrong = time.monotonic(), 0, 0
    judge = Judge()
    try:
        for part in parts:
            for good, sentence in PARTS[part](judge):
                right, wrong = right + good, wrong + (not good)
                print("ok     " if good else "WRONG  ", sentence, flush=True)
    except CrewError as error:
        print(f"WRONG   a run failed: {error}", flush=True)
        wrong += 1
    finally:
        judge.close()
    if "mutants" in parts and not sys.flags.optimize:
        print("without assertions:", flush=True)
        again = [sys.executable, "-O", "-m", "badput_trainer.proof", "mutants"]
        wrong += subprocess.run(again, check=False).returncode
    print(f"{right} as they should be, {wrong} not; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
