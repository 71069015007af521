"""Reading the clocks that logs print.

Log lines rarely name a time zone. All lines of one log come from the same machine's local
clock, so they are read as one clock and shown as if it were UTC; only differences enter
the books. Times are integer nanoseconds since the epoch.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MONTHS = {
    m: i
    for i, m in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_DATE = re.compile(
    r"\[(?:\w{3},? )?(\w{3}) +(\d{1,2}) (\d{1,2}):(\d\d):(\d\d)"
    r" ?(AM|PM)? ?([A-Z]{3,5})? (\d{4})\] ?(.*)"
)
_ISO = re.compile(
    r"\[(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?\] ?(.*)"
)

_YEARS = range(1990, 2200)
"""Years that a log may be of: others are damage, and would not fit into 64 bits."""
END = int(datetime(_YEARS.stop, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000_000
"""After every time that a log may show."""
_minutes: dict[str, int] = {}


def stamp(text: str) -> int | None:
    """``YYYY-MM-DD[ _T]hh:mm:ss[,.]fff...`` as nanoseconds; None if that is no date."""
    minute = text[:16]
    begin = _minutes.get(minute)
    try:
        if begin is None:
            fields = (minute[:4], minute[5:7], minute[8:10], minute[11:13], minute[14:16])
            begin = _seconds(*map(int, fields), 0)
            if begin is None:
                return None
            if len(_minutes) > 10_000:
                _minutes.clear()
            _minutes[minute] = begin
        second, fraction = int(text[17:19]), text[20:29]
        nanos = int(fraction.ljust(9, "0")) if fraction else 0
    except ValueError:
        return None
    if not (0 <= second <= 60 and nanos >= 0):
        return None
    return begin + second * 1_000_000_000 + nanos


def bracketed(line: str) -> tuple[int, str] | None:
    """Time and rest of a line ``[DATE] rest``, as shell scripts print with ``date``.

    12-hour and 24-hour clocks, and ISO dates. None if the line does not begin so.
    """
    if match := _DATE.match(line):
        month, day, hour, minute, second, half, _zone, year, rest = match.groups()
        number = _MONTHS.get(month.lower())
        if number is None:
            return None
        hours = int(hour)
        if half:
            hours = hours % 12 + (12 if half == "PM" else 0)
        time = _seconds(int(year), number, int(day), hours, int(minute), int(second))
        return None if time is None else (time, rest)
    if match := _ISO.match(line):
        year, month, day, hour, minute, second, _zone, rest = match.groups()
        fields = (year, month, day, hour, minute, second)
        time = _seconds(*map(int, fields))
        return None if time is None else (time, rest)
    return None


def yearless(month: int, day: int, clock: str, near: int) -> int | None:
    """A time without a year, in the year that puts it next to ``near``.

    ``clock`` is ``hh:mm:ss.ffffff``. None if there is no such day.
    """
    best: int | None = None
    year = datetime.fromtimestamp(near / 1e9, tz=UTC).year
    for candidate in (year - 1, year, year + 1):
        time = stamp(f"{candidate:04d}-{month:02d}-{day:02d} {clock}")
        if time is not None and (best is None or abs(time - near) < abs(best - near)):
            best = time
    return best


def _seconds(*fields: int) -> int | None:
    """Year, month, day, hour, minute and second as nanoseconds; None if there is no such time."""
    if fields[0] not in _YEARS:
        return None
    year, month, day, hour, minute, second = fields
    try:
        time = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return int(time.timestamp()) * 1_000_000_000
