"""Two nodes write into one run folder at once; one of them is lost with all that ran on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from badput.collect import main as collect

NODE = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "-c", os.environ["CODE"]],
                     env={**os.environ, "RANK": rank, "LOCAL_RANK": str(n), "WORLD_SIZE": "4"})
    for n, rank in enumerate(os.environ["RANKS"].split())
]
codes = [rank.wait() for rank in ranks]
input()  # a node outlives its job, and the collector with it
sys.exit(max(codes))
"""
RANK = """
import badput, os, time
badput.init(os.environ["RUN"])
stop, number = os.environ["STOP"], 0
while not os.path.exists(stop):
    number += 1
    with badput.step(tokens=number) as step:
        if number % 5 == 0:
            step.log(loss=1.0 / number)
        time.sleep(0.002)
badput.close(timeout=5)
"""


class Node:
    """A host name, a boot id, a pid namespace and a spool root of its own."""

    def __init__(self, box, name, ranks):
        self.spool = box.folder / f"spool-{name}"
        boot = box.folder / f"boot-{name}"
        boot.write_text(f"{uuid.uuid4()}\n")
        script = (
            f'hostname {name} && mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
        )
        flags = ["--uts", "--pid", "--fork", "--mount-proc", "--mount", "--kill-child"]
        env = {
            **box.env, "BADPUT_SPOOL": str(self.spool), "RANKS": ranks, "CODE": RANK,
            "STOP": str(box.folder / "stop"), "MASTER_ADDR": "node-a", "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        user = [] if os.getuid() == 0 else ["-r"]
        self.outer = ["unshare", *user, *flags, "sh", "-c", script, "sh"]
        probe = subprocess.run([*self.outer, "true"], capture_output=True, check=False)
        if probe.returncode:
            pytest.skip(f"no namespaces to make a node of: {probe.stderr.decode().strip()}")
        command = [*self.outer, sys.executable, "-c", NODE]
        self.process = subprocess.Popen(command, env=env, stdin=-1, text=True)

    def lose(self):
        """The first process of a pid namespace takes all others with it."""
        (child,) = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        os.kill(int(child), signal.SIGKILL)
        self.process.wait()


def by_rank(box):
    found = {}
    for row in box.rows("steps"):
        found.setdefault(row["rank"], []).append(row["step"])
    return found


@pytest.mark.timeout(300)
def test_two_nodes_share_a_run_folder_and_one_is_lost(own_box, wait_until, capsys):
    one, other = Node(own_box, "node-a", "0 1"), Node(own_box, "node-b", "2 3")
    try:
        wait_until(lambda: len(by_rank(own_box)) == 4, "all four ranks in the run folder")
        seen = {rank: len(steps) for rank, steps in by_rank(own_box).items()}
        wait_until(
            lambda: all(len(by_rank(own_box)[r]) > n for r, n in seen.items()), "more of each"
        )
        other.lose()
        lost = by_rank(own_box)
        wait_until(lambda: len(by_rank(own_box)[0]) > len(lost[0]), "the other to go on")
        (own_box.folder / "stop").touch()
        wait_until(lambda: len(own_box.events("end")) == 2, "the ends of the node that is left")
        ends = own_box.events("end")
        assert {(e["rank"], e["attrs"]["reason"]) for e in ends} == {
            (0, "completed"), (1, "completed"),
        }  # fmt: skip
        processes = {r["rank"]: r for r in own_box.rows("processes")}
        assert {r: p["host"] for r, p in processes.items()} == {
            0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b",
        }  # fmt: skip
        assert processes[0]["boot_id"] != processes[2]["boot_id"]
        first = own_box.books()
        assert len(first["sessions"]) == 1
        # What the lost node's disk still has, should it come back.
        assert collect([str(other.spool)]) == 0, capsys.readouterr()
        found = by_rank(own_box)
        for rank in range(4):
            assert sorted(found[rank]) == list(range(1, len(found[rank]) + 1)), rank
        for rank in (2, 3):
            assert len(found[rank]) >= len(lost[rank])
        reasons = {e["rank"]: e["attrs"]["reason"] for e in own_box.events("end")}
        assert reasons == {0: "completed", 1: "completed", 2: "unknown", 3: "unknown"}
        second = own_box.books()
        assert len(second["sessions"]) == 1
    finally:
        (own_box.folder / "stop").touch()
        if other.process.poll() is None:
            other.lose()
        one.lose()
