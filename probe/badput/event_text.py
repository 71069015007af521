"""What a recorded event counts as for a command, and what the command is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def kind_of(kind: str, attrs: Mapping[str, Any]) -> str | None:
    """What a recorded event counts as; None if nothing."""
    if kind == "end":
        reason = attrs.get("reason")
        return None if reason in ("completed", "unknown") else "failure"
    if kind == "exit":
        return "failure" if attrs.get("exit_code") or attrs.get("signal") else None
    return kind if kind in ("hang", "failure") else None


def told(row: Mapping[str, Any], attrs: Mapping[str, Any], host: object) -> dict[str, Any]:
    """What a command is told of a recorded event."""
    names = ("rank", "step", "time_ns")
    return {**{n: row[n] for n in names}, "host": host, "what": _what(row, attrs), "attrs": attrs}


def _what(row: Mapping[str, Any], attrs: Mapping[str, Any]) -> str:
    """One phrase: what happened, to whom."""
    if attrs.get("what"):
        return str(attrs["what"])
    who = "the launcher" if row["rank"] is None else f"rank {row['rank']}"
    if row["kind"] == "exit":
        who = f"the command {attrs.get('program')}"
    how, number, code = attrs.get("reason") or "", attrs.get("signal"), attrs.get("exit_code")
    if number:
        how = f"by signal {number}" if how in ("", "signal") else f"{how} (signal {number})"
    elif code:
        how = f"with exit code {code}" if how in ("", "exit") else f"{how} (exit code {code})"
    return f"{who} ended: {how or 'unknown'}"
