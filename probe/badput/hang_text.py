"""The sentence that a hang event says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput import kernel

if TYPE_CHECKING:
    from collections.abc import Mapping


def sentence(rank: int | None, attrs: Mapping[str, Any]) -> str:
    """What happened, where, and what is known of the cause, in a line."""
    where = f"phase {attrs['phase']} of step {attrs['step']}"
    text = f"rank {rank} made no progress for {attrs['age_ns'] / 1e9:.0f} s in {where}"
    if kernel.stopped(dict(attrs)):
        text += f"; its process is {attrs['state_text']}"
    gone, late = attrs.get("gone"), attrs["behind"]
    if gone:
        number, how = next(iter(gone.items()))
        text += f"; rank {number} is gone ({how})"
    if late == [rank]:
        text += "; the other ranks of this node wait for it"
    elif late:
        names = ", ".join(map(str, late[:4])) + (", ..." if len(late) > 4 else "")
        text += f"; behind: rank {names} ({next(iter(attrs['behind_at'].values()))})"
    elif attrs["ranks_elsewhere"] and not gone:
        text += f"; what the other {attrs['ranks_elsewhere']} ranks do is not seen from this node"
    return text
