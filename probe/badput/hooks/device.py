"""Device time of each step from CUDA events, without ever waiting for the device.

Once the program has initialised CUDA, the class of the step object changes to one that records
an event of the current stream at its begin and its end. Later steps ask, without blocking, which
of them the device has passed. Where CUDA is not initialised nothing of this happens.
"""

from __future__ import annotations

from collections import deque

from badput import clock
from badput import layout as lo
from badput.hooks.base import Hook, guarded, live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from badput.recorder import Recorder
    from badput.steps import Log, Step

_MAX_WAITING = 256
"""Steps whose events the device has not passed; beyond that their time stays unknown."""
_AT_ONCE = 4
"""Events asked for at each step."""
_ROWS, _AGE_NS = 100, 5_000_000_000
"""A record is written with so many steps, or when its first is so old."""
_now = clock.mono


def timed(plain: type[Step]) -> type[Step]:
    """The class of a step object with a CUDA event at either end: same slots, same behaviour."""

    class Timed(plain):
        __slots__ = ()

        def __enter__(self) -> Log:
            view = plain.__enter__(self)
            _step_begins()
            return view

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            _step_ends(kind is None, self.number)
            plain.__exit__(self, kind, error, trace)

    return Timed


class DeviceHook(Hook):
    """Pooled events, those that the device still has to pass, and times not written yet."""

    def __init__(self) -> None:
        self._torch: Any = None
        self.clear()

    def clear(self) -> None:
        """Forget all events."""
        self._pool: list[tuple[Any, Any]] = []
        self._open: tuple[Any, Any] | None = None
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._steps: list[int] = []
        self._times: list[int] = []
        self._since = 0
        self._told = False
        self._plain: type[Step] | None = None

    def begin(self, process: dict[str, Any]) -> None:
        """A new recorder, and perhaps another process."""
        self.clear()

    def attach(self, module: str, found: Any) -> None:
        """CUDA may be initialised already, as with a late ``init``."""
        self._torch = found
        rec = live()
        if rec is not None:
            self.look(rec)

    def detach(self) -> None:
        """Write what is known by now; nothing is waited for."""
        rec = live()
        if rec is not None:
            self._ask(len(self._waiting))
            self.flush(rec)
            if self._plain is not None:
                _use(rec, self._plain)
        self.clear()

    def look(self, rec: Recorder) -> None:
        """Has the program initialised CUDA by now? Nothing here does."""
        torch = self._torch
        if self._told or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return
        self._told = True
        self._plain = type(rec.step)
        _use(rec, timed(self._plain))
        _tell_device(rec, torch)

    # -- steps ------------------------------------------------------------------------------
    def step_begins(self) -> None:
        """Record the first event, unless a graph is being captured or too many wait."""
        cuda = self._torch.cuda
        self._open = None
        if len(self._waiting) >= _MAX_WAITING:
            self._ask(_AT_ONCE)
            return
        if cuda.is_current_stream_capturing():
            return
        pair = self._pool.pop() if self._pool else (_event(cuda), _event(cuda))
        pair[0].record()
        self._open = pair

    def step_ends(self, finished: bool, number: int) -> None:
        """Record the second event and ask for earlier ones."""
        pair, self._open = self._open, None
        rec = live()
        if rec is None or self._torch.cuda.is_current_stream_capturing():
            return
        if pair is not None:
            if finished:
                pair[1].record()
                self._waiting.append((number, *pair))
            else:
                self._pool.append(pair)
        self._ask(_AT_ONCE)
        if self._steps and (len(self._steps) >= _ROWS or _now() - self._since > _AGE_NS):
            self.flush(rec)

    def _ask(self, most: int) -> None:
        for _ in range(min(most, len(self._waiting))):
            number, start, end = self._waiting[0]
            if not (end.query() and start.query()):
                return
            self._waiting.popleft()
            self._pool.append((start, end))
            if not self._steps:
                self._since = _now()
            self._steps.append(number)
            self._times.append(max(0, round(start.elapsed_time(end) * 1e6)))

    def flush(self, rec: Recorder) -> None:
        """Write the times that are known."""
        while self._steps:
            steps, times = self._steps[: lo.MAX_ROWS], self._times[: lo.MAX_ROWS]
            del self._steps[: lo.MAX_ROWS], self._times[: lo.MAX_ROWS]
            rec.append(lo.DEVICE, {"s": steps, "d": times})


def _use(rec: Recorder, kind: type[Step]) -> None:
    """Make the step object one of this class."""
    step: Any = rec.step
    step.__class__ = kind


def _event(cuda: Any) -> Any:
    return cuda.Event(enable_timing=True)


HOOK = DeviceHook()


@guarded("cuda.step begins")
def _step_begins() -> None:
    HOOK.step_begins()


@guarded("cuda.step ends")
def _step_ends(finished: bool, number: int) -> None:
    HOOK.step_ends(finished, number)


@guarded("cuda.device")
def _tell_device(rec: Recorder, torch: Any) -> None:
    """Which GPU this process has; from what torch already holds of it."""
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "") or "")
    domain, bus, slot = (
        getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")
    )
    attrs = {
        "gpu_uuid": None if not uuid else uuid if uuid.startswith("GPU-") else f"GPU-{uuid}",
        "gpu_type": str(properties.name),
        "pci_bus_id": None
        if not isinstance(bus, int)
        else f"{int(domain or 0):08x}:{bus:02x}:{int(slot or 0):02x}.0",
        "memory_bytes": int(properties.total_memory),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
    }
    rec.event("device", {k: v for k, v in attrs.items() if v is not None})
