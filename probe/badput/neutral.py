"""Text of others (paths, names, messages) for a terminal or a log: one line, and only text.

A path may hold anything but a null byte: line ends, control characters, bytes that are no UTF-8.
What is printed here shows them as escapes, so that nothing in it can begin a line, move the cursor
or turn a line around, and so that no stream fails to take it, whatever its encoding.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO


def neutral(value: object) -> str:
    """``value`` as text in one line, what cannot be printed as an escape."""
    text = str(value)
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)
    )


def _escape(char: str) -> str:
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a path that is no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def emit(text: object, stream: TextIO | None = None) -> None:
    """Print one line, whatever ``text`` holds. Raises OSError."""
    to = sys.stdout if stream is None else stream
    to.write(f"{fit(neutral(text), to)}\n")


def fit(text: str, stream: TextIO) -> str:
    """``text`` with escapes for what the stream's encoding does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def reason(error: OSError) -> str:
    """Why something failed, and at which file."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"
