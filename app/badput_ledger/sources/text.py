"""Reading text logs: a stream of numbered lines in bounded memory.

What a training log does to a reader, and what happens here:

* Progress bars end in a carriage return, so one "line" can be a hundred megabytes: the
  pieces between carriage returns are handed out one by one, under one line number.
* A line longer than ``MAX_LINE`` is cut there and counted.
* Colours (any ANSI escape, 24-bit too) and NUL bytes are taken out, broken UTF-8 is
  replaced; both are counted on the lines that are used.
* The last line may have been cut in the middle of a number: without a newline at its end
  it is held back and reported, never parsed.
* gzip is recognised by its first bytes. A cut or damaged gzip file gives what could be
  read, and says so.

Lines are split on ``\\n`` alone: ``str.splitlines`` would also split on form feeds and
Unicode separators and shift every line number after one.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from badput_ledger.sources.shapes import ESCAPE, Block, Layouts, Rows, hits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from badput_ledger.sources.shapes import Fields

BLOCK = 4 << 20
"""Bytes read at a time."""
MAX_LINE = 1 << 20
"""Longest line, in bytes, of which everything is kept."""
HEAD = 4 << 20
"""Bytes of the beginning that a format may look at to recognise itself."""

_GZIP = b"\x1f\x8b"
_CONTROL = re.compile(
    # control characters, line separators, marks that turn the reading direction, half characters
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The strings that make a line worth reading, searched in the raw bytes.

    A string that begins with ``\\n`` is found only at the begin of a line, and a digit in one
    stands for every digit: it is the shapes of lines that are searched. The strings in
    ``after`` are looked for only from their trigger on, in its block and the next one:
    most logs never fail, and then pay nothing for the failure's details.
    """

    always: tuple[bytes, ...]
    after: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict[bytes, tuple[bytes, ...]])


@dataclass(slots=True)
class TextLog:
    """One log file and what was odd about it. The counts grow while it is read."""

    path: Path
    name: str = ""
    """The file as the user gave it, safe to print; stands in every evidence row."""
    lines: int = 0
    bad_utf8: int = 0
    nuls: int = 0
    long_lines: int = 0
    truncated: str | None = None
    """Why the end of a compressed file could not be read."""
    held_back: int | None = None
    """Number of the last line, if it has no newline and was therefore not read."""
    on_bytes: Callable[[int], None] | None = field(default=None, repr=False)
    """Called with the number of bytes of each block, for a progress display."""

    def __post_init__(self) -> None:
        self.name = self.name or excerpt(str(self.path), 4096)

    def head(self, size: int = HEAD) -> bytes:
        """The first ``size`` bytes, decompressed. Raises OSError if the file cannot be read."""
        parts: list[bytes] = []
        have = 0
        with open(self.path, "rb") as handle:
            for block in self._blocks(handle, BLOCK):
                parts.append(block)
                have += len(block)
                if have >= size:
                    break
        return b"".join(parts)[:size]

    def blocks(self, size: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Runs of whole lines, each ending in ``\\n``, with the number of the first line.

        A piece of an over-long line comes alone; what follows then has the same number.
        ``size``: bytes read at a time, for who needs only the beginning. Raises OSError.
        """
        self.lines, self.long_lines, self.held_back, self.truncated = 0, 0, None, None
        number, tail, skip = 1, b"", False
        with open(self.path, "rb") as handle:
            for data in self._blocks(handle, size or BLOCK):
                if self.on_bytes is not None:
                    self.on_bytes(len(data))
                cut = data.rfind(b"\n") + 1
                if not cut:
                    tail += data
                else:
                    block = tail + data[:cut]
                    tail = data[cut:]
                    if skip:  # the rest of a line that was cut; its newline still counts
                        block, skip = block[block.find(b"\n") :], False
                    yield number, block
                    number += block.count(b"\n")
                if len(tail) > MAX_LINE:
                    piece, tail, skip = self._bound(tail, skip)
                    if piece:
                        yield number, piece
        self.lines = number - 1
        if tail or skip:
            self.held_back = number

    def select(self, wanted: Wanted, size: int | None = None) -> Iterator[tuple[int, str]]:
        """Cleaned text of every line with one of the wanted strings, and its line number.

        ``size`` as in ``blocks``. Raises OSError.
        """
        for item in self.scan(wanted, None, size):
            if not isinstance(item, Rows):
                yield item

    def scan(
        self, wanted: Wanted, fields: Fields | None, size: int | None = None
    ) -> Iterator[tuple[int, str] | Rows]:
        """As ``select``, but lines that ``fields`` knows come as numbers, many at once.

        In the order of the file: a ``Rows`` ends where another wanted line stands. ``size``
        as in ``blocks``. Raises OSError.
        """
        armed: dict[bytes, int] = {}
        layouts = None if fields is None else Layouts(fields)
        for first, data in self.blocks(size):
            block = Block(data, first, self.clean)
            strings = list(wanted.always)
            for trigger, more in wanted.after.items():
                if trigger in block.shapes:
                    armed[trigger] = 2  # this block and the next
                if armed.get(trigger, 0) > 0:
                    strings += more
                    armed[trigger] -= 1
            rows, others = block.divide(strings, layouts)
            done = 0
            for cut, number, raw in others:
                if cut > done:
                    yield rows[done:cut]
                    done = cut
                yield from self._texts(number, raw, strings)
            if len(rows) > done:
                yield rows[done:]

    def _texts(self, number: int, raw: bytes, strings: list[bytes]) -> Iterator[tuple[int, str]]:
        """A wanted line, or those of its progress bars that are wanted."""
        if b"\r" not in raw:
            yield number, self.clean(raw)
            return
        bars = b"\n" + ESCAPE.sub(b"", raw).replace(b"\r", b"\n")
        for begin, stop in hits(bars, strings):
            yield number, self.clean(bars[begin:stop])

    def clean(self, raw: bytes) -> str:
        """One raw line as text: no escapes, no NULs, broken UTF-8 replaced."""
        if len(raw) > MAX_LINE:
            self.long_lines += 1
            raw = raw[:MAX_LINE]
        if b"\x1b" in raw:
            raw = ESCAPE.sub(b"", raw)
        if b"\0" in raw:
            self.nuls += raw.count(b"\0")
            raw = raw.replace(b"\0", b"")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.bad_utf8 += 1
            return raw.decode("utf-8", "replace")

    def _bound(self, tail: bytes, skip: bool) -> tuple[bytes, bytes, bool]:
        """What to hand out, keep and skip of an unfinished line that is too long."""
        if skip:
            return b"", b"", True
        cut = tail.rfind(b"\r")
        if cut >= 0:  # whole progress bars: hand them out, keep what follows
            return tail[:cut], tail[cut + 1 :], False
        self.long_lines += 1
        return tail[:MAX_LINE], b"", True

    def _blocks(self, handle: BinaryIO, size: int) -> Iterator[bytes]:
        first = handle.read(size)
        if not first.startswith(_GZIP):
            while first:
                yield first
                first = handle.read(size)
            return
        yield from self._gunzip(handle, first)

    def _gunzip(self, handle: BinaryIO, data: bytes) -> Iterator[bytes]:
        """Decompressed blocks of a gzip file of any number of members."""
        unzip = zlib.decompressobj(wbits=31)
        try:
            while data:
                out = unzip.decompress(data, BLOCK)  # bounded: a bomb cannot fill memory
                while out:
                    yield out
                    data = unzip.unconsumed_tail
                    full = len(out) == BLOCK and not unzip.eof
                    out = unzip.decompress(data, BLOCK) if full else b""
                if unzip.eof:
                    data = unzip.unused_data.lstrip(b"\0") or handle.read(BLOCK).lstrip(b"\0")
                    if data:
                        unzip = zlib.decompressobj(wbits=31)
                else:
                    data = unzip.unconsumed_tail or handle.read(BLOCK)
        except zlib.error as error:
            self.truncated = f"the compressed data are damaged ({error}); what came before was read"
            return
        if not unzip.eof:
            self.truncated = "the compressed file is cut; what came before the cut was read"


def is_binary(head: bytes) -> bool:
    """True if ``head`` is no text: UTF-16, or more than a tenth of other control bytes."""
    sample = head[:65536]
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    odd = sum(sample.count(bytes([c])) for c in range(32) if c not in (8, 9, 10, 12, 13, 27))
    return odd * 10 > len(sample)


def excerpt(text: str, size: int = 300) -> str:
    """``text`` shortened to ``size`` characters, every control character made visible."""
    short = text if len(text) <= size else text[: size - 1] + "…"
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), short)
