"""Who a process is: what each launcher and scheduler says, and what becomes of it in the books."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from badput import identity

WORLDS = [
    ("nothing", {}, (0, 1, None)),
    ("torchrun", {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (5, 8, 1)),
    ("srun", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
              "SLURM_LOCALID": "3"}, (3, 4, 3)),
    ("a batch script is no step", {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, None)),
    ("one component's size is not the world's", {
        "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "4"}, (9, None, None)),
    ("torchrun in a step", {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0",
                            "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
     (2, 4, 0)),
    ("Open MPI", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
                  "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, 2, 1)),
    ("mpirun in a step: its daemon's task is not our rank", {
        "OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (6, 8, None)),
    ("MPICH", {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}, (1, 2, 0)),
    ("PMIx alone", {"PMIX_RANK": "2"}, (2, None, None)),
    ("no numbers", {"RANK": "two", "WORLD_SIZE": "-1", "LOCAL_RANK": ""}, (0, 1, None)),
]  # fmt: skip

PLACES = [
    ({}, {}),
    ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "MASTER_ADDR": "a",
      "MASTER_PORT": "29500"},
     {"scheduler": "torchrun", "attempt": 2, "endpoint": "a:29500"}),
    ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1", "SLURMD_NODENAME": "gpu-3"},
     {"scheduler": "slurm", "job_id": "77", "attempt": 1, "node": "gpu-3"}),
    ({"SLURM_JOB_ID": "80", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "4"},
     {"scheduler": "slurm", "job_id": "77_4"}),
    ({"SLURM_JOB_ID": "81", "SLURM_JOB_ID_HET_GROUP_0": "80", "SLURM_HET_SIZE": "2"},
     {"scheduler": "slurm", "job_id": "80"}),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-worker-0", "NODE_NAME": "n7",
      "PET_RDZV_ID": "job", "PET_RDZV_ENDPOINT": "job-master-0:23456"},
     {"scheduler": "kubernetes", "pod": "job-worker-0", "node": "n7", "job_id": "job",
      "endpoint": "job-master-0:23456"}),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "h", "POD_NAME": "job-abc"},
     {"scheduler": "kubernetes", "pod": "job-abc"}),
    ({"HOSTNAME": "laptop"}, {}),
    ({"PMI_SIZE": "2"}, {"scheduler": "mpi"}),
    ({"ACCELERATE_MIXED_PRECISION": "no"}, {"scheduler": "accelerate"}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine's own scheduler."""
    starts = ("SLURM", "PMI", "OMPI", "MV2", "MPI", "KUBERNETES", "TORCHELASTIC", "PET_", "MASTER")
    for name in list(os.environ):
        if name.startswith(starts) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "HOSTNAME"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("env", "found"), [w[1:] for w in WORLDS], ids=[w[0] for w in WORLDS])
def test_rank_and_world_come_from_one_source(env, found, monkeypatch):
    monkeypatch.setattr(identity, "_torch_world", lambda: (None, None))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    who = identity.world("rank", None, None)
    assert (who["rank"], who["world_size"], who["local_rank"]) == found
    assert identity.world("launcher", None, None)["rank"] is None
    given = identity.world("rank", 7, 9)
    assert (given["rank"], given["world_size"]) == (7, 9)


@pytest.mark.parametrize(("env", "found"), PLACES)
def test_job_node_and_pod(env, found, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    nothing = dict.fromkeys(("job_id", "attempt", "endpoint", "scheduler", "node", "pod", "parent"))
    assert identity.launcher() == nothing | found


STEPS = """
import badput, os, sys, time
badput.init(os.environ["RUN"])
first, last, end = (int(a) for a in sys.argv[1:4])
if first > 1:
    with badput.span("load", step=first - 1):
        pass
for number in range(first, last + 1):
    with badput.step(tokens=10):
        pass
while len(sys.argv) > 4 and not os.path.exists(sys.argv[4]):
    time.sleep(0.02)
if end:
    badput.close(5)
os._exit(0 if end else 1)
"""


def start(box, *args, env=None, inside=()):
    command = [*inside, sys.executable, "-c", STEPS, *map(str, args)]
    return subprocess.Popen(command, env={**box.env, **(env or {})})


def processes(box):
    return sorted(box.rows("processes"), key=lambda r: r["start_ns"])


def test_a_requeue_with_the_same_job_id_is_a_new_session(box):
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0",
             "SLURM_NTASKS": "1", "SLURMD_NODENAME": "gpu-1"}  # fmt: skip
    assert start(box, 1, 12, 0, env=slurm).wait() == 1
    box.ends(1)
    again = slurm | {"SLURM_RESTART_COUNT": "1", "SLURMD_NODENAME": "gpu-2"}
    assert start(box, 11, 20, 1, env=again).wait() == 0
    box.ends(2)
    assert [(p["job_id"], p["attempt"], p["node"], p["scheduler"]) for p in processes(box)] == [
        ("4711", None, "gpu-1", "slurm"),
        ("4711", 1, "gpu-2", "slurm"),
    ]
    report = box.books()
    assert [(s["first_step"], s["last_step"]) for s in report["sessions"]] == [(1, 12), (11, 20)]
    assert [s["lost_steps"] for s in report["sessions"]] == [2, 0]
    assert report["steps"]["executed"] == 22
    assert report["steps"]["kept"] == 20


def node(name):
    """A command in front that gives a process a host name of its own."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare to give a process a host name of its own")
    mine = ["unshare", "--uts"] if os.getuid() == 0 else ["unshare", "-r", "--uts"]
    probe = subprocess.run([*mine, "hostname", name], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets us make no namespace")
    return [*mine, "sh", "-c", f'hostname {name}; exec "$@"', "sh"]


def test_a_restart_count_that_only_one_node_saw_rise_is_one_restart(box, tmp_path):
    places = [(0, "node-a"), (1, "node-b")]
    for life, counts in enumerate([(0, 0), (1, 0)]):
        go = tmp_path / f"go{life}"
        children = [
            start(box, 1 + 5 * life, 5 + 5 * life, life, go, inside=node(host), env={
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node-a",
                "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job",
                "TORCHELASTIC_RESTART_COUNT": str(counts[rank])})
            for rank, host in places
        ]  # fmt: skip
        deadline = time.monotonic() + 60
        while len(box.rows("steps")) < 10 * (life + 1) and time.monotonic() < deadline:
            time.sleep(0.05)
        go.touch()
        assert [child.wait() for child in children] == [1 - life, 1 - life]
        box.ends(2 * (life + 1))
    report = box.books()
    assert len(report["sessions"]) == 2
    assert report["steps"]["executed"] == report["steps"]["kept"] == 10
    assert {p["host"] for p in processes(box)} == {"node-a", "node-b"}


def test_two_containers_with_the_same_pid_and_rank_stay_two(box, tmp_path):
    mine = ["unshare", "-r", "-p", "-f", "--mount-proc"]
    probe = subprocess.run([*mine, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets us make no pid namespace")
    go = tmp_path / "go"
    children = [start(box, 1, steps, 1, go, inside=mine) for steps in (6, 9)]
    deadline = time.monotonic() + 60
    while len(box.rows("steps")) < 15 and time.monotonic() < deadline:
        time.sleep(0.05)
    go.touch()
    assert [child.wait() for child in children] == [0, 0]
    found = processes(box)
    assert [p["pid"] for p in found] == [1, 1]
    assert [p["rank"] for p in found] == [0, 0]
    assert len({p["process_id"] for p in found}) == 2
    steps = [row["process_id"] for row in box.rows("steps")]
    assert sorted(steps.count(p["process_id"]) for p in found) == [6, 9]
    report = box.books()
    assert len(report["sessions"]) == 2
    assert any("still had processes" in q["what"] for q in report["quality"])


def test_nothing_but_the_named_variables_is_recorded(box):
    secret = {"WANDB_API_KEY": "s3cret", "SLURM_JOB_NAME": "s3cret", "HF_TOKEN": "s3cret"}
    assert start(box, 1, 1, 1, env=secret | {"SLURM_JOB_ID": "5"}).wait() == 0
    box.ends(1)
    everything = json.dumps([box.rows(t) for t in ("processes", "runs", "events")])
    assert "s3cret" not in everything
