"""Ranks and their GPUs: which rank computes on which, and who is told what befalls a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput import clock
from badput.nvml_map import NONE, UNRESOLVED, Found, Visible, resolve, visible
from badput.telemetry_gpu import OK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from badput.collector import Tended
    from badput.nvml_faults import Fault
    from badput.telemetry_gpu import Gpus

RETRY_S = 5.0
"""Pause after an event that could not be written."""
MOST = 1000
"""Events that wait to be written, at most."""
BY_PID = "pid"
"""The driver lists the rank's process on this GPU and on no other."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace, whose numbers the driver gives."""
_NOT_THERE = frozenset({"library_not_found", "driver_not_loaded", "no_gpu", "no_binding"})


@dataclass(slots=True)
class Rank:
    """What is known of the GPU of one rank."""

    found: Found
    seen: Visible
    told: Found | None = None


def pids_mean_something() -> bool:
    """Are process numbers here those that the driver knows?"""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE  # noqa: PTH116
    except OSError:
        return False


class Ranks:
    """The ranks that live here, by the name of their spool."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._ranks: dict[str, Rank] = {}
        self._waiting: list[tuple[str, str, int, dict[str, Any]]] = []
        self._due: dict[str, float] = {}
        self._pids_count = pids_mean_something()

    def follow(self, alive: Mapping[str, Tended]) -> None:
        """Find the GPU of each rank, once it is known which there are."""
        for gone in self._ranks.keys() - alive.keys():
            del self._ranks[gone]
            self._due.pop(gone, None)
        if self._gpus.state is None:
            return
        for name, tended in alive.items():
            facts = tended.drain.facts
            if facts["process"].get("role") == "launcher":
                continue
            rank = self._ranks.get(name)
            if rank is None or (rank.seen.uuids is None and self._gpus.state == OK):
                rank = self._ranks[name] = self._look(facts, rank)
            self._see_process(rank, facts)
            self._note(name, rank, facts)

    def _look(self, facts: Mapping[str, Any], before: Rank | None) -> Rank:
        devices = self._gpus.devices
        local = facts["process"].get("local_rank")
        found = resolve(facts.get("gpus"), local, devices)
        seen = visible(facts.get("gpus"), devices)
        if before is not None:
            found = before.found if found.uuid is None else found
        return Rank(found, seen, before.told if before else None)

    def _see_process(self, rank: Rank, facts: Mapping[str, Any]) -> None:
        """The driver's own list of processes is better evidence than any environment."""
        pid = facts["process"].get("pid")
        if not self._pids_count or rank.found.how == BY_PID or rank.seen.uuids == ():
            return
        on = {uuid for uuid, pids in self._gpus.pids.items() if pid in pids}
        on -= {d.parent for d in self._gpus.devices if d.uuid in on and d.parent}
        if len(on) == 1:
            rank.found = Found(on.pop(), BY_PID)

    def _note(self, name: str, rank: Rank, facts: Mapping[str, Any]) -> None:
        """Let the books know, once, and again if it is known better."""
        if rank.told == rank.found:
            return
        rank.told = rank.found
        state = self._gpus.state
        if state in _NOT_THERE and facts["process"].get("gpu_type") == "cpu":
            return  # its first row says all there is to say
        attrs: dict[str, Any] = {
            "gpu_uuid": rank.found.uuid,
            "gpu_type": self._type(rank.found),
            "mapping": rank.found.how,
        }
        if state != OK:
            attrs["reason"] = state
        self._queue(name, "device", clock.wall(), attrs)

    def _type(self, found: Found) -> str | None:
        """The GPU's name; where it is not known which one, that of all if they are equal."""
        if found.how == NONE:
            return "cpu"
        devices = self._gpus.devices
        names = {d.name for d in devices if d.uuid == found.uuid} or {
            d.name for d in devices if d.parent is None
        }
        return names.pop() if len(names) == 1 else None

    def wanted(self, run: str, scope: str, alive: Mapping[str, Tended]) -> frozenset[str] | None:
        """The GPUs whose samples a run gets; None: all of the node."""
        if scope == "all":
            return None
        chosen: set[str] = set()
        for name, tended in alive.items():
            if tended.drain.run != run:
                continue
            rank = self._ranks.get(name)
            if rank is None:
                if tended.drain.facts["process"].get("role") == "launcher":
                    continue
                return None
            if scope == "own" and rank.found.how != UNRESOLVED:
                chosen |= {rank.found.uuid} if rank.found.uuid else set()
            elif rank.seen.uuids is None:
                return None  # it is not known which, and unknown is not none
            else:
                chosen |= set(rank.seen.uuids)
        # Power and energy are the whole GPU's, also where a rank has a part of it.
        chosen |= {d.parent for d in self._gpus.devices if d.uuid in chosen and d.parent}
        return frozenset(chosen)

    # -- telling --------------------------------------------------------------------------------
    def fault(self, fault: Fault, alive: Mapping[str, Tended]) -> None:
        """Tell the ranks whose GPU it is; all of them where that is not known."""
        parts = {d.uuid for d in self._gpus.devices if fault.uuid in (d.uuid, d.parent)}
        hit = [n for n, rank in self._ranks.items() if n in alive and rank.found.uuid in parts]
        for name in hit or list(alive):
            step = alive[name].drain.phase()[0]
            attrs = {"gpu_uuid": fault.uuid, **fault.attrs, "step": step}
            self._queue(name, fault.kind, fault.time_ns, attrs)

    def _queue(self, name: str, kind: str, time_ns: int, attrs: dict[str, Any]) -> None:
        if len(self._waiting) < MOST:
            self._waiting.append((name, kind, time_ns, attrs))

    def tell(self, alive: Mapping[str, Tended], now: float) -> None:
        """Write what waits. A run folder that refuses is asked again later; others go on."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            name, kind, time_ns, attrs = event
            if name not in alive:
                continue
            if now < self._due.get(name, 0.0):
                self._waiting.append(event)
                continue
            try:
                alive[name].drain.tell(kind, time_ns, attrs)
            except OSError:
                self._due[name] = now + RETRY_S
                self._waiting.append(event)
