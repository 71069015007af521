"""Spools of older format versions, written here byte by byte, as their writers wrote them."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import pyarrow.parquet as pq
import pytest

from badput.collect import main as collect
from badput.parts import list_parts

PROCESS, UNKNOWN = 0x1234ABCD, (1 << 64) - 1
WALL, MONO = 1_700_000_000_000_000_000, 5_000_000_000
SEGMENT = 1 << 20


def rare(kind, seq, payload):
    """A record with a JSON payload: type, flags, size, number, payload, spaces, crc."""
    data = json.dumps(payload).encode()
    size = (16 + len(data) + 4 + 7) & ~7
    body = struct.pack("<HHIQ", kind, 0, size, seq) + data.ljust(size - 20)
    return body + struct.pack("<I", crc32(body))


def step(seq, number, start, end, *, tokens=-1, loss=None, pre=UNKNOWN, data_ns=None):
    """A step of 256 bytes. Without the flag 1 only the first 64 are meant and checked."""
    whole = loss is not None or data_ns is not None
    flags = (1 if whole else 0) | (2 if loss is not None else 0)
    body = struct.pack(
        "<HHIQqQQqdQ", 1, flags, 256, seq, number, start, end, tokens, loss or 0.0, pre
    )
    if whole:
        body += struct.pack("<qqdII", -1, -1, 0.0, 0, 0) + bytes(16)
        accumulators = [UNKNOWN] * 15
        if data_ns is not None:
            accumulators[0] = data_ns
        body += struct.pack("<15Q", *accumulators)
    return body.ljust(252, b"\0") + struct.pack("<I", crc32(body))


def segment(index, records):
    head = struct.pack("<8sIIQQ", b"BADPUTS1", 1, SEGMENT, PROCESS, index)
    return (head.ljust(64, b"\0") + b"".join(records)).ljust(SEGMENT, b"\0")


@pytest.fixture
def old_spool(tmp_path):
    root = tmp_path / "spool"
    folder = root / f"{PROCESS:016x}"
    folder.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    process = {
        "process_id": PROCESS, "role": "rank", "rank": 3, "replica": 3, "host": "node", "pid": 1,
        "start_ns": WALL - 10, "init_ns": WALL, "boot_id": "another boot", "version": "0.0.1",
    }  # fmt: skip
    facts = {
        "format": 1, "run": str(tmp_path / "run"), "anchor_mono_ns": MONO, "anchor_wall_ns": WALL,
        "start_ticks": 1, "pid_namespace": 1, "process": process, "config": {"lr": 1},
        "run_row": {"process_id": PROCESS, "time_ns": WALL, "name": "old", "source": "probe"},
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts))
    control = bytearray(4096)
    struct.pack_into("<8sIIQ", control, 0, b"BADPUTC1", 1, SEGMENT, PROCESS)
    struct.pack_into("<QQQ", control, 64, 1, 2, 0)  # second segment, two dropped, not closed
    struct.pack_into("<QQ", control, 256, MONO + 900, 4 << 16 | 3)  # in step 4 since then
    struct.pack_into("<QQ", control, 320, MONO + 800, 3 << 16 | 2)
    (folder / "control").write_bytes(control)
    first = [
        step(0, 1, MONO + 100, MONO + 200),
        step(1, 2, MONO + 300, MONO + 450, tokens=4096, pre=50),
        rare(2, 2, {"id": 64, "name": "warm-up"}),
        rare(3, 3, {"n": "save", "t": MONO + 460, "s": 2, "i": False, "a": {"step": 2}}),
        rare(4, 4, {"n": "save", "t": MONO + 460, "s": 2, "i": False, "a": {"step": 2}, "b": 3,
                    "d": 40, "f": None}),
        rare(5, 5, {"k": "note", "t": MONO + 520, "s": 2, "a": {"text": "hello"}}),
    ]  # fmt: skip
    mark = struct.pack("<HHIQ", 7, 0, 20, 6)
    first.append(mark + struct.pack("<I", crc32(mark)))
    (folder / "seg-00000000").write_bytes(segment(0, first))
    second = [step(6, 3, MONO + 600, MONO + 850, tokens=8, loss=2.5, data_ns=30)]
    second.append(step(7, 4, MONO + 900, MONO + 990)[:100])  # cut off by a kill
    (folder / "seg-00000001").write_bytes(segment(1, second))
    return root


def test_a_spool_of_version_1_is_read_with_everything_that_it_had(old_spool, tmp_path, capsys):
    assert collect([str(old_spool)]) == 0, capsys.readouterr()
    run = tmp_path / "run"

    def rows(table):
        return [r for p in list_parts(run, table) for r in pq.read_table(p).to_pylist()]

    steps = sorted(rows("steps"), key=lambda r: r["seq"])
    columns = ("seq", "step", "start_ns", "dur_ns", "tokens", "pre_data_ns", "loss", "data_ns")
    assert [tuple(r[c] for c in columns) for r in steps] == [
        (0, 1, WALL + 100, 100, None, None, None, None),
        (1, 2, WALL + 300, 150, 4096, 50, None, None),
        (6, 3, WALL + 600, 250, 8, None, 2.5, 30),
    ]
    assert {r["rank"] for r in steps} == {3}
    assert all(r["grad_norm_small"] is None and r["samples_small"] is None for r in steps)
    (save,) = rows("checkpoints")
    assert (save["step"], save["dur_ns"], save["ok"]) == (2, 40, True)
    found = {r["kind"]: json.loads(r["attrs"]) for r in rows("events")}
    assert found["note"] == {"text": "hello"}
    end = found["end"]
    assert (end["step"], end["phase"], end["phase_since_ns"]) == (4, "step", WALL + 900)
    assert (end["records"], end["dropped"], end["damaged"]) == (7, 2, 0)


def test_the_short_steps_of_version_2_are_read_beside_those_of_today(old_spool, tmp_path, capsys):
    """Version 2 wrote a step as 40 bytes: type, flags, tokens, wait; seq, start, end, step; crc."""
    (folder,) = old_spool.iterdir()
    facts = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps({**facts, "format": 2}))
    none = (1 << 32) - 1
    records = []
    for seq, tokens, pre in ((0, 4096, none), (1, none, 7), (2, 0, none)):
        start, end = MONO + 100 * seq, MONO + 100 * seq + 60
        body = struct.pack("<HHIIIQQI", 11, 0, tokens, pre, seq, start, end, seq + 1)
        records.append(body + struct.pack("<I", crc32(body)))
    start, end = MONO + 300, MONO + 390
    check = 0x13579BDF02468ACE + 8 + start + end + 4  # the form of version 3
    records.append(struct.pack("<HHIQQQQQ", 12, 0, 8, start, end, 4, 3, check))
    (folder / "seg-00000000").write_bytes(segment(0, records))
    (folder / "seg-00000001").unlink()
    assert collect([str(old_spool)]) == 0, capsys.readouterr()
    found = [r for p in list_parts(tmp_path / "run", "steps") for r in pq.read_table(p).to_pylist()]
    columns = ("seq", "step", "start_ns", "dur_ns", "tokens", "pre_data_ns")
    assert [tuple(r[c] for c in columns) for r in found] == [
        (0, 1, WALL, 60, 4096, None),
        (1, 2, WALL + 100, 60, None, 7),
        (2, 3, WALL + 200, 60, 0, None),
        (3, 4, WALL + 300, 90, 8, None),
    ]
