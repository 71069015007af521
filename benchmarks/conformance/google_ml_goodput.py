"""Google's ml-goodput-measurement as a tool of the suite.

The package drags in Google Cloud's clients, so it lies in a virtual environment of its own
(`make benchmarks-peers`, or BADPUT_PEERS=FOLDER of another one) and answers from a process of
its own; ``google_child`` says what of it is a stub.

What is recorded is what a training program of one worker records by the package's README: job
start, accelerator initialisation (our rendezvous), training preparation (model and checkpoint
load), data loading, the start of each step, evaluation and saves as custom events that block
training, and the job's end where the program came to its end. The lowest rank speaks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.conformance.timeline import S, nanos
from benchmarks.conformance.tools import Score

if TYPE_CHECKING:
    from benchmarks.conformance.timeline import Piece, Rank, Timeline

ROOT = Path(__file__).resolve().parents[2]
_CHILD = Path(__file__).with_name("google_child.py")
_SPANS = {
    "rendezvous": "tpu_init",
    "model": "training_preparation",
    "load": "training_preparation",
    "data_init": "data_loading",
}
_BLOCKING = ("eval", "save", "snapshot")

Call = tuple[str, "int | str | None", int]
"""Method, step or event type, nanoseconds after the timeline's begin."""


class GoogleMlGoodput:
    """The package, behind a pipe."""

    name = "ml-goodput-measurement"

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [peer(), str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.version = str(self._answer()["version"])
        except (OSError, ValueError, KeyError):
            self.close()
            raise ImportError(f"ml-goodput-measurement does not start in {peer()}") from None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End its process."""
        child = getattr(self, "_child", None)
        if child is not None and child.stdin is not None:
            child.stdin.close()
            child.wait()
            child.stdout.close()

    def score(self, timeline: Timeline, folder: Path) -> Score:
        """What it says of the events of the timeline's lowest rank."""
        calls = recorded(timeline)
        total = timeline_ns(timeline)
        # A job without an end lasts until it is asked about: that is the timeline's end.
        base = time.time_ns() - total
        said = [(name, what, (base + at) / S) for name, what, at in calls]
        answer = self._ask({"calls": said, "cache": str(folder)})
        if "error" in answer:
            return Score(None, why_not=answer["error"])
        buckets = {k: v / 100 * total / S for k, v in answer["badput"].items() if v}
        return Score(answer["goodput"] / 100, buckets)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        return answer


def peer() -> str:
    """A Python that has the package. Raises ImportError with what to do."""
    given = os.environ.get("BADPUT_PEERS")
    folder = Path(given) if given else ROOT / ".venv-peers"
    package = "lib/python3*/site-packages/ml_goodput_measurement"
    if any(folder.glob(package)):
        return str(folder / "bin" / "python")
    if find_spec("ml_goodput_measurement") is not None:
        return sys.executable
    raise ImportError(
        f"ml-goodput-measurement is not installed in {folder}; `make benchmarks-peers` does that"
    )


def recorded(timeline: Timeline) -> list[Call]:
    """The calls that a program would have made, in order of time."""
    calls: list[Call] = []
    for session in timeline.sessions:
        rank = min(session.ranks, key=lambda r: r.rank)
        calls.append(("record_job_start_time", None, rank.start_ns))
        for piece in rank.pieces:
            calls += _calls(piece)
        calls += _ended(rank)
    return sorted(calls, key=lambda c: c[2])


def _calls(piece: Piece) -> list[Call]:
    if piece.kind == "step":
        return _steps(piece)
    if piece.kind != "span":
        return []
    if piece.name in _BLOCKING:
        what = "custom_badput_event"
        return [
            (f"record_{what}_start_time", piece.name, piece.start_ns),
            (f"record_{what}_end_time", piece.name, piece.stop_ns),
        ]
    what = _SPANS.get(piece.name, "")
    if not what:
        return []
    return [
        (f"record_{what}_start_time", None, piece.start_ns),
        (f"record_{what}_end_time", None, piece.stop_ns),
    ]


def _steps(piece: Piece) -> list[Call]:
    """A row of several steps is that many calls, evenly apart; a wait for data is loading."""
    calls: list[Call] = []
    wait = int(piece.fields.get("pre_data_ns", 0))
    if wait:
        calls += [
            ("record_data_loading_start_time", None, piece.start_ns - wait),
            ("record_data_loading_end_time", None, piece.start_ns),
        ]
    many, last = int(piece.fields["n_steps"]), int(piece.fields["step"])
    length = (piece.stop_ns - piece.start_ns) // many
    for i in range(many):
        step = last - many + 1 + i
        calls.append(("record_step_start_time", step, piece.start_ns + i * length))
    return calls


def _ended(rank: Rank) -> list[Call]:
    """A program that comes to its end says so; one that is killed says nothing, but it had told
    the start of the step that was under way."""
    last = rank.pieces[-1]
    if last.kind != "end":
        return []
    if last.name == "completed":
        return [("record_job_end_time", None, last.stop_ns)]
    said = last.fields
    if said.get("phase") == "step" and {"step", "phase_since"} <= said.keys():
        return [("record_step_start_time", int(said["step"]), nanos(said["phase_since"]))]
    return []


def timeline_ns(timeline: Timeline) -> int:
    """From the first start to the last sign, as the job lasted."""
    return max(s.end_ns for s in timeline.sessions) - min(s.start_ns for s in timeline.sessions)
