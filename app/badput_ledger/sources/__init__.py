"""Sources of facts: importers of foreign logs.

A format is a module with two functions::

    def sniff(head: bytes) -> float: ...
        # how surely the beginning of a file (decompressed, at most text.HEAD bytes) is of
        # this format: 0 no, 1 certainly

    def parse(logs: Sequence[TextLog], options: Options) -> Parsed: ...
        # every run found in the files, as attempts, and what could not be read

and a line in ``FORMATS``. Everything behind ``parse`` (run folders, ids, tokens,
allocations, evidence rows) is shared; docs/import.md shows how to add one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from badput_ledger.sources import google_resiliency, torchtitan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.attempts import Options, Parsed
    from badput_ledger.sources.text import TextLog


class Format(Protocol):
    """What a format module offers."""

    def sniff(self, head: bytes) -> float:
        """How surely ``head`` is of this format, 0..1."""
        ...

    def parse(self, logs: Sequence[TextLog], options: Options) -> Parsed:
        """Every run in ``logs``."""
        ...


FORMATS: dict[str, Format] = {
    "torchtitan": torchtitan,
    "google-resiliency": google_resiliency,
}
"""Every format by the name that ``--format`` takes."""
