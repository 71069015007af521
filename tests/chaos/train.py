"""A small training run whose surroundings break at given steps.

``train.py OUT`` writes every loss and a hash of the final weights to OUT. CHAOS_PLAN is JSON:
step -> names of functions below. With and without the probe the same things happen, in the
same order, so the two outcomes must agree to the last bit.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from badput import clock

OFFSET = {"mono": 0, "wall": 0}
_mono, _wall = clock.mono, clock.wall
clock.mono = lambda: _mono() + OFFSET["mono"]  # before anything binds it
clock.wall = lambda: _wall() + OFFSET["wall"]

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import badput  # noqa: E402

STEPS = 60
RUN, SPOOL = Path(os.environ["BADPUT_DIR"]), Path(os.environ["BADPUT_SPOOL"])
FILLER = SPOOL.with_name("filler")
signals: list[int] = []
kept: list[object] = []


def collectors() -> list[int]:
    """Collectors of this spool root."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().split(b"\0")
                if b"badput.collector" in line and os.fsencode(SPOOL) in line:
                    found.append(int(entry.name))
    return found


def kill_collector() -> None:
    """SIGKILL to the collector, if there is one."""
    for pid in collectors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop_collector() -> None:
    """The collector stands still for a while."""
    for pid in collectors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.7, _continue, (pid,)).start()


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def delete_spool() -> None:
    """Somebody cleans the folder for temporary files."""
    shutil.rmtree(SPOOL, ignore_errors=True)


def truncate_ack() -> None:
    """The saved position is damaged."""
    for spool in SPOOL.glob("?" * 16):
        with contextlib.suppress(OSError):
            (spool / "ack.json").write_text("{")


def fill_disk() -> None:
    """The file system that holds the spool has no byte left."""
    with contextlib.suppress(OSError), FILLER.open("wb", 0) as filler:
        while True:
            filler.write(b"x" * 4096)


def free_disk() -> None:
    """And has room again."""
    FILLER.unlink(missing_ok=True)


def close_run() -> None:
    """Nobody may enter the run folder."""
    with contextlib.suppress(OSError):
        RUN.chmod(0)


def open_run() -> None:
    """It may be used again."""
    with contextlib.suppress(OSError):
        RUN.chmod(0o755)


def delete_run() -> None:
    """The run folder is gone."""
    shutil.rmtree(RUN, ignore_errors=True)


def wall_back() -> None:
    """The wall clock is set back by an hour."""
    OFFSET["wall"] -= 3600 * 10**9


def wall_on() -> None:
    """And set forward by two."""
    OFFSET["wall"] += 7200 * 10**9


def mono_back() -> None:
    """A broken host: the monotonic clock goes back by 1 ms."""
    OFFSET["mono"] -= 10**6


def fork() -> None:
    """A forked child uses the probe as if nothing had happened, and ends in both ways."""
    for leave in (os._exit, sys.exit):
        pid = os.fork()
        if pid == 0:
            with badput.step(tokens=5) as step, badput.span("forward"):
                step.log(loss=0.0)
            badput.event("note", text="child")
            if leave is sys.exit:
                with contextlib.suppress(SystemExit):
                    sys.exit(0)
            os._exit(0)
        os.waitpid(pid, 0)


def loader() -> None:
    """A DataLoader with forked workers."""
    numbers = TensorDataset(torch.arange(32).float())
    own = torch.Generator().manual_seed(0)  # else it draws from the generator of the training
    for (batch,) in badput.data(DataLoader(numbers, batch_size=8, num_workers=2, generator=own)):
        kept.append(float(batch.sum()))
    kept.clear()


def sigterm() -> None:
    """A signal for which the program has a handler of its own."""
    os.kill(os.getpid(), signal.SIGTERM)


def sigstop() -> None:
    """The process stands still for a while."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(0.4)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.waitpid(pid, 0)


def init_again() -> None:
    """A second init, a close, and an init after it."""
    badput.init(RUN)
    badput.close()
    badput.init(RUN)


def thread() -> None:
    """Another thread records beside the training thread."""

    def work() -> None:
        for number in range(50):
            with badput.span("other thread", number=number):
                badput.event("note", text="beside")

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


def wrong_use() -> None:
    """Everything a user can hand over that is none of what is wanted."""
    badput.step(tokens=torch.ones(3), samples="many", padding=-1)  # type: ignore[arg-type]
    span = badput.span("forward")
    span.__exit__(None, None, None)
    with badput.span(object()), badput.span("a" * 10_000, x=torch.ones(9), y={1: {2: [3]}}):  # type: ignore[arg-type]
        pass
    badput.event("hang", step="x", deep=[[[[[[[[1]]]]]]]])
    copy.deepcopy(badput.step())
    pickle.loads(pickle.dumps(badput.span("x")))


def no_descriptors() -> None:
    """The process has no file descriptor left for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    badput.event("note", text="no descriptors")
    badput.close()
    badput.init(RUN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def close_descriptors() -> None:
    """The program closes what it does not know, but not what its own old loaders still close."""
    gc.collect()
    for worker in threading.enumerate():
        if worker.name.startswith("QueueFeeder"):
            worker.join(20)
    os.closerange(3, 256)


def nvml_lies() -> None:
    """The GPU library answers with nonsense, late, and then not at all."""
    script = Path(os.environ["FAKE_NVML"])
    lies = (
        "gpus 64", "set * utilization 4000000000", "set * uuid x" + "y" * 70, "set * name \xff\xfe",
        "rate * energy -5", "sleep * PowerUsage 3000", "xid 0 79", "fail * MemoryInfo 15",
        "fail * * 999 500",
    )  # fmt: skip
    script.write_text("\n".join(lies), encoding="latin-1")


def checkpoint() -> None:
    """A save to disk and one to memory, and a load."""
    with badput.span("save", path="x"):
        torch.save({"w": torch.ones(100)}, os.environ["CHAOS_SCRATCH"])
    torch.save({"w": torch.ones(2)}, io.BytesIO())
    torch.load(os.environ["CHAOS_SCRATCH"])


def train(plan: dict[str, list[str]]) -> dict[str, object]:
    """Train, break things, and tell what came out."""
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    dataset = TensorDataset(torch.randn(STEPS * 8, 16), torch.randn(STEPS * 8, 1))
    losses: list[str] = []
    badput.init(RUN)
    for x, y in badput.data(DataLoader(dataset, batch_size=8, shuffle=True)):
        number = len(losses) + 1
        before, inside = _split(plan.get(str(number), []))
        for name in before:
            globals()[name]()
        with badput.step(tokens=x.numel()) as step:
            with badput.span("forward"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            for name in inside:
                globals()[name]()
            with badput.span("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step.log(loss=loss.item())
        losses.append(float(loss).hex())
        time.sleep(0.01)
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.numpy().tobytes())
    random = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    badput.close()
    return {
        "losses": losses, "weights": weights.hexdigest(), "random": random, "signals": signals,
    }  # fmt: skip


def _split(names: list[str]) -> tuple[list[str], list[str]]:
    """What happens before a step, and (named with a ``+``) in the middle of it."""
    return [n for n in names if n[0] != "+"], [n[1:] for n in names if n[0] == "+"]


if __name__ == "__main__":
    outcome = train(json.loads(os.environ["CHAOS_PLAN"]))
    with open(sys.argv[1], "w") as out:
        json.dump(outcome, out)
