"""Training while one thing after another breaks: the same losses and weights to the last bit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the chaos test trains; it needs torch")
import pyarrow.parquet as pq

TRAIN = Path(__file__).with_name("train.py")
NOBODY = 65534
LIMIT_S = 240
ALONE = {
    "collector killed": {10: ["kill_collector"], 30: ["+kill_collector"]},
    "collector stopped": {10: ["stop_collector"], 40: ["stop_collector"]},
    "spool deleted": {10: ["delete_spool"], 30: ["+delete_spool"]},
    "spool deleted under a killed collector": {10: ["kill_collector", "delete_spool"]},
    "saved position damaged": {20: ["truncate_ack"], 40: ["kill_collector", "truncate_ack"]},
    "disk full": {10: ["fill_disk"], 35: ["free_disk"]},
    "disk full to the end": {3: ["fill_disk"]},
    "run folder closed": {10: ["close_run"], 40: ["open_run"]},
    "run folder closed to the end": {3: ["close_run"]},
    "run folder deleted": {10: ["delete_run"], 30: ["+delete_run"]},
    "wall clock set": {10: ["wall_back"], 30: ["+wall_on"]},
    "monotonic clock goes back": {10: ["+mono_back"], 30: ["mono_back"]},
    "fork": {10: ["fork"], 30: ["+fork"]},
    "loader with forked workers": {10: ["loader"], 30: ["+loader"]},
    "SIGTERM": {10: ["sigterm"], 30: ["+sigterm"]},
    "SIGSTOP": {10: ["sigstop"], 30: ["+sigstop"]},
    "init again": {10: ["init_again"], 30: ["+init_again"]},
    "threads": {10: ["thread"], 30: ["+thread"]},
    "wrong use": {10: ["wrong_use"], 30: ["+wrong_use"]},
    "no descriptors": {10: ["no_descriptors"], 30: ["+no_descriptors"]},
    "descriptors closed": {10: ["close_descriptors"], 30: ["+close_descriptors"]},
    "NVML lies": {20: ["nvml_lies"], 40: ["kill_collector"]},
    "checkpoints": {10: ["checkpoint"], 30: ["+checkpoint"]},
}
"""Step -> what happens at it; a ``+`` means in the middle of the step."""


def everything(seed: int) -> dict[int, list[str]]:
    """All of it in one run, in an order that the seed decides; what closes is opened again."""
    pick = random.Random(seed)
    names = [n for plan in ALONE.values() for found in plan.values() for n in found]
    plan: dict[int, list[str]] = {}
    for name in names:
        plan.setdefault(pick.randrange(3, 58), []).append(name)
    plan.setdefault(59, []).extend(["free_disk", "open_run"])
    return plan


class Place:
    """A folder that another user may use, with a small file system of its own for the spool."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="badput-chaos-"))
        self.folder.chmod(0o777)
        self.disk = self.folder / "disk"
        self.disk.mkdir()

    def train(self, name: str, plan: dict[int, list[str]], **env: str) -> dict[str, object]:
        """Run the training and return its outcome."""
        out = self.folder / f"{name}.json"
        variables = {
            **os.environ,
            "BADPUT_DIR": str(self.folder / f"run-{name}"),
            "BADPUT_SPOOL": str(self.disk / "spool"),
            "CHAOS_SCRATCH": str(self.folder / f"{name}.pt"),
            "CHAOS_PLAN": json.dumps(plan),
            "HOME": str(self.folder),
            "FAKE_NVML": str(self.folder / f"{name}-nvml"),
            "LD_LIBRARY_PATH": str(self.folder),
            "BADPUT_SAMPLE_S": "0.2",
            **env,
        }
        variables.pop("BADPUT_STRICT", None)
        (self.folder / f"{name}-nvml").write_text("gpus 2\n")
        (self.folder / f"{name}-nvml").chmod(0o666)
        command = [*self.inside(), sys.executable, str(TRAIN), str(out)]
        done = subprocess.run(
            command, env=variables, text=True, capture_output=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        return json.loads(out.read_text())

    def inside(self) -> list[str]:
        """A mount namespace with a tmpfs at ``disk``; as root the training runs as nobody."""
        script = f"mount -t tmpfs -o size=8m,mode=777 tmpfs {self.disk}"
        if os.getuid() != 0:
            return ["unshare", "-rm", "sh", "-c", f'{script} && exec "$@"', "sh"]
        hidden = [(tree, self.folder / f"spot-{n}") for n, tree in enumerate(self._hidden())]
        for tree, spot in hidden:
            spot.mkdir(exist_ok=True)
            script += f" && mount --bind {tree} {spot}"
        for lid in sorted(
            {next(p for p in reversed(t.parents) if not _open(p)) for t, _ in hidden}
        ):
            script += f" && mount -t tmpfs -o mode=755 tmpfs {lid}"
        for tree, spot in hidden:
            script += f" && mkdir -p {tree} && mount --move {spot} {tree}"
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return ["unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh", *drop]

    @staticmethod
    def _hidden() -> list[Path]:
        """Trees that training needs and nobody cannot reach: they are mounted where he can."""
        needed = {Path(sys.base_prefix).resolve(), Path(__file__).resolve().parents[2]}
        return [tree for tree in sorted(needed) if not all(map(_open, tree.parents))]

    def stop(self) -> None:
        """End the collectors that were started here, and remove everything."""
        for entry in filter(lambda path: path.name.isdigit(), Path("/proc").iterdir()):
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().split(b"\0")
                if b"badput.collector" in line and os.fsencode(self.disk / "spool") in line:
                    os.kill(int(entry.name), signal.SIGKILL)
        for path in self.folder.glob("run-*"):
            path.chmod(0o755)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def place(gcc):
    made = Place()
    source = Path(__file__).parents[1] / "fake_nvml" / "fake_nvml.c"
    library = made.folder / "libnvidia-ml.so.1"
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    if subprocess.run([*made.inside(), "true"], capture_output=True, check=False).returncode:
        made.stop()
        pytest.skip("no mount namespace may be made here, so no small disk can be filled")
    readable = subprocess.run(
        [*made.inside(), sys.executable, "-c", "import torch, badput"],
        capture_output=True, check=False,
    ).returncode == 0  # fmt: skip
    if not readable:
        made.stop()
        pytest.skip("another user cannot read this checkout, so training cannot run as one")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def alone(place):
    """What comes out where the probe is off and nothing breaks."""
    return place.train("alone", {}, BADPUT_DISABLE="1")


def _open(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)


def parts(run: Path) -> list[Path]:
    return sorted(run.glob("facts/*/*.parquet"))


@pytest.mark.parametrize("what", ALONE)
def test_training_does_not_notice(place, alone, what):
    plan, name = ALONE[what], what.replace(" ", "-")
    got = place.train(name, plan)
    assert got["losses"] == alone["losses"]
    assert got["weights"] == alone["weights"]
    assert got["random"] == alone["random"]
    terms = sum(n.endswith("sigterm") for found in plan.values() for n in found)
    assert got["signals"] == [signal.SIGTERM] * terms
    for part in parts(place.folder / f"run-{name}"):  # whatever arrived is whole
        assert pq.read_table(part).num_rows > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_training_does_not_notice_when_everything_breaks(place, alone, seed):
    plan = everything(seed)
    broken = place.train(f"all-{seed}-off", plan, BADPUT_DISABLE="1")
    got = place.train(f"all-{seed}", plan)
    assert got == broken
    assert got["losses"] == alone["losses"]
    assert got["weights"] == alone["weights"]


@pytest.mark.parametrize(
    "what", ["collector killed", "SIGSTOP", "fork", "threads", "wall clock set"]
)
def test_no_step_is_lost_where_nothing_of_the_spool_is(place, alone, what):
    """Where the spool and the run folder stay, every step arrives, and each once."""
    name = "kept-" + what.replace(" ", "-")
    got = place.train(name, ALONE[what])
    assert got["weights"] == alone["weights"]
    run = place.folder / f"run-{name}"
    deadline = time.monotonic() + 60
    while _steps(run) != list(range(1, 61)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _steps(run) == list(range(1, 61))


def _steps(run: Path) -> list[int]:
    found: list[int] = []
    for part in run.glob("facts/steps/*.parquet"):
        table = pq.read_table(part)
        assert min(table["dur_ns"].to_pylist()) >= 0
        found += table["step"].to_pylist()
    return sorted(found)
