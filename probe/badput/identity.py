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
    from collections.abc import Iterator
    from typing import Any

    World = tuple[int | None, ...]

_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "PMIX_RANK", *(n for names in _MPI for n in names[::2]))
"""Variables by which a launcher tells a process which rank it is."""
_SCHEDULERS = (
    ("SLURM_JOB_ID", "slurm"),
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("OMPI_COMM_WORLD_SIZE", "mpi"),
    ("MV2_COMM_WORLD_SIZE", "mpi"),
    ("PMI_SIZE", "mpi"),
    ("PMIX_RANK", "mpi"),
    ("ACCELERATE_MIXED_PRECISION", "accelerate"),
)


def env_count(name: str) -> int | None:
    """An environment variable as a count, or None if it is absent or no number."""
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None


def env_text(name: str) -> str | None:
    """An environment variable, or None if it is absent or empty; long ones are cut."""
    return os.environ.get(name, "").strip()[:200] or None


def first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((v for v in values if v is not None), None)


def world(role: str, rank: int | None, world_size: int | None) -> dict[str, int | None]:
    """Rank, world size and local rank: as given, else of torch, torchrun, an MPI or a Slurm step.

    What is not given comes from one source, the first that knows the rank: a rank of one and a
    size of another are no world.
    """
    rank = as_count("rank", rank, SMALL)
    world_size = as_count("world_size", world_size, SMALL)
    found, size, local = next((s for s in _worlds() if s[0] is not None), (None, None, None))
    if size is not None and found is not None and size <= found:
        size = None  # of a part of the world, as of one component of a heterogeneous job
    if role == "launcher":
        return {
            "rank": None,
            "world_size": first(world_size, size, env_count("WORLD_SIZE")),
            "local_rank": None,
        }
    if rank is None and found is None:
        found, size = 0, first(env_count("WORLD_SIZE"), 1)
    return {
        "rank": first(rank, found),
        "world_size": first(world_size, size, env_count("WORLD_SIZE")),
        "local_rank": local,
    }


def _worlds() -> Iterator[World]:
    """(rank, world size, local rank) by each source that there may be, the surest first."""
    rank, size = _torch_world()
    yield rank, size, first(env_count("LOCAL_RANK"), *map(env_count, _LOCAL_RANKS))
    yield tuple(map(env_count, ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    for names in _MPI:
        yield tuple(map(env_count, names))
    if os.environ.get("SLURM_STEP_ID", "").isdigit():  # srun, not the batch script itself
        size = first(env_count("SLURM_STEP_NUM_TASKS"), env_count("SLURM_NTASKS"))
        yield env_count("SLURM_PROCID"), size, env_count("SLURM_LOCALID")
    yield env_count("PMIX_RANK"), None, None


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
    """Job id, attempt, rendezvous endpoint and place on the scheduler, each None if unknown."""
    host, port = env_text("MASTER_ADDR"), env_text("MASTER_PORT")
    joined = f"{host}:{port}" if host and port else None
    scheduler = _scheduler()
    pod = first(*map(env_text, ("POD_NAME", "MY_POD_NAME")))
    if pod is None and scheduler == "kubernetes":
        pod = env_text("HOSTNAME")  # a container's host name is its pod's name
    parent = os.environ.get("BADPUT_PARENT", "")  # set by `badput run` and by scripts below it
    return {
        "job_id": first(env_text("BADPUT_JOB_ID"), _torch_id(), _slurm_job()),
        "attempt": first(
            env_count("BADPUT_ATTEMPT"),
            env_count("TORCHELASTIC_RESTART_COUNT"),
            env_count("SLURM_RESTART_COUNT"),
        ),
        "endpoint": first(joined, env_text("PET_RDZV_ENDPOINT")),
        "scheduler": scheduler,
        "node": first(*map(env_text, ("SLURMD_NODENAME", "NODE_NAME", "MY_NODE_NAME"))),
        "pod": pod,
        "parent": int(parent) if parent.isdigit() and len(parent) < 20 else None,
    }


def _scheduler() -> str | None:
    """What gave us the node, or else what started the processes on it."""
    for name, scheduler in _SCHEDULERS:
        if env_text(name):
            return scheduler
    return None


def _torch_id() -> str | None:
    """torchrun's id of the job; its default, "none", says nothing."""
    names = ("TORCHELASTIC_RUN_ID", "PET_RDZV_ID")
    return next((text for n in names if (text := env_text(n)) not in (None, "none")), None)


def _slurm_job() -> str | None:
    """The job's id as Slurm prints it; the same again after a requeue."""
    array, task = env_text("SLURM_ARRAY_JOB_ID"), env_text("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    # Of a heterogeneous job the first component's, which all of them know.
    return first(env_text("SLURM_JOB_ID_HET_GROUP_0"), env_text("SLURM_JOB_ID"))


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


GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)  # fmt: skip


def gpu_variables() -> dict[str, str]:
    """What the environment says of the GPUs that this process sees; absent is not empty."""
    found = {name: os.environ.get(name) for name in GPU_VARIABLES}
    return {name: value[:4096] for name, value in found.items() if value is not None}


def host() -> str:
    """Host name."""
    return socket.gethostname()
