"""Faults that a GPU reports by itself: Xid errors, and GPUs that fell off the bus.

Two witnesses, either of which may be out of reach: NVML's events, and the kernel's log. What
both report, or one of them again within minutes, is one fault. Hearing nothing is not health:
where neither can be heard, ``capability`` says so.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput import clock
from badput.nvml import LOST, NoAnswerError, pci

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from badput.nvml import Device, Nvml

XID_EVENT = 0x8
REPEAT_S = 300
"""Within this time the same fault of the same GPU is the one already told."""
MOST = 64
"""Faults taken in at one look; a storm of them must not become a storm of ours."""
FELL_OFF = 79
"""The Xid that says that the GPU has fallen off the bus."""
_NO_INSTANCE = 0xFFFFFFFF

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_GPU = re.compile(r"NVRM:.*?\bGPU (?:at PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")
_FALLEN = re.compile(r"NVRM:.*fallen off the bus")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one GPU."""

    kind: str
    """xid or gpu_lost: the kind of the event."""
    uuid: str | None
    time_ns: int
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])


class Told:
    """Which faults have been told of late."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, object, object], int] = {}

    def new(self, fault: Fault) -> bool:
        """True if ``fault`` is not a repetition."""
        attrs = fault.attrs
        place = fault.uuid or attrs.get("pci_bus_id") or attrs.get("number")
        # A loss is one loss whatever its wording; Xids of different codes are different.
        key = (fault.kind, place, attrs.get("xid") if fault.kind == "xid" else None)
        now = clock.mono()
        before = self._at.get(key)
        self._at[key] = now
        return before is None or now - before > REPEAT_S * 1_000_000_000


class Events:
    """NVML's own events."""

    def __init__(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._devices = [d for d in devices if d.parent is None]
        self.capability = "ok"
        try:
            self._set = nvml.call("nvmlEventSetCreate")
            for device in self._devices:
                try:
                    nvml.call("nvmlDeviceRegisterEvents", device.handle, XID_EVENT, self._set)
                except NoAnswerError as error:
                    if error.reason not in LOST:
                        raise
        except NoAnswerError as error:
            self.close()
            self.capability = error.reason

    def faults(self) -> Iterator[Fault]:
        """What has come since the last look; returns at once."""
        for _ in range(MOST):
            if self._set is None:
                return
            try:
                data = self._nvml.call(("nvmlEventSetWait_v2", "nvmlEventSetWait"), self._set, 0)
            except NoAnswerError as error:
                if error.reason != "timeout":  # lost GPUs and the like: the other witness remains
                    self.close()
                    self.capability = error.reason
                return
            if data.eventType & XID_EVENT:
                yield self._fault(data)

    def _fault(self, data: Any) -> Fault:
        attrs: dict[str, Any] = {"xid": int(data.eventData), "source": "nvml"}
        for name, value in (
            ("gpu_instance", data.gpuInstanceId),
            ("compute_instance", data.computeInstanceId),
        ):
            if value != _NO_INSTANCE:
                attrs[name] = int(value)
        return Fault("xid", self._uuid(data.device), clock.wall(), attrs)

    def _uuid(self, handle: Any) -> str | None:
        """The device of an event: the same pointer in another object."""
        wanted = _address(handle)
        return next((d.uuid for d in self._devices if _address(d.handle) == wanted), None)

    def close(self) -> None:
        """Give the set back."""
        if self._set is not None:
            given, self._set = self._set, None
            with contextlib.suppress(NoAnswerError):
                self._nvml.call("nvmlEventSetFree", given)


def _address(handle: Any) -> object:
    import ctypes

    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (TypeError, ctypes.ArgumentError):
        return handle


class KernelLog:
    """The kernel's log, from now on; ``capability`` says whether it can be read."""

    def __init__(self, devices: Sequence[Device], path: str = "/dev/kmsg") -> None:
        self._uuids = {d.bus: d.uuid for d in devices if d.parent is None and d.bus}
        self._fd: int | None = None
        self._named: str | None = None
        """The GPU that the lines before were about: one message may come in several lines."""
        self.capability = "ok"
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            refused = isinstance(error, PermissionError)
            self.capability = "no_permission" if refused else "no_kernel_log"

    def faults(self) -> Iterator[Fault]:
        """What has come since the last look; returns at once."""
        found = 0
        while self._fd is not None and found < MOST:
            try:
                record = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # some records were overwritten before we came
                continue
            except OSError:
                self.close()
                return
            if not record:
                return
            for line in record.decode("utf-8", "replace").splitlines():
                for fault in self.parse(line):
                    found += 1
                    yield fault

    def parse(self, line: str) -> Iterator[Fault]:
        """Faults in one record of the log."""
        if "NVRM" not in line:
            return
        head, _, message = line.partition(";")
        written = (message or line).replace("\\x0a", " ")
        time_ns = _time(head) if message else clock.wall()
        xid = _XID.search(written)
        if xid:
            code = int(xid[2])
            yield from self._fault("xid", xid[1], time_ns, {"xid": code})
            if code == FELL_OFF:
                yield from self._fault("gpu_lost", xid[1], time_ns, {"xid": code})
            return
        named = _GPU.search(written)
        if named:
            self._named = named[1]
        if _FALLEN.search(written) and self._named is not None:
            given, self._named = self._named, None
            yield from self._fault("gpu_lost", given, time_ns, {"reason": "fallen off the bus"})

    def _fault(self, kind: str, place: str, time_ns: int, attrs: dict[str, Any]) -> Iterator[Fault]:
        bus = pci(place)
        uuid = self._uuids.get(bus or "")
        if self._uuids and uuid is None:
            return  # somebody else's GPU
        yield Fault(kind, uuid, time_ns, {**attrs, "pci_bus_id": bus, "source": "kernel_log"})

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            given, self._fd = self._fd, None
            os.close(given)


def _time(head: str) -> int:
    """Epoch ns of a record of /dev/kmsg: ``priority,number,microseconds since boot,flags``."""
    try:
        return clock.wall() - clock.mono() + int(head.split(",")[2]) * 1000
    except (IndexError, ValueError):
        return clock.wall()
