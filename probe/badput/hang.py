"""The hang watch: a duty that tells when a rank stops moving, and when it moves on.

A rank hangs when its state slot, and so its phase, is older than that phase may last (see
limits.py). Time in which nobody looked, as while the machine slept or the collector was stopped,
does not count. What is told is an event ``hang``, and ``hang_end`` when the rank moves again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from badput import clock, kernel, stack_reader
from badput import layout as lo
from badput.files import read_text, write_whole
from badput.hang_text import sentence
from badput.limits import Limit, Pace, Place, base_limits, behind, excused
from badput.rows import Clock
from badput.stacks import PID_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from badput.collector import Tended

FILE = "hang.json"
"""In the spool: the hang that was told and has not ended, for the collector that takes over."""
LOOK_S = 1.0
"""How often ranks are looked at, if the limits are not shorter."""
_GAP_NS = 5_000_000_000
"""A longer time between two looks means that we, and perhaps all, stood still."""
_CRAWL = 3
"""A step may last this many times its limit while its phases change."""


@dataclass(frozen=True, slots=True)
class Hung:
    """A hang that was told and has not ended. Times are monotonic ns."""

    since: int
    """Time of the state slot then."""
    begin: int
    step: int | None
    phase: str
    by_step: bool
    """True if the phases change but the step does not end."""
    in_step: bool = False

    def over(self, step: int | None, since: int) -> bool:
        """Does the rank move again, given its step and the time of its state slot?"""
        return step != self.step if self.by_step else since > self.since


class Looked:
    """One rank as the watch sees it."""

    def __init__(self, tended: Tended) -> None:
        facts = tended.drain.facts
        process = facts["process"]
        self.tended, self.drain = tended, tended.drain
        self.run: str = tended.drain.run
        self.rank: int | None = process.get("rank")
        self.pid: int = int(process["pid"])
        self.born: int = int(process["init_ns"])
        self.world: int | None = process.get("world_size")
        limits = base_limits(facts)
        self.watched = limits is not None and process.get("role") == "rank"
        self.pace = Pace(*(limits or (0.0, 0.0)))
        wants: dict[str, Any] = facts.get("watch") or {}
        self.spy_allowed = wants.get("ptrace") is True
        self.step: int | None = None
        self.phase: str = "unknown"
        self.since: int = 0
        self.in_step = False
        self.moved_lost: int = 0
        self.step_lost: int = 0
        self.step_at: int = 0
        self.asked: tuple[bool, int | None] | None = None
        """The hang for which the spool was drained: by step or not, and which."""
        self.hung: Hung | None = None
        self.spy: stack_reader.Spy | None = None
        self.waiting: dict[str, Any] | None = None
        """A hang event whose stacks are being fetched."""
        self.untold: deque[tuple[str, int, dict[str, Any]]] = deque(maxlen=64)
        self.cpu: tuple[int, int] | None = None
        """CPU time at an earlier instant (ns, monotonic ns), while the rank does not move."""
        self._restore()

    def keep(self, event: tuple[str, int, dict[str, Any]]) -> None:
        """Note the hang and its event in the spool, then put it on the list of what is told."""
        kept = {"hung": asdict(self.hung) if self.hung else None, "event": event,
                "number": self.drain.told() + len(self.untold) + 1}  # fmt: skip
        _write(self.drain.path / FILE, json.dumps(kept))
        self.untold.append(event)

    def _restore(self) -> None:
        """Take over a hang that an earlier collector found, and tell it if that one could not."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(read_text(self.drain.path / FILE))
            kind, time_ns, attrs = kept["event"]
            self.hung = Hung(**kept["hung"])
            if self.drain.position.told < kept["number"]:
                self.untold.append((kind, time_ns, attrs))

    def place(self) -> Place:
        """Where it is."""
        return Place(self.rank or 0, self.step or 0, self.phase)

    def look(self, now: int, lost: int) -> None:
        """Read phase and step. ``lost``: ns in which nobody looked, so far."""
        drain = self.drain
        step, phase, since = drain.phase()
        last = drain.position.last_step
        self.pace.saw_step(last)
        if step != self.step:
            self.step_at, self.step_lost = now, lost
        if since != self.since:
            if self.since and since > self.since:
                self.pace.saw_phase(self.phase, since - self.since)
            self.moved_lost, self.cpu = lost, None
        self.step, self.phase, self.since = step, phase, since
        done = last[0] if last else None
        self.in_step = phase == lo.FIXED_PHASES[lo.PHASE_STEP] or (
            step is not None and step != done
        )

    def limit(self) -> Limit:
        """How long the present phase may last."""
        return self.pace.limit(self.phase, self.in_step)

    def overdue(self, now: int, lost: int) -> tuple[Limit, bool] | None:
        """The limit that was passed, and whether it is the step's as a whole; None if none was."""
        limit = self.limit()
        if now - self.since - (lost - self.moved_lost) > limit.ns:
            return limit, False
        usual = self.pace.limit("step", True)
        if not self.in_step or limit.ns > usual.ns:  # evaluation in a step, say: count anew
            self.step_at, self.step_lost = now, lost
        elif now - self.step_at - (lost - self.step_lost) > _CRAWL * usual.ns:
            return Limit(
                _CRAWL * usual.ns, f"{_CRAWL} times {usual.rule}, for the whole step"
            ), True
        return None

    def start_anew(self, now: int, lost: int) -> None:
        """Let its limits count from now."""
        self.moved_lost = lost - (now - self.since)
        self.step_at, self.step_lost = now, lost


def _left(rank: Looked) -> tuple[int, str] | None:
    """When and where a rank that is gone was; None if it ended on purpose."""
    end = rank.drain.position.end or {}
    if end.get("closed") or end.get("reason") == "completed":
        return None
    where = f"{end.get('reason', 'how is not known')} in step {rank.step}, {rank.phase}"
    return rank.tended.dead_ns or clock.wall(), where


class HangWatch:
    """The duty."""

    name = "hang watch"

    def __init__(self, root: Path, log: Callable[[str], None]) -> None:
        self._log = log
        self._ranks: dict[str, Looked] = {}
        self._gone: dict[str, dict[int, tuple[int, str]]] = {}
        """By run: ranks that ended without saying that they were done, when, and where."""
        self._due = 0.0
        self._last = 0
        self._lost = 0
        self._asleep = clock.boot() - clock.mono()
        self._spy = stack_reader.find_spy()
        _write(root / PID_FILE, str(os.getpid()))

    def tick(self, tended: Mapping[str, Tended], now: float) -> None:
        """Look at every rank, if it is time."""
        del now
        mono = clock.mono()
        self._meet(tended, mono)
        if time.monotonic() < self._due:
            return
        self._account(mono)
        shortest = LOOK_S
        for name in tended:
            rank = self._ranks[name]
            if rank.watched and rank.tended.dead_ns is None:
                rank.look(mono, self._lost)
                shortest = min(shortest, rank.pace.hang_s / 8)
        alive = [r for r in self._ranks.values() if r.watched and r.tended.dead_ns is None]
        alive = [r for r in alive if not r.drain.reader.writer()[2]]
        self._excuse(alive, mono)
        for rank in alive:
            self._judge(rank, mono)
        for rank in self._ranks.values():
            self._tell(rank)
        self._due = time.monotonic() + shortest

    def close(self) -> None:
        """Nothing is held."""

    def _account(self, mono: int) -> None:
        """Count time in which nobody looked; say when the machine slept."""
        if self._last and mono - self._last > _GAP_NS:
            self._lost += mono - self._last
        self._last = mono
        asleep = clock.boot() - mono
        if asleep - self._asleep > 1_000_000_000:
            self._log(
                f"the machine slept for {(asleep - self._asleep) / 1e9:.0f} s; that is no hang"
            )
        self._asleep = asleep

    def _meet(self, tended: Mapping[str, Tended], mono: int) -> None:
        """Get to know new ranks, however short they live; remember where those were that left."""
        for name in tended.keys() - self._ranks.keys():
            rank = self._ranks[name] = Looked(tended[name])
            if rank.watched:
                rank.look(mono, self._lost)
        for name in self._ranks.keys() - tended.keys():
            rank = self._ranks.pop(name)
            if rank.rank is not None and (left := _left(rank)) is not None:
                self._gone.setdefault(rank.run, {})[rank.rank] = left

    def _excuse(self, alive: list[Looked], mono: int) -> None:
        """Give time to ranks that perhaps wait for one that does what takes its time."""
        slow = [
            r
            for r in alive
            if r.limit().ns > r.pace.limit("step", True).ns or r.pace.usual() is None
            if r.hung is None and r.overdue(mono, self._lost) is None
        ]
        for rank in alive if slow else ():
            others = [(r.place(), r.limit()) for r in slow if r.run == rank.run]
            if rank.hung is None and excused(rank.place(), rank.limit(), others):
                rank.start_anew(mono, self._lost)

    # -- judging ----------------------------------------------------------------------------
    def _judge(self, rank: Looked, mono: int) -> None:
        if rank.waiting is not None:
            if rank.spy is None or rank.spy.done():
                self._stacks_came(rank)
            return
        if rank.hung is not None:
            self._still(rank, rank.hung)
            return
        if not rank.since:
            return
        age = mono - rank.since
        overdue = rank.overdue(mono, self._lost)
        if overdue is None:
            if rank.cpu is None and 2 * age > rank.limit().ns:
                rank.cpu = _cpu_at(rank.pid, mono)
            return
        limit, by_step = overdue
        which = (by_step, rank.step if by_step else rank.since)
        if rank.asked != which:  # what is in the spool may say more: have it drained first
            rank.asked = which
            rank.tended.due = 0.0
        else:
            self._hangs(rank, limit, mono, by_step)

    def _still(self, rank: Looked, hung: Hung) -> None:
        """See whether a rank that hung moves again."""
        if not hung.over(rank.step, rank.since):
            return
        wall = Clock(rank.drain.facts).wall
        lasted = max(0, rank.since - hung.begin)
        attrs = {
            "duration_ns": lasted,
            "since_ns": wall(hung.begin),
            "phase": hung.phase,
            "step": hung.step,
            "in_step": hung.in_step,
            "whole_step": hung.by_step,
        }
        rank.untold.append(("hang_end", wall(rank.since), attrs))
        self._log(f"{rank.run}: rank {rank.rank} moves again after {lasted / 1e9:.0f} s")
        rank.hung = None
        with contextlib.suppress(OSError):
            (rank.drain.path / FILE).unlink(missing_ok=True)

    def _hangs(self, rank: Looked, limit: Limit, mono: int, by_step: bool) -> None:
        wall = Clock(rank.drain.facts).wall
        begin = rank.step_at if by_step else rank.since
        attrs: dict[str, Any] = {
            "phase": rank.phase,
            "step": rank.step,
            "age_ns": mono - begin,
            "since_ns": wall(begin),
            "threshold_ns": limit.ns,
            "threshold": limit.rule,
            "usual_step_ns": rank.pace.usual(),
            "in_step": rank.in_step,
            "whole_step": by_step,
            **self._others(rank),
            **self._kernel(rank, mono),
        }
        attrs["what"] = sentence(rank.rank, attrs)
        rank.hung = Hung(rank.since, begin, rank.step, rank.phase, by_step, rank.in_step)
        rank.waiting = attrs
        if self._spy is not None and rank.spy_allowed and "state" in attrs:
            with contextlib.suppress(OSError):
                rank.spy = stack_reader.Spy(self._spy, rank.pid)
        if rank.spy is None:
            self._stacks_came(rank)

    def _stacks_came(self, rank: Looked) -> None:
        attrs, rank.waiting = rank.waiting or {}, None
        found = rank.spy.result() if rank.spy is not None else []
        rank.spy = None
        found = found or stack_reader.last_dump(rank.drain.path)
        if found:
            attrs["stacks"] = found
        rank.keep(("hang", Clock(rank.drain.facts).wall(clock.mono()), attrs))
        self._log(f"{rank.run}: {attrs['what']}")

    def _others(self, rank: Looked) -> dict[str, Any]:
        """The ranks of the same run on this node that are behind, and those that are gone."""
        peers = [
            r
            for r in self._ranks.values()
            if r.run == rank.run and r.watched and r.rank is not None and r.tended.dead_ns is None
        ]
        alive = {r.rank for r in peers}
        left = dict(self._gone.get(rank.run, {}))
        for other in self._ranks.values():  # dead, and its last rows not written yet
            if (
                other.run == rank.run
                and other.rank is not None
                and other.tended.dead_ns is not None
            ):
                left |= {other.rank: there} if (there := _left(other)) is not None else {}
        gone = {
            str(number): where
            for number, (when, where) in left.items()
            if number not in alive and when >= rank.born
        }
        found: dict[str, Any] = {
            "ranks_here": len(peers),
            "ranks_elsewhere": max(0, (rank.world or 0) - len(peers) - len(gone)),
            "behind": behind([r.place() for r in peers]),
        }
        if found["behind"]:
            places = {r.rank: f"step {r.step}, {r.phase}" for r in peers}
            found["behind_at"] = {str(n): places[n] for n in found["behind"][:16]}
        if gone:
            found["gone"] = gone
        return found

    @staticmethod
    def _kernel(rank: Looked, mono: int) -> dict[str, Any]:
        if rank.tended.watch.fd is None:  # its pid means nothing here
            return {}
        found = kernel.look(rank.pid)
        now = _cpu_at(rank.pid, mono)
        if rank.cpu is not None and now is not None and now[1] > rank.cpu[1]:
            found["cpu"] = round((now[0] - rank.cpu[0]) / (now[1] - rank.cpu[1]), 3)
        return found

    # -- telling ----------------------------------------------------------------------------
    @staticmethod
    def _tell(rank: Looked) -> None:
        """Write the events that wait; a run folder that is gone gets them later."""
        while rank.untold:
            try:
                rank.drain.tell(*rank.untold[0])
            except OSError:
                return
            rank.untold.popleft()


def _cpu_at(pid: int, mono: int) -> tuple[int, int] | None:
    used = kernel.cpu_ns(pid)
    return None if used is None else (used, mono)


def _write(path: Path, text: str) -> None:
    """Write a small file of ours as a whole."""
    with contextlib.suppress(OSError):
        write_whole(str(path), text.encode())
