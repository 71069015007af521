"""Numbers as a person reads them, the same in the report and in the app."""

from __future__ import annotations

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
    if 0 < size < 0.0005:
        return f"{value:.1g} {short}".rstrip()
    return f"{value:,.{digits}f} {short}".rstrip()


def seconds(value: float | None) -> str:
    """A duration given in seconds, in the unit that fits it."""
    if value is None:
        return UNKNOWN
    scale, _, short = _largest(abs(value), 1)
    return amount(value / scale, short)


def decimals(total_seconds: float | None, scale: float) -> int:
    """Decimals of a column that show a ten-thousandth of the total."""
    size = (total_seconds or 0) / scale
    return 1 if size >= 1000 else 2 if size >= 100 else 3


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


def plural(count: int, word: str) -> str:
    """``1 start``, ``2 starts``; only for words that take an s."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
