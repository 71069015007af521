"""Which attempts are one run, whatever files they were found in.

Files are read apart from each other unless one continues the other, so what joins attempts
here is evidence that they carry themselves: above all where they write. The same attempts
make the same runs, whether their files are imported together, in any order, or one by one.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from badput_ledger.sources.attempts import (
    MOST_RUNS,
    SECOND,
    Attempt,
    BadLogError,
    Job,
    Lives,
    Run,
    Unread,
    inside,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TOGETHER = 60 * SECOND
"""Processes of one launch speak for the first time within this."""


def split_runs(attempts: Sequence[Attempt], name: str | None) -> tuple[list[Run], list[Unread]]:
    """Attempts divided into runs in order of time, and what was in the logs twice.

    The same output folder is the same run, with one exception: an attempt that begins at
    step 1 without loading from its own checkpoints starts a new run if an earlier attempt
    had completed or the settings differ, since nothing of the earlier steps is in its
    model. Attempts that never trained go with the next attempt of their job that did.
    Runs whose folder is not known are named ``name``, else after their file.
    Raises BadLogError if there are more runs than logs can have.
    """
    ordered = sorted(attempts, key=lambda a: (a.start, a.mark.file, a.mark.line))
    _find_homes(ordered)
    kept, unread = _once(ordered)
    groups: dict[tuple[str | None, str], list[Attempt]] = {}
    for attempt in kept:
        key = (attempt.home, "" if attempt.home is not None else attempt.stream)
        groups.setdefault(key, []).append(attempt)
    runs: list[Run] = []
    for (home, _), members in groups.items():
        first = members[0].mark.file
        base = (home or "").rpartition("/")[2] or name or PurePath(first).name.partition(".")[0]
        for count, part in enumerate(_divide(members), 1):
            runs.append(Run(base if count == 1 else f"{base} ({count})", part, home))
    if len(runs) > MOST_RUNS:
        raise BadLogError(
            f"the logs hold {len(runs)} runs, more than {MOST_RUNS}; import fewer files at once"
        )
    _neighbours(runs)
    return sorted(runs, key=lambda r: (r.attempts[0].start, r.name)), unread


def _find_homes(ordered: Sequence[Attempt]) -> None:
    """Attempts that died before they said where they write get the folder of a neighbour.

    First that of their job, earlier attempts before later ones, then that of their log.
    """
    for by_job in (True, False):
        for direction in (ordered, ordered[::-1]):
            known: dict[int | str, str] = {}
            found: list[tuple[Attempt, str]] = []
            for attempt in direction:
                key = id(attempt.job) if by_job else attempt.stream
                if attempt.home is not None:
                    known[key] = attempt.home
                elif key in known and (attempt.first_step is None or direction is ordered):
                    found.append((attempt, known[key]))
            for attempt, home in found:
                attempt.home = home


def _once(ordered: Sequence[Attempt]) -> tuple[list[Attempt], list[Unread]]:
    """Every attempt once, where two files hold it: the copy with more steps.

    A copy has the same first line at the same time; the log of another rank has the same
    folder and begins at nearly the same time.
    """
    unread: list[Unread] = []
    places: dict[tuple[int, str, str | None], int] = {}
    newest: dict[str, int] = {}
    kept: list[Attempt] = []
    for attempt in ordered:
        key = (attempt.start, attempt.mark.text, attempt.home)
        at = places.get(key)
        if at is None and attempt.home is not None:
            at = newest.get(attempt.home)
            if at is not None and not _same_launch(kept[at], attempt):
                at = None
        if at is None:
            places[key] = at = len(kept)
            kept.append(attempt)
        else:
            other = kept[at]
            longer = len(attempt.steps) > len(other.steps)
            kept[at], copy = (attempt, other) if longer else (other, attempt)
            mark = kept[at].mark
            what = f"this attempt is also in {mark.file}:{mark.line}; counted once"
            unread.append(Unread(copy.mark.file, copy.mark.line, what))
        if kept[at].home is not None:
            newest[kept[at].home or ""] = at
    return kept, unread


def _same_launch(one: Attempt, two: Attempt) -> bool:
    """True if two logs show the same launch, from two ranks or nodes."""
    both = min(one.last, two.last) - max(one.start, two.start)
    shorter = min(one.last - one.start, two.last - two.start)
    return (
        one.stream != two.stream and abs(one.start - two.start) <= _TOGETHER and both * 2 > shorter
    )


def _divide(members: Sequence[Attempt]) -> Iterable[list[Attempt]]:
    """The attempts of one output folder, divided where a training begins anew."""
    deciding: list[Attempt] = []  # for each attempt, the one whose start decides about it
    later: Attempt | None = None
    for attempt in reversed(members):
        if attempt.first_step is not None or attempt.loaded is not None:
            later = attempt
        elif later is not None and later.job is not attempt.job:
            later = None
        deciding.append(later or attempt)
    deciding.reverse()
    run: list[Attempt] = []
    moved: dict[int, Job] = {}
    trained: Attempt | None = None
    completed, highest = False, 0
    for attempt, decider in zip(members, deciding, strict=True):
        if run and (
            _begins_anew(trained, decider, completed=completed)
            or _unrelated(run[-1], decider, highest)
        ):
            yield run
            run, trained, completed, highest = [], None, False, 0
        if run:
            _join_jobs(run[-1], attempt, moved)
        run.append(attempt)
        if len(attempt.steps):
            trained = attempt
            completed = completed or attempt.completed
            highest = max(highest, attempt.steps.last_step)
    yield run


def _begins_anew(trained: Attempt | None, attempt: Attempt, *, completed: bool) -> bool:
    """``trained``: the newest attempt before that has steps."""
    if attempt.first_step != 1 or trained is None:
        return False
    loaded, folder = attempt.loaded, attempt.folder
    if loaded is not None and folder is not None and inside(loaded, folder):
        return False
    if trained.job is attempt.job and attempt.job.dated:
        return False
    return completed or _settings(trained) != _settings(attempt)


def _unrelated(before: Attempt, attempt: Attempt, highest: int) -> bool:
    """True if two logs name the same relative folder and nothing else joins them.

    ``./outputs`` is another folder in every directory; only going on at a step that the
    other log reached shows that it is the same one.
    """
    if before.stream == attempt.stream or (attempt.home or "").startswith("/"):
        return False
    first = attempt.first_step
    return first is None or not 1 < first <= highest + 1


def _settings(attempt: Attempt) -> dict[str, Any]:
    keys = ("steps", "global_batch", "local_batch", "seq_len", "mesh")
    return {key: attempt.config.get(key) for key in keys}


def _join_jobs(before: Attempt, attempt: Attempt, moved: dict[int, Job]) -> None:
    """A wrapper that goes on counting its attempts in the next file is one job.

    ``moved``: what such a job of a later file became, by its id.
    """
    one, two = before.job, attempt.job
    if (
        one is not two
        and before.stream != attempt.stream
        and one.dated
        and two.dated
        and before.number is not None
        and attempt.number == before.number + 1
    ):
        if two.end is not None and (one.end is None or two.end > one.end):
            one.end, one.end_mark = two.end, two.end_mark
        moved[id(two)] = one
    attempt.job = moved.get(id(two), two)


def _neighbours(runs: Sequence[Run]) -> None:
    """Tell each run which others its own logs show: those of other logs may be elsewhere."""
    by_stream: dict[str, list[Run]] = {}
    for run in runs:
        for stream in {a.stream for a in run.attempts}:
            by_stream.setdefault(stream, []).append(run)
    lives = {stream: Lives(members) for stream, members in by_stream.items() if len(members) > 1}
    for run in runs:
        streams = {a.stream for a in run.attempts}
        run.others = [lives[s] for s in sorted(streams) if s in lives]
