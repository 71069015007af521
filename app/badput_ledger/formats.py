"""The formats of the report, and where it is written to."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from badput_ledger.errors import BooksError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from badput_ledger.books import Books

    Writer = Callable[[Books, IO[str]], None]


def _text(books: Books, file: IO[str]) -> None:
    from badput_ledger.text import render

    file.write(render(books.report()))


def _json(books: Books, file: IO[str]) -> None:
    report = books.report()
    try:
        said = json.dumps(report, indent=1, allow_nan=False)
    except ValueError:  # a number of the run's own that JSON has no word for
        said = json.dumps(_finite(report), indent=1, allow_nan=False)
    file.write(f"{said}\n")


def _finite(value: object) -> object:
    """The same with NULL for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_finite(v) for v in cast("list[object]", value)]
    return value


def _markdown(books: Books, file: IO[str]) -> None:
    from badput_ledger.markdown import render

    file.write(render(books.report()))


def _perfetto(books: Books, file: IO[str]) -> None:
    from badput_ledger.perfetto import write_trace

    write_trace(books, file)


def _html(books: Books, file: IO[str]) -> None:
    # Named, not imported: no import chain leads from the books to the charts.
    file.write(import_module(_HTML).render(books.report(), books.timeline()))


_HTML = "badput_app.report_html"
FORMATS: dict[str, Writer] = {
    "text": _text,
    "json": _json,
    "md": _markdown,
    "html": _html,
    "perfetto": _perfetto,
}
"""Name and writer of each format."""


_FOR_FILES = ("html", "perfetto")


def writer(name: str, path: str | None) -> Writer:
    """The writer of a format. Raises BooksError if it lacks a package, or would fill a terminal."""
    if name in _FOR_FILES and path is None and sys.stdout.isatty():
        raise BooksError(f"--format {name} is for a file, not for a terminal; add -o FILE.")
    if name == "html":
        try:
            import_module(_HTML)
        except ModuleNotFoundError as error:
            raise BooksError(
                f"--format html needs the package {error.name!r}; "
                "install it with: pip install 'badput[app]'"
            ) from None
    return FORMATS[name]


@contextlib.contextmanager
def output(path: str | None) -> Generator[IO[str]]:
    """Where to write: standard output, or a file that gets its name only when it is complete."""
    if path is None:
        yield sys.stdout
        return
    target = Path(path)
    if target.is_dir():
        raise BooksError(f"{path or repr(path)} is a folder; give the name of a file to -o.")
    if target.exists() and not target.is_file():  # a pipe or a device: nothing to rename
        with open(target, "w", encoding="utf-8") as file:
            yield file
        return
    try:
        number, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise BooksError(f"{path} cannot be written: {error.strerror or error}.") from None
    temporary = Path(name)
    try:
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
