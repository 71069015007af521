"""Instants and durations as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(ns: int | None) -> str | None:
    """Nanoseconds since the epoch as ISO 8601 in UTC, to the microsecond."""
    if ns is None:
        return None
    try:
        moment = datetime.fromtimestamp(ns // 1_000_000_000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.replace(microsecond=ns % 1_000_000_000 // 1000).isoformat().replace("+00:00", "Z")


def span(seconds: float) -> str:
    """A duration for a person: 950 ms, 12.3 s, 4.2 min, 1.8 h, 3.1 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
