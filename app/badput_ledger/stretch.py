"""One process's step rows, in the order of its time: which may be summed, and their sums.

Most rows of a long run are alike: the next step, a short while after the one before, nothing
else on record. Such a row is quiet, and what the books say of it is a sum of its columns; runs
of quiet rows become one row of `stretches`. Every other row is loose and is looked at by
itself. Where the border lies is a matter of speed only: a stretch that turns out to need a
closer look is read again (view `to_open`).

A quiet row: one step, the number after the row before it; begun no earlier than that one
ended, and soon after; its wait for data no longer than that gap; at least as long as what is
recorded inside it; no compilation, no word of an update that did not happen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from badput_ledger.arrow import ints, numbers, scalar
from badput_ledger.store import pyarrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from badput_ledger.batch import Rows

LONGEST = 1_024
"""Most rows of a stretch."""
EDGE = 8
"""Rows at both ends of a process that are looked at one by one: its start and its death."""
SHORT = 64
"""A run of rows of one process that is shorter is not worth summing."""
SAMPLED = 512
"""See the view `step_samples`: the usual step comes from about this many steps of a session."""
MIX, MASK = 40_503, 65_535
FEW = 50
"""Thresholds are raised until at most one row in this many is loose for its length."""

PARTS: dict[str, tuple[str, ...]] = {
    "data_ns": ("data_ns",),
    "wait_ns": ("wait_activation_ns", "wait_gradient_ns"),
    "comm_ns": ("send_ns", "comm_ns"),
    "host_ns": ("host_ns",),
    "overhead_ns": ("overhead_ns",),
    "eval_ns": ("eval_ns",),
    "save_ns": ("save_ns",),
    "snapshot_ns": ("snapshot_ns",),
}
"""Columns of a stretch and those of the step rows that it sums."""
NEEDED = (
    "process_id", "seq", "rank", "step", "n_steps", "start_ns", "dur_ns", "pre_data_ns", "tokens",
    "padding", "applied", "committed", "compile_ns", *(c for cs in PARTS.values() for c in cs),
)  # fmt: skip
"""Columns of a step row that the books read."""
COLUMNS = (
    "process_id", "rank", "seq", "from_ns", "start_ns", "last_start_ns", "stop_ns", "before_step",
    "step", "steps", "dur_ns", "pre_data_ns", "tokens", "padding", "padding_ns", "longest_ns",
    *PARTS,
)  # fmt: skip
"""Columns of a stretch, all of them BIGINT."""


ZERO, ONE = scalar(0), scalar(1)


@dataclass(slots=True)
class Span:
    """A span outside steps: where rows must be looked at one by one."""

    start_ns: int
    stop_ns: int


@dataclass(slots=True)
class Found:
    """What became of the rows: arrow tables of loose ones, stretches and samples."""

    loose: list[Any] = field(default_factory=list[Any])
    stretches: list[Any] = field(default_factory=list[Any])
    samples: list[Any] = field(default_factory=list[Any])

    def take_in(self, other: Found) -> None:
        """Add what another part gave."""
        self.loose += other.loose
        self.stretches += other.stretches
        self.samples += other.samples


class Chunk:
    """Consecutive rows of one process."""

    def __init__(
        self, data: Rows, spans: list[Span], splits: list[int], head: bool, limit_ns: int
    ) -> None:
        self.data, self.rows = data, len(data)
        self.spans, self.splits, self.head = spans, splits, head
        self.limit_ns = limit_ns
        self.pc = pyarrow("compute")
        self.column = data.column
        self._known_ends: dict[int, tuple[int, int, Any]] = {}

    def split(self) -> Found:
        """Loose rows, stretches and the quiet rows among the sampled steps."""
        found = Found()
        loose = self._loose() if self.rows >= SHORT and self._prepare() else range(self.rows)
        if len(loose) * 3 > self.rows:
            found.loose.append(self.data.whole())
            return found
        found.loose.append(self.data.take(ints(loose)).whole())
        stretches = self._stretches(loose)
        if stretches is not None:
            found.stretches.append(stretches)
        sample = self._sampled(loose)
        if sample is not None:
            found.samples.append(sample)
        return found

    # -- which rows are quiet ---------------------------------------------------------------
    def _prepare(self) -> bool:
        """Columns without NULL, and sums of a row; False if the rows are no case for summing."""
        pc, known, same = self.pc, self.data.known, self.data.same
        if same.get("n_steps", 1) != 1 or 0 in (same.get("applied"), same.get("committed")):
            return False
        self.sums: dict[str, Any] = {}
        self.each: dict[str, int] = {}
        for name in ("tokens", "padding"):
            if known(name) not in (0, self.rows):
                return False
            if value := same.get(name):
                self.each[name] = value
            if known(name):
                self.sums[name] = None if name in same else self.column(name)
        self.start, self.dur, self.step = map(self.column, ("start_ns", "dur_ns", "step"))
        self.stop = pc.add(self.start, self.dur)
        self.plain = self.dur
        for name, columns in PARTS.items():
            total = None
            for column in columns:
                if known(column):
                    one = self._filled(column)
                    total = one if total is None else pc.add(total, one)
            if total is not None:
                self.sums[name] = total
                self.plain = pc.subtract(self.plain, total)
        self.pre = None
        if known("pre_data_ns"):
            self.pre = self.sums["pre_data_ns"] = self._filled("pre_data_ns")
        self.sums["dur_ns"] = self.dur
        return self._add_padding()

    def _filled(self, name: str) -> Any:
        column = self.column(name)
        return self.pc.fill_null(column, ZERO) if column.null_count else column

    def _add_padding(self) -> bool:
        """The share of each row that F.padding takes; False if it might not fit 64 bits."""
        if "padding" not in self.sums or "tokens" not in self.sums:
            return True
        pc, padding, tokens = self.pc, self.column("padding"), self.column("tokens")
        most = pc.max(self.plain).as_py() * pc.max(padding).as_py()
        if most >= 1 << 62:
            return False
        fits = pc.and_(pc.greater(padding, ZERO), pc.greater_equal(tokens, padding))
        share = pc.divide(pc.multiply(self.plain, padding), pc.max_element_wise(tokens, ONE))
        self.sums["padding_ns"] = pc.if_else(fits, share, ZERO)
        return True

    def _loose(self) -> list[int]:
        """Numbers of the rows that are not quiet, in order."""
        found = {0, self.rows - 1}
        for mask, offset in [*self._odd_times(), *self._odd_words()]:
            found.update(i + offset for i in self.pc.indices_nonzero(mask).to_pylist())
        if self.head:
            found.update(range(EDGE))
        found.update(range(self.rows - EDGE, self.rows))
        self._near_spans(found)
        return sorted(found)

    def _odd_times(self) -> Iterator[tuple[Any, int]]:
        """Masks of rows whose times are not those of a quiet one, and how far their rows lie.

        A mask is made only where the least or the greatest value says that it marks a row.
        """
        pc = self.pc
        gap = pc.subtract(self.start[1:], self.stop[:-1])
        rest = gap if self.pre is None else pc.subtract(gap, self.pre[1:])
        following = pc.subtract(self.step[1:], self.step[:-1])
        middle = self.plain[self.rows // 2 : self.rows // 2 + 64]
        usual = pc.quantile(middle, 0.5, interpolation="lower")[0].as_py()
        least, most = self._ends(self.plain)
        limit, slow = self._above(self.plain, most, 2 * max(usual, 1))
        self.longest_ns = min(limit, most)
        if slow is not None:
            yield slow, 0
        _, late = self._above(gap, self._ends(gap)[1], max(self.limit_ns, 1))
        if late is not None:
            yield late, 1
        if self._ends(rest)[0] < 0:
            yield pc.less(rest, ZERO), 1
        if self._ends(following) != (1, 1):
            yield pc.not_equal(following, ONE), 1
        if least < 0:
            yield pc.less(self.plain, ZERO), 0
        if self._ends(self.dur)[0] < 1:
            yield pc.less(self.dur, ONE), 0
        if self.pre is not None and self._ends(self.pre)[0] < 0:
            yield pc.less(self.pre, ZERO), 0

    def _odd_words(self) -> Iterator[tuple[Any, int]]:
        """Masks of rows that are several steps, that compiled, or whose update did not happen."""
        pc, known, same = self.pc, self.data.known, self.data.same
        if "n_steps" not in same:
            yield pc.not_equal(self.column("n_steps"), ONE), 0
        for name in ("applied", "committed"):
            if name not in same and known(name):
                yield pc.invert(self.column(name)), 0
        if known("compile_ns"):
            yield pc.greater(self.column("compile_ns"), ZERO), 0

    def _ends(self, values: Any) -> tuple[int, int]:
        """The least and the greatest of an array, which is asked for once."""
        if (found := self._known_ends.get(id(values))) is None:
            ends = self.pc.min_max(values).as_py()
            # the array is kept: another must not get its id
            found = self._known_ends[id(values)] = ends["min"], ends["max"], values
        return found[0], found[1]

    def _above(self, values: Any, most: int, limit: int) -> tuple[int, Any]:
        """Where values exceed the limit, which is raised until those are few; None: nowhere."""
        pc = self.pc
        while most > limit:
            mask = pc.greater(values, scalar(limit))
            if (pc.sum(mask).as_py() or 0) * FEW <= self.rows:
                return limit, mask
            limit += limit // 5 + 1
        return limit, None

    def _near_spans(self, found: set[int]) -> None:
        """Rows in whose time, gap included, a span lies, and the one after them."""
        starts, stops = numbers(self.start), numbers(self.stop)
        begin, last = starts[0], stops[-1]
        for span in self.spans:
            if span.stop_ns >= begin and span.start_ns <= last:
                first = bisect_right(stops, span.start_ns)
                end = bisect_right(stops, span.stop_ns, first)
                # and the row after it, if it reaches into a row's own time
                inside = end < self.rows and span.stop_ns > starts[end]
                found.update(range(first, min(end + 1 + inside, self.rows)))

    # -- their sums -------------------------------------------------------------------------
    def _stretches(self, loose: Sequence[int]) -> Any:
        """A table of COLUMNS; None if no rows lie between the loose ones."""
        pa, pc = pyarrow(), self.pc
        pieces = self._pieces(loose)
        if not pieces:
            return None
        first, before = ints([i for i, _ in pieces]), ints([i - 1 for i, _ in pieces])
        last = ints([j - 1 for _, j in pieces])
        rows = pc.subtract(last, before)

        def total(name: str) -> Any:
            if name in self.each:
                return pc.multiply(rows, scalar(self.each[name]))
            column = self.sums.get(name)
            if column is None:
                empty = name in ("tokens", "padding") and name not in self.sums
                return pa.nulls(len(rows)) if empty else pa.repeat(ZERO, len(rows))
            low, high = self._ends(column)
            if low == high:
                return pc.multiply(rows, scalar(low))
            sums = pc.cumulative_sum(column)
            return pc.subtract(sums.take(last), sums.take(before))

        firsts = self.data.take(first)
        columns = {
            **{n: firsts.column(n) for n in ("process_id", "rank", "seq")},
            "from_ns": self.stop.take(before),
            "start_ns": self.start.take(first),
            "last_start_ns": self.start.take(last),
            "stop_ns": self.stop.take(last),
            "before_step": pc.subtract(self.step.take(first), ONE),
            "step": self.step.take(last),
            "steps": rows,
            "longest_ns": pa.repeat(scalar(self.longest_ns), len(rows)),
        }
        return pa.table(
            [columns[n] if n in columns else total(n) for n in COLUMNS], names=list(COLUMNS)
        )

    def _pieces(self, loose: Sequence[int]) -> list[tuple[int, int]]:
        """Rows i to j - 1 of each stretch: those between loose rows, cut where need be."""
        step, splits, pieces = numbers(self.step), self.splits, list[tuple[int, int]]()
        for before, end in pairwise(loose):
            i = before + 1
            if end <= i:
                continue
            low = bisect_left(splits, step[i])
            if end - i <= LONGEST and (low == len(splits) or splits[low] >= step[end - 1]):
                pieces.append((i, end))
            else:
                pieces += self._cut(i, end, step)
        return pieces

    def _cut(self, i: int, end: int, step: Any) -> Any:
        """Rows i to end in pieces: after each step where a cut may lie, and none too long."""
        offset = i - step[i]
        low, high = bisect_left(self.splits, step[i]), bisect_left(self.splits, step[end - 1])
        for split in [*self.splits[low:high], step[end - 1]]:
            to = split + 1 + offset
            while i < to:
                j = min(i + LONGEST, to)
                yield i, j
                i = j

    def _sampled(self, loose: Sequence[int]) -> Any:
        """Quiet rows of the steps that the usual step may come from, or None."""
        pc, pa = self.pc, pyarrow()
        every = -(-self.rows // SAMPLED)
        mixed = pc.bit_wise_and(pc.multiply(self.step, scalar(MIX)), scalar(MASK))
        taken = pc.indices_nonzero(pc.less(mixed, scalar((MASK + 1) // every)))
        loose_set = set(loose)
        rows = ints([i for i in taken.to_pylist() if i not in loose_set])
        if not len(rows):
            return None
        some = self.data.take(rows)
        found = {n: some.column(n) for n in ("process_id", "seq", "step", "tokens")}
        found["plain_ns"] = self.plain.take(rows)
        for name in ("eval_ns", "save_ns", "snapshot_ns"):
            column = self.sums.get(name)
            none = pa.nulls(len(rows), pa.int64())
            found[name] = none if column is None else column.take(rows)
        return pa.table(list(found.values()), names=list(found))
