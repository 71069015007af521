"""A node loses power: what was not flushed to disk may be whole, empty, cut off or gone."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys

import pytest

from badput.parts import good_rows

TRAIN = """
import badput, os, time
badput.init(os.environ["RUN"])
number = 0
while True:
    number += 1
    with badput.step(tokens=number) as step:
        if number % 3 == 0:
            step.log(loss=float(number))
    if number % 50 == 0:
        badput.event("note", number=number)
        with badput.span("save", step=number):
            pass
    time.sleep(0.0005)
"""
SITE = """
import badput.worker as w
w.FEW, w.FRESH = 2, 4
import badput.collector as c
c.FLUSH_S = (0.2, 0.2, 0.2)
"""
PAGE = 4096


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory, request):
    """Spool and run folder of one training as they were at some instants, the spool first.

    So no position in a spool is ahead of the parts that were flushed before it was saved.
    """
    folder = tmp_path_factory.mktemp("power")
    from tests.probe.conftest import Box, wait_until

    box = Box(folder, folder / "spool")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    box.env["PYTHONPATH"] = str(folder / "site")
    child = box.start(TRAIN)
    taken = []
    try:
        for turn in range(4):
            have = 500 * turn + 100
            wait_until(lambda n=have: len(good_rows(box.run, "steps")) >= n, "steps")
            place = folder / f"copy{turn}"
            for what in (box.spool, box.run):
                while True:  # files come and go
                    try:
                        shutil.copytree(what, place / what.name)
                        break
                    except (shutil.Error, OSError):
                        shutil.rmtree(place / what.name, ignore_errors=True)
            taken.append(place)
    finally:
        box.kill_collectors()
        child.kill()
        child.wait()
    return taken


def damage(path, pick):
    """Leave of a file what might be left: nothing, a part, holes, or all of it."""
    data = path.read_bytes()
    kind = pick.choice(["whole", "empty", "cut", "holes"])
    if kind == "empty":
        data = b""
    elif kind == "cut":
        data = data[: pick.randrange(len(data) + 1)]
    elif kind == "holes":
        pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
        data = b"".join(p if pick.random() < 0.6 else bytes(len(p)) for p in pages)
    path.write_bytes(data)


def lose_power(place, pick, broken_parts):
    """Make of a snapshot what a power loss might leave; names of parts that were damaged."""
    ((spool),) = [p for p in (place / "spool").iterdir() if len(p.name) == 16]
    try:
        saved = json.loads((spool / "ack.json").read_text())["seq"]
    except FileNotFoundError:
        saved = 0
    names = ["control", "facts.json"] if pick.random() < 0.3 else []
    for path in [*sorted(spool.glob("seg-*")), *(spool / name for name in names)]:
        damage(path, pick)
    for path in sorted((place / "run" / "tmp").glob("*.parquet")):
        damage(path, pick)
    for path in sorted((place / "run" / "facts").glob("*/*.parquet")):
        words = path.stem.split("-")
        later = len(words) > 1 and words[1].isdigit() and int(words[1]) >= max(saved, 1)
        if later and pick.random() < 0.5:
            path.unlink()  # the rename was not flushed
    parts = sorted((place / "run" / "facts" / "steps").glob("*.parquet"))
    hurt = pick.sample(parts, min(broken_parts, len(parts)))
    for path in hurt:
        path.write_bytes(path.read_bytes()[: pick.choice([0, 4, 300, path.stat().st_size - 5])])
    return saved, [p.name for p in hurt]


def badput(*words):
    command = [sys.executable, "-m", "badput.cli", *map(str, words)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert done.returncode in (0, 1, 2)
    return done


@pytest.mark.parametrize("seed", range(4))
def test_what_power_loss_leaves_is_a_run_that_can_be_read(snapshots, tmp_path, seed):
    pick = random.Random(seed)
    source = snapshots[seed % len(snapshots)]
    place = tmp_path / "place"
    shutil.copytree(source, place)
    saved, hurt = lose_power(place, pick, broken_parts=seed % 2)
    run = place / "run"
    done = badput("collect", place / "spool", "--into", run)
    if done.returncode:
        assert done.stderr.startswith("badput collect: "), done.stderr
    again = badput("collect", place / "spool", "--into", run)
    assert "records into" not in again.stdout or " 0 records into" in again.stdout, again.stdout

    def check():
        steps = good_rows(run, "steps")
        keys = [(r["process_id"], r["seq"]) for r in steps]
        assert len(set(keys)) == len(keys)
        assert all(r["tokens"] == r["step"] for r in steps)
        assert all(r["loss"] in (None, float(r["step"])) for r in steps)
        if not hurt:  # what a saved position says is in the run folder
            numbers = {r["seq"] for table in ("steps", "events", "spans") for r in
                       good_rows(run, table)}  # fmt: skip
            begun = {r["seq"] - 1 for r in good_rows(run, "spans")}
            named = set(range(saved)) - numbers - begun
            assert len(named) <= 2, sorted(named)[:10]  # records of names have no rows
        return sorted(keys)

    before = check()
    assert len(before) > 0
    said = badput("compact", run, "--all")
    assert all(name in said.stderr for name in hurt), said.stderr
    assert check() == before
    for words in (["report", run], ["fsck", run], ["status", run]):
        told = badput(*words)
        if hurt and words[0] == "report":
            assert all(name in told.stdout + told.stderr for name in hurt)
    done = badput("report", run, "--json")
    assert done.returncode == (2 if hurt else 0)  # 2: something of the input could not be read
    assert json.loads(done.stdout)["steps"]["executed"] == len(before)
