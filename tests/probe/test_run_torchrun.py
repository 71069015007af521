"""``badput run -- torchrun`` on a script that knows nothing of badput, and that is killed once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "untouched.py"
RUN = [sys.executable, "-m", "badput.cli", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--max-restarts", "1", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "127.0.0.1:0"]  # fmt: skip
CRASH = """
import os, runpy, signal, sys
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
calls = 0
def crash(module, args):
    global calls
    if isinstance(module, DistributedDataParallel):
        calls += 1
        if calls == 13:  # before it, so that the other rank cannot finish this step either
            os.kill(os.getpid(), signal.SIGKILL)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    register_module_forward_pre_hook(crash)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(box, *command, **more):
    env = {**box.env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*RUN, "-o", str(box.run), "--", *map(str, command)], env={**env, **more},
        capture_output=True, text=True, timeout=280, check=False, cwd=box.folder,
    )  # fmt: skip
    assert "badput: " not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_rank_gives_two_sessions_and_the_right_lost_steps(box, needs):
    needs("torch")
    wrapper = box.folder / "crash.py"
    wrapper.write_text(CRASH)
    run(box, *TORCHRUN, wrapper, EXAMPLE, box.folder / "checkpoints")
    box.ends(5)  # two lives of two ranks, and badput run
    report = box.books()
    first, second = report["sessions"]
    assert (first["first_step"], first["last_step"]) == (1, 12)
    # Of two deaths between two looks of the collector it cannot tell which was first.
    assert first["end_reason"] in ("killed", "signal")
    assert {(e["rank"], e["attrs"]["signal"]) for e in box.events("end")} >= {(1, 9)}
    assert (second["first_step"], second["last_step"]) == (11, 20)
    assert second["resumed_from"] == 10
    assert second["end_reason"] == "completed"
    found = {name: report["steps"][name] for name in ("executed", "kept", "lost")}
    assert found == {"executed": 22, "kept": 20, "lost": 2}
    assert report["tokens"]["processed"] is None  # nobody counts them in a script we do not know
    ranks = [p for p in box.rows("processes") if p["role"] == "rank"]
    assert sorted((p["rank"], p["attempt"]) for p in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (launcher,) = [p for p in box.rows("processes") if p["role"] == "launcher"]
    assert {p["parent"] for p in ranks} == {launcher["process_id"]}
    (end,) = box.events("exit")
    assert end["attrs"]["exit_code"] == 0


ALONE = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(7):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("below", ["directly", "a shell script", "a script of its own"])
def test_one_process_that_trains_is_recorded_wherever_it_is_started(box, needs, below):
    needs("torch")
    script = box.folder / "alone.py"
    script.write_text(ALONE)
    lead = box.folder / "lead.py"
    lead.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n")
    command = {
        "directly": [sys.executable, script],
        "a shell script": ["sh", "-c", f"{sys.executable} -c 1; {sys.executable} {script}; true"],
        "a script of its own": [sys.executable, lead],
    }
    run(box, *command[below])
    box.ends(3 if below == "a script of its own" else 2)
    report = box.books()
    assert report["steps"]["executed"] == report["steps"]["kept"] == 7
    assert len(report["sessions"]) == 1


SPAWN = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, args=(port,), nprocs=2)
"""


def test_ranks_that_multiprocessing_starts_are_recorded_once_they_train(box, needs):
    needs("torch")
    script = box.folder / "spawn.py"
    script.write_text(SPAWN)
    run(box, sys.executable, script)
    box.ends(4)
    report = box.books()
    assert len(report["sessions"]) == 1
    assert report["run"]["world_size"] == 2
    assert report["steps"]["executed"] == 5
