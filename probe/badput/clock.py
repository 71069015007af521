"""The clocks of the probe: every part of it asks here, so that a test can move them.

Durations come from ``mono``, which all processes of a node share and which never goes back;
``wall`` only places a process on the calendar. ``boot`` also counts while the machine sleeps.
All are nanoseconds. Modules on the hot path bind ``mono`` to a name of their own when loaded.
"""

from __future__ import annotations

import time

mono = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC."""
wall = time.time_ns
"""Nanoseconds since the Unix epoch, UTC."""


def boot() -> int:
    """Nanoseconds of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
