"""NVML by way of whatever binding is installed: found, opened, asked by feature test.

Bindings and drivers differ: text comes as str or bytes or cannot be decoded at all, functions
are renamed or missing, and any call may be refused on this GPU. Everything here either gives an
answer or one word that says why there is none (``REASONS``). Only the collector's sampling
thread comes here, never a training process, and an opened library answers only to the process
that opened it: NVML does not outlive a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINDING = "nvidia-ml-py"
"""The vendor's own distribution. An older one, `pynvml`, may lie in front of it."""

REASONS = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    9: "driver_not_loaded",
    10: "timeout",
    12: "library_not_found",
    13: "no_function",
    14: "corrupted_inforom",
    15: "gpu_lost",
    16: "reset_required",
    17: "operating_system",
    18: "driver_library_mismatch",
    19: "in_use",
    20: "no_memory",
    21: "no_data",
    25: "version_mismatch",
    26: "deprecated",
    27: "not_ready",
    28: "gpu_not_found",
    999: "unknown_error",
}
"""NVML's return codes as words. Others become ``error_N``."""

LOST = frozenset({"gpu_lost", "reset_required", "gpu_not_found"})
"""What a GPU answers that is there no more."""

FINAL = frozenset(
    {"not_supported", "no_function", "no_permission", "version_mismatch", "deprecated"}
)
"""Answers that asking again does not change."""

MAX_MIG = 32
"""MIG instances looked for on one GPU; there are 7 at most today."""


class NoAnswerError(Exception):
    """NVML, or the binding, has no answer; ``reason`` says why in one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """Why a call gave nothing, in one word, whatever the binding raised."""
    if isinstance(error, NoAnswerError):
        return error.reason
    value = getattr(error, "value", None)
    if isinstance(value, int):
        return REASONS.get(value, f"error_{value}")
    if isinstance(error, UnicodeDecodeError):
        return "undecodable"
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return "no_function"
    return f"failed_{type(error).__name__}"


def text(value: object) -> str | None:
    """Text of a binding that gives str or bytes; None if it is empty or neither."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value.strip("\0 ") or None if isinstance(value, str) else None


def pci(value: object) -> str | None:
    """A PCI address as ``0000:3b:00``, however long its domain is written; None if it is none."""
    written = (text(value) or "").lower().partition(".")[0].split(":")
    if len(written) == 2:
        written = ["0", *written]
    try:
        domain, bus, device = (int(part, 16) for part in written)
    except ValueError:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one MIG instance of a GPU."""

    handle: Any
    number: int
    """NVML's index: of no meaning to CUDA."""
    uuid: str
    """``PCI-`` and the address where the driver tells no UUID."""
    name: str | None = None
    bus: str | None = None
    """PCI address in the form of ``pci``."""
    parent: str | None = None
    """UUID of the GPU that a MIG instance is part of."""
    instance: tuple[int, int] | None = None
    """GPU instance and compute instance of a MIG instance."""
    unknown: tuple[tuple[str, str], ...] = ()
    """What could not be told of it, and why: ``(("name", "undecodable"),)``."""


def load() -> tuple[Any, str]:
    """The binding and the distribution that it comes from. Raises NoAnswerError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old package says on import that it is old
            module = importlib.import_module("pynvml")
    except Exception as error:
        raise NoAnswerError("no_binding") from error
    return module, distribution_of(module)


def distribution_of(module: Any) -> str:
    """Distribution and version that ``module`` was installed by, and whether it hides the vendor's.

    Two distributions may both be there, and the one that wrote its files last has won.
    """
    place = Path(getattr(module, "__file__", None) or ".").resolve()
    found: str | None = None
    vendor: str | None = None
    for name in (BINDING, "pynvml", "nvidia-ml-py3"):
        try:
            there = metadata.distribution(name)
            said = f"{name} {there.version}"
            files = [Path(str(there.locate_file(f))).resolve() for f in there.files or ()]
        except Exception:  # noqa: BLE001, S112 - broken metadata is no reason to go without
            continue
        vendor = said if name == BINDING else vendor
        if found is None and place in files:
            found = said
    if found is None:
        found = f"pynvml {getattr(module, '__version__', 'of unknown version')}"
    hidden = vendor is not None and not found.startswith(BINDING)
    return f"{found} (hides {vendor})" if hidden else found


class Nvml:
    """An opened NVML. Raises NoAnswerError when made, if it cannot be opened."""

    def __init__(self) -> None:
        self.module, self.library = load()
        self._pid = os.getpid()
        self.call("nvmlInit")
        self.driver = self._said("nvmlSystemGetDriverVersion")
        self.broken: list[tuple[int, str]] = []
        """Places of GPUs that exist and did not answer, with the reason."""

    def call(self, names: str | tuple[str, ...], *args: Any) -> Any:
        """Ask the first of ``names`` that binding and library have. Raises NoAnswerError.

        Whatever the binding raises counts as no answer: a C library can raise anything.
        """
        if os.getpid() != self._pid:
            raise NoAnswerError("forked")
        cause: BaseException | None = None
        for name in (names,) if isinstance(names, str) else names:
            function = getattr(self.module, name, None)
            if function is None:
                continue
            try:
                return function(*args)
            except BaseException as error:  # noqa: BLE001 - of a C library, not of a program
                cause = error
            if reason_of(cause) != "no_function":
                break
        raise NoAnswerError("no_function" if cause is None else reason_of(cause)) from cause

    def constant(self, name: str, default: int) -> int:
        """A constant of the binding, or what it has always been."""
        value = getattr(self.module, name, default)
        return value if isinstance(value, int) else default

    def _said(self, name: str, *args: Any) -> str | None:
        try:
            return text(self.call(name, *args))
        except NoAnswerError:
            return None

    def devices(self) -> list[Device]:
        """All GPUs, and after each its MIG instances. Raises NoAnswerError if none can be counted.

        One that does not answer is left out and noted in ``broken``.
        """
        self.broken = []
        found: list[Device] = []
        for number in range(int(self.call("nvmlDeviceGetCount"))):
            try:
                handle = self.call("nvmlDeviceGetHandleByIndex", number)
                device = self._describe(handle, number, None)
            except NoAnswerError as error:
                self.broken.append((number, error.reason))
                continue
            found += [device, *self._instances(device)]
        return found

    def _describe(self, handle: Any, number: int, parent: Device | None) -> Device:
        unknown: list[tuple[str, str]] = []

        def ask(what: str, names: str | tuple[str, ...]) -> Any:
            try:
                return self.call(names, handle)
            except NoAnswerError as error:
                if error.reason in LOST:
                    raise
                unknown.append((what, error.reason))
                return None

        place = parent.bus if parent else None
        if parent is None:
            info = ask("pci_bus_id", ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3"))
            place = pci(getattr(info, "busId", None)) or pci(getattr(info, "busIdLegacy", None))
        uuid = text(ask("gpu_uuid", "nvmlDeviceGetUUID"))
        if uuid is None:
            if place is None or parent is not None:
                raise NoAnswerError("nameless")
            uuid = f"PCI-{place}"
        instance = None
        if parent is not None:
            ids = (
                ask("instance", "nvmlDeviceGetGpuInstanceId"),
                ask("instance", "nvmlDeviceGetComputeInstanceId"),
            )
            instance = ids if None not in ids else None
        return Device(
            handle,
            number,
            uuid,
            text(ask("name", "nvmlDeviceGetName")),
            place,
            parent.uuid if parent else None,
            instance,
            tuple(unknown),
        )

    def _instances(self, device: Device) -> list[Device]:
        """MIG instances of a GPU; none where MIG is off or unknown to driver or binding."""
        found: list[Device] = []
        try:
            mode: Sequence[int] = self.call("nvmlDeviceGetMigMode", device.handle)
            if not mode[0]:
                return []
            most = int(self.call("nvmlDeviceGetMaxMigDeviceCount", device.handle))
        except (NoAnswerError, IndexError, TypeError):
            return []
        for number in range(min(most, MAX_MIG)):
            try:
                handle = self.call("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, number)
                found.append(self._describe(handle, number, device))
            except NoAnswerError:  # no instance in this place
                continue
        return found

    def close(self) -> None:
        """Let go of the driver; errors do not matter any more."""
        with contextlib.suppress(NoAnswerError):
            self.call("nvmlShutdown")


def describe_absence(reason: str, environment: Mapping[str, str]) -> str:
    """The sentence for somebody who wonders why there is no GPU telemetry."""
    if reason in ("library_not_found", "driver_not_loaded", "no_gpu") and (
        Path("/dev/kfd").exists()
        or any(environment.get(n) for n in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    ):
        return "AMD GPUs are not sampled"
    return {
        "library_not_found": "no NVIDIA driver here (libnvidia-ml.so.1 was not found)",
        "driver_not_loaded": "the NVIDIA driver is not loaded",
        "driver_library_mismatch": "NVIDIA driver and library have different versions (18); "
        "a container brings the library of another driver, or the driver was updated",
        "no_binding": f"the package {BINDING} cannot be imported",
        "no_gpu": "the driver shows no GPU",
        "no_permission": "the driver refuses this user",
    }.get(reason, f"NVML does not open: {reason}")
