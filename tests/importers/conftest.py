"""A maker of small torchtitan logs in our own words, and readers of what was imported."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from badput.parts import list_parts
from badput_ledger.sources.cli import main

START = datetime(2031, 12, 31, 23, 40, 0, tzinfo=UTC)


@dataclass
class TitanLog:
    """Writes lines as torchtitan, torchrun and a wrapper script would; keeps its own clock."""

    now: datetime = START
    lines: list[str] = field(default_factory=list)
    rank: int = 0
    folder: str = "/data/runs/alpha"
    gpus: int = 4
    ansi: bool = False
    agent: int = 4000

    def wait(self, seconds: float) -> TitanLog:
        self.now += timedelta(seconds=seconds)
        return self

    def raw(self, text: str) -> TitanLog:
        self.lines.append(text)
        return self

    def record(self, message: str, rank: int | None = None) -> str:
        """A trainer record as text, without adding it."""
        clock = self.now.strftime("%Y-%m-%d %H:%M:%S,") + f"{self.now.microsecond // 1000:03d}"
        rank = self.rank if rank is None else rank
        return f"[rank{rank}]:[titan] {clock} - root - INFO - {message}"

    def say(self, message: str, rank: int | None = None) -> TitanLog:
        return self.raw(self.record(message, rank))

    def wrapper(self, text: str, half_day: bool = False) -> TitanLog:
        form = "%a %b %d %I:%M:%S %p UTC %Y" if half_day else "%a %b %d %H:%M:%S UTC %Y"
        return self.raw(f"[{self.now.strftime(form)}] {text}")

    def elastic(self, text: str, level: str = "W") -> TitanLog:
        clock = self.now.strftime("%m%d %H:%M:%S.%f")
        where = "torch/distributed/elastic/multiprocessing/api.py:12]"
        return self.raw(f"{level}{clock} {self.agent} {where} {text}")

    def launch(self, start: int, load: str | None = None, steps: int = 100) -> TitanLog:
        """An attempt from torchrun to the first step: 2 s launch, 3 s model, 1 s load."""
        self.agent += 1
        clock = self.now.strftime("%m%d %H:%M:%S.%f")
        self.raw(f"W{clock} {self.agent} torch/distributed/run.py:80] ")
        self.wait(2).say(f"Building device mesh with parallelism: pp=1, dp_shard={self.gpus}, tp=1")
        self.say("CUDA capacity: Test Accelerator 9 with 10.00GiB memory")
        self.say(
            "Checkpointing active. Checkpoints will be loaded from and saved to "
            f"{self.folder}/checkpoint"
        )
        self.say(
            "Trainer is initialized with local batch size 2, global batch size 8, gradient "
            f"accumulation steps 1, sequence length 100, total steps {steps} (warmup 5)"
        )
        self.wait(3)
        if load is not None:
            self.say(f"Loading the checkpoint from {load}.")
            self.wait(1).say("Finished loading the checkpoint in 1.00 seconds.")
        return self.say(f"Training starts at step {start}")

    def step_text(self, number: int, tps: float, loss: str = "2.5") -> str:
        text = f"step: {number:2,}  loss: {loss}  grad_norm: 0.5  memory: 1.00GiB(10.00%)"
        text += f"  tps: {tps:,.0f}"
        if self.ansi:
            text = text.replace("loss:", "\x1b[38;2;10;20;30mloss:\x1b[0m ").replace(
                "step:", "\x1b[31mstep:"
            )
        return text

    def steps(
        self, first: int, last: int, each: float = 1.0, every: int = 1, tokens: int = 800
    ) -> TitanLog:
        """Step lines ``first``..``last`` of ``each`` seconds, printed every ``every`` steps."""
        for number in range(first, last + 1):
            self.wait(each)
            if number % every == 0:
                self.say(self.step_text(number, tokens / each / self.gpus))
        return self

    def save(self, seconds: float, finish: bool = True) -> TitanLog:
        self.say("Saving the checkpoint (or staging if async is enabled).")
        self.wait(seconds)
        if finish:
            self.say(
                "Finished saving the checkpoint (or staging if async is enabled) "
                f"in {seconds:.2f} seconds."
            )
        return self

    def finish(self) -> TitanLog:
        return self.say("Training completed")

    def write(self, path: Path, tail: str = "\n") -> Path:
        path.write_text("\n".join(self.lines) + tail, encoding="utf-8")
        return path


class Imported:
    """The tables of one run folder as lists of dicts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __getattr__(self, table: str) -> list[dict[str, Any]]:
        rows = [r for part in list_parts(self.path, table) for r in pq.read_table(part).to_pylist()]
        for row in rows:
            for key in ("attrs", "config"):
                if isinstance(row.get(key), str):
                    row[key] = json.loads(row[key])
        return rows

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0]["config"]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return sorted(self.processes, key=lambda p: p["start_ns"])

    def of(self, table: str, attempt: int) -> list[dict[str, Any]]:
        pid = self.attempts[attempt]["process_id"]
        return [r for r in getattr(self, table) if r["process_id"] == pid]

    def ranges(self) -> list[tuple[int, int] | None]:
        """First and last step of each attempt, in order of time."""
        found = []
        for index in range(len(self.attempts)):
            rows = sorted(self.of("steps", index), key=lambda r: r["seq"])
            found.append(
                (rows[0]["step"] - rows[0]["n_steps"] + 1, rows[-1]["step"]) if rows else None
            )
        return found

    def relapsed(self) -> int:
        """Steps done twice: each attempt's steps beyond the next trained attempt's first."""
        spans = [r for r in self.ranges() if r is not None]
        return sum(max(0, a[1] - b[0] + 1) for a, b in pairwise(spans))

    def end(self, attempt: int) -> dict[str, Any]:
        return next(e for e in self.of("events", attempt) if e["kind"] == "end")

    def claims(self, what: str) -> list[dict[str, Any]]:
        return sorted(
            (e for e in self.evidence if e["claim"] == what), key=lambda e: (e["file"], e["line"])
        )


@dataclass
class Outcome:
    """What ``badput import`` did."""

    code: int
    out: str
    err: str
    reply: dict[str, Any]

    @property
    def runs(self) -> list[Imported]:
        return [Imported(Path(r["path"])) for r in self.reply["runs"]]

    @property
    def run(self) -> Imported:
        (run,) = self.runs
        return run


@pytest.fixture(scope="session")
def outcome() -> type[Outcome]:
    return Outcome


@pytest.fixture
def titan() -> TitanLog:
    return TitanLog()


@pytest.fixture
def do_import(tmp_path, capsys):
    """Import files and return the outcome with its JSON."""

    def run(*logs: Path, out: Path | None = None, extra: tuple[str, ...] = ()) -> Outcome:
        args = [*map(str, logs), "-o", str(out or tmp_path / "out"), "--json", *extra]
        code = main(args)
        text = capsys.readouterr()
        return Outcome(code, text.out, text.err, json.loads(text.out) if text.out else {})

    return run
