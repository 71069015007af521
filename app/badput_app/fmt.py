"""Numbers as a person reads them. An unknown value is a dash, never 0."""

from __future__ import annotations

import html
import re
from typing import Any

from badput_ledger.units import UNKNOWN, amount, decimals, money, plural, seconds, time_scale

__all__ = [
    "UNKNOWN",
    "amount",
    "compact",
    "count",
    "csv_text",
    "decimals",
    "escape",
    "instant",
    "markdown",
    "money",
    "percent",
    "plural",
    "seconds",
    "time_scale",
]


def percent(value: float | None) -> str:
    """A ratio 0..1 as a percentage."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


def count(value: float | None) -> str:
    """A whole number."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """A large number in short form, such as 1.25 M."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == ' k' else size):.3g}{letter}"
    return f"{value:,.0f}"


def instant(iso: str | None) -> str:
    """An ISO 8601 instant to the second, UTC."""
    if not iso:
        return UNKNOWN
    return iso.replace("T", " ")[:19] + " UTC"


def _visible(value: Any) -> str:
    """Text without line ends and control characters, some of which turn the rest of a line."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def escape(value: Any) -> str:
    """Text of the run made harmless for plotly, which reads some HTML in labels and hovers."""
    return html.escape(_visible(value), quote=False)


def markdown(value: Any) -> str:
    """Text of the run made harmless for markdown: shown as it is, no links, no markup."""
    # A word joiner keeps streamlit from taking :smile: for an emoji: a backslash does not.
    text = re.sub(r":(?!\d\d:)(?=[\w+-]+:)", ":\u2060", _visible(value).strip())
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-!|>~$:<" else c for c in text)


def csv_text(value: Any) -> Any:
    """A cell that a spreadsheet will not take for a formula."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
