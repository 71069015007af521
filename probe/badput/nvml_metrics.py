"""Reading one GPU: each metric guarded on its own, and what is not there asked for only once.

A metric that the GPU, the driver, the binding or our permissions do not give is NULL in every
sample, and the reason is kept once, in ``Meter.capabilities``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput import clock
from badput.nvml import FINAL, LOST, NoAnswerError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from badput.nvml import Device, Nvml

MAX_FAILURES = 5
"""Failures in a row after which a metric is asked for no more."""

THROTTLE = {
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Clock event (once: throttle) reasons by bit. 0x1 says that the GPU is idle, which is none."""
IDLE = 0x1

ALL_LINKS = 0xFFFFFFFF
KIB = 1024
NVLINK = ((138, 139, KIB), (202, 204, 1))
"""Field ids of NVLink counters, sent and received, and their unit in bytes; the first that answer
are used: data since Ampere, bytes on the links of newer chips."""
PCIE = (197, 198)
"""Field ids of the PCIe byte counters, sent and received."""
_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field's value by its type."""

GREATEST: dict[str, float] = {
    "utilization": 1,
    "memory_utilization": 1,
    "memory_bytes": 1 << 50,
    "power_w": 1e5,
    "energy_j": 1e15,
    "temperature_c": 300,
    "sm_clock_mhz": 1e5,
    "memory_clock_mhz": 1e5,
    "pcie_tx_bytes_s": 1e13,
    "pcie_rx_bytes_s": 1e13,
    "nvlink_tx_bytes": 1 << 62,
    "nvlink_rx_bytes": 1 << 62,
    "ecc_corrected": 1 << 40,
    "ecc_uncorrected": 1 << 40,
}
"""More than this is no reading but a driver's mark for none, or nonsense."""

Reading = dict[str, Any]


def throttle_names(mask: int) -> str:
    """Reasons of a clock event mask by name, comma separated; idle is none.

    A bit that nobody has named here stays, as ``unknown_0x800``.
    """
    names: list[str] = []
    rest = mask & ~IDLE
    while rest:
        bit = rest & -rest
        names.append(THROTTLE.get(bit, f"unknown_{bit:#x}"))
        rest ^= bit
    return ",".join(names)


def power_kind(nvml: Nvml, device: Device) -> str | None:
    """What NVML's power is on this GPU: ``average_1s``, ``instant``, or None if unknown.

    A mean over one second since Ampere, but for the chip GA100; momentary before.
    """
    try:
        architecture = int(nvml.call("nvmlDeviceGetArchitecture", device.handle))
    except (NoAnswerError, TypeError, ValueError):
        return None
    if not 2 <= architecture < 0xFFFFFFFF or device.name is None:
        return None
    ga100 = architecture == 7 and any(n in device.name for n in ("A100", "A800", "A30", "PG506"))
    return "instant" if architecture < 7 or ga100 else "average_1s"


def fields(nvml: Nvml, device: Device, ids: Sequence[int | tuple[int, int]]) -> list[int | None]:
    """Values of NVML fields, each None where it alone is refused. Raises NoAnswerError."""
    found: list[int | None] = []
    value: Any
    for value in nvml.call("nvmlDeviceGetFieldValues", device.handle, list(ids)):
        kind = int(value.valueType)
        known = value.nvmlReturn == 0 and 0 <= kind < len(_VALUE)
        found.append(int(getattr(value.value, _VALUE[kind])) if known else None)
    return found


class Meter:
    """Reads one GPU, again and again."""

    def __init__(self, nvml: Nvml, device: Device) -> None:
        self._nvml = nvml
        self.device = device
        self.capabilities: dict[str, str] = dict(device.unknown)
        """By metric: ``ok``, or why it is NULL."""
        self.lost: str | None = None
        """Why the GPU is gone, once it is."""
        self.pids: frozenset[int] = frozenset()
        """Processes that computed on it at the last reading."""
        self.answered = False
        """Did any metric answer at the last reading?"""
        self._failures: dict[str, int] = {}
        self._off: set[str] = set()
        self._nvlink: tuple[int, int, int] | None = None
        self._pcie_counted = True
        self._pcie_before: tuple[int, int, int] | None = None

    def ask(self, names: str | tuple[str, ...], *args: Any) -> Any:
        """Ask NVML of this GPU. Raises NoAnswerError."""
        return self._nvml.call(names, self.device.handle, *args)

    def read(self) -> Reading:
        """One sample: every column that can be had. What cannot is left out."""
        begin, time_ns = clock.mono(), clock.wall()
        row: Reading = {"gpu_uuid": self.device.uuid, "time_ns": time_ns}
        self.answered = False
        for name, reader in METRICS.items():
            if name in self._off:
                continue
            if self.device.parent is not None and name not in OF_INSTANCE:
                self.capabilities[name] = "of_parent"
                continue
            row |= self._guarded(name, reader)
            if self.lost is not None:
                break
        row["sample_ns"] = clock.mono() - begin
        return row

    def _guarded(self, name: str, reader: Callable[[Meter], Reading]) -> Reading:
        try:
            values = reader(self)
            if any(not 0 <= v <= GREATEST[c] for c, v in values.items() if c in GREATEST):
                raise NoAnswerError("implausible")  # noqa: TRY301 - one way out for all of them
        except BaseException as error:  # noqa: BLE001 - what a C binding raises is no answer
            self._failed(name, reason_of(error))
            return {}
        self.answered = True
        self._failures.pop(name, None)
        self.capabilities[name] = "ok"
        return values

    def _failed(self, name: str, reason: str) -> None:
        if reason in LOST:
            self.lost = reason
            return
        count = self._failures[name] = self._failures.get(name, 0) + 1
        if reason in FINAL or count >= MAX_FAILURES:
            self._off.add(name)
            self.capabilities[name] = reason
        else:  # it may answer next time; until it has, this is all that is known
            self.capabilities.setdefault(name, reason)

    # -- metrics that take more than one call ---------------------------------------------------
    def memory(self) -> Reading:
        """Memory in use."""
        return {"memory_bytes": int(memory(self._nvml, self.device).used)}

    def nvlink(self) -> Reading:
        """NVLink counters of all links, in bytes."""
        for sent, received, unit in (self._nvlink,) if self._nvlink else NVLINK:
            values = fields(self._nvml, self.device, [(sent, ALL_LINKS), (received, ALL_LINKS)])
            if None not in values:
                self._nvlink = (sent, received, unit)
                tx, rx = (int(v or 0) * unit for v in values)
                return {"nvlink_tx_bytes": tx, "nvlink_rx_bytes": rx}
        raise NoAnswerError("not_supported" if self._nvlink is None else "no_data")

    def pcie(self) -> Reading:
        """PCIe rates: from counters if there are any, which cost nothing.

        The older call looks at the bus for 20 ms, twice, which only our thread waits for.
        """
        if self._pcie_counted:
            try:
                return self._pcie_by_counter()
            except NoAnswerError as error:
                if error.reason in LOST:
                    raise
                self._pcie_counted = False
        sent, received = (
            int(self.ask("nvmlDeviceGetPcieThroughput", counter)) * KIB for counter in (0, 1)
        )
        return {"pcie_tx_bytes_s": float(sent), "pcie_rx_bytes_s": float(received)}

    def _pcie_by_counter(self) -> Reading:
        sent, received = fields(self._nvml, self.device, PCIE)
        if sent is None or received is None:
            raise NoAnswerError("not_supported")
        now = clock.mono()
        before, self._pcie_before = self._pcie_before, (now, sent, received)
        if before is None or now <= before[0] or sent < before[1] or received < before[2]:
            return {}  # the first look, or a counter that began anew
        seconds = (now - before[0]) / 1e9
        return {
            "pcie_tx_bytes_s": (sent - before[1]) / seconds,
            "pcie_rx_bytes_s": (received - before[2]) / seconds,
        }


def memory(nvml: Nvml, device: Device) -> Any:
    """NVML's memory record: of the second version, which leaves out what the driver keeps."""
    version = nvml.constant("nvmlMemory_v2", 0)
    if version:
        try:
            return nvml.call("nvmlDeviceGetMemoryInfo", device.handle, version)
        except NoAnswerError as error:
            if error.reason in LOST:
                raise
    return nvml.call("nvmlDeviceGetMemoryInfo", device.handle)


def _utilization(meter: Meter) -> Reading:
    rates = meter.ask("nvmlDeviceGetUtilizationRates")
    return {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}


def _throttle(meter: Meter) -> Reading:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    mask = int(meter.ask(names))
    signed = mask - (1 << 64) if mask >= 1 << 63 else mask  # the column is signed
    return {"throttle": signed, "throttle_names": throttle_names(mask)}


def _processes(meter: Meter) -> Reading:
    names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
    found = list(meter.ask(names))
    meter.pids = frozenset(int(p.pid) for p in found)
    return {"processes": len(found)}


def _scaled(
    column: str, scale: float, names: str | tuple[str, ...], *args: int
) -> Callable[[Meter], Reading]:
    def read(meter: Meter) -> Reading:
        return {column: float(meter.ask(names, *args)) * scale}

    return read


def _count(column: str, name: str, *args: int) -> Callable[[Meter], Reading]:
    def read(meter: Meter) -> Reading:
        return {column: int(meter.ask(name, *args))}

    return read


METRICS: dict[str, Callable[[Meter], Reading]] = {
    "utilization": _utilization,
    "memory": Meter.memory,
    "power": _scaled("power_w", 1e-3, "nvmlDeviceGetPowerUsage"),
    "energy": _scaled("energy_j", 1e-3, "nvmlDeviceGetTotalEnergyConsumption"),
    "temperature": _scaled(
        "temperature_c", 1, ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), 0
    ),
    "sm_clock": _scaled("sm_clock_mhz", 1, "nvmlDeviceGetClockInfo", 1),
    "memory_clock": _scaled("memory_clock_mhz", 1, "nvmlDeviceGetClockInfo", 2),
    "throttle": _throttle,
    "pcie": Meter.pcie,
    "nvlink": Meter.nvlink,
    "ecc_corrected": _count("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0),
    "ecc_uncorrected": _count("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0),
    "processes": _processes,
}
"""What is read, by the name under which capabilities speak of it."""
OF_INSTANCE = frozenset({"utilization", "memory", "processes"})
"""What a MIG instance has of its own. The rest is the whole GPU's, and would count twice."""
