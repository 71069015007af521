"""GPU telemetry against a libnvidia-ml.so.1 of our own: what is refused, renamed, lost or odd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pynvml
import pytest

from badput import nvml_metrics, telemetry_gpu
from badput.nvml import NoAnswerError, Nvml, distribution_of, pci, text
from badput.nvml_metrics import throttle_names
from badput.telemetry_gpu import Gpus


class Watched(Gpus):
    """GPUs whose log lines are kept; no kernel log unless a test names one."""

    def __init__(self, kernel_log="/nowhere/kmsg"):
        self.lines = []
        super().__init__(self.lines.append, kernel_log)


def capabilities(round_, number=0):
    return json.loads(round_.devices[number]["capabilities"])


def test_every_metric_is_read_in_the_units_of_the_schema(fake_gpus):
    fake_gpus.say(
        "gpus 1", "set 0 utilization 70", "set 0 memory_utilization 20", "set 0 power 312345",
        "set 0 memory 10737418240", "set 0 memory_reserved 1000", "set 0 energy 5000",
        "set 0 temperature 61", "set 0 sm_clock 1980", "set 0 memory_clock 2619",
        "set 0 throttle 0x4", "set 0 field138 3", "set 0 field139 5", "set 0 ecc_corrected 7",
        "set 0 ecc_uncorrected 1", "set 0 pids 11 12", "set 0 power_limit 700000",
        "set 0 architecture 9", "set 0 field197 100", "set 0 field198 100",
    )  # fmt: skip
    gpus = Watched()
    first = gpus.sample()
    (row,) = first.samples
    assert row["sample_ns"] > 0
    assert {k: v for k, v in row.items() if k not in ("time_ns", "sample_ns")} == {
        "gpu_uuid": fake_gpus.uuid(0), "utilization": 0.7, "memory_utilization": 0.2,
        "memory_bytes": 10 << 30, "power_w": pytest.approx(312.345), "energy_j": 5.0,
        "temperature_c": 61.0, "sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0,
        "throttle": 4, "throttle_names": "sw_power_cap", "nvlink_tx_bytes": 3072,
        "nvlink_rx_bytes": 5120, "ecc_corrected": 7, "ecc_uncorrected": 1, "processes": 2,
    }  # fmt: skip
    (device,) = first.devices
    assert device["name"] == "NVIDIA H100 80GB HBM3"
    assert device["pci_bus_id"] == "0000:10:00"
    assert device["memory_bytes"] == 80 << 30
    assert device["power_limit_w"] == 700.0
    assert device["power_kind"] == "average_1s"
    assert device["driver"] == "570.99.01"
    assert device["library"].startswith("nvidia-ml-py ")
    assert set(capabilities(first).values()) == {"ok", "no_kernel_log"}
    assert gpus.sample().samples[0]["pcie_tx_bytes_s"] == 0.0, "a counter that stood still"
    assert gpus.lines == []


def test_one_refused_metric_costs_one_metric_and_is_asked_for_once(fake_gpus):
    fake_gpus.say(
        "gpus 1", "set 0 utilization 70", "set 0 memory 10737418240", "set 0 power 1",
        "fail 0 GetPowerUsage 3",
    )  # fmt: skip
    gpus = Watched()
    rounds = [gpus.sample() for _ in range(4)]
    for found in rounds:
        assert found.samples[0]["utilization"] == 0.7
        assert found.samples[0]["memory_bytes"] == 10 << 30
        assert "power_w" not in found.samples[0]
    assert capabilities(rounds[0])["power"] == "not_supported"
    assert [len(r.devices) for r in rounds] == [1, 0, 0, 0], "told once, not with every sample"
    assert fake_gpus.calls().count("GetPowerUsage") == 1
    assert gpus.lines == []


def test_a_metric_that_fails_for_a_while_comes_back(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 utilization 1", "set 0 power 1000", "fail 0 GetPowerUsage 999")
    gpus = Watched()
    first = gpus.sample()
    assert "power_w" not in first.samples[0]
    assert capabilities(first)["power"] == "unknown_error"
    fake_gpus.say("fail 0 GetPowerUsage 0")
    second = gpus.sample()
    assert second.samples[0]["power_w"] == 1.0
    assert capabilities(second)["power"] == "ok"
    fake_gpus.say("fail 0 GetPowerUsage 999")
    for _ in range(2 * nvml_metrics.MAX_FAILURES):
        gpus.sample()
    asked = fake_gpus.calls().count("GetPowerUsage")
    assert asked == 2 + nvml_metrics.MAX_FAILURES


def test_numbers_that_cannot_be_are_no_numbers(fake_gpus):
    fake_gpus.say(
        "gpus 1", "set 0 power 4294967295", "set 0 utilization 255", "set 0 memory 5",
        "set 0 ecc_corrected 18446744073709551615", "set 0 energy 18446744073709551615",
        "set 0 throttle 18446744073709551615",
    )  # fmt: skip
    found = Watched().sample()
    (row,) = found.samples
    assert not {"power_w", "utilization", "ecc_corrected", "energy_j"} & row.keys()
    assert row["memory_bytes"] == 5
    assert row["throttle"] == -1
    assert capabilities(found)["power"] == "implausible"


def test_a_name_that_cannot_be_decoded_is_unknown_and_the_gpu_is_sampled(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 name \\xff", "set 0 utilization 5")
    found = Watched().sample()
    assert found.samples[0]["utilization"] == 0.05
    assert found.devices[0]["name"] is None
    assert found.devices[0]["gpu_uuid"] == fake_gpus.uuid(0)
    assert capabilities(found)["name"] == "undecodable"


def test_a_gpu_without_a_uuid_goes_by_its_place(fake_gpus):
    fake_gpus.say("gpus 1", "fail 0 GetUUID 3", "set 0 utilization 5")
    found = Watched().sample()
    assert found.samples[0]["gpu_uuid"] == "PCI-0000:10:00"
    assert capabilities(found)["gpu_uuid"] == "not_supported"


@pytest.mark.parametrize("code", [15, 16, 28])
def test_a_lost_gpu_is_told_once_and_left_alone_while_the_others_go_on(fake_gpus, code):
    fake_gpus.say("gpus 8", "set * utilization 50", "set * power 1000")
    gpus = Watched()
    assert len(gpus.sample().samples) == 8
    fake_gpus.say(f"fail 3 * {code}")
    lost = gpus.sample()
    (fault,) = lost.faults
    assert (fault.kind, fault.uuid) == ("gpu_lost", fake_gpus.uuid(3))
    assert fault.time_ns > 0
    before = len(fake_gpus.calls(3))
    for _ in range(5):
        found = gpus.sample()
        assert {r["gpu_uuid"] for r in found.samples} == {
            fake_gpus.uuid(n) for n in range(8) if n != 3
        }
        assert found.faults == []
    assert len(fake_gpus.calls(3)) == before, "a lost GPU was asked again"
    assert len(gpus.lines) == 1


def test_a_gpu_that_is_lost_before_we_come_is_told_and_costs_nothing_else(fake_gpus):
    fake_gpus.say("gpus 2", "set * utilization 50", "fail 1 * 15")
    found = Watched().sample()
    assert [r["gpu_uuid"] for r in found.samples] == [fake_gpus.uuid(0)]
    (fault,) = found.faults
    assert (fault.kind, fault.uuid, fault.attrs["number"]) == ("gpu_lost", None, 1)


def test_a_gpu_that_the_next_look_does_not_list_is_lost(fake_gpus):
    fake_gpus.say("gpus 2", "set * utilization 50")
    gpus = Watched()
    gpus.sample()
    gpus.close()
    fake_gpus.say("gpus 1")
    (fault,) = gpus.sample().faults
    assert (fault.kind, fault.uuid) == ("gpu_lost", fake_gpus.uuid(1))


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (18, "driver_library_mismatch"), (9, "driver_not_loaded"), (4, "no_permission"),
        (12, "library_not_found"), (999, "unknown_error"), (4711, "error_4711"),
    ],
)  # fmt: skip
def test_nvml_that_does_not_open_is_one_line_and_a_reason(fake_gpus, code, state):
    fake_gpus.say("gpus 8", f"fail - Init {code}")
    gpus = Watched()
    for _ in range(5):
        found = gpus.sample()
        assert (found.samples, found.devices, found.faults) == ([], [], [])
    assert gpus.state == state
    assert len(gpus.lines) == 1
    assert fake_gpus.calls().count("Init") == 1


def test_a_driver_that_shows_no_gpu_is_one_line(fake_gpus):
    fake_gpus.say("gpus 0")
    gpus = Watched()
    assert [gpus.sample().samples for _ in range(3)] == [[], [], []]
    assert gpus.state == "no_gpu"
    assert len(gpus.lines) == 1


def test_when_nothing_answers_any_more_sampling_ends_with_one_line(fake_gpus):
    fake_gpus.say("gpus 2", "set * utilization 50", "set * power 1000")
    gpus = Watched()
    gpus.sample()
    fake_gpus.say("fail * * 999")
    for _ in range(20):
        assert gpus.sample().samples == []
    assert gpus.state == "off"
    assert len(gpus.lines) == 1
    before = len(fake_gpus.calls())
    gpus.close()
    gpus.sample()
    assert len(fake_gpus.calls()) <= before + 2, "off stays off"


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        ([], "sw_power_cap"),
        (["GetCurrentClocksEventReasons"], "sw_power_cap"),
        (["GetCurrentClocksThrottleReasons"], "sw_power_cap"),
        (["GetCurrentClocksEventReasons", "GetCurrentClocksThrottleReasons"], None),
    ],
)
def test_renamed_functions_are_found_by_trying(fake_gpus, refused, names):
    fake_gpus.say("gpus 1", "set 0 utilization 1", "set 0 throttle 0x5")
    fake_gpus.say(*(f"fail 0 {name} 13" for name in refused))
    gpus = Watched()
    found = gpus.sample()
    assert found.samples[0].get("throttle_names") == names
    assert capabilities(found)["throttle"] == ("ok" if names else "no_function")


def test_throttle_reasons_have_names_and_idle_is_none():
    assert throttle_names(0) == ""
    assert throttle_names(0x1) == ""
    assert throttle_names(0x1 | 0x8 | 0x40) == "hw_slowdown,hw_thermal_slowdown"
    assert throttle_names(0x20 | 0x800) == "sw_thermal_slowdown,unknown_0x800"
    assert throttle_names(1 << 63) == "unknown_0x8000000000000000"


def test_the_names_are_those_of_the_binding():
    ours = {bit: name.replace("_", "") for bit, name in nvml_metrics.THROTTLE.items()}
    for name in dir(pynvml):
        for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason"):
            value = getattr(pynvml, name)
            if name.startswith(prefix) and value and value & (value - 1) == 0 and value != 1:
                said = name.removeprefix(prefix).lower()
                assert ours[value][:8] == said[:8] or "UserDefined" in name, (name, ours[value])


def test_temperature_of_an_older_library(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 temperature 44", "fail 0 GetTemperatureV 13")
    assert Watched().sample().samples[0]["temperature_c"] == 44.0


def test_pcie_without_counters_is_the_drivers_own_rate(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 pcie_tx 10", "set 0 pcie_rx 20")
    gpus = Watched()
    rows = [gpus.sample().samples[0] for _ in range(3)]
    assert [(r["pcie_tx_bytes_s"], r["pcie_rx_bytes_s"]) for r in rows] == [(10240.0, 20480.0)] * 3
    assert fake_gpus.calls().count("GetFieldValues") == 3, "one look for each kind of counter"


def test_a_counter_that_begins_anew_gives_no_rate(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 field197 5000", "set 0 field198 5000")
    gpus = Watched()
    gpus.sample()
    fake_gpus.say("set 0 field197 3", "set 0 field198 3")
    assert "pcie_tx_bytes_s" not in gpus.sample().samples[0]
    fake_gpus.say("set 0 field197 1003")
    assert gpus.sample().samples[0]["pcie_tx_bytes_s"] > 0


@pytest.mark.parametrize(
    ("architecture", "name", "kind"),
    [
        (9, "NVIDIA H100", "average_1s"), (8, "NVIDIA L40S", "average_1s"),
        (7, "NVIDIA A100-SXM4-80GB", "instant"), (7, "NVIDIA A10", "average_1s"),
        (5, "Tesla V100-SXM2-16GB", "instant"), (0xFFFFFFFF, "NVIDIA H100", None),
    ],
)  # fmt: skip
def test_it_is_said_what_power_means_on_this_gpu(fake_gpus, architecture, name, kind):
    fake_gpus.say("gpus 1", f"set 0 architecture {architecture}", f"set 0 name {name}")
    assert Watched().sample().devices[0]["power_kind"] == kind


def test_mig_instances_are_sampled_beside_the_gpu_that_has_the_power(fake_gpus):
    fake_gpus.say(
        "gpus 2", "mig 1 2", "set * utilization 50", "set * power 300000", "set * memory 5",
        "set 1.1 memory 6", "fail 1 GetUtilizationRates 3",
    )  # fmt: skip
    found = Watched().sample()
    by_uuid = {r["gpu_uuid"]: r for r in found.samples}
    assert len(by_uuid) == 4
    instance = by_uuid["MIG-00000001-0000-0000-0000-000000000001"]
    assert instance["memory_bytes"] == 6
    assert "power_w" not in instance, "its power would count twice"
    assert by_uuid[fake_gpus.uuid(1)]["power_w"] == 300.0
    row = next(d for d in found.devices if d["gpu_uuid"].startswith("MIG-"))
    assert row["parent_uuid"] == fake_gpus.uuid(1)
    assert json.loads(row["capabilities"])["power"] == "of_parent"


def test_xid_errors_that_nvml_reports_are_told_once(fake_gpus):
    fake_gpus.say("gpus 2", "set * utilization 50", "xid 1 31")
    gpus = Watched()
    (fault,) = gpus.sample().faults
    assert (fault.kind, fault.uuid, fault.attrs["xid"]) == ("xid", fake_gpus.uuid(1), 31)
    assert gpus.sample().faults == []
    fake_gpus.say("xid 1 31", "xid 0 63")
    assert [(f.uuid, f.attrs["xid"]) for f in gpus.sample().faults] == [(fake_gpus.uuid(0), 63)]


def test_where_no_xid_can_be_heard_it_is_said(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 utilization 1", "fail 0 RegisterEvents 4")
    can = capabilities(Watched().sample())
    assert can["xid_events"] == "no_permission"
    assert can["xid_kernel_log"] == "no_kernel_log"


def test_nvml_answers_only_the_process_that_opened_it(fake_gpus):
    fake_gpus.say("gpus 1")
    nvml = Nvml()
    assert len(nvml.devices()) == 1
    pid = os.fork()
    if pid == 0:
        try:
            nvml.devices()
        except NoAnswerError as error:
            os._exit(0 if error.reason == "forked" else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_slow_driver_is_waited_for_by_the_sample_alone(fake_gpus):
    fake_gpus.say("gpus 1", "set 0 power 1000", "sleep 0 GetPowerUsage 200")
    (row,) = Watched().sample().samples
    assert row["sample_ns"] >= 200_000_000
    assert row["time_ns"] <= time.time_ns() - 200_000_000


# -- bindings ---------------------------------------------------------------------------------
class Binding(types.ModuleType):
    """A binding of another age: functions of one GPU, as the test wants them."""

    def __init__(self, **functions):
        super().__init__("pynvml")
        self.__file__ = "/nowhere/pynvml.py"
        self.__version__ = "8.0.4"
        plain = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda number: f"handle {number}",
            "nvmlDeviceGetUUID": lambda handle: "GPU-1",
            "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=7, memory=1),
        }
        for name, function in {**plain, **functions}.items():
            setattr(self, name, function)


@pytest.mark.parametrize("name", [b"NVIDIA H100", "NVIDIA H100", b"NVIDIA H100\0\0"])
def test_bytes_and_text_are_the_same_name(monkeypatch, name):
    uuid = b"GPU-1" if isinstance(name, bytes) else "GPU-1"
    module = Binding(nvmlDeviceGetName=lambda handle: name, nvmlDeviceGetUUID=lambda handle: uuid)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = Watched().sample()
    assert found.devices[0]["name"] == "NVIDIA H100"
    assert found.samples[0]["gpu_uuid"] == "GPU-1"


def test_a_binding_that_lacks_most_functions_gives_what_it_has(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Binding())
    gpus = Watched()
    found = gpus.sample()
    assert found.samples[0]["utilization"] == 0.07
    can = capabilities(found)
    assert can["power"] == can["throttle"] == can["nvlink"] == can["name"] == "no_function"
    assert can["xid_events"] == "no_function"
    library = found.devices[0]["library"]
    assert library.startswith("pynvml 8.0.4 (hides nvidia-ml-py "), library
    assert len(gpus.lines) == 1, "that the vendor's package is hidden is said once"


def test_the_distribution_that_gave_the_binding_is_named():
    assert distribution_of(pynvml).startswith("nvidia-ml-py ")
    assert "hides" not in distribution_of(pynvml)


def test_no_binding_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Watched()
    gpus.sample()
    assert gpus.state == "no_binding"
    assert len(gpus.lines) == 1


@pytest.mark.parametrize("error", [SystemError, KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_a_binding_raises_ends_sampling_and_nothing_else(monkeypatch, error):
    def bad(*args):
        raise error("from C")

    module = Binding(nvmlDeviceGetUtilizationRates=bad, nvmlDeviceGetPowerUsage=bad)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpus = Watched()
    for _ in range(3 * telemetry_gpu.MAX_FAILURES):
        assert gpus.sample().samples == []
    assert gpus.state == "off"
    assert len([line for line in gpus.lines if "no more" in line]) == 1


def test_errors_while_opening_are_no_answer(monkeypatch):
    def bad(*args):
        raise SystemError("from C")

    monkeypatch.setitem(sys.modules, "pynvml", Binding(nvmlInit=bad))
    gpus = Watched()
    gpus.sample()
    assert gpus.state == "failed_SystemError"


def test_addresses_and_texts_of_every_kind():
    assert pci(b"00000000:3B:00.0") == pci("0000:3b:00.0") == pci("3b:00") == "0000:3b:00"
    assert pci("00010000:01:00.0") == "10000:01:00"
    assert pci(None) is None
    assert pci("nonsense") is None
    assert text(b"\xff\xfe") == "\ufffd\ufffd"
    assert text(7) is None
    assert text(b"\0\0") is None


REAL = """
import json, sys, time
from badput.telemetry_gpu import Gpus
gpus = Gpus(lambda line: print(line, file=sys.stderr))
first = gpus.sample()
time.sleep(1)
print(json.dumps([gpus.state, first.devices, gpus.sample().samples]))
gpus.close()
"""


@pytest.mark.gpu
def test_a_real_gpu_tells_who_it_is_and_what_it_does():
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
    # A process of its own: in this one the stand-in may have been loaded.
    done = subprocess.run(
        [sys.executable, "-c", REAL], capture_output=True, text=True, check=True, timeout=120
    )
    print(done.stdout)
    state, devices, samples = json.loads(done.stdout)
    assert state == "ok", done.stderr
    assert len(samples) == len(devices) > 0
    for device, row in zip(devices, samples, strict=True):
        assert device["name"]
        assert device["gpu_uuid"].startswith(("GPU-", "MIG-"))
        can = json.loads(device["capabilities"])
        assert can["memory"] == "ok"
        assert row["memory_bytes"] >= 0
