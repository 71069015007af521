"""Where a spool may lie, what is in it, and what the reader accepts."""

from __future__ import annotations

import json
import os
import stat
import time

import pytest

from badput import layout as lo
from badput import spool as spool_module
from badput.drain import BusyError, Drain
from badput.reader import SpoolReader, UnreadableError
from badput.spool import Spool, SpoolError, open_root

TRAIN = """
import badput, os, sys
badput.init(os.environ["RUN"])
done = 0
for _ in range(3):
    with badput.step():
        done += 1
print(done, badput._recorder is None)
badput.close()
"""


def facts(process_id=7, run="/nowhere"):
    return {
        "run": str(run),
        "anchor_mono_ns": 0,
        "anchor_wall_ns": 1000,
        "start_ticks": 0,
        "process": {
            "process_id": process_id, "role": "rank", "rank": 0, "pid": 1,
            "start_ns": 5, "init_ns": 6,
        },
        "run_row": {"process_id": process_id, "time_ns": 6, "source": "probe"},
    }  # fmt: skip


@pytest.fixture
def spool(tmp_path):
    made = Spool(str(tmp_path / "root"), 7, facts(run=tmp_path / "run"))
    yield made
    made.release()


def read_all(path):
    reader = SpoolReader(path)
    position = reader.load_position()
    batch = reader.read(position, 10**6)
    reader.close()
    return batch, position


def folder_of(spool):
    from pathlib import Path

    return Path(spool.path)


def test_a_link_in_place_of_the_spool_is_refused_and_training_goes_on(box, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    done = box.run_child(TRAIN, env={"BADPUT_SPOOL": str(link)})
    assert done.stdout == "3 True\n"
    assert done.stderr.count("\n") == 1
    assert "recording is off" in done.stderr
    assert list(target.iterdir()) == []


def test_somebody_elses_folder_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of another user")
    os.chown(root, 65534, 65534)
    with pytest.raises(SpoolError, match="belongs to uid 65534"):
        open_root(str(root))


def test_a_shared_file_system_is_refused(tmp_path, monkeypatch):
    for kind in ("nfs4", "lustre", "fuse.sshfs"):
        monkeypatch.setattr(spool_module, "file_system", lambda _, k=kind: k)
        with pytest.raises(SpoolError, match=f"is on {kind}; set BADPUT_SPOOL"):
            open_root(str(tmp_path / "root"))


def test_the_file_system_is_found_by_the_longest_mount_point():
    assert spool_module.file_system("/proc/self") == "proc"
    assert spool_module.file_system("/") not in ("", "proc")


def test_folders_and_files_are_private(spool, tmp_path):
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700
    for path in folder_of(spool).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_records_are_read_back_in_order_over_many_segments(spool, tmp_path):
    payload = b'{"x":"' + b"y" * 9000 + b'"}'
    count = 3 * lo.SEGMENT_SIZE // 9000
    assert [spool.write(lo.EVENT, payload) for _ in range(count)] == list(range(count))
    batch, position = read_all(folder_of(spool))
    assert [seq for _, seq, _ in batch.rare] == list(range(count))
    assert position.segment == spool.index >= 3


def test_a_torn_record_is_not_accepted_and_read_once_it_is_whole(spool):
    spool.write(lo.EVENT, b'{"k":"a"}')
    start = spool.pos
    spool.write(lo.EVENT, b'{"k":"b"}')
    good = spool.map[start]
    for offset in (start, start + 8, start + 20, spool.pos - 1):
        good = spool.map[offset]
        spool.map[offset] = good ^ 0x40
        batch, position = read_all(folder_of(spool))
        assert len(batch.rare) == 1, offset
        assert position.seq == 1
        spool.map[offset] = good
    assert len(read_all(folder_of(spool))[0].rare) == 2


def test_a_record_with_a_stale_number_is_not_accepted(spool):
    spool.write(lo.EVENT, b"{}")
    spool.seq = 5
    spool.write(lo.EVENT, b"{}")
    assert len(read_all(folder_of(spool))[0].rare) == 1


def test_record_types_of_a_newer_version_are_skipped(spool, tmp_path):
    spool.write(lo.EVENT, b'{"k":"a","t":1,"s":0,"a":{}}')
    spool.write(77, b"\xff\xff not json")
    spool.write(lo.EVENT, b'{"k":"b","t":2,"s":0,"a":{}}')
    drain = Drain(folder_of(spool))
    assert drain.drain() == 3
    drain.close()


def test_a_full_spool_drops_and_counts_and_takes_records_again_after_a_drain(spool, monkeypatch):
    monkeypatch.setattr(lo, "MAX_SEGMENTS", 2)
    monkeypatch.setattr(spool_module, "RETRY_NS", 0)
    payload = b'{"k":"n","t":1,"s":0,"a":{"x":"' + b"y" * 9000 + b'"}}'
    results = [spool.write(lo.EVENT, payload) for _ in range(400)]
    written = [r for r in results if r is not None]
    assert written == list(range(len(written)))
    assert spool.dropped == 400 - len(written) > 100
    drain = Drain(folder_of(spool))
    assert drain.drain() == len(written)
    assert drain.reader.writer()[1] == spool.dropped
    assert spool.write(lo.EVENT, payload) == len(written)
    assert drain.drain() == 1
    drain.close()


def test_no_space_for_the_next_segment_drops_and_counts(spool, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool_module, "make_segment", full)
    payload = b'{"x":"' + b"y" * 9000 + b'"}'
    results = [spool.write(lo.EVENT, payload) for _ in range(200)]
    assert None in results
    assert spool.dropped == results.count(None)


def test_a_disk_with_room_for_one_segment_takes_records_again_after_each_drain(
    spool, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool_module, "make_segment", full)
    monkeypatch.setattr(spool_module, "RETRY_NS", 0)
    monkeypatch.setattr(Drain, "prepare", lambda *_: None)
    payload = b'{"k":"n","t":1,"s":0,"a":{"x":"' + b"y" * 9000 + b'"}}'
    drain = Drain(folder_of(spool))
    written = []
    for _ in range(3):
        results = [spool.write(lo.EVENT, payload) for _ in range(200)]
        kept = [r for r in results if r is not None]
        assert 100 < len(kept) < 120
        assert results[: len(kept)] == kept
        assert spool.write(lo.EVENT, payload) is None, "not before all of it is in Parquet"
        assert drain.drain() == len(kept)
        written += kept
    assert written == list(range(len(written)))
    assert spool.dropped == 3 * 201 - len(written)
    assert [p.name for p in folder_of(spool).glob("seg-*")] == [lo.segment_name(2)]
    drain.close()
    again = Drain(folder_of(spool))
    assert spool.write(lo.EVENT, b'{"k":"last","t":1,"s":0,"a":{}}') == len(written)
    assert again.drain() == 1
    again.close()


def test_draining_again_after_a_crash_before_the_position_was_saved_doubles_nothing(
    spool, tmp_path, monkeypatch
):
    import pyarrow.parquet as pq

    from badput.parts import list_parts

    event = b'{"k":"note","t":1,"s":0,"a":{}}'
    for _ in range(3):
        spool.write(lo.EVENT, event)

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SpoolReader, "save_position", crash)
        drain = Drain(folder_of(spool))
        with pytest.raises(KeyboardInterrupt):
            drain.drain()
        drain.close()
    for _ in range(2):
        spool.write(lo.EVENT, event)
    drain = Drain(folder_of(spool))
    assert drain.drain() == 5
    drain.finish(None, 1)
    drain.finish(None, 2)
    drain.close()
    rows = [r for p in list_parts(tmp_path / "run", "events") for r in pq.read_table(p).to_pylist()]
    assert sorted(r["seq"] for r in rows) == [0, 1, 2, 3, 4, 5]
    assert [r["kind"] for r in rows].count("end") == 1


def test_two_readers_of_one_spool_do_not_meet(spool):
    drain = Drain(folder_of(spool))
    with pytest.raises(BusyError):
        Drain(folder_of(spool))
    drain.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("facts.json", b"", "is not that of a spool"),
        ("facts.json", b"[1]", "is not that of a spool"),
        ("facts.json", None, "has no readable facts.json"),
        ("control", b"", "is not the control page"),
    ],
)
def test_damaged_spools_are_refused_with_a_sentence(spool, name, content, message):
    path = folder_of(spool) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match=message):
        Drain(folder_of(spool))


def test_a_spool_of_a_newer_format_is_left_alone(spool):
    path = folder_of(spool) / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(UnreadableError, match="update badput"):
        Drain(folder_of(spool))


AS_NOBODY = """
import os, sys
# Everything is loaded before the change of user, who may not be able to read the interpreter.
import badput, json, subprocess
from badput import collector, compact, drain, merge, session, spans, watch
import pathlib, pyarrow.parquet
collector.duties(pathlib.Path("/"), print)
session.ensure_collector = lambda root: False
os.setgid(65534)
os.setuid(65534)
badput.init(os.environ["RUN"])
for _ in range(3):
    with badput.step(): pass
assert badput._recorder is not None
pid = os.fork()
if pid == 0:
    os._exit(collector.main([os.environ["BADPUT_SPOOL"]]))
print(pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_an_unwritable_run_folder_keeps_everything_until_it_can_be_written(
    own_box, open_folder, wait_until
):
    """As another user, since root may write anywhere."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    own_box.spool, own_box.run = home / "spool", open_folder / "run"
    own_box.run.mkdir(mode=0o755)
    own_box.env.update(BADPUT_SPOOL=str(own_box.spool), RUN=str(own_box.run))
    log = open_folder / "log"
    with log.open("w") as handle:
        child = own_box.start(AS_NOBODY, stdout=-1, stderr=handle)
    collector = int(child.stdout.readline())
    child.wait()
    child.stdout.close()
    try:
        wait_until(lambda: "kept for later" in log.read_text(), "the collector to complain")
        time.sleep(0.5)
        assert len(own_box.spools()) == 1
        os.chown(own_box.run, 65534, 65534)
        (end,) = own_box.ends()
    finally:
        os.kill(collector, 9)
    assert [r["step"] for r in own_box.rows("steps")] == [1, 2, 3]
    assert end["attrs"]["dropped"] == 0


def test_a_removed_run_folder_is_made_again(own_box, wait_until):
    child = own_box.start(TRAIN.replace("badput.close()", "input()\nbadput.close()"), stdin=-1)
    wait_until(lambda: len(own_box.rows("processes")) == 1, "a first part")
    own_box.run.rename(own_box.folder / "removed")  # at one instant, though the collector may write
    child.communicate("\n")
    own_box.ends()
