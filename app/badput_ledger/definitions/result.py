"""What a definition gives: a value or the reason why there is none, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badput_ledger.definitions.bridge import Bridge

Number = int | float | Fraction


@dataclass(frozen=True, slots=True)
class Input:
    """A quantity that a formula takes. ``value`` None: not known."""

    name: str
    value: Number | str | None
    unit: str

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        value = float(self.value) if isinstance(self.value, Fraction) else self.value
        return {"name": self.name, "value": value, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Result:
    """A published definition, computed."""

    name: str
    formula: str
    source: str
    note: str
    value: Fraction | None = None
    reason: str | None = None
    """Why there is no value."""
    unit: str = "ratio"
    inputs: tuple[Input, ...] = ()
    bridge: Bridge | None = field(default=None, repr=False)

    @property
    def badge(self) -> str | None:
        """What is wrong with a ratio that cannot be: it is shown as it is, never clipped."""
        if self.value is None or self.unit != "ratio" or 0 <= self.value <= 1:
            return None
        size = "above 100 %" if self.value > 1 else "below 0"
        return f"{size}: an input of the formula does not fit this run"

    def plain(self) -> dict[str, Any]:
        """For JSON: the contract's value, formula, source and note, and what they rest on."""
        found: dict[str, Any] = {
            "value": None if self.value is None else float(self.value),
            "formula": self.formula,
            "source": self.source,
            "note": self.note,
            "unit": self.unit,
            "inputs": [i.plain() for i in self.inputs],
            "bridge": None if self.bridge is None else self.bridge.rows(),
        }
        if self.reason is not None:
            found["reason"] = self.reason
        if self.badge is not None:
            found["error"] = self.badge
        return found
