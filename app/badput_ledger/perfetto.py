"""The run as a trace that ui.perfetto.dev and chrome://tracing open.

Chrome's JSON trace events: a process for each node, a thread for each rank, the pieces of
level 1 of the books as slices (every instant of a rank once), its steps and their traced spans
nested inside, counters for loss and tokens a second, instants for events. Timestamps are
microseconds since the start of the run, exact to the nanosecond, in order of time.

The size is bounded: above MAX_SLICES, neighbouring pieces of a rank share a bin in which each
leaf keeps its exact time, and steps are left out. The file says which limits it met.
"""

from __future__ import annotations

import heapq
import json
import math
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from badput_ledger.clock import iso
from badput_ledger.processes import attrs_of
from badput_ledger.taxonomy import BY_ID, GROUPS
from badput_ledger.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from badput_ledger.books import Books

MAX_SLICES = 300_000
"""Slices of ranks in one file, all levels together."""
MAX_POINTS = 20_000
"""Points of one counter."""
MAX_INSTANTS = 20_000
LONGEST = 300
"""Characters of one text of the run."""
RUN = 1
"""The process of the run as a whole: sessions, incidents, counters."""
_BATCH = 10_000


class _Entry(NamedTuple):
    """One event, in the order in which the file has it: by time, the longer slice first."""

    ts: int
    less: int
    """Minus its duration."""
    order: int
    ph: str
    pid: int
    tid: int
    name: str
    cat: str
    args: dict[str, Any]


class _Places:
    """Which process and thread of the trace a rank of a session is."""

    def __init__(self, books: Books) -> None:
        self.hosts: dict[str, int] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self._where: dict[tuple[str, int], str] = {}
        self._last: dict[int, str] = {}
        self._weight = {
            (str(r["session"]), int(r["rank"])): int(r["weight"])
            for r in books.rows("SELECT session, rank, weight FROM members WHERE weight > 1")
        }
        for session in books.facts.sessions:
            for p in session.members:
                host = p.host or "host not known"
                self._where[session.id, p.rank or 0] = host
                self._last[p.rank or 0] = host

    def of(self, session: str, rank: int) -> tuple[int, int]:
        """Process and thread number. A gap lies where its rank was last seen."""
        host = self._where.get((session, rank)) or self._last.get(rank, "places without a rank")
        pid = self.hosts.setdefault(host, RUN + 1 + len(self.hosts))
        weight = self._weight.get((session, rank), 1)
        more = f" (stands for {weight} places)" if weight > 1 else ""
        self.threads.setdefault((pid, rank + 1), f"rank {rank}{more}")
        return pid, rank + 1


def write_trace(books: Books, file: IO[str]) -> None:
    """Write the whole trace to ``file``, one event a line, without holding it in memory."""
    # Without a rank there are no places: then the run lasts from its first event to its last.
    row = books.rows(
        "SELECT coalesce(min(start_ns), (SELECT min(time_ns) FROM events)) AS a, "
        "coalesce(max(end_ns), (SELECT max(time_ns) FROM events)) AS b FROM allocations"
    )[0]
    begin, end = int(row["a"] or 0), int(row["b"] or 0)
    places = _Places(books)
    notes: list[str] = []
    slices = _slices(books, places, begin, notes)
    streams = [slices, _run_slices(books), _counters(books, notes), _instants(books, places, notes)]
    report = books.report()
    file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
    comma = ""
    for entry in _nested(heapq.merge(*streams)):
        if begin <= entry.ts <= end:
            file.write(f"{comma}{_line(entry, begin)}")
            comma = ",\n"
    for event in _names(report, places):
        file.write(f"{comma}{json.dumps(event)}")
        comma = ",\n"
    other = {
        "run": _short(report["run"]["name"]),
        "start": iso(begin),
        "verdict": _short(report["verdict"]["headline"]),
        "units": report["units"],
        "notes": notes,
    }
    file.write(f'\n],"otherData":{json.dumps(other)}}}\n')


def _line(entry: _Entry, begin: int) -> str:
    """One event as JSON; times as exact decimals, which a float would round."""
    said: dict[str, Any] = {"ph": entry.ph, "name": entry.name, "pid": entry.pid, "tid": entry.tid}
    if entry.cat:
        said["cat"] = entry.cat
    if entry.ph == "i":
        said["s"] = "t" if entry.pid != RUN else "g"
    said["args"] = entry.args
    dur = f',"dur":{_us(-entry.less)}' if entry.ph == "X" else ""
    return f'{json.dumps(said, separators=(",", ":"))[:-1]},"ts":{_us(entry.ts - begin)}{dur}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _short(text: object) -> str:
    return clean(text)[:LONGEST]


def _nested(entries: Iterator[_Entry]) -> Iterator[_Entry]:
    """Slices cut to the slice around them: a viewer takes no partial overlap on a thread."""
    around: dict[tuple[int, int], list[int]] = {}
    for entry in entries:
        if entry.ph == "X":
            stack = around.setdefault((entry.pid, entry.tid), [])
            while stack and stack[-1] <= entry.ts:
                stack.pop()
            stop = entry.ts - entry.less
            if stack and stop > stack[-1]:
                stop = stack[-1]
                entry = entry._replace(less=entry.ts - stop)  # noqa: PLW2901 - the cut one is meant
            stack.append(stop)
        yield entry


def _stream(
    books: Books, query: str, values: list[object] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Rows of a query, a batch at a time."""
    cursor = books.cursor()
    cursor.execute(query, values or [])
    while rows := cursor.fetchmany(_BATCH):
        yield from rows


def _slices(books: Books, places: _Places, begin: int, notes: list[str]) -> Iterator[_Entry]:
    """Level 1, and where there is room steps and traced spans, in order of time."""
    count = _count(books, "timeline")
    if count > MAX_SLICES:
        width = _bin_width(books, begin)
        notes.append(
            f"{count} pieces are more than {MAX_SLICES}: those of a rank that begin within "
            f"{width / 1e9:.3f} s are put together, each leaf with its exact time; no steps"
        )
        yield from _level1(books, places, _binned(begin, width))
        return
    query, room = _LEVEL1, MAX_SLICES - count
    steps = int(books.rows("SELECT count(*) AS n FROM line WHERE is_step")[0]["n"])
    if steps > room:
        notes.append(f"{steps} steps are more than fit beside the pieces, so none is shown")
    elif steps:
        query = f"{query} UNION ALL {_STEPS}"
        traces = _count(books, "traces")
        if traces > room - steps:
            notes.append(f"{traces} traced spans are more than fit, so none is shown")
        elif traces:
            query = f"{query} UNION ALL {_TRACES}"
    yield from _level1(books, places, query)


def _level1(books: Books, places: _Places, query: str) -> Iterator[_Entry]:
    ordered = f"SELECT * FROM ({query}) ORDER BY start_ns, stop_ns DESC, level, rank"  # noqa: S608
    for session, rank, level, name, start, stop, step, tokens in _stream(books, ordered):
        pid, tid = places.of(str(session or ""), int(rank))
        leaf = BY_ID.get(str(name)) if level == 1 else None
        args: dict[str, Any] = {"session": session}
        if level == 1:
            text = f"{leaf.id} {leaf.title}" if leaf else str(name)
            cat = GROUPS.get(str(name)[0], "") if leaf else ""
            args["leaf"] = name
        else:
            text, cat = _short(name), "step" if level == 2 else "trace"
            args |= {"step": step} | ({"tokens": tokens} if tokens is not None else {})
        yield _Entry(int(start), int(start) - int(stop), level, "X", pid, tid, text, cat, args)


_LEVEL1 = (
    "SELECT session, rank, 1 AS level, leaf AS name, start_ns, end_ns AS stop_ns, "
    "NULL::BIGINT AS step, NULL::BIGINT AS tokens FROM timeline WHERE end_ns > start_ns"
)
_STEPS = (
    # a single step, or the steps that one row of a log or one stretch of a long run covers
    "SELECT l.session, l.rank, 2, "
    "CASE WHEN coalesce(t.steps, r.n_steps) = 1 THEN 'step ' || coalesce(t.step, r.step) "
    "ELSE 'steps ' || (coalesce(t.step, r.step) - coalesce(t.steps, r.n_steps) + 1) || '..' || "
    "coalesce(t.step, r.step) END, l.start_ns, l.stop_ns, coalesce(t.step, r.step), "
    "coalesce(t.tokens, r.tokens) FROM line l LEFT JOIN step_rows r USING (process_id, seq) "
    "LEFT JOIN stretch_rows t USING (process_id, seq) WHERE l.is_step"
)
_TRACES = (
    "SELECT l.session, l.rank, 3 + coalesce(t.depth, 0), t.name, "
    "t.start_ns, least(t.start_ns + t.dur_ns, l.stop_ns), t.step, NULL "
    "FROM traces t ASOF JOIN (FROM line WHERE is_step) l "
    "ON t.process_id = l.process_id AND t.start_ns >= l.start_ns "
    "WHERE least(t.start_ns + t.dur_ns, l.stop_ns) > t.start_ns"
)


def _count(books: Books, table: str) -> int:
    return int(books.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"])  # noqa: S608 - our names


_BINNED = """
WITH marked AS (
    SELECT *, CASE WHEN lag(end_ns) OVER w = start_ns THEN 0 ELSE 1 END AS cut,
           (start_ns - BEGIN_NS) // WIDTH_NS AS bin
    FROM timeline WHERE end_ns > start_ns
    WINDOW w AS (PARTITION BY session, rank ORDER BY start_ns, end_ns)
),
runs AS (
    SELECT *, sum(cut) OVER (PARTITION BY session, rank ORDER BY start_ns, end_ns
                             ROWS UNBOUNDED PRECEDING) AS island
    FROM marked
),
sums AS (
    SELECT session, rank, bin, island, leaf, min(start_ns) AS first,
           sum(end_ns - start_ns)::BIGINT AS ns
    FROM runs GROUP BY ALL
),
laid AS (
    SELECT *, (min(first) OVER (PARTITION BY session, rank, bin, island)
               + sum(ns) OVER (PARTITION BY session, rank, bin, island ORDER BY first, leaf
                               ROWS UNBOUNDED PRECEDING))::BIGINT AS stop_ns
    FROM sums
)
SELECT session, rank, 1 AS level, leaf AS name, stop_ns - ns AS start_ns, stop_ns,
       NULL::BIGINT AS step, NULL::BIGINT AS tokens
FROM laid
"""


def _binned(begin: int, width: int) -> str:
    """Pieces of a rank that begin in one bin and touch, laid out leaf by leaf in their time."""
    return _BINNED.replace("BEGIN_NS", str(begin)).replace("WIDTH_NS", str(width))


def _bin_width(books: Books, begin: int) -> int:
    """The narrowest bin, by doubling, with which the pieces fit."""
    row = books.rows("SELECT max(end_ns) AS b, count(DISTINCT rank) AS n FROM timeline")[0]
    span, ranks = int(row["b"]) - begin, int(row["n"])
    width = max(1, span * max(1, ranks) // MAX_SLICES)
    # One bin holds at most every leaf of every session: below that it cannot go.
    while width < span:
        count = f"SELECT count(*) AS n FROM ({_binned(begin, width)})"  # noqa: S608 - numbers
        if int(books.rows(count)[0]["n"]) <= MAX_SLICES:
            break
        width *= 2
    return width


def _run_slices(books: Books) -> Iterator[_Entry]:
    for s in books.facts.sessions:
        args = {"end_reason": s.end_reason, "world_size": s.world_size, "attempt": s.attempt}
        less = s.start_ns - s.window_end_ns
        yield _Entry(s.start_ns, less, 0, "X", RUN, 1, f"session {s.id}", "session", args)


def _counters(books: Books, notes: list[str]) -> Iterator[_Entry]:
    """Loss and tokens a second, from the lowest rank of each session that has them."""
    queries = {
        "loss": "SELECT s.start_ns + s.dur_ns AS at_ns, s.loss AS value, m.session, m.rank "
        "FROM steps s JOIN members m USING (process_id) WHERE isfinite(s.loss)",
        "tokens/s": "SELECT s.start_ns + s.dur_ns AS at_ns, 1e9 * s.tokens * r.n / s.dur_ns AS "
        "value, m.session, m.rank FROM steps s JOIN members m USING (process_id) JOIN (SELECT "
        "session, count(DISTINCT replica) AS n FROM members GROUP BY session) r "
        "ON r.session = m.session WHERE s.tokens IS NOT NULL AND s.dur_ns > 0",
    }
    made = [_counter(books, name, query, notes) for name, query in queries.items()]
    yield from heapq.merge(*made)


def _counter(books: Books, name: str, query: str, notes: list[str]) -> Iterator[_Entry]:
    first = f"SELECT session, min(rank) AS rank FROM ({query}) GROUP BY session"  # noqa: S608 - ours
    lead = f"FROM ({query}) v JOIN ({first}) USING (session, rank)"
    count = int(books.rows(f"SELECT count(*) AS n {lead}")[0]["n"])
    every = max(1, -(-count // MAX_POINTS))
    if every > 1:
        notes.append(f"{name}: one point in {every} of {count} is shown")
    numbered = f"SELECT at_ns, value, row_number() OVER (ORDER BY at_ns) AS i {lead}"
    query = f"SELECT at_ns, value FROM ({numbered}) WHERE i % {every} = 0 OR i = 1 ORDER BY at_ns"  # noqa: S608
    for at, value in _stream(books, query):
        if math.isfinite(value):
            yield _Entry(int(at), 0, 9, "C", RUN, 0, name, "", {name: value})


def _instants(books: Books, places: _Places, notes: list[str]) -> Iterator[_Entry]:
    """Events of ranks on their threads; of launchers, incidents and annotations on the run's."""
    count = _count(books, "events")
    if count > MAX_INSTANTS:
        notes.append(f"{count} events: the first {MAX_INSTANTS} are shown")
    found: list[_Entry] = []
    query = (
        "SELECT e.time_ns, e.kind, e.attrs, e.step, m.session, m.rank FROM events e "
        "LEFT JOIN members m USING (process_id) ORDER BY e.time_ns LIMIT ?"
    )
    for at, kind, attrs, step, session, rank in _stream(books, query, [MAX_INSTANTS]):
        pid, tid = (RUN, 2) if session is None else places.of(str(session), int(rank))
        args = {_short(k): _plain(v) for k, v in list(attrs_of(attrs).items())[:20]}
        args |= {} if step is None else {"step": step}
        found.append(_Entry(int(at), 0, 10, "i", pid, tid, _short(kind), "event", args))
    for said in books.facts.said:
        args = {"id": said.id, "note": _short(said.note or ""), "by": _short(said.by or "")}
        at = said.start_ns if said.start_ns is not None else _first(books)
        what = _short(said.what())
        found.append(_Entry(at, 0, 10, "i", RUN, 2, what, "annotation", args))
    found.sort(key=lambda e: e[:8])
    yield from found


def _first(books: Books) -> int:
    return min((s.start_ns for s in books.facts.sessions), default=0)


def _plain(value: object) -> object:
    """A value of an event's details: short, and a number only if JSON has it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _short(value)


def _names(report: dict[str, Any], places: _Places) -> Iterator[dict[str, Any]]:
    """Names and order of processes and threads."""

    def meta(what: str, pid: int, tid: int, value: object) -> dict[str, Any]:
        key = "sort_index" if what.endswith("index") else "name"
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}

    yield meta("process_name", RUN, 0, f"run {_short(report['run']['name'])}")
    yield meta("process_sort_index", RUN, 0, 0)
    yield meta("thread_name", RUN, 1, "sessions")
    yield meta("thread_name", RUN, 2, "launcher and people")
    for host, pid in places.hosts.items():
        yield meta("process_name", pid, 0, _short(host))
        yield meta("process_sort_index", pid, 0, pid)
    for (pid, tid), name in sorted(places.threads.items()):
        yield meta("thread_name", pid, tid, name)
        yield meta("thread_sort_index", pid, tid, tid)
