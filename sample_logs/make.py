"""Make the two sample runs again: real training on this machine, a few minutes.

    python sample_logs/make.py [killed] [straggler]

Trains in a temporary folder, with the checkpoints there too, checks that the books of each
run close, and then replaces sample_logs/NAME/facts and the README. Needs
`pip install '.[all]'`; `make sample-logs` sees to that. Run it on a quiet machine: what
else runs there shows up in the books, as it should.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_BYTES = 3_000_000
DRAIN_S = 60


@dataclass(frozen=True)
class Sample:
    """One run: what it shows, its command, and what it is allowed to be."""

    name: str
    story: str
    flags: str

    @property
    def command(self) -> list[str]:
        places = f"--run {self.name} --checkpoint-dir checkpoints/{self.name}"
        return ["badput", "train", *places.split(), *self.flags.split()]


SAMPLES = [
    Sample(
        "killed",
        "Rank 1 gets SIGKILL in the middle of step 367 of 600. Both ranks are started again and\n"
        "continue after step 320, the newest checkpoint that both have; steps 321 to 366 are done\n"
        "twice.",
        "--steps 600 --checkpoint-every 80 --eval-every 200 --log-every 50 --fault 1:2932:kill",
    ),
    Sample(
        "straggler",
        "Rank 1 takes 2.5 times as long for every pass in the 200 steps 241 to 440 of 600.\n"
        "Nothing fails.",
        "--steps 600 --checkpoint-every 200 --log-every 50 --fault 1:1921:slow=2.5x1600",
    ),
]


def main(wanted: list[str]) -> int:
    """Make the samples named (all if none are). Returns 0, 1 if one went wrong, 2 for bad usage."""
    known = {s.name: s for s in SAMPLES}
    if unknown := [name for name in wanted if name not in known]:
        print(f"make.py: no sample {unknown[0]!r}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    for sample in [known[name] for name in wanted] or SAMPLES:
        with tempfile.TemporaryDirectory(prefix="badput-sample-") as folder:
            problem = make(sample, Path(folder))
        if problem:
            print(f"make.py: {sample.name}: {problem}", file=sys.stderr)
            return 1
    write_readme()
    return 0


def make(sample: Sample, folder: Path) -> str | None:
    """Train, wait for the collector, check, and take the facts over; a sentence if that fails."""
    env = os.environ | {"BADPUT_SPOOL": str(folder / "spool"), "BADPUT_STRICT": "1"}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    log = [f"$ {shlex.join(sample.command)}"]
    print(log[0], flush=True)
    train = subprocess.Popen(
        sample.command,
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert train.stdout is not None
    for line in train.stdout:
        print(line, end="", flush=True)
        log.append(line.rstrip())
    if train.wait() != 0:
        return f"training ended with exit code {train.returncode}"
    if not drained(folder / "spool"):
        return f"the collector was not done after {DRAIN_S} s; see its log in the spool folder"
    run = folder / sample.name
    if subprocess.run(["badput", "fsck", str(run)], env=env, check=False).returncode != 0:
        return "the books do not close (badput fsck above)"
    target = HERE / sample.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run / "facts", target / "facts")
    (HERE / f"{sample.name}.log").write_text("\n".join(log) + "\n")
    size = sum(p.stat().st_size for p in target.rglob("*.parquet"))
    print(f"{sample.name}: {size} bytes", flush=True)
    return None if size <= LIMIT_BYTES // len(SAMPLES) else f"{size} bytes are too many"


def drained(spool: Path) -> bool:
    """Wait until the collector has put every spool into Parquet and removed it."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        if not any(p.is_dir() for p in spool.iterdir()):
            return True
        time.sleep(0.2)
    return False


def write_readme() -> None:
    """Say how each run was made, from what it printed."""
    packages = ("torch", "numpy", "pyarrow")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    machine = f"{platform.system()}, {os.cpu_count()} CPU cores, no GPU"
    parts = [
        "# Sample runs",
        "",
        "Two real runs of the reference trainer ([docs/trainer.md](../docs/trainer.md)): a",
        "byte-level GPT as a pipeline of two processes. Each folder holds the facts of its run as",
        "the probe recorded them, untouched; `NAME.log` is what the training printed. `make demo`",
        "opens them, and so does `badput report sample_logs/killed`.",
        "",
        f"Made by [make.py](make.py) with Python {platform.python_version()}, {versions}",
        f"on {machine}, last on {datetime.now(UTC):%Y-%m-%d}.",
        "`make sample-logs` makes them again: where the versions are the same, so are the losses;",
        "the times are not. Each command ran in an empty folder; its checkpoints were thrown away.",
    ]
    for sample in SAMPLES:
        log = (HERE / f"{sample.name}.log").read_text().rstrip()
        parts += ["", f"## {sample.name}", "", sample.story, "", "```", log, "```"]
    (HERE / "README.md").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
