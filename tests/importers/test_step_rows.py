"""Step rows that wait in a file come back as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest

from badput_ledger.sources import step_rows
from badput_ledger.sources.step_rows import Steps

NAMES = ("step", "count", "start", "dur", "rate_ns", "rate", "loss", "grad_norm")


@pytest.mark.parametrize("size", [1, 99, 100, 1 << 20])
def test_rows_come_back_in_order_from_memory_and_from_the_file(monkeypatch, size):
    monkeypatch.setattr(step_rows, "BLOCK", size)
    monkeypatch.setattr(step_rows, "_PENDING", 7)
    chance, steps, wanted = random.Random(2), Steps(), []
    while len(wanted) < 1000:
        rows = []
        for _ in range(chance.choice([1, 1, 3, 60])):
            number = len(wanted) + len(rows) + 1
            rows.append((number * 2, 2, number * 50, 49, 49, 0.1 * number, 0.7, -0.3))
        if len(rows) == 1:
            step, count, start, dur, rate_ns, *values = rows[0]
            steps.append(step, count, start, dur, rate_ns=rate_ns, values=tuple(values))
        else:
            columns = zip(NAMES, zip(*rows, strict=True), strict=True)
            steps.extend(**{name: np.array(values) for name, values in columns})
        wanted += rows
        if chance.random() < 0.1:  # reading in between changes nothing
            assert sum(len(b) for b in steps.blocks()) == len(wanted)
    got = [tuple(row) for block in steps.blocks() for row in block.tolist()]
    assert got == wanted
    assert len(steps) == len(wanted)
    assert (steps.total, steps.last_step, steps.last_count) == (2 * len(got), 2 * len(got), 2)
    assert all(steps.has(row[0], row[2] + row[3]) for row in wanted[::37])
    assert not steps.has(8, 0)
    assert not steps.has(9, 4 * 50 + 49)
