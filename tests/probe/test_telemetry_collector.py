"""Telemetry end to end: training processes, their collector, a stand-in for NVML, Parquet."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

TRAIN = """
import badput, os, sys, time
if "GPUS" in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["GPUS"]
badput.init(os.environ["RUN"])
assert "pynvml" not in sys.modules and "psutil" not in sys.modules
while not os.path.exists(os.environ["DONE"]):
    with badput.step(tokens=1):
        time.sleep(0.01)
assert "pynvml" not in sys.modules and "psutil" not in sys.modules
"""


@pytest.fixture
def node(own_box, fake_gpus, monkeypatch):
    """A box whose collector sees the stand-in and samples often."""
    own_box.env.update(fake_gpus.env, BADPUT_SAMPLE_S="0.2", DONE=str(own_box.folder / "done"))
    own_box.env["BADPUT_KERNEL_LOG"] = str(own_box.folder / "kmsg")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "BADPUT_GPUS"):
        own_box.env.pop(name, None)
    (own_box.folder / "kmsg").write_text("")
    own_box.gpus = fake_gpus
    return own_box


def ranks(node, count, **env):
    """Start ``count`` ranks."""
    return [
        node.start(
            TRAIN,
            env={"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(count), **env},
        )
        for r in range(count)
    ]


def finish(node, children):
    """Let ranks end, and wait until all is in Parquet."""
    (node.folder / "done").touch()
    for child in children:
        assert child.wait(60) == 0
    node.ends(len(children))


def mapping(node):
    """By rank, the last `device` event. The collector counts its own events downwards."""
    return {e["rank"]: e["attrs"] for e in reversed(node.events("device"))}


def one_sampler(times):
    """No more samples than one sampler takes, whatever the machine is busy with."""
    span = (max(times) - min(times)) / 1e9
    return len(times) <= span / 0.2 + 2


def test_every_gpu_is_sampled_once_however_many_ranks_there_are(node, wait_until):
    node.gpus.say(
        "gpus 3", "set * utilization 90", "set * power 100000", "set * energy 0",
        "rate * energy 100000",
    )  # fmt: skip
    children = ranks(node, 3, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    wait_until(lambda: len(node.rows("gpu_samples")) >= 12, "samples")
    wait_until(lambda: len(mapping(node)) == 3, "each rank's GPU")
    finish(node, children)
    rows = node.rows("gpu_samples")
    uuids = [node.gpus.uuid(n) for n in range(3)]
    for uuid in uuids:
        own = sorted((r for r in rows if r["gpu_uuid"] == uuid), key=lambda r: r["time_ns"])
        assert len({r["time_ns"] for r in own}) == len(own)
        assert one_sampler([r["time_ns"] for r in own]), "one a node, not one a rank"
        assert all(r["power_w"] == 100.0 and r["utilization"] == 0.9 for r in own)
        assert all(r["sample_ns"] > 0 and r["host"] for r in own)
        assert own[-1]["energy_j"] > own[0]["energy_j"]
    devices = node.rows("devices")
    assert sorted(d["gpu_uuid"] for d in devices) == uuids, "what a GPU can is told once"
    assert {json.loads(d["capabilities"])["temperature"] for d in devices} == {"not_supported"}
    assert {r: (a["gpu_uuid"], a["mapping"]) for r, a in mapping(node).items()} == {
        n: (uuids[n], "pci") for n in range(3)
    }
    assert {a["gpu_type"] for a in mapping(node).values()} == {"NVIDIA H100 80GB HBM3"}
    hosts = node.rows("host_samples")
    assert len(hosts) >= 2
    assert {h["gpu_telemetry"] for h in hosts} <= {"ok", None}
    assert all(h["memory_total_bytes"] > h["memory_bytes"] > 0 for h in hosts)
    assert any(h["cpu"] is not None for h in hosts)
    lived = node.events("end")
    last = max(e["time_ns"] for e in lived)
    first = min(p["init_ns"] for p in node.rows("processes"))
    assert all(first <= r["time_ns"] <= last + 1e9 for r in rows), "only while a rank lived"


def test_a_late_driver_skips_samples_and_holds_up_neither_steps_nor_the_host(node, wait_until):
    node.gpus.say("gpus 1", "set 0 power 1000", "sleep 0 GetPowerUsage 2000")
    children = ranks(node, 1)
    wait_until(lambda: len(node.rows("gpu_samples")) >= 2, "two slow samples")
    steps = len(node.rows("steps"))
    hosts = len(node.rows("host_samples"))
    finish(node, children)
    times = sorted((r["time_ns"], r["sample_ns"]) for r in node.rows("gpu_samples"))
    assert all(took >= 2e9 for _, took in times)
    assert all(b[0] - a[0] >= 2e9 for a, b in itertools.pairwise(times)), "skipped, not queued"
    assert steps > 0, "steps arrived meanwhile"
    assert hosts > len(times), "the node was sampled meanwhile"


def test_a_lost_gpu_is_told_to_its_rank_and_the_other_goes_on(node, wait_until):
    node.gpus.say("gpus 2", "set * power 1000")
    children = ranks(node, 2, GPUS=f"{node.gpus.uuid(1)},{node.gpus.uuid(0)}")
    wait_until(lambda: len(mapping(node)) == 2, "each rank's GPU")
    node.gpus.say("fail 1 * 15")
    wait_until(lambda: bool(node.events("gpu_lost")), "the loss to be told")
    before = len(node.rows("gpu_samples"))
    wait_until(lambda: len(node.rows("gpu_samples")) > before + 4, "the other GPU's samples")
    calls = len(node.gpus.calls(1))
    (event,) = node.events("gpu_lost")
    finish(node, children)
    assert event["rank"] == 0, "UUIDs in CUDA_VISIBLE_DEVICES are in CUDA's order"
    assert event["attrs"]["gpu_uuid"] == node.gpus.uuid(1)
    assert event["attrs"]["reason"] == "gpu_lost"
    assert event["attrs"]["step"] >= 1
    assert event["seq"] < 0
    assert len(node.events("gpu_lost")) == 1
    late = [r for r in node.rows("gpu_samples") if r["time_ns"] > event["time_ns"]]
    assert {r["gpu_uuid"] for r in late} == {node.gpus.uuid(0)}
    assert len(node.gpus.calls(1)) == calls, "a lost GPU is not asked again"
    assert node.log().count("is lost") == 1


def test_xids_of_both_witnesses_are_events_of_the_rank(node, wait_until):
    node.gpus.say("gpus 2", "set * power 1000", "xid 0 48")
    children = ranks(node, 2, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    wait_until(lambda: bool(node.events("xid")), "the first Xid")
    with (node.folder / "kmsg").open("a") as log:
        log.write("4,1,1,-;NVRM: Xid (PCI:0000:10:00): 48, pid=1, name=x, DBE\n")
        log.write("4,1,1,-;NVRM: Xid (PCI:0000:11:00): 63, pid=1, name=x, row remap\n")
    wait_until(lambda: len(node.events("xid")) >= 2, "the second Xid")
    finish(node, children)
    told = sorted((e["rank"], e["attrs"]["xid"], e["attrs"]["source"]) for e in node.events("xid"))
    assert told == [(0, 48, "nvml"), (1, 63, "kernel_log")]


@pytest.mark.parametrize(
    ("code", "state"), [(9, "driver_not_loaded"), (18, "driver_library_mismatch")]
)
def test_without_gpus_all_else_is_recorded_and_one_line_says_so(node, wait_until, code, state):
    node.gpus.say(f"fail - Init {code}")
    children = ranks(node, 2)
    wait_until(
        lambda: any(r["gpu_telemetry"] == state for r in node.rows("host_samples")), "the reason"
    )
    finish(node, children)
    assert node.rows("gpu_samples") == node.rows("devices") == []
    assert len(node.rows("steps")) > 0
    assert {e["attrs"]["reason"] for e in node.events("end")} <= {"completed", "unknown"}
    assert node.log().count("no GPU telemetry") == 1
    told = {a.get("reason") for a in mapping(node).values()}
    assert told == ({state} if code == 18 else set())


def test_every_call_failing_leaves_training_alone(node, wait_until):
    node.gpus.say("gpus 8", "fail * * 999")
    children = ranks(node, 1)
    wait_until(lambda: len(node.rows("host_samples")) >= 3, "samples of the node")
    finish(node, children)
    assert node.rows("gpu_samples") == []
    assert len(node.rows("steps")) > 0


@pytest.mark.parametrize(
    ("gpus", "wanted"), [("own", {1}), ("visible", {1, 2}), (None, {1, 2}), ("all", {0, 1, 2, 3})]
)
def test_whose_gpus_are_sampled_is_a_choice(node, wait_until, gpus, wanted):
    node.gpus.say("gpus 4", "set * power 1000")
    seen = ",".join(node.gpus.uuid(n) for n in (1, 2))
    children = ranks(node, 1, GPUS=seen, **({} if gpus is None else {"BADPUT_GPUS": gpus}))
    wait_until(lambda: len(node.rows("gpu_samples")) >= 8, "samples")
    finish(node, children)
    uuids = {node.gpus.uuid(n) for n in wanted}
    assert {r["gpu_uuid"] for r in node.rows("gpu_samples")} == uuids
    assert {r["gpu_uuid"] for r in node.rows("devices")} == uuids


def test_sampling_can_be_off(node):
    node.gpus.say("gpus 1", "set * power 1000")
    children = ranks(node, 1, BADPUT_SAMPLE_S="0")
    time.sleep(0.5)
    finish(node, children)
    assert node.rows("gpu_samples") == node.rows("host_samples") == node.rows("devices") == []
    assert node.gpus.calls() == []


def test_a_folder_that_cannot_be_written_stops_no_other_and_nothing_doubles(node, wait_until):
    node.gpus.say("gpus 1", "set * power 1000")
    first = ranks(node, 1)
    good = node.run
    wait_until(lambda: len(node.rows("gpu_samples")) >= 1, "samples of the first run")
    node.run = node.folder / "other"
    second = ranks(node, 1, RUN=str(node.run))
    wait_until(lambda: len(node.rows("gpu_samples")) >= 1, "samples of the second run")
    (node.run / "facts" / "gpu_samples").rename(node.folder / "aside")
    (node.run / "facts" / "gpu_samples").write_text("in the way")
    wait_until(lambda: "cannot write telemetry" in node.log(), "the failure")
    node.run = good
    before = len(node.rows("gpu_samples"))
    wait_until(lambda: len(node.rows("gpu_samples")) > before, "the first run to go on")
    node.run = node.folder / "other"
    (node.run / "facts" / "gpu_samples").unlink()
    (node.folder / "aside").rename(node.run / "facts" / "gpu_samples")
    before = len(node.rows("gpu_samples"))
    wait_until(lambda: len(node.rows("gpu_samples")) > before + 3, "the second run to catch up")
    (node.folder / "done").touch()
    for child in first + second:
        assert child.wait(60) == 0
    wait_until(lambda: not list(node.spool.glob("?" * 16)), "the spools to go")
    for run in (good, node.folder / "other"):
        node.run = run
        times = [r["time_ns"] for r in node.rows("gpu_samples")]
        assert len(times) == len(set(times))


def test_a_forked_worker_samples_nothing(node, wait_until):
    node.gpus.say("gpus 1", "set * power 1000")
    code = TRAIN.replace(
        "while not",
        "if os.fork() == 0:\n    while not os.path.exists(os.environ['DONE']):\n"
        "        time.sleep(0.05)\n    os._exit(0)\nwhile not",
    )
    child = node.start(code, env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
    wait_until(lambda: len(node.rows("gpu_samples")) >= 4, "samples")
    finish(node, [child])
    assert one_sampler([r["time_ns"] for r in node.rows("gpu_samples")])
    with open(node.gpus.env["FAKE_NVML_CALLS"]) as calls:
        assert len({line.split()[0] for line in calls}) == 1, "one process asked"


def test_the_drivers_list_of_processes_corrects_a_guess(node, wait_until):
    node.gpus.say("gpus 2", "set * power 1000")
    children = ranks(node, 1)
    wait_until(lambda: mapping(node).get(0, {}).get("mapping") == "unverified", "a guess")
    assert mapping(node)[0]["gpu_uuid"] == node.gpus.uuid(0)
    node.gpus.say(f"set 1 pids {children[0].pid}")
    if Path("/proc/self/ns/pid").stat().st_ino != 0xEFFFFFFC:
        finish(node, children)
        pytest.skip("process numbers here are not those that the driver knows")
    wait_until(lambda: mapping(node)[0]["mapping"] == "pid", "the better evidence")
    assert mapping(node)[0]["gpu_uuid"] == node.gpus.uuid(1)
    finish(node, children)


def test_a_rank_that_sees_no_gpu_has_none(node, wait_until):
    node.gpus.say("gpus 2", "set * power 1000")
    children = ranks(node, 1, GPUS="")
    wait_until(lambda: bool(mapping(node)), "the mapping")
    finish(node, children)
    assert mapping(node)[0] == {"gpu_uuid": None, "gpu_type": "cpu", "mapping": "none"}
    assert node.rows("gpu_samples") == []


def test_a_killed_collector_is_followed_by_one_that_samples_on(node, wait_until):
    node.gpus.say("gpus 1", "set * power 1000")
    children = ranks(node, 1)
    wait_until(lambda: len(node.rows("gpu_samples")) >= 3, "samples")
    for pid in node.collectors():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not node.collectors(), "the collector to die")
    before = len(node.rows("gpu_samples"))
    children += ranks(node, 1)  # its init starts the next collector
    wait_until(lambda: len(node.rows("gpu_samples")) > before + 3, "samples of the next collector")
    (node.folder / "done").touch()
    for child in children:
        assert child.wait(60) == 0
    wait_until(lambda: not node.spools(), "the spools to go")
    times = [r["time_ns"] for r in node.rows("gpu_samples")]
    assert len(times) == len(set(times))
