"""Pieces of telemetry on their own: which GPU is whose, faults in logs, the node, the buffer."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time

import pyarrow.parquet as pq
import pytest

from badput.compact import compact_run
from badput.host import Host
from badput.nvml import Device
from badput.nvml_faults import Fault, KernelLog, Told
from badput.nvml_map import Found, resolve, visible
from badput.parts import list_parts, read_rows
from badput.telemetry import INTERVAL_S, LEAST_S, Sampler, interval, scope
from badput.telemetry_state import State, classify
from badput.telemetry_store import RunTelemetry

A, B = "GPU-8932f937-aaaa-0000-0000-000000000000", "GPU-8932f9ff-bbbb-0000-0000-000000000000"
M = "MIG-c0ffee00-0000-0000-0000-000000000000"
M2 = "MIG-c0ffee11-0000-0000-0000-000000000000"


def gpu(number, uuid, bus, name="H100", **more):
    return Device(None, number, uuid, name, bus, **more)


# NVML lists them against the order of their places, as it may.
TWO = [gpu(0, A, "0000:3b:00"), gpu(1, B, "0000:1a:00")]
MIXED = [gpu(0, A, "0000:3b:00", "T400"), gpu(1, B, "0000:1a:00", "A100")]
DIVIDED = [
    TWO[0],
    gpu(0, M, "0000:3b:00", parent=A, instance=(1, 0)),
    gpu(1, M2, "0000:3b:00", parent=A, instance=(2, 0)),
]


@pytest.mark.parametrize(
    ("listed", "rank", "devices", "expected"),
    [
        (None, 0, TWO, Found(B, "unverified")),
        (None, 1, TWO, Found(A, "unverified")),
        (None, 0, [TWO[0]], Found(A, "single")),
        (None, 5, [TWO[0]], Found(A, "single")),
        (None, 0, MIXED, Found(None, "unresolved")),
        (None, None, TWO, Found(None, "unresolved")),
        (None, 2, TWO, Found(None, "unresolved")),
        ("", 0, TWO, Found(None, "none")),
        ("  ", 0, TWO, Found(None, "none")),
        ("0,1", 0, TWO, Found(B, "unverified")),
        ("0,1", 1, TWO, Found(A, "unverified")),
        ("1,0", 0, TWO, Found(A, "unverified")),
        ("1,0", 1, TWO, Found(B, "unverified")),
        ("1", 7, TWO, Found(A, "unverified")),
        ("0", 0, [TWO[0]], Found(A, "single")),
        ("0", 0, MIXED, Found(None, "unresolved")),
        ("GPU-8932f937", 0, TWO, Found(A, "single")),
        ("GPU-8932f9", 0, TWO, Found(None, "unresolved")),
        ("gpu-8932f937", 0, TWO, Found(None, "none")),
        (f"{B},{A}", 0, TWO, Found(B, "uuid")),
        (f"{B},{A}", 1, TWO, Found(A, "uuid")),
        (f"{B}, {A}", 1, TWO, Found(A, "uuid")),
        (f"{A},{A}", 0, TWO, Found(None, "none")),
        (f"{A},1", 0, TWO, Found(A, "single")),
        ("GPU-12345678", 0, TWO, Found(None, "unresolved")),
        ("GPU-", 0, TWO, Found(None, "unresolved")),
        (M, 0, DIVIDED, Found(M, "single")),
        ("MIG-c0ffee11", 0, DIVIDED, Found(M2, "single")),
        (f"{M2},{M}", 1, DIVIDED, Found(M2, "single")),
        (f"MIG-{A}/2/0", 0, DIVIDED, Found(M2, "single")),
        (f"MIG-{A}/9/0", 0, DIVIDED, Found(None, "unresolved")),
        ("0", 0, DIVIDED, Found(M, "unverified")),
        (None, 0, DIVIDED, Found(M, "unverified")),
        ("-1", 0, TWO, Found(None, "none")),
        ("0,-1,1", 1, TWO, Found(B, "unverified")),
        ("0,foo,1", 0, TWO, Found(B, "unverified")),
        ("0,foo,1", 1, [TWO[0]], Found(A, "single")),
        ("0, 1", 1, TWO, Found(A, "unverified")),
        ("1gpu", 0, TWO, Found(A, "unverified")),
        ("0,0", 0, TWO, Found(None, "none")),
        ("9", 0, TWO, Found(None, "unresolved")),
        ("99999999999999999999", 0, TWO, Found(None, "unresolved")),
        ("NoDevFiles", 0, TWO, Found(None, "none")),
        ("foo", 0, TWO, Found(None, "none")),
        (",", 0, TWO, Found(None, "none")),
        ("\udcff\u0663", 0, TWO, Found(None, "none")),
        ("0", 0, [], Found(None, "unresolved")),
        (None, 0, [], Found(None, "unresolved")),
    ],
)
def test_every_form_of_cuda_visible_devices(listed, rank, devices, expected):
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert resolve(environment, rank, devices) == expected


def test_numbers_in_pci_order_are_sure():
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert resolve(order, 0, MIXED) == Found(B, "pci")
    assert resolve({**order, "CUDA_VISIBLE_DEVICES": "1,0"}, 0, MIXED) == Found(A, "pci")
    assert resolve({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 0, MIXED) == Found(None, "unresolved")


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_lists_of_the_other_vendor_resolve_to_nothing_of_ours(name):
    assert resolve({name: "0,1"}, 0, TWO) == Found(None, "unresolved")
    assert resolve({name: "GPU-1234"}, 0, []) == Found(None, "unresolved")
    assert resolve({name: ""}, 0, TWO) == Found(None, "none")
    assert resolve({name: "-1"}, 0, TWO) == Found(None, "none")
    assert resolve({name: "0", "CUDA_VISIBLE_DEVICES": A}, 0, TWO) == Found(A, "single")


def test_what_was_not_recorded_is_not_guessed():
    assert resolve(None, 0, TWO) == Found(None, "unresolved")
    assert visible(None, TWO).uuids is None


@pytest.mark.parametrize(
    ("age", "utilization", "power", "limit", "expected"),
    [
        (900, 1.0, 70, 700, State("stalled", "busy_wait")),
        (900, 1.0, 70, None, State("stalled", "busy_wait")),
        (900, 1.0, 600, 700, State("stalled", "computing")),
        (900, 0.0, 70, 700, State("stalled", "idle")),
        (900, 0.5, 70, 700, State("stalled")),
        (900, None, None, None, State("stalled")),
        (900, 1.0, None, None, State("stalled")),
        (5, 1.0, 70, 700, State("productive")),
        (5, 0.0, 40, 700, State("productive")),
        (None, 1.0, 700, 700, State("unknown")),
    ],
)
def test_a_rank_is_judged_by_its_step_first(age, utilization, power, limit, expected):
    assert classify(age, 60, utilization, power, limit) == expected


# -- the kernel's log -------------------------------------------------------------------------
class Log:
    """A file in the place of /dev/kmsg."""

    def __init__(self, path, devices):
        path.write_text("6,0,0,-;NVRM: Xid (PCI:0000:3b:00): 13, of an earlier day\n")
        self.path = path
        self.log = KernelLog(devices, str(path))
        self.told = Told()

    def hear(self, *lines):
        with self.path.open("a") as handle:
            handle.write("".join(f"{line}\n" for line in lines))
        return [(f.kind, f.uuid, f.attrs.get("xid")) for f in self.log.faults() if self.told.new(f)]


FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, it left the bus"
THREE = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_an_xid_line_is_heard_once(tmp_path):
    log = Log(tmp_path / "kmsg", TWO)
    assert log.hear("4,7,1000000,-;" + FALLEN) == [("xid", A, 79), ("gpu_lost", A, 79)]
    assert log.hear("4,8,2000000,-;" + FALLEN) == []
    assert log.hear("4,9,2000000,-;NVRM: Xid (PCI:0000:1a:00): 31, pid=7, name=x, MMU") == [
        ("xid", B, 31)
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [f"3,1,5,-;{line}" for line in THREE],
        ["3,1,5,-;" + "\\x0a ".join(THREE)],
        ["3,1,5,-;" + "\\x0a".join(THREE) + "\n", " SUBSYSTEM=pci"],
        ["3,1,5,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."],
        ["3,1,5,-;NVRM: GPU at PCI:0000:3b:00: " + A, "3,2,6,-;NVRM: GPU has fallen off the bus"],
    ],
)
def test_a_gpu_that_fell_off_the_bus_without_an_xid_is_heard_once(tmp_path, lines):
    log = Log(tmp_path / "kmsg", TWO)
    assert [(k, u) for k, u, _ in log.hear(*lines)] == [("gpu_lost", A)]
    assert log.hear(*lines) == []


def test_both_wordings_and_nvml_are_one_loss(tmp_path):
    log = Log(tmp_path / "kmsg", TWO)
    assert log.told.new(Fault("gpu_lost", A, 1, {"reason": "gpu_lost"}))
    heard = log.hear(*(f"3,1,5,-;{line}" for line in THREE), "3,2,6,-;" + FALLEN)
    assert heard == [("xid", A, 79)]


def test_other_lines_and_gpus_of_others_are_nothing(tmp_path):
    log = Log(tmp_path / "kmsg", TWO)
    assert log.hear(
        "6,1,2,-;usb 1-1: new device", "6,1,2,-;NVRM: loading NVIDIA UNIX Open Kernel Module",
        "4,1,2,-;NVRM: Xid (PCI:0000:99:00): 13, somebody else's", "garbage", "4,x;NVRM: Xid (", "",
        "4,1,2,-;NVRM: fallen off the bus, but which is not said",
    ) == []  # fmt: skip


def test_without_nvml_the_place_has_to_do(tmp_path):
    log = Log(tmp_path / "kmsg", [])
    assert log.hear("4,7,1000000,-;" + FALLEN) == [("xid", None, 79), ("gpu_lost", None, 79)]


def test_a_log_that_cannot_be_read_says_why(tmp_path):
    assert KernelLog(TWO, str(tmp_path / "none")).capability == "no_kernel_log"
    assert list(KernelLog(TWO, str(tmp_path / "none")).faults()) == []
    assert KernelLog(TWO, str(tmp_path)).capability != "ok" or os.geteuid() == 0


# -- the node ---------------------------------------------------------------------------------
def test_the_node_is_sampled_with_rates_from_the_second_sample_on():
    host = Host()
    first = host.read()
    assert host.unknown == {}
    assert 0 < first["memory_bytes"] < first["memory_total_bytes"]
    assert first["load_1m"] >= 0
    assert not {"cpu", "disk_read_bytes_s", "net_sent_bytes_s"} & first.keys()
    time.sleep(0.05)
    second = host.read()
    assert 0 <= second["cpu"] <= 1
    for column in ("disk_read_bytes_s", "net_sent_bytes_s", "net_received_bytes_s"):
        assert second.get(column, 0) >= 0


def tree(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Host(root / "sys", root / "proc")


def test_control_groups_of_version_2(tmp_path):
    group = "sys/fs/cgroup/job/step"
    host = tree(tmp_path, {
        "proc/42/cgroup": "0::/job/step\n",
        f"{group}/memory.current": "1000\n", f"{group}/memory.max": "max\n",
        f"{group}/memory.events": "low 0\noom 3\noom_kill 2\n",
        "sys/fs/cgroup/job/memory.max": "5000\n",
    })  # fmt: skip
    assert host.control_group(42) == {
        "cgroup_memory_bytes": 1000, "cgroup_limit_bytes": 5000, "oom_kills": 2,
    }  # fmt: skip
    assert host.control_group(43) == {}


def test_a_control_group_without_a_limit_has_none(tmp_path):
    host = tree(tmp_path, {
        "proc/self/cgroup": "0::/not/in/this/container\n",
        "sys/fs/cgroup/memory.current": "7\n", "sys/fs/cgroup/memory.max": "max\n",
    })  # fmt: skip
    assert host.control_group() == {"cgroup_memory_bytes": 7}


def test_control_groups_of_version_1(tmp_path):
    group = "sys/fs/cgroup/memory/job"
    host = tree(tmp_path, {
        "proc/42/cgroup": "9:name=systemd:/x\n4:cpu,memory:/job\n0::/\n",
        f"{group}/memory.usage_in_bytes": "1000\n",
        f"{group}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{group}/memory.stat": "cache 1\nhierarchical_memory_limit 6000\n",
        f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    })  # fmt: skip
    assert host.control_group(42) == {
        "cgroup_memory_bytes": 1000, "cgroup_limit_bytes": 6000, "oom_kills": 1,
    }  # fmt: skip


def test_what_infiniband_carries_is_counted_in_words(tmp_path):
    port = "sys/class/infiniband/mlx5_0/ports/1/counters"
    files = {f"{port}/port_xmit_data": "1000\n", f"{port}/port_rcv_data": "5\n"}
    host = tree(tmp_path, files)
    assert "rdma_sent_bytes_s" not in host.read()
    tree(tmp_path, files | {f"{port}/port_xmit_data": "3000\n"})
    row = host.read()
    assert row["rdma_sent_bytes_s"] > 0
    assert row["rdma_received_bytes_s"] == 0.0
    tree(tmp_path, files)
    assert "rdma_sent_bytes_s" not in host.read(), "a counter that began anew"


def test_one_thing_that_cannot_be_read_costs_itself(monkeypatch):
    import psutil

    def bad(*args, **kwargs):
        raise PermissionError("not for you")

    monkeypatch.setattr(psutil, "disk_io_counters", bad)
    host = Host()
    assert host.read()["memory_total_bytes"] > 0
    assert host.unknown == {"disk": "PermissionError"}


# -- settings ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "seconds", "lines"),
    [
        (None, INTERVAL_S, 0), ("", INTERVAL_S, 0), ("2.5", 2.5, 0), ("0", 0.0, 0),
        ("1e-9", LEAST_S, 0), ("-1", INTERVAL_S, 1), ("often", INTERVAL_S, 1),
        ("nan", INTERVAL_S, 1), ("inf", INTERVAL_S, 1),
    ],
)  # fmt: skip
def test_the_interval_is_what_the_user_says(monkeypatch, given, seconds, lines):
    monkeypatch.delenv("BADPUT_SAMPLE_S", raising=False)
    if given is not None:
        monkeypatch.setenv("BADPUT_SAMPLE_S", given)
    said = []
    assert interval(said.append) == seconds
    assert len(said) == lines


@pytest.mark.parametrize(
    ("given", "chosen", "lines"),
    [("", "visible", 0), ("OWN", "own", 0), ("all", "all", 0), ("some", "visible", 1)],
)
def test_whose_gpus_is_what_the_user_says(monkeypatch, given, chosen, lines):
    monkeypatch.setenv("BADPUT_GPUS", given)
    said = []
    assert scope(said.append) == chosen
    assert len(said) == lines


# -- the thread -------------------------------------------------------------------------------
def test_late_samples_are_skipped_and_not_made_up_for(wait_until):
    taken = []
    slow = threading.Event()

    def take():
        taken.append(time.monotonic())
        slow.wait(0.5)
        return len(taken)

    sampler = Sampler("test", 0.1, take, lambda: None)
    sampler.want(True)
    wait_until(lambda: len(sampler.found) >= 3, "three samples")
    sampler.close()
    gaps = [b - a for a, b in itertools.pairwise(taken)]
    assert min(gaps) >= 0.5, "none came at once after a late one"
    assert sampler.skipped >= 3 * 4


def test_nothing_is_sampled_while_nobody_wants_it(wait_until):
    taken, rested = [], threading.Event()
    sampler = Sampler("test", 0.01, lambda: taken.append(1), rested.set)
    sampler.want(True)
    wait_until(lambda: len(taken) >= 2, "two samples")
    sampler.want(False)
    wait_until(rested.is_set, "the thread to rest")
    count = len(taken)
    time.sleep(0.1)
    assert len(taken) == count
    sampler.want(True)
    wait_until(lambda: len(taken) > count, "sampling to go on")
    sampler.close()


def test_a_thread_does_not_follow_into_a_fork(wait_until):
    sampler = Sampler("test", 0.05, os.getpid, lambda: None)
    sampler.want(True)
    wait_until(lambda: len(sampler.found) >= 1, "a sample")
    pid = os.fork()
    if pid == 0:
        sampler.found.clear()
        time.sleep(0.3)
        os._exit(len(sampler.found))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    sampler.close()


# -- the buffer -------------------------------------------------------------------------------
def sample(number):
    return {"host": "h", "gpu_uuid": A, "time_ns": number, "power_w": 1.0}


def write(store, now, log=lambda line: None, last=False):
    """Flush, and wait for the thread that writes."""
    store.flush(now, log, last)
    if store._thread is not None:
        store._thread.join(60)
    return store.flush(now, log)


def stored(run, table="gpu_samples"):
    return [r for part in list_parts(run, table) for r in pq.read_table(part).to_pylist()]


def test_a_part_that_could_not_be_written_is_written_later_once(tmp_path):
    run = tmp_path / "run"
    run.write_text("a file where the folder should be")
    lines = []
    store = RunTelemetry(str(run), 0)
    store.add("gpu_samples", [sample(1)])
    assert not write(store, 0.0, lines.append)
    store.add("gpu_samples", [sample(2)])
    assert not store.flush(0.5, lines.append), "not before its pause is over"
    assert store._thread is None
    assert not write(store, 1.5, lines.append)
    assert len(lines) == 1
    run.unlink()
    assert write(store, 100.0, lines.append)
    assert [r["time_ns"] for r in stored(run)] == [1, 2]
    assert store.waiting() == 0


def test_a_gpu_is_described_to_a_run_once_and_again_when_it_changes(tmp_path):
    store = RunTelemetry(str(tmp_path), 0)
    row = {"host": "h", "gpu_uuid": A, "time_ns": 1, "capabilities": json.dumps({"power": "ok"})}
    store.describe([row])
    store.describe([row])
    store.describe([{**row, "time_ns": 2, "capabilities": json.dumps({"power": "gpu_lost"})}])
    assert write(store, 0.0)
    assert [r["time_ns"] for r in stored(tmp_path, "devices")] == [1, 2]


def test_what_waits_for_a_folder_that_is_gone_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("badput.telemetry_store.MOST_ROWS", 10)
    run = tmp_path / "run"
    run.write_text("a file")
    store = RunTelemetry(str(run), 0)
    for turn in range(20):
        store.add("gpu_samples", [sample(turn)])
        write(store, turn * 100.0)
    assert store.waiting() <= 10
    assert store.lost_rows == 20 - store.waiting()


def test_what_is_left_at_the_end_is_written_or_counted(tmp_path):
    store = RunTelemetry(str(tmp_path / "run"), 0)
    store.add("gpu_samples", [sample(1)])
    assert store.finish(lambda line: None) == 0
    assert [r["time_ns"] for r in stored(tmp_path / "run")] == [1]
    (tmp_path / "file").write_text("")
    store = RunTelemetry(str(tmp_path / "file"), 0)
    store.add("gpu_samples", [sample(1), sample(2)])
    assert store.finish(lambda line: None) == 2


def test_a_file_server_that_hangs_holds_up_nobody(tmp_path, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr("badput.telemetry_store.write_rows", lambda *given: go_on.wait(60))
    store = RunTelemetry(str(tmp_path), 0)
    store.add("gpu_samples", [sample(1)])
    began = time.monotonic()
    for turn in range(100):
        assert not store.flush(turn * 100.0, lambda line: None)
        store.add("gpu_samples", [sample(turn)])
    assert time.monotonic() - began < 30
    assert store.finish(lambda line: None, timeout=0.1) > 0
    go_on.set()


def test_small_parts_become_few_and_no_row_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("badput.telemetry_store.FRESH", 10)
    store = RunTelemetry(str(tmp_path), 0)
    for turn in range(35):
        store.add("gpu_samples", [sample(turn)])
        assert write(store, turn * 100.0)
        assert sorted(r["time_ns"] for r in read_rows(tmp_path, "gpu_samples")) == list(
            range(turn + 1)
        )
    assert len(list_parts(tmp_path, "gpu_samples")) < 35
    write(store, 1e6, last=True)
    assert len(list((tmp_path / "facts" / "gpu_samples").iterdir())) < 12
    assert len(read_rows(tmp_path, "gpu_samples")) == 35
    for part in list_parts(tmp_path, "gpu_samples"):
        os.utime(part, (1e9, 1e9))  # a compacted part is left alone while it is young
    compact_run(tmp_path, every=True)
    assert len(list_parts(tmp_path, "gpu_samples")) == 1
    assert sorted(r["time_ns"] for r in read_rows(tmp_path, "gpu_samples")) == list(range(35))
