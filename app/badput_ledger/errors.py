"""The one exception that the books raise for bad input."""

from __future__ import annotations


class BooksError(Exception):
    """Bad input, said in one sentence that names the file or value and what to do."""
