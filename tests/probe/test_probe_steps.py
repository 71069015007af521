"""The step's record in its short and its long form, and the state slot, as a reader sees them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import badput
from badput import layout as lo
from badput.reader import Batch, Position, SpoolReader


@pytest.fixture
def spool(box):
    """The spool of this process, still open, and what has been written to it so far."""
    badput.init(box.run)
    yield badput._recorder.spool
    badput.close(timeout=0)


def read(spool):
    reader = SpoolReader(Path(spool.path))
    batch = reader.read(reader.load_position(), 10**6)
    slot = reader.slot()
    reader.close()
    assert not batch.stuck
    return batch, slot


def fields(row):
    """Size, sequence number, step, tokens and pre_data of a step as the reader gives it."""
    return row[2], row[3], row[4], row[7], None if row[9] == lo.ACC_NULL else row[9]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, lo.PLAIN_SIZE),
        ({"tokens": 0}, lo.PLAIN_SIZE),
        ({"tokens": lo.SHORT_UNKNOWN - 1}, lo.PLAIN_SIZE),
        ({"tokens": lo.SHORT_UNKNOWN}, lo.STEP_SIZE),
        ({"tokens": 1 << 40}, lo.STEP_SIZE),
        ({"number": (1 << 32) - 2}, lo.PLAIN_SIZE),
        ({"number": 1 << 32}, lo.PLAIN_SIZE),
        ({"number": 1 << 40}, lo.PLAIN_SIZE),
        ({"samples": 3}, lo.STEP_SIZE),
    ],
)
def test_a_step_takes_the_plain_form_where_it_fits(spool, given, size):
    for _ in range(2):
        with badput.step(**given):
            pass
    with badput.step(tokens=5):
        pass
    first, again, other = (fields(row) for row in read(spool)[0].steps)
    tokens, number = given.get("tokens", -1), given.get("number", 1)
    assert first == (size, 0, number, tokens, None)
    assert again == (size, 1, given.get("number", 2), tokens, None)
    after = again[2] + 1
    assert other == (lo.PLAIN_SIZE, 2, after, 5, None)


def test_the_wait_for_data_fits_into_the_short_form_until_it_is_long(spool, monkeypatch):
    step = badput._recorder.first_step()
    for wait in (7, 0, lo.SHORT_UNKNOWN - 1, lo.SHORT_UNKNOWN, None):
        if wait is not None:
            step.wait(wait)
        with badput.step(tokens=3):
            pass
    rows = [fields(row) for row in read(spool)[0].steps]
    assert [r[0] for r in rows] == [40, 40, 40, 256, 48]
    assert [r[4] for r in rows] == [7, 0, lo.SHORT_UNKNOWN - 1, lo.SHORT_UNKNOWN, None]
    assert {r[3] for r in rows} == {3}


def test_tokens_of_one_step_are_not_those_of_the_next(spool):
    given = [5, None, 5, 6, 1 << 33, None, 1 << 33, True, "x", 6.0, 7]
    for tokens in given:
        with badput.step(tokens=tokens):
            pass
    tokens = [fields(row)[3] for row in read(spool)[0].steps]
    assert tokens == [5, -1, 5, 6, 1 << 33, -1, 1 << 33, 1, -1, 6, 7]


def test_tokens_given_later_count_for_that_step_alone(spool):
    for _ in range(2):
        with badput.step(tokens=1) as step:
            step.log(tokens=2)
        with badput.step(tokens=1):
            pass
    assert [fields(row)[3] for row in read(spool)[0].steps] == [2, 1, 2, 1]


def test_short_and_long_records_and_segments_follow_each_other(spool):
    count = 3 * lo.SEGMENT_SIZE // (lo.PLAIN_SIZE + lo.STEP_SIZE) * 2
    for number in range(count):
        with badput.step(tokens=number) as step:
            if number % 2:
                step.log(loss=float(number))
    batch = read(spool)[0]
    assert [row[3] for row in batch.steps] == list(range(count))
    assert [row[7] for row in batch.steps] == list(range(count))
    assert [row[8] for row in batch.steps[1::2]] == [float(n) for n in range(1, count, 2)]
    assert spool.index >= 3


@pytest.mark.parametrize("wait", [None, 9])
def test_a_torn_step_is_not_accepted_and_read_once_it_is_whole(spool, wait):
    with badput.step(tokens=4):
        pass
    start = spool.pos
    if wait:
        badput._recorder.step.wait(wait)  # a record of the other kind
    with badput.step(tokens=4):
        pass
    area, reader = spool.map, SpoolReader(Path(spool.path))
    for offset in range(start, spool.pos):
        good = area[offset]
        area[offset] = good ^ 0x41
        found = reader.read(reader.load_position(), 100)
        assert len(found.steps) == 1, offset
        area[offset] = good
    assert len(reader.read(reader.load_position(), 100).steps) == 2
    reader.close()


def test_a_step_of_which_any_words_have_not_arrived_is_not_accepted(spool):
    """As another core may see it, in whatever order the stores arrive; and half a word of each."""
    with badput.step(tokens=4):
        pass
    start = spool.pos
    with badput.step(tokens=4):
        pass
    whole = bytes(spool.map[start : spool.pos])
    masks = [bytes(8), b"\xff" * 4 + bytes(4), bytes(4) + b"\xff" * 4, b"\xff" * 8]
    reader, told = SpoolReader(Path(spool.path)), 0
    for kinds in product(range(4), repeat=len(whole) // 8):
        mask = b"".join(masks[k] for k in kinds)
        seen = bytes(a & b for a, b in zip(whole, mask, strict=True))
        spool.map[start : spool.pos] = seen
        batch, position = Batch(first_seq=0), Position()
        reader._read_segment(bytes(spool.map[: spool.pos + 64]), position, batch, 100)
        assert len(batch.steps) == (2 if seen == whole else 1), kinds
        told += seen == whole
    assert told > 1  # upper halves of small numbers are 0 anyway
    reader.close()


def test_the_state_slot_says_which_step_is_under_way_and_in_which_phase(spool):
    assert read(spool)[1][:2] == (0, lo.PHASE_INIT)
    for number in (1, 2):
        with badput.step():
            step, phase, since = read(spool)[1]
            assert (step, phase) == (number, lo.PHASE_STEP)
            assert since == badput._recorder.step.start
            with badput.span("forward"):
                assert read(spool)[1][:2] == (number, lo.PHASE_CATEGORY + 1)
            step, phase, after = read(spool)[1]
            assert (step, phase) == (number, lo.PHASE_STEP)
            assert after > since
    with badput.span("eval"):
        step, phase, since = read(spool)[1]
        assert (step, phase) == (2, lo.PHASE_CATEGORY + 10)
    assert read(spool)[1][:2] == (2, lo.PHASE_LOOP)


def test_the_step_begins_with_the_call_and_a_forgotten_one_does_not_hold_up_the_next(spool):
    badput.step(tokens=1)
    with badput.step(tokens=2):
        pass
    (row,) = read(spool)[0].steps
    assert fields(row) == (lo.PLAIN_SIZE, 0, 1, 2, None)
