"""Lines of one shape, read together.

Most lines of a training log differ in nothing but digits. The shape of a line is the line
with every digit as ``0``; lines of one shape have each number in the same columns. So a
regular expression looks at a shape once, and the numbers of all its lines are read with a
few numpy calls for each column, exactly as ``float`` and ``int`` would read them one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from badput_ledger.sources.clock import stamp
from badput_ledger.store import pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Any ANSI escape sequence. No digit in it decides where it ends."""
NO_TIME = -1
"""In a column of times: the line shows a date that cannot be."""

_SECOND = 1_000_000_000
_DIGITS = bytes(48 if 48 <= c < 58 else c for c in range(256))
_NUMBER = re.compile(rb"([+-]?)([0,]+(?:\.0*)?|\.0+)(?:[eE]([+-]?)(0{1,3}))?")
_STAMP = re.compile(rb"0{4}-00-00[ T_]00:00:00(?:[.,](0{1,9}))?")
_EXACT = 22
"""Powers of ten up to this one are exact as a float, so one operation rounds correctly."""
_TENS = 10.0 ** np.arange(_EXACT + 1)
_MOST_DIGITS = 15
_MOST_SHAPES = 20_000


def digits_to_zero(data: bytes) -> bytes:
    """``data`` as its shape."""
    return data.translate(_DIGITS)


@dataclass(frozen=True, slots=True)
class Fields:
    """What a format wants read from its common line.

    ``find`` gets a line (cleaned, every digit a 0) and returns where in it the fields are,
    None if it is not that line; a digit's value must not matter to it. ``kinds`` says what
    each field is: ``int`` (0 where a line has none), ``float`` (NaN) or ``time`` (``NO_TIME``).
    """

    find: Callable[[str], Mapping[str, tuple[int, int]] | None]
    kinds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Number:
    """A number at fixed columns: ``sign * digits * 10 ** (exponent - decimals)``."""

    at: int
    weights: NDArray[np.float64]
    sign: int
    decimals: int
    exponent: tuple[int, int, int] | None
    """Column, number of digits, sign."""

    def read(self, digits: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.float64]:
        """One value for each line; NaN where ``float`` itself has to be asked."""
        value = _columns(digits, starts + self.at, len(self.weights)) @ self.weights
        if self.sign < 0:
            value = -value
        if self.exponent is None:
            return value / _TENS[self.decimals] if self.decimals else value
        at, size, sign = self.exponent
        tens = 10.0 ** np.arange(size - 1, -1, -1)
        power = sign * (_columns(digits, starts + at, size) @ tens) - self.decimals
        low = np.abs(power).clip(max=_EXACT).astype(np.int64)
        value = np.where(power < 0, value / _TENS[low], value * _TENS[low])
        value[np.abs(power) > _EXACT] = np.nan
        return value


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A date and time at fixed columns, as nanoseconds."""

    at: int
    fraction: int
    """Digits behind the second."""

    def read(self, digits: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        size = 20 + self.fraction if self.fraction else 19
        window = _columns(digits, starts + self.at, size).astype(np.int64)
        days = window[:, :10] @ np.array([10**7, 10**6, 10**5, 10**4, 0, 1000, 100, 0, 10, 1])
        hours, minutes, seconds = (window[:, c] * 10 + window[:, c + 1] for c in (11, 14, 17))
        time = ((hours * 60 + minutes) * 60 + seconds) * _SECOND
        if self.fraction:
            tens = 10 ** np.arange(8, 8 - self.fraction, -1)
            time += window[:, 20:] @ tens
        change = np.flatnonzero(np.diff(days, prepend=days[:1] - 1))
        for begin, end in zip(change, [*change[1:], len(days)], strict=True):
            text = f"{days[begin]:08d}"
            day = stamp(f"{text[:4]}-{text[4:6]}-{text[6:]} 00:00:00")
            time[begin:end] = NO_TIME if day is None else time[begin:end] + day
        time[(hours > 23) | (minutes > 59) | (seconds > 60)] = NO_TIME
        return time


@dataclass(frozen=True, slots=True)
class _Constant:
    """A field without digits, such as nan."""

    value: float

    def read(self, digits: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.float64]:
        del digits
        return np.full(len(starts), self.value)


Layout = dict[str, "_Number | _Stamp | _Constant"]


def _columns(digits: NDArray[np.uint8], starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """``size`` bytes from each of ``starts``: copies runs, not single bytes."""
    return sliding_window_view(digits, size)[starts]


@dataclass(slots=True)
class Layouts:
    """Where the fields are in every shape that was seen."""

    fields: Fields
    _known: dict[bytes, Layout | None] = field(default_factory=dict[bytes, "Layout | None"])

    def of(self, shape: bytes) -> Layout | None:
        """The layout of lines of this shape; None if they have to be read one by one."""
        try:
            return self._known[shape]
        except KeyError:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            found = self._known[shape] = self._find(shape)
            return found

    def _find(self, shape: bytes) -> Layout | None:
        line = shape.rstrip(b"\n").removesuffix(b"\r")
        if not line.isascii() or b"\r" in line or b"\0" in line:
            return None
        places = list(range(len(line)))
        for match in reversed(list(ESCAPE.finditer(line))):
            del places[match.start() : match.end()]
        spans = self.fields.find(bytes(line[p] for p in places).decode())
        if spans is None:
            return None
        layout: Layout = {}
        for name, (begin, end) in spans.items():
            at = places[begin]
            if places[end - 1] - at != end - 1 - begin:
                return None  # an escape in the middle of it
            part = _part(line[at : places[end - 1] + 1], at, self.fields.kinds[name])
            if part is None:
                return None
            layout[name] = part
        return layout


def _part(text: bytes, at: int, kind: str) -> _Number | _Stamp | _Constant | None:
    """How to read ``text``, which stands at column ``at``; None if it needs a closer look."""
    if kind == "time":
        stamped = _STAMP.fullmatch(text)
        return None if stamped is None else _Stamp(at, len(stamped.group(1) or b""))
    number = _NUMBER.fullmatch(text)
    if number is None:
        if kind == "int" or b"0" in text or len(text) > 9:
            return None
        try:
            return _Constant(float(text))
        except ValueError:
            return _Constant(np.nan)
    sign, mantissa, power_sign, power = number.groups()
    places = [i for i, c in enumerate(mantissa) if c == 48]
    if not 0 < len(places) <= _MOST_DIGITS or (kind == "int" and (sign or power or b"." in text)):
        return None
    decimals = len(mantissa) - 1 - mantissa.index(b".") if b"." in mantissa else 0
    weights = np.zeros(len(mantissa))
    weights[places] = 10.0 ** np.arange(len(places) - 1, -1, -1)
    exponent = None
    if power:
        exponent = (at + number.start(4), len(power), -1 if power_sign == b"-" else 1)
    return _Number(at + len(sign), weights, -1 if sign == b"-" else 1, decimals, exponent)


def hits(block: bytes, strings: Sequence[bytes]) -> list[tuple[int, int]]:
    """Begin and end of every line of ``block`` (which begins with ``\\n``) that has a string.

    One ``bytes.find`` over a megabyte costs what a test of ten lines one by one does.
    """
    found: set[tuple[int, int]] = set()
    find, rfind = block.find, block.rfind
    for string in strings:
        at_begin = string.startswith(b"\n")
        place = find(string)
        while place >= 0:
            start = place + 1 if at_begin else rfind(b"\n", 0, place) + 1
            end = find(b"\n", start)
            if end < 0:
                end = len(block)
            found.add((start, end))
            place = find(string, end)
    return sorted(found)


@dataclass(slots=True)
class Rows:
    """Common lines that follow each other, with nothing else to read between them.

    ``columns``: one array for each field of ``Fields.kinds``.
    """

    line: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    _block: bytes
    _spans: NDArray[np.int64]
    _clean: Callable[[bytes], str]

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, which: slice | NDArray[Any]) -> Rows:
        columns = {name: values[which] for name, values in self.columns.items()}
        return Rows(self.line[which], columns, self._block, self._spans[which], self._clean)

    def text(self, index: int) -> str:
        """The cleaned text of one of them."""
        begin, end = self._spans[index]
        return self._clean(self._block[begin:end].removesuffix(b"\r"))


class Block:
    """Whole lines of a log, the first of them number ``first``, sorted by shape."""

    def __init__(self, data: bytes, first: int, clean: Callable[[bytes], str]) -> None:
        self._data = data if data.endswith(b"\n") else data + b"\n"
        self._first, self._clean = first, clean
        raw = np.frombuffer(self._data, np.uint8)
        self._digits = raw - np.uint8(48)
        self._digits *= self._digits < 10
        ends = np.flatnonzero(raw == 10)
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends + 1
        self._spans = np.column_stack((offsets[:-1].astype(np.int64), ends))
        pa = pyarrow()
        buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(raw - self._digits)]
        lines: Any = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
        coded: Any = lines.dictionary_encode()
        self._codes: NDArray[np.int32] = coded.indices.to_numpy()
        self._by_code: Any = coded.dictionary
        shapes: list[bytes] = self._by_code.to_pylist()
        self.shapes: bytes = b"\n" + b"".join(shapes)
        """Each shape of a line once, in lines, without escapes; begins with a newline."""
        if b"\x1b" in self.shapes:
            self.shapes = ESCAPE.sub(b"", self.shapes)

    def divide(
        self, strings: Sequence[bytes], layouts: Layouts | None
    ) -> tuple[Rows, Sequence[tuple[int, int, bytes]]]:
        """The lines with one of ``strings``: those that a layout reads, and all others.

        For each other line: how many rows stand before it, its number, and its raw text.
        """
        wanted = [digits_to_zero(s) for s in strings]
        begins = [begin for begin, _ in hits(self.shapes, wanted)]
        newlines = np.flatnonzero(np.frombuffer(self.shapes, np.uint8) == 10)
        found = dict[int, Layout]()
        kind = np.zeros(len(self._by_code), np.uint8)
        for code in np.searchsorted(newlines, begins, "left").tolist():
            layout = None if layouts is None else layouts.of(self._by_code[code - 1].as_py())
            kind[code - 1] = 1 if layout is None else 2
            if layout is not None:
                found[code - 1] = layout
        of_line = kind[self._codes]
        others = np.flatnonzero(of_line == 1)
        at = np.flatnonzero(of_line == 2)
        columns = dict[str, Any]()
        if layouts is not None and len(at):
            whole = self._read(found, layouts.fields.kinds)
            columns = {name: values[at] for name, values in whole.items()}
        rows = Rows(self._first + at, columns, self._data, self._spans[at], self._clean)
        raws = (self._data[begin:end] for begin, end in self._spans[others].tolist())
        cuts = np.searchsorted(at, others).tolist()
        numbers = (self._first + others).tolist()
        return rows, list(zip(cuts, numbers, raws, strict=True))

    def _read(
        self, layouts: Mapping[int, Layout], kinds: Mapping[str, str]
    ) -> dict[str, NDArray[Any]]:
        """One array for each field, for every line of the block, by the layout of its code."""
        columns: dict[str, NDArray[Any]] = {}
        empty = {"int": 0, "float": np.nan, "time": NO_TIME}
        for name, kind in kinds.items():
            values = np.full(len(self._codes), empty[kind], float if kind == "float" else np.int64)
            columns[name] = values
        small = len(self._by_code) < 1 << 16  # numpy sorts 16 bits by radix
        order = np.argsort(self._codes.astype(np.uint16) if small else self._codes, kind="stable")
        wanted = np.array(sorted(layouts))
        begins = np.searchsorted(self._codes, wanted, "left", sorter=order)
        ends = np.searchsorted(self._codes, wanted, "right", sorter=order)
        for code, begin, end in zip(wanted.tolist(), begins, ends, strict=True):
            lines = order[begin:end]
            starts = self._spans[lines, 0]
            for name, part in layouts[code].items():
                values = part.read(self._digits, starts)
                if isinstance(part, _Number) and part.exponent is not None:
                    self._by_float(values, part, starts)
                columns[name][lines] = values
        return columns

    def _by_float(self, values: NDArray[Any], part: _Number, starts: NDArray[np.int64]) -> None:
        """Numbers of great or small powers, which rounding twice could change."""
        if part.exponent is None:
            return
        for odd in np.flatnonzero(np.isnan(values)):
            end = starts[odd] + part.exponent[0] + part.exponent[1]
            text = self._data[starts[odd] + part.at : end]
            values[odd] = part.sign * float(text.replace(b",", b""))
