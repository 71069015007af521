"""The node as a whole: processors, memory, local disks, network, and our control group.

Rates are means since the sample before, so the first sample has none. What the kernel does not
tell is left out. Only the collector comes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from badput import clock

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_LIMIT = 1 << 60
"""Control groups of version 1 write a number near 2**63 where there is no limit."""
_RDMA_WORD = 4
"""InfiniBand counts its data in units of four bytes."""


class Host:
    """Samples the node; ``sysfs`` and ``proc`` are elsewhere only in tests."""

    def __init__(self, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sysfs
        self._proc = proc
        self._before: dict[str, tuple[int, int]] = {}
        """By rate: when its counter was looked at, and the counter."""
        self.unknown: dict[str, str] = {}
        """What could not be read at the last sample, and the kind of error."""
        self._metrics: dict[str, Callable[[], dict[str, Any]]] = {
            "cpu": self._cpu,
            "load": self._load,
            "memory": self._memory,
            "disk": self._disk,
            "network": self._network,
            "rdma": self._rdma,
        }

    def read(self) -> dict[str, Any]:
        """One sample, each kind of metric guarded on its own."""
        row: dict[str, Any] = {"time_ns": clock.wall()}
        self.unknown = {}
        for name, metric in self._metrics.items():
            try:
                row |= metric()
            except Exception as error:  # noqa: BLE001 - one metric must not cost the others
                self.unknown[name] = type(error).__name__
        return row

    def _cpu(self) -> dict[str, Any]:
        import psutil

        first = "cpu" not in self._before
        self._before["cpu"] = (0, 0)
        share = psutil.cpu_percent(interval=None) / 100
        return {} if first else {"cpu": share}

    def _load(self) -> dict[str, Any]:
        import psutil

        return {"load_1m": psutil.getloadavg()[0]}

    def _memory(self) -> dict[str, Any]:
        import psutil

        found = psutil.virtual_memory()
        return {
            "memory_bytes": int(found.total - found.available),
            "memory_total_bytes": int(found.total),
        }

    def _disk(self) -> dict[str, Any]:
        import psutil

        every: dict[str, Any] = psutil.disk_io_counters(perdisk=True) or {}
        # Partitions and volumes are parts of disks, and loop devices are files on them.
        real = [v for name, v in every.items() if (self._sys / "block" / name / "device").exists()]
        if not real:
            return {}
        return {
            **self._rate("disk_read_bytes_s", sum(int(v.read_bytes) for v in real)),
            **self._rate("disk_write_bytes_s", sum(int(v.write_bytes) for v in real)),
        }

    def _network(self) -> dict[str, Any]:
        import psutil

        every = {n: v for n, v in psutil.net_io_counters(pernic=True).items() if n != "lo"}
        # Bonds, bridges and containers' ends count again what a card carries. Inside a
        # container there is no card.
        real = [
            v for n, v in every.items() if (self._sys / "class" / "net" / n / "device").exists()
        ]
        counted = real or list(every.values())
        if not counted:
            return {}
        return {
            **self._rate("net_sent_bytes_s", sum(int(v.bytes_sent) for v in counted)),
            **self._rate("net_received_bytes_s", sum(int(v.bytes_recv) for v in counted)),
        }

    def _rdma(self) -> dict[str, Any]:
        """InfiniBand and RoCE, which carry collectives past the network interfaces."""
        found: dict[str, Any] = {}
        for column, counter in (
            ("rdma_sent_bytes_s", "port_xmit_data"),
            ("rdma_received_bytes_s", "port_rcv_data"),
        ):
            ports = (self._sys / "class" / "infiniband").glob(f"*/ports/*/counters/{counter}")
            words = [count for port in ports if (count := _number(port)) is not None]
            if words:
                found |= self._rate(column, sum(words) * _RDMA_WORD)
        return found

    def _rate(self, column: str, counter: int) -> dict[str, float]:
        now = clock.mono()
        before = self._before.get(column)
        self._before[column] = (now, counter)
        if before is None or now <= before[0] or counter < before[1]:
            return {}
        return {column: (counter - before[1]) * 1e9 / (now - before[0])}

    # -- control groups -------------------------------------------------------------------------
    def control_group(self, pid: int | str = "self") -> dict[str, Any]:
        """Memory, its limit and the out-of-memory kills of the control group of ``pid``."""
        try:
            listed = (self._proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return {}
        for line in listed:
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            if controllers == "memory" or "memory" in controllers.split(","):
                return self._old_group(path)
        return self._group(next((ln[3:] for ln in listed if ln.startswith("0::")), "/"))

    def _group(self, path: str) -> dict[str, Any]:
        top = self._sys / "fs" / "cgroup"
        place = _below(top, path, "memory.current")
        if place is None:
            return {}
        limits: list[int] = []
        for folder in (place, *place.parents):
            limit = _number(folder / "memory.max")  # "max" is no number and no limit
            if limit is not None:
                limits.append(limit)
            if folder == top:
                break
        return _known(
            cgroup_memory_bytes=_number(place / "memory.current"),
            cgroup_limit_bytes=min(limits, default=None),
            oom_kills=_keyed(place / "memory.events", "oom_kill"),
        )

    def _old_group(self, path: str) -> dict[str, Any]:
        place = _below(self._sys / "fs" / "cgroup" / "memory", path, "memory.usage_in_bytes")
        if place is None:
            return {}
        own = _number(place / "memory.limit_in_bytes")
        whole = _keyed(place / "memory.stat", "hierarchical_memory_limit")
        limit = min((n for n in (own, whole) if n is not None), default=None)
        return _known(
            cgroup_memory_bytes=_number(place / "memory.usage_in_bytes"),
            cgroup_limit_bytes=None if limit is None or limit >= _NO_LIMIT else limit,
            oom_kills=_keyed(place / "memory.oom_control", "oom_kill"),
        )


def _below(top: Path, path: str, file: str) -> Path | None:
    """The group's folder; in a container its path may be the host's and the folder the top."""
    for place in (top / path.lstrip("/"), top):
        if (place / file).exists():
            return place
    return None


def _known(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _keyed(path: Path, key: str) -> int | None:
    """The number after ``key`` in a file of lines `key number`."""
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return None
    return None
