"""Which GPU a rank computes on, as far as its environment says, and how sure that is.

CUDA and NVML number GPUs differently: CUDA by guessed speed unless CUDA_DEVICE_ORDER says
PCI_BUS_ID, NVML by an order that may change with every boot. So a number alone is a guess, and
is called one; what joins the two is the UUID, else the PCI address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from badput.nvml import Device

SINGLE, UUID, PCI, UNVERIFIED = "single", "uuid", "pci", "unverified"
UNRESOLVED, NONE = "unresolved", "none"
"""How a rank was tied to a GPU. single: it sees no other; uuid, pci: by the entry that its local
rank picks from a list of UUIDs, or from numbers in PCI order; unverified: from numbers whose
order is CUDA's guess; unresolved: it has a GPU, which one is not known; none: it has none."""

AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_NUMBER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs that a process sees, in CUDA's order."""

    uuids: tuple[str, ...] | None
    """None: not known."""
    how: str
    """uuid, pci, unverified, unresolved or none."""


@dataclass(frozen=True, slots=True)
class Found:
    """A rank's GPU."""

    uuid: str | None
    how: str


def visible(environment: Mapping[str, str] | None, devices: Sequence[Device]) -> Visible:
    """The GPUs that a process with these variables sees. ``environment`` None: not recorded.

    An empty list hides all GPUs, which is not the same as no list. CUDA stops at the first
    entry that means nothing, and takes a list that names a GPU twice for an empty one.
    """
    if environment is None:
        return Visible(None, UNRESOLVED)
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    amd = next((environment[name] for name in AMD if name in environment), None)
    if listed is None and amd is not None:
        hides_all = not amd.strip() or amd.strip().startswith("-")
        return Visible((), NONE) if hides_all else Visible(None, UNRESOLVED)
    if listed is None:
        whole, how = _in_order(environment, devices)
        return _with_instances(whole, how, devices) if devices else Visible(None, UNRESOLVED)
    entries = [entry.strip() for entry in listed.split(",")]
    if entries[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(entries, devices)
    return _by_number(entries, environment, devices)


def _by_uuid(entries: list[str], devices: Sequence[Device]) -> Visible:
    kind = entries[0][:4]
    chosen: list[str] = []
    for entry in entries:
        if not entry.startswith(kind):
            break
        uuid = _match(entry, devices)
        if uuid is None:
            # CUDA would stop here; but what NVML does not show us may well be there.
            return Visible(tuple(chosen), UUID) if chosen else Visible(None, UNRESOLVED)
        if uuid in chosen:
            return Visible((), NONE)
        chosen.append(uuid)
        if kind == "MIG-":  # a process gets one MIG instance, whatever it lists
            break
    if kind == "GPU-" and _instances_of(chosen, devices):
        return _with_instances([d for d in devices if d.uuid in chosen], UUID, devices)
    return Visible(tuple(chosen), UUID)


def _match(entry: str, devices: Sequence[Device]) -> str | None:
    """The one device that ``entry`` names, which may be cut short."""
    old = re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)", entry)
    if old:
        place = (int(old[2]), int(old[3]))
        of = [
            d.uuid
            for d in devices
            if d.uuid == entry
            or (d.parent is not None and d.parent.startswith(old[1]) and d.instance == place)
        ]
    else:
        of = [d.uuid for d in devices if d.uuid == entry] or [
            d.uuid for d in devices if d.uuid.lower().startswith(entry.lower())
        ]
    return of[0] if len(of) == 1 and len(entry) > 4 else None


def _by_number(
    entries: list[str], environment: Mapping[str, str], devices: Sequence[Device]
) -> Visible:
    numbers: list[int] = []
    for entry in entries:
        match = _NUMBER.match(entry)  # CUDA reads `1gpu` as 1
        if match is None or int(match[0]) < 0:
            break
        if int(match[0]) in numbers:
            return Visible((), NONE)
        numbers.append(int(match[0]))
    if not numbers:
        return Visible((), NONE)
    whole, how = _in_order(environment, devices)
    if whole is None or max(numbers) >= len(whole):
        return Visible(None, UNRESOLVED)
    return _with_instances([whole[n] for n in numbers], how, devices)


def _in_order(
    environment: Mapping[str, str], devices: Sequence[Device]
) -> tuple[list[Device] | None, str]:
    """Whole GPUs in CUDA's order, and how sure that is; None where it cannot be guessed."""
    whole = [d for d in devices if d.parent is None]
    if len(whole) <= 1:
        return whole, UUID
    if any(d.bus is None for d in whole):
        return whole, UNVERIFIED
    ordered = sorted(whole, key=lambda d: d.bus or "")
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ordered, PCI
    if len({d.name for d in whole}) == 1:  # equals are numbered by place, as far as is known
        return ordered, UNVERIFIED
    return None, UNRESOLVED


def _instances_of(uuids: Sequence[str], devices: Sequence[Device]) -> list[str]:
    return [d.uuid for d in devices if d.parent is not None and d.parent in uuids]


def _with_instances(chosen: list[Device] | None, how: str, devices: Sequence[Device]) -> Visible:
    """A GPU that is divided by MIG gives a process one of its instances, and says not which."""
    if chosen is None:
        return Visible(None, UNRESOLVED)
    uuids = [d.uuid for d in chosen]
    inside = _instances_of(uuids, devices)
    if not inside:
        return Visible(tuple(uuids), how)
    return Visible((inside[0],), UUID if len(inside) == 1 else UNVERIFIED)


def resolve(
    environment: Mapping[str, str] | None, local_rank: int | None, devices: Sequence[Device]
) -> Found:
    """The GPU of the rank ``local_rank`` of its node. Never raises.

    By custom the local rank picks from the GPUs that a rank sees; where it sees one, it is that.
    """
    seen = visible(environment, devices)
    if seen.uuids is None:
        return Found(None, UNRESOLVED)
    if not seen.uuids:
        return Found(None, NONE)
    if len(seen.uuids) == 1:
        return Found(seen.uuids[0], SINGLE if seen.how == UUID else seen.how)
    if local_rank is None or not 0 <= local_rank < len(seen.uuids):
        return Found(None, UNRESOLVED)
    return Found(seen.uuids[local_rank], seen.how)
