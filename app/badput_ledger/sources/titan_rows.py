"""Many step lines of a torchtitan log at once, where nothing in them is odd."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from badput_ledger.sources.attempts import SECOND, Said
from badput_ledger.sources.clock import END
from badput_ledger.sources.titan_lines import STEP

if TYPE_CHECKING:
    from badput_ledger.sources.shapes import Rows
    from badput_ledger.sources.titan_reader import Reader

SILENCE = 60 * 86400 * SECOND
"""A running trainer is never silent for so long: such a jump is a damaged date."""
_WORTH = 8
"""Fewer step lines than this are read one by one: numpy's calls cost more."""


def take_rows(reader: Reader, rows: Rows) -> None:
    """Feed step lines that follow each other; each as ``Reader.line`` would take it.

    What is odd, and the line before something that follows from it, goes to ``Reader.line``.
    """
    live = reader.live
    if live is not None and live.talking and len(live.attempt.steps):
        followed = live.attempt.rank  # of the other ranks only the newest sign of life counts
        keep = (rows.columns["rank"] == followed) | (rows.columns["time"] < 0)
        keep[-1] = True
        if not keep.all():
            rows = rows[keep]
    else:
        followed = rows.columns["rank"][-1]
    time, step = rows.columns["time"], rows.columns["step"]
    gaps, counts = np.diff(time), np.diff(step)
    odd = (time < 0) | (step < 1) | (rows.columns["rank"] != followed)
    odd[1:] |= (gaps < 0) | (gaps > SILENCE) | (counts < 1) | (counts >= 1 << 31)
    begins = [0, *(np.flatnonzero(odd[1:]) + 1).tolist(), len(rows)]
    for begin, end in pairwise(begins):
        at = begin
        while at < end:
            if end - at >= _WORTH and _goes_on(reader, rows, at, end):
                _many(reader, rows[at:end])
                break
            reader.line(int(rows.line[at]), rows.text(at))
            at += 1


def _goes_on(reader: Reader, rows: Rows, at: int, end: int) -> bool:
    """True if row ``at`` is the next step of the running attempt, with nothing in between."""
    live = reader.live
    if live is None or live.last_step is None or live.anchor is None or not live.plain:
        return False
    time, step = (int(rows.columns[name][at]) for name in ("time", "step"))
    return (
        int(rows.columns["rank"][at]) == live.attempt.rank
        and len(live.attempt.steps) > 0
        and time >= 0
        and time + reader.shift > reader.skip_to
        and live.anchor <= time + reader.shift <= reader.now + SILENCE
        and 0 < step - live.anchor_step < 1 << 31
        and int(rows.columns["time"][end - 1]) + reader.shift < END
    )


def _many(reader: Reader, rows: Rows) -> None:
    """Steps of the running attempt that follow each other."""
    live = reader.live
    last = STEP.match(rows.text(-1))
    if live is None or last is None:
        return
    columns = {**rows.columns, "time": rows.columns["time"] + reader.shift}
    live.many_steps(columns, Said(reader.file, int(rows.line[-1]), last.group(4)))
    reader.now, reader.banner = int(columns["time"][-1]), None
    live.sign(reader.now)
