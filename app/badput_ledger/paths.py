"""Paths that are not UTF-8: shown to a person, and read by libraries that take only UTF-8."""

from __future__ import annotations

from pathlib import Path


def shown(text: object) -> str:
    """A path, or a sentence with one, that can be printed: bytes that are no UTF-8 as \\xe9."""
    try:
        raw = str(text).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair that no file name gave
        raw = str(text).encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def readable(folder: Path, inside: str) -> Path:
    """``folder`` by a name that is UTF-8: itself, or a link to it made in the folder ``inside``.

    DuckDB and the Parquet reader open no other names.
    """
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError:
        link = Path(inside) / "run"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        return link
    return folder
