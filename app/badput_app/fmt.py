"""Numbers as a person reads them. An unknown value is a dash, never 0."""

from __future__ import annotations

import html
import re
from typing import Any

UNKNOWN = "–"
_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}
# Units of slot time: seconds in one unit, its word in text and its short form.
_SCALES = ((3600.0, "hours", "h"), (60.0, "minutes", "min"), (1.0, "seconds", "s"))
# A run is shown in the largest unit of which it has at least so many.
_ENOUGH = 5


def time_scale(total_seconds: float | None) -> tuple[float, str, str]:
    """The unit in which a run of ``total_seconds`` slot-seconds is shown: hours unless that
    would make everything a fraction of an hour. Returns seconds a unit, word, short form."""
    return _largest(total_seconds, _ENOUGH)


def _largest(value: float | None, enough: float) -> tuple[float, str, str]:
    if value is None:
        return _SCALES[0]
    return next((s for s in _SCALES if value >= enough * s[0]), _SCALES[-1])


def amount(value: float | None, short: str = "") -> str:
    """A quantity with three significant digits or thousands separators."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 0.995 else 3
    return f"{value:,.{digits}f} {short}".rstrip()


def seconds(value: float | None) -> str:
    """A duration given in seconds, in the unit that fits it."""
    if value is None:
        return UNKNOWN
    scale, _, short = _largest(abs(value), 1)
    return amount(value / scale, short)


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


def money(value: float | None, currency: str = "USD") -> str:
    """An amount of money. Small ones keep two significant digits instead of becoming 0.00."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 1000:
        text = f"{size:,.0f}"
    elif size >= 0.995 or size == 0:
        text = f"{size:,.2f}"
    elif size >= 0.01:
        text = f"{size:.3f}"
    else:
        text = f"{size:.2g}" if size >= 0.0001 else f"{size:.1e}"
    symbol = _SYMBOLS.get(currency)
    sign = "-" if value < 0 else ""
    return f"{sign}{symbol}{text}" if symbol else f"{sign}{text} {currency}"


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
