"""The token ledger, with every count worked out by hand."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from badput.parts import write_rows
from badput_ledger.books import open_books
from badput_ledger.text import render

_spec = importlib.util.spec_from_file_location(
    "made_up_runs", Path(__file__).with_name("test_books_properties.py")
)
assert _spec is not None
assert _spec.loader is not None
_made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_made_up)
NO_SHRINK, runs = _made_up.NO_SHRINK, _made_up.runs


def report_of(make):
    with open_books(make.write()) as books:
        return books.report()


def sums(report):
    tokens = report["tokens"]
    return {k: tokens[k] for k in ("processed", "kept", "lost", "skipped", "padding")}


def world(make, replicas, size, steps=2):
    """Ranks of ``replicas`` data replicas, ``size`` ranks each; ``steps`` of 1 s."""
    pids = []
    for rank in range(replicas * size):
        replica = rank // size
        pids.append(make.process(0, rank=rank, world=replicas * size, replica=replica))
        make.end(pids[-1], steps, rank=rank)
    return pids


@pytest.mark.parametrize("all_tell", [True, False])
def test_a_replica_counts_once_whether_one_or_all_of_its_ranks_tell(make, all_tell):
    """dp 2, tp 4, cp 2, pp 2: 32 ranks, 4096 tokens a replica: 8192 a step."""
    for rank, pid in enumerate(world(make, 2, 16)):
        tells = all_tell or rank % 16 == 15
        make.steps(pid, 1, 2, 0, 1, rank=rank, tokens=4096 if tells else None)
    report = report_of(make)
    assert sums(report) == {
        "processed": 2 * 8192, "kept": 2 * 8192, "lost": 0, "skipped": 0, "padding": None,
    }  # fmt: skip
    tokens = report["tokens"]
    assert (tokens["lo"], tokens["hi"], tokens["complete"]) == (16384, 16384, True)
    (group,) = tokens["carried_by"]
    assert (group["replicas"], group["kept"]) == ([0, 1], 8192)
    assert group["ranks"] == ([0, 16] if all_tell else [15, 31])


def test_where_ranks_of_a_replica_disagree_each_step_takes_the_greatest(make):
    """Rank 0 misses step 1, rank 1 undercounts step 2: 100 + 100, not the larger sum of 150."""
    first, second = world(make, 1, 2)
    make.step(first, 1, 0, 1, rank=0, tokens=50)
    make.step(first, 2, 1, 1, rank=0, tokens=100)
    make.step(second, 1, 0, 1, rank=1, tokens=100)
    make.step(second, 2, 1, 1, rank=1, tokens=40)
    report = report_of(make)
    assert sums(report)["kept"] == 200
    tokens = report["tokens"]
    assert (tokens["lo"], tokens["hi"]) == (50 + 40, 200)
    assert "(processed: 90 to 200)" in " ".join(render(report).split())


def test_replicas_may_differ_and_each_is_carried_by_its_own_ranks(make):
    for rank, pid in enumerate(world(make, 2, 1)):
        make.steps(pid, 1, 2, 0, 1, rank=rank, tokens=100 + rank, padding=10 * (1 + rank))
    report = report_of(make)
    # 2 x (100 + 101) = 402, of it padding 2 x (10 + 20)
    assert sums(report) == {
        "processed": 402, "kept": 342, "lost": 0, "skipped": 0, "padding": 60,
    }  # fmt: skip
    assert report["leaves"]["H.productive"]["tokens"] == 342
    assert report["leaves"]["F.padding"]["tokens"] == 60
    assert report["tokens"]["carried_by"] == [
        {"replicas": [0], "ranks": [0], "kept": 180, "lost": 0, "skipped": 0, "padding": 20},
        {"replicas": [1], "ranks": [1], "kept": 162, "lost": 0, "skipped": 0, "padding": 40},
    ]


def test_replicas_that_tell_nothing_make_the_count_a_lower_bound(make):
    for rank, pid in enumerate(world(make, 4, 1)):
        make.steps(pid, 1, 2, 0, 1, rank=rank, tokens=None if rank else 7)
    report = report_of(make)
    tokens = report["tokens"]
    assert (tokens["processed"], tokens["lo"], tokens["hi"]) == (14, 14, None)
    assert tokens["complete"] is False
    assert tokens["reason"].startswith("3 replicas in 1 sessions tell none")


def test_a_run_that_was_rolled_back(make):
    """s1 makes 1..6 and dies, the checkpoint of step 3 is loaded: 3 kept, 3 lost; s2 makes 4..5.

    Of s2's steps number 5 is skipped, so: 5 x 10 kept or skipped, 3 x 10 lost.
    """
    one = make.process(0, job_id="a")
    make.steps(one, 1, 6, 0, 1, tokens=10)
    make.checkpoint(one, "save", 3, 3.0, 0, path="/c/3")
    make.end(one, 6, reason="killed", signal=9)
    two = make.process(10, job_id="a")
    make.checkpoint(two, "load", 3, 10.5, 0.5, path="/c/3")
    make.step(two, 4, 11, 1, tokens=10, applied=True)
    make.step(two, 5, 12, 1, tokens=10, applied=False)
    make.end(two, 13)
    report = report_of(make)
    assert sums(report) == {
        "processed": 80, "kept": 40, "lost": 30, "skipped": 10, "padding": None,
    }  # fmt: skip
    first, second = report["tokens"]["tree"]
    assert (first["parent"], first["steps"], first["tokens"]) == (
        None, {"kept": 3, "lost": 3, "skipped": 0}, {"kept": 30, "lost": 30, "skipped": 0},
    )  # fmt: skip
    assert (second["parent"], second["from_step"], second["on_path"]) == ("s1", 3, True)
    assert second["tokens"] == {"kept": 10, "lost": 0, "skipped": 10}
    assert "s2 <- s1 at step 3: 1 kept (10 tokens), 1 skipped (10 tokens)" in render(report)


def test_tokens_at_risk_since_the_last_durable_checkpoint(make):
    """Two replicas; step 3 of 5 is durable, and nothing says that the run is over."""
    for rank in range(2):
        pid = make.process(0, rank=rank, world=2)
        make.steps(pid, 1, 5, 0, 1, rank=rank, tokens=10)
        make.checkpoint(pid, "save", 3, 3.0, 0, rank=rank, path="/c/3")
    report = report_of(make)
    risk = report["tokens"]["at_risk"]
    assert (risk["steps"], risk["tokens"], risk["after_step"]) == (2, 40, 3)
    assert "2 steps, 40 tokens since the last durable checkpoint" in " ".join(
        render(report).split()
    )


def test_without_a_durable_checkpoint_what_is_at_risk_is_not_known(make):
    pid = make.process(0)
    make.steps(pid, 1, 5, 0, 1, tokens=10)
    risk = report_of(make)["tokens"]["at_risk"]
    assert risk["tokens"] is risk["steps"] is None
    assert risk["reason"] == "no durable checkpoint was recorded"


@settings(max_examples=25, phases=NO_SHRINK, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs())
def test_every_token_is_kept_lost_skipped_or_padding(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        for table, made in rows.items():
            write_rows(path, table, "part", made)
        with open_books(path) as books:
            report = books.report()
            silent = books.tokens.silent
        tokens = report["tokens"]
        parts = [tokens[k] for k in ("kept", "lost", "skipped", "padding")]
        if tokens["processed"] is None:
            assert parts == [None] * 4
            return
        assert sum(p or 0 for p in parts) == tokens["processed"]
        assert all(p is None or p >= 0 for p in parts)
        assert sum(r["tokens"] or 0 for r in report["leaves"].values()) == tokens["processed"]
        assert tokens["lo"] <= tokens["processed"]
        assert tokens["hi"] == (None if silent else tokens["processed"])
        carried = [g[k] or 0 for g in tokens["carried_by"] for k in
                   ("kept", "lost", "skipped", "padding") for _ in g["replicas"]]  # fmt: skip
        assert sum(carried) == tokens["processed"]
        edges = [n or 0 for node in tokens["tree"] for n in node["tokens"].values()]
        assert sum(edges) == tokens["processed"]
