"""Event logs of AI-Hypercomputer/resiliency, Google's goodput tools for PyTorch on GPUs.

Every node writes ``job_started`` and ``job_terminated``; ``checkpoint_loaded`` and
``checkpoint_saved`` come once for the whole job, with a step. Nothing tells of single steps,
of failures or of their detection, so between the last save of an attempt and the next start
lost work, hang and teardown cannot be told apart: the books' bounds say so.
docs/import.md says what each claim rests on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from badput_ledger.sources.attempts import (
    MOST_ATTEMPTS,
    NAN,
    SECOND,
    Attempt,
    BadLogError,
    Checkpoint,
    Event,
    Job,
    Parsed,
    Run,
    Span,
    Unread,
    reason,
)
from badput_ledger.sources.event_lines import (
    LOADED,
    SAVED,
    SCHEDULED,
    STARTED,
    STOPPED,
    TERMINATED,
    Events,
    Reader,
    looks_like,
)
from badput_ledger.sources.machines import machine_of
from badput_ledger.sources.text import excerpt
from badput_ledger.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.sources.attempts import Mark, Options
    from badput_ledger.sources.text import TextLog

_TOGETHER = 10 * SECOND
"""The nodes of one attempt start within this; the first of them may be a new node."""


def sniff(head: bytes) -> float:
    """0.9 if a line is such an event, else 0."""
    return 0.9 if looks_like(head) else 0.0


def parse(logs: Sequence[TextLog], options: Options) -> Parsed:
    """One run for each job name in ``logs``. A file that cannot be read stops no other."""
    reader, refused = Reader(), list[str]()
    for log in logs:
        try:
            reader.read(log)
        except OSError as error:
            refused.append(f"{log.name}: {reason(error)}; only what came before was read")
        except BadLogError as error:
            refused.append(f"{log.name}: {error}")
            break
        if log.truncated:
            refused.append(f"{log.name}: {log.truncated}")
    runs: list[Run] = []
    for job, events in reader.jobs.items():
        try:
            runs.append(_run(job, events, reader, options, logs[0].path.name))
        except BadLogError as error:
            refused.append(f"job {excerpt(job, 80)!r}: {error}")
    unread = sorted(reader.unread, key=lambda u: (u.file, u.line or 0))
    return Parsed(sorted(runs, key=lambda r: (r.attempts[0].start, r.name)), unread, refused)


@dataclass(slots=True)
class _Life:
    """The events of one attempt: indices into ``Events``, in order of time."""

    first: int
    nodes: dict[int, int] = field(default_factory=dict[int, int])
    """Node and the index of its start."""
    rest: list[int] = field(default_factory=list[int])
    """Loads, saves and terminations."""


def _run(job: str, events: Events, reader: Reader, options: Options, file: str) -> Run:
    lives, users = _lives(events, reader)
    if not lives:
        raise BadLogError("no node ever started, and no checkpoint was loaded or saved")
    nodes = len({node for life in lives for node in life.nodes}) or 1
    machine = machine_of(job, nodes, options)
    wanted = [i for life in lives for i in (life.first, *life.rest)] + users
    marks = reader.marks(events, wanted)
    run = Run(excerpt(job, 200) or file.partition(".")[0], home=job or None)
    run.places = nodes * machine.gpus
    shared = Job(events.time[lives[0].first], marks[lives[0].first])
    builder = _Builder(events, marks, reader.unread)
    for number, life in enumerate(lives):
        following = lives[number + 1] if number + 1 < len(lives) else None
        attempt = builder.attempt(life, following, shared)
        attempt.number, attempt.home, attempt.stream = number, run.home, file
        attempt.world_size = len(life.nodes) * machine.gpus or None
        attempt.gpu_type = machine.gpu_type
        attempt.config |= {"nodes": nodes, "gpus_per_node": machine.known, "place": machine.place}
        run.attempts.append(attempt)
    run.submitted = min(
        (events.time[i] for i in users if events.kind[i] == SCHEDULED), default=None
    )
    if machine.note:
        run.attempts[0].claim("gpus", marks[lives[0].first])
        run.notes.append(machine.note)
    if len(reader.zones) == 2:
        run.notes.append("some dates name a zone and some do not: those are read as UTC")
    run.notes += _counted(events, lives)
    return run


def _lives(events: Events, reader: Reader) -> tuple[list[_Life], list[int]]:
    """The attempts, and what the user scheduled or ended.

    A node that starts again begins a new attempt. Raises BadLogError if there are more of
    them than a training can have.
    """
    lives: list[_Life] = []
    users: list[int] = []
    copies: list[int] = []
    instant: set[tuple[int, int, int]] = set()
    now = None
    for i in events.in_order():
        kind, node = events.kind[i], events.node[i]
        if events.time[i] != now:
            now = events.time[i]
            instant.clear()
        key = (kind, node, events.step[i])
        if key in instant:
            copies.append(i)
            continue
        instant.add(key)
        if kind in (SCHEDULED, STOPPED):
            users.append(i)
            continue
        if not lives or (kind == STARTED and node in lives[-1].nodes):
            lives.append(_Life(i, _early(events, lives, i)))
            if len(lives) > MOST_ATTEMPTS:
                raise BadLogError(f"more than {MOST_ATTEMPTS} starts; that is no training")
            if lives[-1].nodes:
                lives[-1].first = min(lives[-1].nodes.values(), key=lambda n: events.time[n])
        if kind == STARTED:
            lives[-1].nodes[node] = i
        else:
            lives[-1].rest.append(i)
    reader.repeated(events, copies, "the same event again: counted once")
    return lives, users


def _early(events: Events, lives: list[_Life], opener: int) -> dict[int, int]:
    """Starts of nodes that were new just before the first node came again: of this attempt."""
    if not lives:
        return {}
    before, now = lives[-1], events.time[opener]
    begin = events.time[before.first]
    found = {
        node: i
        for node, i in before.nodes.items()
        if now - events.time[i] <= _TOGETHER < events.time[i] - begin
    }
    for node in found:
        del before.nodes[node]
    return found


class _Builder:
    """Makes an attempt of the events of one life."""

    def __init__(self, events: Events, marks: dict[int, Mark], unread: list[Unread]) -> None:
        self.events = events
        self.marks = marks
        self.unread = unread
        self.reached: int | None = None
        """Greatest step that any earlier attempt loaded or saved."""

    def attempt(self, life: _Life, following: _Life | None, job: Job) -> Attempt:
        """The attempt, up to its last event or the next start."""
        events = self.events
        attempt = Attempt(events.time[life.first], self.marks[life.first], job)
        attempt.claim("start", attempt.mark)
        at: tuple[int, int] | None = None  # the last step that is certain, and when
        if self.reached is None and not any(events.kind[i] == LOADED for i in life.rest):
            at = (0, max((events.time[i] for i in life.nodes.values()), default=attempt.start))
        last = max([attempt.start, *(events.time[i] for i in (*life.nodes.values(), *life.rest))])
        ended: list[int] = []
        for i in life.rest:
            if events.kind[i] == TERMINATED:
                ended.append(i)
            elif events.kind[i] == LOADED:
                at = self._load(attempt, i)
            else:
                at = self._save(attempt, i, at)
        attempt.last = last
        self._end(attempt, following, ended)
        loaded = [c for c in attempt.checkpoints if c.op == "load"]
        if loaded and not len(attempt.steps):
            # Whether it trained after that nothing tells: its end is not seen.
            attempt.spans.append(Span("failed_step", loaded[-1].start, None, loaded[-1].step))
        return attempt

    def _load(self, attempt: Attempt, i: int) -> tuple[int, int]:
        step, time, mark = self.events.step[i], self.events.time[i], self.marks[i]
        attempt.checkpoints.append(Checkpoint("load", time, mark, step, end=time, ok=True))
        attempt.claim("load", mark, step)
        if attempt.first_step is None:
            attempt.first_step = step + 1
            attempt.claim("resumed_from", mark, step)
        self.reached = max(self.reached or 0, step)
        return step, time

    def _save(self, attempt: Attempt, i: int, at: tuple[int, int] | None) -> tuple[int, int]:
        """A save, and the steps since the load or save before it."""
        step, time, mark = self.events.step[i], self.events.time[i], self.marks[i]
        attempt.checkpoints.append(Checkpoint("save", time, mark, step, end=time, ok=True))
        attempt.claim("save", mark, step)
        self.reached = max(self.reached or 0, step)
        if at is None:
            what = "a save with no load before it in this attempt: its steps are not counted"
            self.unread.append(Unread(mark.file, mark.line, what))
            return step, time
        if step <= at[0]:
            if step < at[0]:
                what = f"the step goes back from {at[0]} without a load: not counted"
                self.unread.append(Unread(mark.file, mark.line, what))
            return at[0], time
        if time > at[1]:
            if attempt.first_step is None:
                attempt.first_step = at[0] + 1
            rows, none = attempt.steps, (NAN, NAN, NAN)
            rows.append(step, step - at[0], at[1], time - at[1], rate_ns=0, values=none)
        return step, time

    def _end(self, attempt: Attempt, following: _Life | None, ended: list[int]) -> None:
        """How far it is known to have lived: to its last termination, or to the next start."""
        events = self.events
        if ended:
            first, last = self.marks[ended[0]], self.marks[ended[-1]]
            when = events.time[ended[0]]
            node = events.node[ended[0]]
            if following is not None:
                said = "job_terminated" + (f" of node {node}" if node >= 0 else "")
                attempt.events.append(Event(when, "failure", attrs={"what": said}))
                attempt.claim("failure", first)
            attempt.claim("end", last)
            end = max(events.time[i] for i in ended)
            attempt.events.append(Event(end, "end", attrs={"reason": "unknown"}))
        elif following is not None:
            end = events.time[following.first]
            attempt.last = end
            attrs = {"reason": "unknown", "by": "the next start"}
            attempt.events.append(Event(end, "end", attrs=attrs))
        else:
            attrs = {"reason": "unknown", "seen": False}
            attempt.events.append(Event(attempt.last, "end", attrs=attrs))


def _counted(events: Events, lives: list[_Life]) -> list[str]:
    """What the log holds, for a person."""
    kinds = [{events.kind[i] for i in life.rest} for life in lives]
    loads = sum(events.kind[i] == LOADED for life in lives for i in life.rest)
    if not loads:
        return []
    unsaved, since = 0, False
    for i in (i for life in lives for i in life.rest):
        if events.kind[i] == LOADED:
            unsaved += since
            since = True
        elif events.kind[i] == SAVED:
            since = False
    unsaved += since
    never = sum(LOADED not in found for found in kinds)
    zero = sum(0 in life.nodes for life in lives)
    text = (
        f"{plural(len(lives), 'start')} (node 0: {zero}), {plural(loads, 'load')}; "
        f"{plural(never, 'start')} never loaded a checkpoint, and after "
        f"{plural(unsaved, 'load')} nothing was saved before the next load or the end"
    )
    return [text]
