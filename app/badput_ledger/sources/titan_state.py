"""One attempt of a torchtitan run while its log is read.

The one idea: ``anchor`` is the instant up to which the attempt's time is already spoken
for (the last step line, or the end of a save, load or evaluation), so a step starts at the
anchor and ends at its line. A save or evaluation that begins right at the anchor stands
between steps; one that begins later lies inside the steps that the next line reports.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from badput_ledger.sources.attempts import (
    MOST_GPUS,
    SECOND,
    Checkpoint,
    Event,
    Span,
    inside,
)
from badput_ledger.sources.text import excerpt
from badput_ledger.sources.titan_launch import LaunchSide, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from badput_ledger.sources.attempts import Attempt, Mark, Said, Steps

LOOP_WORDS = (
    "step:",
    "validate step:",
    "Saving ",
    "Finished saving",
    "[GC] Performing periodic",
    "Checkpointer ",
    "Training completed",
    "Sleeping ",
    "Process group destroyed",
)
"""Beginnings of records that only a process in or after its training loop writes."""

_MESH = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d{1,9})\b")
_SIZES = re.compile(
    r"local batch size ([\d,]+), global batch size ([\d,]+), gradient accumulation steps ([\d,]+), "
    r"sequence length ([\d,]+), total steps ([\d,]+)"
)
_GPU = re.compile(r"CUDA capacity: (.+?) with ")
_FOLDER = re.compile(r"Checkpoints will be loaded from and saved to (\S+)")
_TOOK = re.compile(r"(?<![\d.])(\d{1,8}(?:\.\d{1,9})?) seconds")
_STEP_DIR = re.compile(r"/step-(\d{1,15})/?$")
_VALIDATE = re.compile(r"validate step:\s*([\d,]+)")


LONGEST_PATH = 4096


def _seconds(message: str) -> int | None:
    """``N seconds`` in a message, in nanoseconds."""
    took = _TOOK.search(message)
    return round(float(took.group(1)) * SECOND) if took else None


class Live(LaunchSide):
    """An attempt under way, and what is still open in it."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt)
        self.talking = False
        """The trainer itself has written a record."""
        self.first_talk: int | None = None
        self.newest = 0
        """Of the records of the rank that is followed; their clock never goes back here."""
        self.meshed = False
        self.anchor: int | None = None
        self.anchor_step = 0
        self.per_step = SECOND
        self.clock: int | None = None
        """Where torchtitan's throughput counter was last set back."""
        self.overhead = -1
        """Nanoseconds of overhead since the last step line, -1 if none was seen."""
        self.in_step: list[Span] = []
        self.open_save: tuple[Checkpoint, Span] | None = None
        self.open_load: tuple[Checkpoint, Span] | None = None
        self.eval_from: int | None = None
        self.completed_at: tuple[int, Mark] | None = None
        self.step_dirs: set[int] = set()
        self.last_step: tuple[int, Said] | None = None
        self.oddities: set[str] = set()

    # -- signs of life --------------------------------------------------------------

    def first_record(self, time: int, rank: int) -> None:
        """The trainer speaks: from launching to building the model."""
        self.talking, self.first_talk = True, time
        self.attempt.rank = rank
        self.attempt.start = min(self.attempt.start, time)

    @property
    def over(self) -> bool:
        """True if something said that this attempt ended."""
        return self.closed or self.completed_at is not None

    def expected(self, step: int) -> int:
        """When the line of ``step`` should come, if the steps go on as before."""
        return (self.anchor or 0) + self.per_step * (step - self.anchor_step)

    def starts_again(self, rank: int, message: str) -> bool:
        """True if ``message`` can only come from a new process of the same rank."""
        if not self.talking or rank != self.attempt.rank:
            return False
        if message.startswith("Building device mesh"):
            return self.meshed
        if message.startswith("Training starts at step"):
            return self.attempt.first_step is not None
        return message.startswith("torchtitan version") and self.meshed

    # -- records of the trainer -------------------------------------------------------

    def message(self, time: int, said: Said) -> None:
        """One record that is not a step."""
        message, self.newest = said.text, time
        if message.startswith("[GC] "):
            self._gc(message)
        elif message.startswith("Saving a full checkpoint at last step"):
            self._last_save(message)
        elif message.startswith("Saving the checkpoint"):
            self._end_save(time)
            self._save(time, said.mark())
        elif message.startswith("Finished saving the checkpoint"):
            self._end_save(time, message)
        elif message.startswith("Loading the checkpoint from "):
            self._load(time, said.mark(), message)
        elif message.startswith("Finished loading the checkpoint"):
            self._end_load(time, message)
        elif message.startswith("Training starts at step"):
            self._training(time, said.mark(), message)
        elif message.startswith("validate step:"):
            self._validate(time, said.mark(), message)
        elif message.startswith("Training completed"):
            self._end_save(time)
            self.completed_at = (time, said.mark())
        elif message.startswith("Checkpointer "):
            # A thread of its own deletes old checkpoints: no sign that a save is over.
            self.step_dirs.update(int(n) for n in re.findall(r"/step-(\d{1,15})\b", message))
        else:
            self._end_save(time)
            self._about(time, said)

    def _about(self, time: int, said: Said) -> None:
        """Settings that the trainer prints while it starts, and the begin of an evaluation."""
        attempt, message = self.attempt, said.text
        if message.startswith("Building device mesh"):
            mesh = {k: int(v) for k, v in _MESH.findall(message)}
            size = math.prod(v for k, v in mesh.items() if k != "ep")
            self.meshed = True
            if 0 < size <= MOST_GPUS:
                attempt.world_size = size
                attempt.config["mesh"] = mesh
                attempt.claim("world_size", said.mark())
        elif match := _SIZES.search(message):
            keys = ("local_batch", "global_batch", "accumulation", "seq_len", "steps")
            attempt.config.update(zip(keys, map(number, match.groups()), strict=True))
            attempt.claim("tokens_per_step", said.mark())
        elif match := _GPU.match(message):
            attempt.gpu_type, self.clock = excerpt(match.group(1), 100), time
            attempt.claim("gpu_type", said.mark())
        elif match := _FOLDER.search(message):
            attempt.folder = excerpt(match.group(1).rstrip("/"), LONGEST_PATH)
            parent = attempt.folder.rpartition("/")[0]
            attempt.home = attempt.home or parent or attempt.folder
            attempt.claim("folder", said.mark())
        elif re.match(r"torchtitan version: \S", message):
            attempt.config["torchtitan"] = excerpt(message.split(None, 3)[2], 100)
        elif message.startswith("Preparing ") and "validation" in message and self.anchor:
            self.eval_from = time

    def step(self, time: int, step: int, said: Said, values: tuple[float, ...]) -> str | None:
        """A step line with loss, gradient norm and rate. Returns what is odd, once a kind."""
        if self.open_save is not None:
            self._end_save(None)
        self.newest = max(self.newest, time)
        anchor = self.anchor
        if anchor is None:
            self.anchor, self.anchor_step, self.clock = time, step, time
            if self.attempt.first_step is None:
                self.attempt.first_step = step + 1
            return self._odd("the log begins inside the training: this step's begin is not in it")
        count = step - self.anchor_step
        if count <= 0 or time < anchor or count >= 1 << 31:
            return self._odd(
                f"step {step} after {self.anchor_step} without a sign of a restart: not counted"
            )
        rows, dur = self.attempt.steps, time - anchor
        if self.in_step or self.overhead >= 0:
            self._aside_in_step(rows, dur)
        loss, norm, rate = values
        rate_ns = time - self.clock if self.clock is not None else -1
        rows.append(step, count, anchor, dur, rate_ns=rate_ns, values=(rate, loss, norm))
        self.per_step = dur // count or 1
        self.anchor, self.anchor_step, self.clock = time, step, time
        self.eval_from = None
        if self.last_step is None:
            self.attempt.claim("first_step", said.mark(), step)
        self.last_step = (step, said)
        return None

    @property
    def plain(self) -> bool:
        """True right after a step line: nothing stands between it and a next one."""
        return (
            self.open_save is None
            and not self.in_step
            and self.overhead < 0
            and self.anchor is not None
            and self.anchor == self.clock
        )

    def many_steps(self, columns: dict[str, NDArray[Any]], said: Said) -> None:
        """Step lines that follow the last one and each other with nothing between them.

        The live is ``plain``; steps grow, times do not go back; ``said`` is the last line.
        """
        time, step = columns["time"], columns["step"]
        start: NDArray[np.int64] = np.empty(len(time), np.int64)
        start[0], start[1:] = self.anchor or 0, time[:-1]
        count = np.diff(step, prepend=self.anchor_step)
        self.attempt.steps.extend(
            step=step,
            count=count,
            start=start,
            dur=time - start,
            rate_ns=time - start,
            rate=columns["tps"],
            loss=columns["loss"],
            grad_norm=columns["grad_norm"],
        )
        last, number = int(time[-1]), int(step[-1])
        self.newest = max(self.newest, last)
        self.per_step = (last - int(start[-1])) // int(count[-1]) or 1
        self.anchor, self.anchor_step, self.clock = last, number, last
        self.eval_from = None
        self.last_step = (number, said)

    def _aside_in_step(self, rows: Steps, dur: int) -> None:
        """What was not training in the next row, which lasts ``dur``."""
        at = len(rows)
        for span in self.in_step:
            span.in_step = True
            if span.end is not None:
                spent = {"save": rows.save, "eval": rows.eval}[span.name]
                spent[at] = spent.get(at, 0) + span.end - span.start
        self.in_step.clear()
        if self.overhead >= 0:
            rows.overhead[at] = min(self.overhead, dur)
            self.overhead = -1

    def _odd(self, what: str) -> str | None:
        kind = re.sub(r"\d+", "#", what)
        if kind in self.oddities:
            return None
        self.oddities.add(kind)
        return what

    def _gc(self, message: str) -> None:
        took = _seconds(message)
        if took is not None and "periodic" in message and self.anchor is not None:
            self.overhead = max(self.overhead, 0) + took

    def _training(self, time: int, mark: Mark, message: str) -> None:
        first = number(message.rsplit(maxsplit=1)[-1])
        if first is None or first < 1:
            return
        self._end_load(time, "")
        begin = self.first_talk if self.first_talk is not None else self.attempt.start
        loads = [s for s in self.attempt.spans if s.name == "load"]
        built = loads[0].start if loads else time
        if built > begin:
            self.attempt.spans.append(Span("model", begin, built))
        self.attempt.first_step = first
        self.attempt.claim("resumed_from", mark, first - 1)
        self.anchor, self.anchor_step = time, first - 1

    # -- checkpoints and evaluation ----------------------------------------------------

    def _aside(self, span: Span) -> None:
        """Put a span between steps or inside one, by where it begins."""
        self.attempt.spans.append(span)
        if self.anchor is None or span.end is None:
            return
        if span.start - self.anchor <= max(SECOND // 20, self.per_step // 4):
            self.anchor = span.end
        else:
            self.in_step.append(span)

    def _save(self, time: int, mark: Mark) -> None:
        low = self.anchor_step
        step: int | None = low
        bounds = None
        if self.anchor is not None and time - self.anchor > max(SECOND // 20, self.per_step // 4):
            step, bounds = None, (low, low + max(1, -(-(time - self.anchor) // self.per_step)))
        ckpt = Checkpoint("save", time, mark, step, bounds, path=self._path(step))
        self.attempt.checkpoints.append(ckpt)
        self.attempt.claim("save", mark, step)
        self.open_save = (ckpt, Span("save", time, None, step))

    def _last_save(self, message: str) -> None:
        step = number(message.rstrip(".").rsplit(maxsplit=1)[-1])
        if self.open_save and step is not None:
            ckpt, span = self.open_save
            ckpt.step, ckpt.step_range, ckpt.path = step, None, self._path(step)
            span.step = step

    def _end_save(self, time: int | None, message: str = "") -> None:
        """The open save is over: its own line says so, or a line that comes after it.

        ``time`` None: a step line follows, so the save is over, but when is not known.
        """
        if self.open_save is None:
            return
        ckpt, span = self.open_save
        self.open_save = None
        took = _seconds(message)
        ckpt.ok = True
        if time is None:
            self.attempt.spans.append(span)
            return
        ckpt.end = span.end = time
        ckpt.dur = took if took is not None else time - ckpt.start
        span.attrs["from"] = (
            "the log's seconds" if took is not None else "its neighbours in the log"
        )
        self._aside(span)

    def _load(self, time: int, mark: Mark, message: str) -> None:
        path = excerpt(message.removeprefix("Loading the checkpoint from "), LONGEST_PATH)
        path = path.rstrip(".")
        found = _STEP_DIR.search(path)
        step = number(found.group(1)) if found else None
        if step is not None:
            self.step_dirs.add(step)
        folder = self.attempt.folder
        attrs: dict[str, Any] = {"path": path}
        if folder is not None and not inside(path, folder):
            # Another run's checkpoint: its number says nothing about this run's steps.
            attrs |= {"outside": True, "path_step": step}
            step = None
        self.attempt.loaded = path
        ckpt = Checkpoint("load", time, mark, step, path=path)
        self.attempt.checkpoints.append(ckpt)
        self.attempt.claim("load", mark, step)
        self.open_load = (ckpt, Span("load", time, None, step, attrs=attrs))
        self.attempt.spans.append(self.open_load[1])

    def _end_load(self, time: int, message: str) -> None:
        if self.open_load is None:
            return
        ckpt, span = self.open_load
        self.open_load = None
        took = _seconds(message)
        ckpt.end = span.end = time
        ckpt.ok = True
        ckpt.dur = took if took is not None else time - ckpt.start

    def _validate(self, time: int, mark: Mark, message: str) -> None:
        """An evaluation ends here; it began where the log says, else at the anchor."""
        self._end_save(time)
        found = _VALIDATE.match(message)
        step = number(found.group(1)) if found else None
        self.attempt.claim("eval", mark, step)
        self.clock = time  # torchtitan sets its throughput counter back here
        if self.anchor is not None and (self.anchor_step == step or self.eval_from is not None):
            begin = self.anchor if self.anchor_step == step else self.eval_from
            self._aside(Span("eval", begin or self.anchor, time, step))
        else:
            self.attempt.events.append(
                Event(time, "note", step, {"text": "evaluation, begin not known"})
            )
        self.eval_from = None

    def _path(self, step: int | None) -> str | None:
        folder = self.attempt.folder
        return f"{folder}/step-{step}" if folder and step is not None else None
