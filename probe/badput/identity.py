# No pathlib: the training process imports this, and pathlib is slow to import.
# ruff: noqa: PTH110, PTH115
"""Who this process is: rank, world, launcher, host and when it was born.

Only a few named environment variables are read; the environment as a whole, the command line
and file contents never leave the process.
"""

from __future__ import annotations

import os
import socket
import sys

from badput import clock
from badput.values import SMALL, as_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def env_count(name: str) -> int | None:
    """An environment variable as a count, or None if it is absent or no number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None


def first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((v for v in values if v is not None), None)


def world(role: str, rank: int | None, world_size: int | None) -> dict[str, int | None]:
    """Rank, world size and local rank: as given, else of torch, torchrun or a Slurm step."""
    torch_rank, torch_size = _torch_world()
    step = os.environ.get("SLURM_STEP_ID", "").isdigit()  # srun, not the batch script itself
    slurm_rank = env_count("SLURM_PROCID") if step else None
    slurm_size = env_count("SLURM_STEP_NUM_TASKS") if step else None
    slurm_local = env_count("SLURM_LOCALID") if step else None
    size = first(
        as_count("world_size", world_size, SMALL), torch_size, env_count("WORLD_SIZE"), slurm_size
    )
    if role == "launcher":
        return {"rank": None, "world_size": size, "local_rank": None}
    found = first(as_count("rank", rank, SMALL), torch_rank, env_count("RANK"), slurm_rank)
    if found is None:
        found = 0
        size = first(size, 1)
    return {
        "rank": found,
        "world_size": size,
        "local_rank": first(env_count("LOCAL_RANK"), slurm_local),
    }


def _torch_world() -> tuple[int | None, int | None]:
    """Rank and world size of an initialised process group; torch is never imported for it."""
    dist = sys.modules.get("torch.distributed")
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    except Exception:  # noqa: BLE001 - a half-made process group is no reason to fail
        return None, None
    return None, None


def launcher() -> dict[str, Any]:
    """Job id, attempt and rendezvous endpoint, each None if unknown."""
    torch_id = os.environ.get("TORCHELASTIC_RUN_ID") or None
    if torch_id == "none":  # torchrun's default says nothing
        torch_id = None
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return {
        "job_id": first(
            os.environ.get("BADPUT_JOB_ID") or None,
            torch_id,
            os.environ.get("SLURM_JOB_ID") or None,
        ),
        "attempt": first(
            env_count("BADPUT_ATTEMPT"),
            env_count("TORCHELASTIC_RESTART_COUNT"),
            env_count("SLURM_RESTART_COUNT"),
        ),
        "endpoint": f"{host}:{port}" if host and port else None,
    }


def birth() -> tuple[int, int]:
    """Creation of this process: clock ticks since boot, and ns since the epoch."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as handle:
        ticks = int(handle.read().rpartition(")")[2].split()[19])
    age = clock.boot() - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return ticks, clock.wall() - max(age, 0)


def boot_id() -> str | None:
    """The kernel's id of this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as handle:
            return handle.read().strip()
    except OSError:
        return None


def pid_namespace() -> str | None:
    """The pid namespace, in which our pid means something."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def gpu() -> dict[str, str | None]:
    """What can be said of the GPU without touching it: ``cpu`` where none is visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")
    if not driver or (visible is not None and visible.strip() in ("", "-1")):
        return {"gpu_type": "cpu", "gpu_uuid": None}
    uuid = visible if visible and visible.startswith("GPU-") and "," not in visible else None
    return {"gpu_type": None, "gpu_uuid": uuid}


def host() -> str:
    """Host name."""
    return socket.gethostname()
