"""The GPUs of a node, sampled round by round. It lives in a thread of its own (telemetry.py)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput import clock
from badput.nvml import LOST, NoAnswerError, Nvml, describe_absence, reason_of
from badput.nvml_faults import Events, Fault, KernelLog, Told
from badput.nvml_metrics import Meter, memory, power_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput.nvml import Device

MAX_FAILURES = 5
"""Rounds in a row in which nothing answers, after which GPUs are sampled no more."""
OK = "ok"


@dataclass(slots=True)
class Round:
    """What one look at all GPUs gave."""

    mono_ns: int
    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    devices: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Rows of GPUs that are new, or of which something else can be read than before."""
    faults: list[Fault] = field(default_factory=list[Fault])


class Gpus:
    """All GPUs of the node. ``devices``, ``pids`` and ``state`` may be read by other threads."""

    def __init__(self, log: Callable[[str], None], kernel_log: str = "/dev/kmsg") -> None:
        self._log = log
        self._kernel_log = kernel_log
        self._nvml: Nvml | None = None
        self._meters: list[Meter] = []
        self._events: Events | None = None
        self._kernel: KernelLog | None = None
        self._told = Told()
        self._rows: dict[str, str] = {}
        self._known: dict[str, str | None] = {}
        """Every whole GPU ever seen and its PCI address: one that is missing later is lost."""
        self._failures = 0
        self._said: set[str] = set()
        self._open = False
        self._pid = 0
        self.state: str | None = None
        """``ok``, or why there is no GPU telemetry; None before the first look."""
        self.devices: tuple[Device, ...] = ()
        self.pids: dict[str, frozenset[int]] = {}
        """Processes that compute on each GPU."""

    def say(self, text: str) -> None:
        """One line in the log, once."""
        if text not in self._said:
            self._said.add(text)
            self._log(text)

    def sample(self) -> Round:
        """Read every GPU once. Whatever goes wrong is counted, and too much of it ends this."""
        found = Round(clock.mono())
        try:
            if not self._open or self._pid != os.getpid():
                self._begin(found)
            self._look(found)
        except BaseException as error:  # noqa: BLE001 - a C binding can raise anything
            self._failed(f"{type(error).__name__}: {error}")
        return found

    # -- opening --------------------------------------------------------------------------------
    def _begin(self, found: Round) -> None:
        self._open, self._pid = True, os.getpid()
        try:
            self._nvml = nvml = Nvml()
            devices = nvml.devices()
        except NoAnswerError as error:
            self._absent(error.reason)
            self._kernel = self._kernel or KernelLog((), self._kernel_log)
            return
        if "(hides " in nvml.library:
            self.say(f"NVML is read through {nvml.library}; uninstall the package pynvml")
        found.faults += self._missing(nvml, devices)
        self._meters = [Meter(nvml, device) for device in devices]
        self._events = Events(nvml, devices)
        self._kernel = KernelLog(devices, self._kernel_log)
        self.devices = tuple(devices)
        if devices:
            self.state = OK
            self._known |= {d.uuid: d.bus for d in devices if d.parent is None}
        elif nvml.broken:
            self._absent(nvml.broken[0][1])
        else:
            self._absent("no_gpu")

    def _absent(self, reason: str) -> None:
        if self.state is None or self.state == OK:
            self.state = reason
        self.say(f"no GPU telemetry: {describe_absence(reason, os.environ)}; all else is recorded")
        if self._nvml is not None and not self._nvml.broken:
            self._nvml.close()
            self._nvml = None

    def _missing(self, nvml: Nvml, devices: list[Device]) -> list[Fault]:
        """GPUs that do not answer from the start, or that an earlier look has shown."""
        there = {d.uuid for d in devices}
        gone = [Fault("gpu_lost", uuid, clock.wall(), {"reason": "not_listed", "pci_bus_id": bus})
                for uuid, bus in self._known.items() if uuid not in there]  # fmt: skip
        named = len(gone)
        for number, reason in nvml.broken[named:]:
            if reason in LOST:
                attrs = {"reason": reason, "number": number}
                gone.append(Fault("gpu_lost", None, clock.wall(), attrs))
        return [fault for fault in gone if self._told.new(fault)]

    # -- a round --------------------------------------------------------------------------------
    def _look(self, found: Round) -> None:
        answered = not self._meters
        for meter in list(self._meters):
            row = meter.read()
            if meter.lost is not None:
                self._lose(meter, found)
                continue
            answered |= meter.answered
            if meter.answered:
                found.samples.append(row)
            self._describe(meter, found)
        if answered:
            self._failures = 0
        elif self._meters:
            self._failed("no metric of any GPU answers")
        self.pids = {m.device.uuid: m.pids for m in self._meters}
        for witness in (self._events, self._kernel):
            if witness is not None:
                found.faults += [f for f in witness.faults() if self._told.new(f)]

    def _lose(self, meter: Meter, found: Round) -> None:
        """Ask a lost GPU and its MIG instances no more; the others go on."""
        device = meter.device
        self._meters = [
            m for m in self._meters if device.uuid not in (m.device.uuid, m.device.parent)
        ]
        attrs = {"reason": meter.lost, "pci_bus_id": device.bus, "source": "nvml"}
        uuid = device.parent or device.uuid
        fault = Fault("gpu_lost", uuid, clock.wall(), attrs)
        if self._told.new(fault):
            found.faults.append(fault)
            self.say(f"GPU {uuid} is lost ({meter.lost}); the others are sampled on")

    def _failed(self, why: str) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES and self.state != "off":
            self.state = "off"
            self.say(f"GPUs are sampled no more after {self._failures} failures; the last: {why}")
            self._meters = []

    def _describe(self, meter: Meter, found: Round) -> None:
        """A row for `devices`, once, and again only if something else can be read."""
        device, nvml = meter.device, self._nvml
        can = dict(sorted({**meter.capabilities, **self._xid()}.items()))
        written = json.dumps(can)
        if nvml is None or self._rows.get(device.uuid) == written:
            return
        self._rows[device.uuid] = written
        row: dict[str, Any] = {
            "gpu_uuid": device.uuid,
            "time_ns": clock.wall(),
            "name": device.name,
            "number": device.number,
            "pci_bus_id": device.bus,
            "parent_uuid": device.parent,
            "driver": nvml.driver,
            "library": nvml.library,
            "power_kind": power_kind(nvml, device),
            "capabilities": written,
        }
        for column, ask in (
            ("memory_bytes", lambda: int(memory(nvml, device).total)),
            ("power_limit_w", lambda: int(meter.ask("nvmlDeviceGetEnforcedPowerLimit")) / 1000),
        ):
            try:
                row[column] = ask()
            except BaseException as error:  # noqa: BLE001 - as for every metric
                reason_of(error)
        found.devices.append(row)

    def _xid(self) -> dict[str, str]:
        """Where Xid errors can be heard. Nowhere: that none came says nothing."""
        found: dict[str, str] = {}
        if self._events is not None:
            found["xid_events"] = self._events.capability
        if self._kernel is not None:
            found["xid_kernel_log"] = self._kernel.capability
        return found

    def close(self) -> None:
        """Let go of the driver; the next sample opens it again. Off stays off."""
        for witness in (self._events, self._kernel):
            if witness is not None:
                witness.close()
        if self._nvml is not None:
            self._nvml.close()
        self._events, self._kernel, self._nvml = None, None, None
        self._meters = []
        self._rows.clear()
        self._open = self.state == "off"
