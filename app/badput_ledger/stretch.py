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

from badput_ledger.store import pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable

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


@dataclass(slots=True)
class Span:
    """A span outside steps: where rows must be looked at one by one."""

    start_ns: int
    stop_ns: int


@dataclass(slots=True)
class Found:
    """What became of the rows: arrow tables of loose ones and samples, rows of stretches."""

    loose: list[Any] = field(default_factory=list[Any])
    stretches: list[tuple[int | None, ...]] = field(default_factory=list[Any])
    samples: list[Any] = field(default_factory=list[Any])

    def take_in(self, other: Found) -> None:
        """Add what another part gave."""
        self.loose += other.loose
        self.stretches += other.stretches
        self.samples += other.samples


class Chunk:
    """Consecutive rows of one process: an arrow table of NEEDED columns, none of them chunked."""

    def __init__(
        self, data: Any, spans: list[Span], splits: list[int], head: bool, limit_ns: int
    ) -> None:
        self.data, self.rows = data, int(data.num_rows)
        self.spans, self.splits, self.head = spans, splits, head
        self.limit_ns = limit_ns
        self.pc = pyarrow("compute")

    def column(self, name: str) -> Any:
        """One column as a single array."""
        return self.data.column(name).chunk(0)

    def split(self) -> Found:
        """Loose rows, stretches and the quiet rows among the sampled steps."""
        found = Found()
        if self.rows < SHORT or not self._prepare():
            found.loose.append(self.data)
            return found
        loose = self._loose()
        if len(loose) * 3 > self.rows:
            found.loose.append(self.data)
            return found
        pa = pyarrow()
        found.loose.append(self.data.take(pa.array(loose, pa.int64())))
        found.stretches = list(self._stretches(loose))
        sample = self._sampled(loose)
        if sample is not None:
            found.samples.append(sample)
        return found

    # -- which rows are quiet ---------------------------------------------------------------
    def _prepare(self) -> bool:
        """Columns without NULL, and sums of a row; False if the rows are no case for summing."""
        pc = self.pc
        self.sums: dict[str, Any] = {}
        for name in ("tokens", "padding"):
            nulls = self.column(name).null_count
            if nulls not in (0, self.rows):
                return False
            if not nulls:
                self.sums[name] = self.column(name)
        self.start, self.dur, self.step = map(self.column, ("start_ns", "dur_ns", "step"))
        self.stop = pc.add(self.start, self.dur)
        self.plain = self.dur
        for name, columns in PARTS.items():
            total = None
            for column in columns:
                if self.column(column).null_count < self.rows:
                    one = self._filled(column)
                    total = one if total is None else pc.add(total, one)
            if total is not None:
                self.sums[name] = total
                self.plain = pc.subtract(self.plain, total)
        self.pre = None
        if self.column("pre_data_ns").null_count < self.rows:
            self.pre = self.sums["pre_data_ns"] = self._filled("pre_data_ns")
        self.sums["dur_ns"] = self.dur
        return self._add_padding()

    def _filled(self, name: str) -> Any:
        column = self.column(name)
        return self.pc.fill_null(column, 0) if column.null_count else column

    def _add_padding(self) -> bool:
        """The share of each row that F.padding takes; False if it might not fit 64 bits."""
        if "padding" not in self.sums or "tokens" not in self.sums:
            return True
        pc, padding, tokens = self.pc, self.sums["padding"], self.sums["tokens"]
        most = pc.max(self.plain).as_py() * pc.max(padding).as_py()
        if most >= 1 << 62:
            return False
        fits = pc.and_(pc.greater(padding, 0), pc.greater_equal(tokens, padding))
        share = pc.divide(pc.multiply(self.plain, padding), pc.max_element_wise(tokens, 1))
        self.sums["padding_ns"] = pc.if_else(fits, share, 0)
        return True

    def _loose(self) -> list[int]:
        """Numbers of the rows that are not quiet, in order."""
        pc = self.pc
        gap = pc.subtract(self.start[1:], self.stop[:-1])
        rest = gap if self.pre is None else pc.subtract(gap, self.pre[1:])
        following = pc.subtract(self.step[1:], self.step[:-1])
        middle = self.plain[self.rows // 2 : self.rows // 2 + 64]
        usual = pc.quantile(middle, 0.5, interpolation="lower")[0].as_py()
        limit, slow = self._above(self.plain, 2 * max(usual, 1))
        self.longest_ns = min(limit, pc.max(self.plain).as_py())
        _, late = self._above(gap, max(self.limit_ns, 1))
        tests = [
            (pc.less(rest, 0), 1), (pc.not_equal(following, 1), 1), (slow, 0), (late, 1),
            (pc.less(self.plain, 0), 0), (pc.less(self.dur, 1), 0),
            (pc.not_equal(self.column("n_steps"), 1), 0),
        ]  # fmt: skip
        if self.pre is not None:
            tests.append((pc.less(self.pre, 0), 0))
        known = [n for n in ("applied", "committed") if self.column(n).null_count < self.rows]
        tests += [(pc.invert(self.column(name)), 0) for name in known]
        if self.column("compile_ns").null_count < self.rows:
            tests.append((pc.greater(self.column("compile_ns"), 0), 0))
        found = {0, self.rows - 1}
        for mask, offset in tests:
            if pc.any(mask).as_py():
                found.update(i + offset for i in pc.indices_nonzero(mask).to_pylist())
        if self.head:
            found.update(range(EDGE))
        found.update(range(self.rows - EDGE, self.rows))
        self._near_spans(found)
        return sorted(found)

    def _above(self, values: Any, limit: int) -> tuple[int, Any]:
        """Where values exceed the limit, which is raised until those are few."""
        pc = self.pc
        while True:
            mask = pc.greater(values, limit)
            if (pc.sum(mask).as_py() or 0) * FEW <= self.rows:
                return limit, mask
            limit += limit // 5 + 1

    def _near_spans(self, found: set[int]) -> None:
        """Rows in whose time, gap included, a span lies, and the one after them."""
        stops = numbers(self.stop)
        last = stops[-1]
        for span in self.spans:
            if span.start_ns <= last:
                first = bisect_right(stops, span.start_ns)
                end = bisect_right(stops, span.stop_ns, first)
                found.update(range(first, min(end + 2, self.rows)))

    # -- their sums -------------------------------------------------------------------------
    def _stretches(self, loose: list[int]) -> Any:
        start, stop, step = numbers(self.start), numbers(self.stop), numbers(self.step)
        totals = {name: self._running(column) for name, column in self.sums.items()}
        pid, rank = self.column("process_id")[0].as_py(), self.column("rank")[0].as_py()
        seq = numbers(self.column("seq"))
        for before, after in pairwise(loose):
            if after == before + 1:
                continue
            for i, j in self._cut(before + 1, after, step):
                sums = {name: total(j) - total(i) for name, total in totals.items()}
                yield (
                    pid, rank, seq[i], stop[i - 1], start[i], start[j - 1], stop[j - 1],
                    step[i] - 1, step[j - 1], j - i, sums["dur_ns"], sums.get("pre_data_ns", 0),
                    sums.get("tokens"), sums.get("padding"), sums.get("padding_ns", 0),
                    self.longest_ns, *(sums.get(name, 0) for name in PARTS),
                )  # fmt: skip

    def _running(self, column: Any) -> Callable[[int], int]:
        """The sum of a column before row i, as a function of i."""
        pc = self.pc
        ends = pc.min_max(column).as_py()
        if ends["min"] == ends["max"]:
            return int(ends["min"]).__mul__
        sums = numbers(pc.cumulative_sum(column))

        def before(i: int) -> int:
            return sums[i - 1] if i else 0

        return before

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

    def _sampled(self, loose: list[int]) -> Any:
        """Quiet rows of the steps that the usual step may come from, or None."""
        pc, pa = self.pc, pyarrow()
        every = -(-self.rows // SAMPLED)
        mixed = pc.bit_wise_and(pc.multiply(self.step, MIX), MASK)
        taken = pc.indices_nonzero(pc.less(mixed, (MASK + 1) // every))
        loose_set = set(loose)
        rows = pa.array([i for i in taken.to_pylist() if i not in loose_set], pa.int64())
        if not len(rows):
            return None
        data = self.data.select(["process_id", "seq", "step", "tokens"]).take(rows)
        data = data.append_column("plain_ns", self.plain.take(rows))
        for name in ("eval_ns", "save_ns", "snapshot_ns"):
            column = self.sums.get(name)
            none = pa.nulls(len(rows), pa.int64())
            data = data.append_column(name, none if column is None else column.take(rows))
        return data


def numbers(array: Any) -> memoryview:
    """An int64 array without NULL as Python numbers, without a copy."""
    whole = memoryview(array.buffers()[1]).cast("B")
    return whole[array.offset * 8 : (array.offset + len(array)) * 8].cast("q")
