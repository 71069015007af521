"""What every command of the books does alike: errors as sentences, exit codes, options."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from badput_ledger.errors import BooksError
from badput_ledger.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_ledger.books import Books


class Parser(argparse.ArgumentParser):
    """A parser that says in one sentence what was wrong, and keeps the line ends of examples."""

    def __init__(self, prog: str, description: str, examples: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and a sentence."""
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` explains the options.\n")


def add_gaps(parser: argparse.ArgumentParser) -> None:
    """The option --gaps, the same in every command that prices time."""
    parser.add_argument(
        "--gaps",
        choices=("unknown", "held", "released"),
        default="unknown",
        help="were the GPUs paid between sessions where nothing says so (default: unknown, "
        "counted as held and marked)",
    )


def guarded(command: str, work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code; a bad input or a full disk is a sentence and 2."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a replacement, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = work()
        sys.stdout.flush()  # here, where a full disk can still be told
    except BooksError as error:
        print(shown(f"badput {command}: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # the reader went away: the command's caller knows what to do
    except OSError as error:
        if error.filename is None:
            # What is still buffered cannot be written either: let it go at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = error.filename or "the output"
        print(shown(f"badput {command}: {what}: {error.strerror or error}."), file=sys.stderr)
        return 2
    return code


def tell_broken(command: str, books: Books) -> int:
    """Name the parts that were skipped on stderr; 2 if there are any, else 0."""
    for sentence in books.broken:
        print(shown(f"badput {command}: {sentence}"), file=sys.stderr)
    return 2 if books.broken else 0
