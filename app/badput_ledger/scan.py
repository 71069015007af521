"""One pass over the parts of `steps` of a long run: loose rows, stretches, samples.

Parts are read by threads, a few at a time, in the order of their processes and numbers. What
comes out is small: the tables `loose_steps`, `stretches`, `quiet_samples` and `step_values`.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput.schema import TABLES
from badput_ledger import chain, store
from badput_ledger.arrow import ints, scalar
from badput_ledger.batch import Rows, joined, read
from badput_ledger.facts import SPAN_LEAVES
from badput_ledger.stretch import COLUMNS, NEEDED, Chunk, Found, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb

    from badput_ledger.store import Part

    Look = Callable[[Rows], tuple[dict[str, int], Found]]

BATCH_ROWS = 131_072
"""Small parts are put together until they hold this many rows."""
SAMPLE_COLUMNS = (
    "process_id", "seq", "step", "tokens", "plain_ns", "eval_ns", "save_ns", "snapshot_ns",
)  # fmt: skip

Open = dict[int, list[tuple[int, int]]]
"""By process: the first record number and the rows of each stretch to read again."""


def scan_steps(con: duckdb.DuckDBPyConnection, parts: list[Part]) -> StepScan | None:
    """Make the tables that the books start from; None if every row is looked at by itself."""
    con.execute("CREATE TABLE instants (at_ns BIGINT)")
    if parts:
        scan = StepScan(con, parts)
        scan.run()
        return scan
    names = ", ".join(f'"{n}"' for n in NEEDED)
    con.execute(f"CREATE VIEW loose_steps AS SELECT {names} FROM steps")  # noqa: S608 - our names
    _insert(con, "stretches", [(n, "BIGINT") for n in COLUMNS], [])
    _insert(con, "quiet_samples", [(n, "BIGINT") for n in SAMPLE_COLUMNS], [])
    counts = ", ".join(f'count("{n}") AS "{n}"' for n in NEEDED)
    con.execute(f"CREATE TABLE step_values AS SELECT {counts} FROM steps")  # noqa: S608 - our names
    return None


@dataclass(slots=True)
class Hints:
    """What is known before the steps are read, to look closely in the right places."""

    spans: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])
    shortest: dict[int, int] = field(default_factory=dict[int, int])
    """The shortest of a process's spans, in nanoseconds."""
    splits: list[int] = field(default_factory=list[int])
    first_seq: dict[int, int] = field(default_factory=dict[int, int])


class StepScan:
    """The pass; ``run`` makes the tables, ``open`` takes stretches apart afterwards."""

    def __init__(self, con: duckdb.DuckDBPyConnection, parts: list[Part]) -> None:
        self._con = con
        ordered = sorted(parts, key=lambda p: (p.keys[0][0], p.keys[0][2], p.path))
        self._batches = list(_batches(ordered))
        self._hints = _hints(con, ordered)
        self._counts = dict.fromkeys(NEEDED, 0)

    def run(self) -> None:
        """Make the tables. Raises store.GoneError if a part goes away meanwhile."""
        found = Found()
        for counts, one in self._each(self._batches, self._look):
            found.take_in(one)
            for name, number in counts.items():
                self._counts[name] += number
        _insert(self._con, "loose_steps", _loose_types(), found.loose)
        _insert(self._con, "stretches", [(n, "BIGINT") for n in COLUMNS], found.stretches)
        _insert(self._con, "quiet_samples", [(n, "BIGINT") for n in SAMPLE_COLUMNS], found.samples)
        values = ", ".join(f'{number}::BIGINT AS "{n}"' for n, number in self._counts.items())
        self._con.execute(f"CREATE TABLE step_values AS SELECT {values}")

    def settle(self) -> None:
        """Take apart what the books want to look at row by row, until they want no more."""
        while rows := self.wanted():
            self.open(rows)
            chain.build(self._con)

    def divide_at(self, instants: list[int]) -> None:
        """Let no stretch reach over one of these instants."""
        self._con.execute("INSERT INTO instants SELECT unnest($1::BIGINT[])", [instants])
        self.settle()

    def wanted(self) -> list[tuple[int, int, int]]:
        """Stretches that the books want to look at row by row, once they are made."""
        rows = self._con.execute("SELECT process_id, seq, steps FROM to_open").fetchall()
        return [(int(r[0]), int(r[1]), int(r[2])) for r in rows]

    def open(self, rows: list[tuple[int, int, int]]) -> None:
        """Move stretches, given by process, first record number and rows, to the loose rows."""
        wanted: Open = {}
        for pid, seq, steps in rows:
            wanted.setdefault(pid, []).append((seq, steps))
        # the same batches: a stretch may reach over the parts of one
        batches = [b for b in self._batches if any(_may_hold(p, wanted) for p in b)]
        loose: list[Any] = []
        for _, one in self._each(batches, lambda data: _apart(data, wanted)):
            loose += one.loose
        pa = store.pyarrow()
        keys = [ints([r[0] for r in rows]), ints([r[1] for r in rows])]
        gone = pa.table(keys, names=["process_id", "seq"])
        self._con.register("rows_to_open", gone)
        self._con.execute(
            "DELETE FROM stretches USING rows_to_open o "
            "WHERE stretches.process_id = o.process_id AND stretches.seq = o.seq"
        )
        self._con.unregister("rows_to_open")
        _append(self._con, "loose_steps", loose)

    # -- reading ----------------------------------------------------------------------------
    def _each(
        self, batches: list[list[Part]], look: Look
    ) -> Iterator[tuple[dict[str, int], Found]]:
        """Read batches of parts with as many threads as there are CPUs; never far ahead."""
        threads = max(1, len(os.sched_getaffinity(0)))
        waiting: deque[Future[tuple[dict[str, int], Found]]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            for batch in batches:
                waiting.append(pool.submit(_read_and, look, batch))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _look(self, data: Rows) -> tuple[dict[str, int], Found]:
        counts = {n: data.known(n) for n in NEEDED}
        found = Found()
        for pid, seq, rows in _chunks(data):
            spans = self._hints.spans.get(pid, [])
            shortest = self._hints.shortest.get(pid, 1 << 62)
            head = seq <= self._hints.first_seq.get(pid, seq)
            found.take_in(Chunk(rows, spans, self._hints.splits, head, shortest).split())
        return counts, found


def _hints(con: duckdb.DuckDBPyConnection, parts: list[Part]) -> Hints:
    hints = Hints()
    for part in parts:
        for low, high, seq, _ in part.keys:
            if low == high:
                hints.first_seq[low] = min(seq, hints.first_seq.get(low, seq))
    known = ", ".join(f"'{name}'" for name in SPAN_LEAVES)
    rows = con.execute(
        "SELECT process_id, start_ns, CASE WHEN name IN ("  # noqa: S608 - names of our own
        f"{known}) THEN start_ns + greatest(coalesce(dur_ns, 0), 0) ELSE start_ns END "
        "FROM spans WHERE NOT in_step ORDER BY process_id, start_ns"
    ).fetchall()
    for pid, start, stop in rows:
        hints.spans.setdefault(pid, []).append(Span(start, stop))
        hints.shortest[pid] = min(stop - start, hints.shortest.get(pid, 1 << 62))
    steps = con.execute(
        "SELECT step FROM checkpoints WHERE step IS NOT NULL UNION "
        "SELECT CASE WHEN json_valid(attrs) "
        "THEN TRY_CAST(json_extract_string(attrs, '$.to_step') AS BIGINT) END "
        "FROM events WHERE kind = 'rewind'"
    ).fetchall()
    hints.splits = sorted(int(row[0]) for row in steps if row[0] is not None)
    return hints


def _batches(parts: list[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    for part in parts:
        batch.append(part)
        if sum(p.rows for p in batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _may_hold(part: Part, wanted: Open) -> bool:
    return any(low <= pid <= high for low, high, *_ in part.keys for pid in wanted)


def _read_and(look: Look, parts: list[Part]) -> tuple[dict[str, int], Found]:
    return look(read(parts, NEEDED))


def _chunks(data: Rows) -> Iterator[tuple[int, int, Rows]]:
    """(process, first record number, its rows) for each process of a batch."""
    pa, pc = store.pyarrow(), store.pyarrow("compute")
    if not len(data):
        return
    runs = pc.run_end_encode(data.column("process_id"), run_end_type=pa.int32())
    ends = runs.run_ends.to_pylist()
    if len(ends) * 8 > len(data):
        keys = [("process_id", "ascending"), ("seq", "ascending")]
        data = Rows(data.table.sort_by(keys).combine_chunks(), data.same, data.columns)
        runs = pc.run_end_encode(data.column("process_id"), run_end_type=pa.int32())
        ends = runs.run_ends.to_pylist()
    pieces: dict[int, list[Any]] = {}
    begin = 0
    for pid, end in zip(runs.values.to_pylist(), ends, strict=True):
        pieces.setdefault(pid, []).append(data.table.slice(begin, end - begin))
        begin = end
    for pid, slices in pieces.items():
        one = slices[0] if len(slices) == 1 else joined(slices).combine_chunks()
        yield pid, one.column("seq")[0].as_py(), Rows(one, data.same, data.columns)


def _apart(data: Rows, wanted: Open) -> tuple[dict[str, int], Found]:
    """The rows of the stretches that are taken apart, out of one batch."""
    pc = store.pyarrow("compute")
    found = Found()
    for pid, _, rows in _chunks(data):
        numbers = rows.column("seq")
        for seq, steps in sorted(wanted.get(pid, [])):
            at = pc.index(numbers, scalar(seq)).as_py()
            if at >= 0:
                found.loose.append(rows.slice(at, steps).whole())
    return {}, found


def _loose_types() -> list[tuple[str, str]]:
    types = {c.name: store.SQL_TYPES[c.type] for c in TABLES["steps"].columns}
    return [(n, types[n]) for n in NEEDED]


def _insert(
    con: duckdb.DuckDBPyConnection, table: str, columns: list[tuple[str, str]], data: list[Any]
) -> None:
    spelled = ", ".join(f'"{n}" {t}' for n, t in columns)
    con.execute(f"CREATE TABLE {table} ({spelled})")
    _append(con, table, data)


def _append(con: duckdb.DuckDBPyConnection, table: str, data: list[Any]) -> None:
    if data:
        # in one piece: DuckDB takes each chunk, of a few rows here, by itself
        con.register("rows_to_insert", joined(data).combine_chunks())
        con.execute(f"INSERT INTO {table} BY NAME FROM rows_to_insert")
        con.unregister("rows_to_insert")
