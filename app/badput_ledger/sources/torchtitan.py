"""torchtitan logs: the trainer's own records, torchrun's agent lines, a wrapper's dates.

Each file is read on its own, so that nothing said at the end of one can be taken for the
beginning of the next; only where a file goes on with another one are the two read as one
stream. ``titan_reader.py`` reads a stream, ``titan_state.py`` keeps what is known of an
attempt meanwhile, and ``grouping.py`` makes runs of all attempts. docs/import.md says what
each claim rests on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import BadLogError, Parsed, Unread, reason
from badput_ledger.sources.grouping import split_runs
from badput_ledger.sources.titan_end import close_all, name_saves
from badput_ledger.sources.titan_lines import DATED, Opening, family, opening
from badput_ledger.sources.titan_reader import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.attempts import Options
    from badput_ledger.sources.text import TextLog


def sniff(head: bytes) -> float:
    """How surely ``head`` is a torchtitan log: 1 with a dated record, 0 without any mark."""
    if DATED.search(head):
        return 1.0
    return 0.5 if b"torchtitan" in head and b"torch/distributed/" in head else 0.0


def parse(logs: Sequence[TextLog], options: Options) -> Parsed:
    """Every run in ``logs``. A file that cannot be read does not keep the others out.

    Raises BadLogError if there are more runs than logs can have.
    """
    unread: list[Unread] = []
    refused: list[str] = []
    begins: list[tuple[Opening, TextLog]] = []
    for log in logs:
        try:
            begin = opening(log)
        except OSError as error:
            refused.append(f"{log.name}: {reason(error)}")
            continue
        if begin is None:
            refused.append(f"{log.name}: no dated torchtitan record in this file")
        else:
            begins.append((begin, log))
    readers: list[Reader] = []
    for begin, log in sorted(begins, key=lambda b: (b[0].time, b[1].name)):
        reader = _continued(readers, begin, log)
        if reader is None:
            reader = Reader(unread, log.name)
            readers.append(reader)
        try:
            reader.read(log, begin.time)
        except OSError as error:  # gone or unreadable halfway: what was read counts
            refused.append(f"{log.name}: {reason(error)}; only what came before was read")
        except BadLogError as error:
            refused.append(f"{log.name}: {error}")
            readers.remove(reader)
            continue
        if log.truncated:
            refused.append(f"{log.name}: {log.truncated}")
    lives = [live for reader in readers for live in reader.lives]
    for reader in readers:
        close_all(reader.lives)
        reader.sum_up()
    name_saves(lives)
    runs, copies = split_runs([live.attempt for live in lives], options.name)
    return Parsed(runs, sorted(unread + copies, key=lambda u: (u.file, u.line or 0)), refused)


def _continued(readers: Sequence[Reader], begin: Opening, log: TextLog) -> Reader | None:
    """The stream that ``log`` is the next part of, if any shows that and only one does.

    Evidence: a rotated file's name; steps that go on where the other file's stop; or a step
    line that the other file has too, so that one is a copy of the other's end.
    """
    name = family(log.name)
    if name is not None:
        same = [r for r in readers if family(r.file) == name and r.now <= begin.time]
        if same:
            return max(same, key=lambda r: r.now)
    if begin.step is None:
        return None
    for reader in readers:
        if any(live.attempt.steps.has(begin.step, begin.step_time) for live in reader.lives):
            reader.skip_to = reader.now
            return reader
    same = [r for r in readers if r.now <= begin.time and r.goes_on_with(begin.step)]
    return same[0] if len(same) == 1 else None
