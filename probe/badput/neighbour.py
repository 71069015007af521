# pyarrow ships no types, so what comes from it is unknown to the checker.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
"""The collector shares its node with training: how it keeps out of the way."""

from __future__ import annotations

import contextlib
import os
import signal
from importlib import import_module


def settle_down() -> None:
    """Be a quiet neighbour: low priority, any core, one thread, deaf to the terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with contextlib.suppress(OSError):
        os.nice(10)
    import pyarrow as pa

    # Loaded now: later it would hold up the look at the ranks.
    for name in ("pyarrow.parquet", "badput.drain", "badput.watch", "badput.merge"):
        import_module(name)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
