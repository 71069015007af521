"""The books once more, slow and plain: one interval sweep a rank, no SQL.

Written from docs/ledger.md. It takes the rows of a run's tables (processes, steps, spans,
checkpoints, events) of sessions that do not overlap, one row a step, without stages, hangs,
annotations, collectives or samples, and returns nanoseconds by leaf over all places.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
SPANS = {
    "rendezvous": "C.rendezvous", "model": "C.model", "data_init": "C.data", "load": "C.load",
    "save": "E.save", "snapshot": "E.snapshot", "eval": "E.eval", "overhead": "E.overhead",
    "compile": "C.warmup", "launch": "C.launch", "data": "G.data",
}  # fmt: skip
UNUSUAL = ("eval", "save", "snapshot", "compile")
E_PARTS = ("overhead", "eval", "save", "snapshot")


def lower_median(values: list[int]) -> int | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None


@dataclass
class Life:
    """One rank in one session."""

    rank: int
    start: int
    init: int
    steps: list[Row]
    spans: list[Row]
    death: int | None
    clean: bool
    rewinds: list[tuple[int, int]]
    """(time, to_step) of declared rollbacks."""
    last_record: int = 0
    pieces: list[tuple[int, int, Any]] = field(default_factory=list[tuple[int, int, Any]])
    """(start, stop, row): a step row, or a leaf."""

    @property
    def end(self) -> int:
        return self.last_record if self.death is None else self.death


@dataclass
class Session:
    number: int
    world: int
    job: str | None
    lives: list[Life]
    first: int | None = None
    upto: int | None = None
    resumed: int | None = None
    writer: int | None = None
    loads: int = 0
    parent: int | None = None
    kept_upto: int = -(1 << 60)
    lost_leaf: str = "D.recomputed"
    b: int | None = None
    rough: int | None = None
    first_usual: int | None = None
    batch: int | None = None

    @property
    def start(self) -> int:
        return min(life.start for life in self.lives)

    @property
    def end(self) -> int:
        return max(life.end for life in self.lives)

    @property
    def ended(self) -> bool:
        return any(life.death is not None for life in self.lives)

    @property
    def completed(self) -> bool:
        return self.ended and all(x.clean or x.death is None for x in self.lives)

    @property
    def failed_ns(self) -> int | None:
        dead = [x.end for x in self.lives if x.death is not None and not x.clean]
        return None if self.completed else min(dead, default=None)


def book(tables: dict[str, list[Row]]) -> dict[str, int]:
    """Leaf: nanoseconds over all places; leaves without time are left out."""
    sessions = assemble(tables)
    descend(sessions, tables["checkpoints"])
    for s in sessions:
        for life in s.lives:
            sweep(s, life)
    usual(sessions)
    total: dict[str, int] = defaultdict(int)
    places = max(s.world for s in sessions)
    for i, s in enumerate(sessions):
        skipped = {
            row["step"]
            for life in s.lives
            for row in life.steps
            if row.get("applied") is False and not rewound(life, row)
        }
        lowest = min(life.rank for life in s.lives)
        for life in s.lives:
            weight = 1 + (s.world - len(s.lives) if life.rank == lowest else 0)
            for leaf, ns in rank_leaves(s, life, skipped).items():
                total[leaf] += ns * weight
        total["A.capacity"] += (places - s.world) * (s.end - s.start)
        if i:
            before = sessions[i - 1]
            same = before.job is not None and before.job == s.job
            total["C.launch" if same else "A.requeue"] += places * (s.start - before.end)
    return {leaf: ns for leaf, ns in total.items() if ns}


def assemble(tables: dict[str, list[Row]]) -> list[Session]:
    """Sessions as the generator numbered them: process ids are 100 x session + rank."""
    found: dict[int, Session] = {}
    for p in tables["processes"]:
        pid = p["process_id"]
        mine = {t: [r for r in tables[t] if r["process_id"] == pid] for t in tables}
        end = next((e for e in mine["events"] if e["kind"] == "end"), None)
        said = json.loads(end["attrs"]) if end else {}
        init = max(p["start_ns"], p["init_ns"] or p["start_ns"])
        life = Life(
            p["rank"], p["start_ns"], init,
            sorted(mine["steps"], key=lambda r: (r["start_ns"], r["seq"])),
            [r for r in mine["spans"] if not r["in_step"]],
            end["time_ns"] if end else None, said.get("reason") == "completed",
            [(e["time_ns"], json.loads(e["attrs"])["to_step"])
             for e in mine["events"] if e["kind"] == "rewind"],
        )  # fmt: skip
        signs = [
            r["start_ns"] + (r["dur_ns"] or 0)
            for t in ("steps", "spans", "checkpoints")
            for r in mine[t]
        ]
        signs += [e["time_ns"] for e in mine["events"] if e["kind"] != "end"]
        life.last_record = max([init, *signs])
        if life.death is not None:
            life.death = max(life.death, life.last_record)
        number = pid // 100
        s = found.setdefault(number, Session(number, p["world_size"], p["job_id"], []))
        s.lives.append(life)
    return [found[n] for n in sorted(found)]


def rewound(life: Life, row: Row) -> bool:
    return any(at > row["start_ns"] and to < row["step"] for at, to in life.rewinds)


def descend(sessions: list[Session], checkpoints: list[Row]) -> None:
    """Parents, the path from the last session, and up to where each session counts."""
    for s in sessions:
        share_rewinds(s)
        origins(s, checkpoints)
    live = [s for s in sessions if s.upto is not None]
    for s in live:
        s.parent = parent_of(s, [p for p in live if p.number < s.number])
    cut = paths(live)
    for s in live:
        c = cut.get(s.number)
        if s.number not in cut:
            s.kept_upto = s.first - 1
        else:
            s.kept_upto = s.upto if c is None else min(s.upto, c)
        if c is not None and any(to == c for life in s.lives for _, to in life.rewinds):
            s.lost_leaf = "D.rewind"
        elif s.number not in cut and any(step > s.resumed for step in durable(s, checkpoints)):
            s.lost_leaf = "D.branch"
    if live:
        tail(sessions, live[-1], cut, checkpoints)


def parent_of(s: Session, earlier: list[Session]) -> int | None:
    if any(p.number == s.writer for p in earlier):
        return s.writer
    if s.resumed <= 0:
        alike = bool(earlier) and earlier[-1].job is not None and earlier[-1].job == s.job
        return earlier[-1].number if alike else None
    did = [p.number for p in earlier if p.first <= s.resumed <= p.upto]
    began = [p.number for p in earlier if p.resumed == s.resumed]
    found = did or began
    return found[-1] if found else None


def paths(live: list[Session]) -> dict[int, int | None]:
    """Sessions on the path of each root's last session, with the step that cuts them."""
    by = {s.number: s for s in live}
    root: dict[int, int] = {}
    for s in live:
        root[s.number] = s.number if s.parent is None else root[s.parent]
    cut: dict[int, int | None] = {}
    for top in set(root.values()):
        s = max((x for x in live if root[x.number] == top), key=lambda x: x.number)
        cut[s.number] = None
        while s.parent is not None:
            above = cut[s.number]
            cut[s.parent] = s.resumed if above is None else min(s.resumed, above)
            s = by[s.parent]
    return cut


def share_rewinds(s: Session) -> None:
    """A rank that says nothing itself goes by what another rank of its session said."""
    said = {(at, to) for life in s.lives for at, to in life.rewinds}
    for life in s.lives:
        own = {to for _, to in life.rewinds}
        mine = life.rewinds + [(at, to) for at, to in said if to not in own]
        life.rewinds = [(max(a for a, t in mine if t == to), to) for to in {t for _, t in mine}]


def origins(s: Session, checkpoints: list[Row]) -> None:
    stepped = [x for x in s.lives if x.steps]
    if stepped:
        before = min(x.steps[0]["step"] - 1 for x in stepped)
        ups: list[int] = []
        for x in stepped:
            last = x.steps[-1]
            undone = [to for at, to in x.rewinds if at > last["start_ns"]]
            ups.append(min([last["step"], *undone]))
        s.first = before + 1
        s.upto = min(ups) if min(ups) > before else None
        s.resumed = before
    begin = {x.rank: x.steps[0]["start_ns"] for x in stepped}
    loads = [
        c for c in checkpoints
        if c["process_id"] // 100 == s.number and c["op"] == "load"
        and c["start_ns"] <= begin.get(c["rank"], c["start_ns"])
    ]  # fmt: skip
    s.loads = len(loads)
    steps: list[int] = []
    for c in loads:
        saves = [x for x in checkpoints if x["op"] == "save" and x["path"] == c["path"]
                 and x["process_id"] // 100 < s.number]  # fmt: skip
        if saves:
            s.writer = max(saves, key=lambda x: x["start_ns"])["process_id"] // 100
            steps.append(c["step"])
    if steps:
        s.resumed = min(steps)


def durable(s: Session, checkpoints: list[Row]) -> set[int]:
    mine = [c for c in checkpoints if c["process_id"] // 100 == s.number and c["op"] == "save"]
    writers = {c["rank"] for c in mine}
    good: dict[int, set[int]] = defaultdict(set)
    for c in mine:
        if c["durable_ns"] is not None:
            good[c["step"]].add(c["rank"])
    return {step for step, ranks in good.items() if ranks == writers}


def tail(
    sessions: list[Session], last: Session, cut: dict[int, int | None], checkpoints: list[Row]
) -> None:
    """Steps after the last durable checkpoint of a run that broke off."""
    final = sessions[-1]
    over = final.ended and all(x.death is not None for x in final.lives)
    steps = [
        step for s in sessions if s.number in cut for step in durable(s, checkpoints)
        if cut[s.number] is None or step <= cut[s.number]
    ]  # fmt: skip
    if steps and max(steps) < last.upto and over and not final.completed:
        last.kept_upto = min(last.kept_upto, max(*steps, last.first - 1))
        last.lost_leaf = "D.tail"


def sweep(s: Session, life: Life) -> None:
    """Cut the rank's session at every edge, and give each piece to its innermost interval."""
    first = life.steps[0]["start_ns"] if life.steps else None
    items: list[tuple[int, int, str, int, Any]] = [
        (r["start_ns"], r["start_ns"] + r["dur_ns"], "H", r["seq"], r) for r in life.steps
    ]
    items.append((s.start, life.init, "C", -1, "C.launch"))
    last = min(
        x for x in (life.end if life.death is not None else s.end, s.failed_ns) if x is not None
    )
    for r in life.spans:
        a, name = r["start_ns"], r["name"]
        following = next((x["start_ns"] for x in life.steps if x["start_ns"] >= a), None)
        later = min((x["start_ns"] for x in life.spans if x["start_ns"] > a), default=None)
        if r["dur_ns"] is not None:
            z = a + r["dur_ns"]
        else:
            z = max(a, min(following if following is not None else last,
                           later if later is not None else last, last))  # fmt: skip
        if name not in SPANS and following is not None and following < z:
            continue  # a user's own span around steps
        leaf = SPANS.get(name, "U.unaccounted")
        if first is None or a < first:
            leaf = {"G.data": "C.data", "U.unaccounted": "C.model"}.get(leaf, leaf)
        items.append((a, z, leaf[0], r["seq"], leaf))
    items = [(max(a, s.start), min(z, s.end), *rest) for a, z, *rest in items]
    items = [i for i in items if i[0] < i[1]]
    edges = sorted({e for i in items for e in i[:2]})
    for a, z in pairwise(edges):
        over = [i for i in items if i[0] <= a and i[1] >= z]
        inner = [
            i for i in over
            if not any(o[0] >= i[0] and o[1] <= i[1] and o[:2] != i[:2] for o in over)
        ]  # fmt: skip
        if inner:
            best = min(inner, key=lambda i: ("ABCDEFGHU".index(i[2]), -i[0], i[3]))
            life.pieces.append((a, z, best[4]))


def usual(sessions: list[Session]) -> None:
    """b of each session, from its plain steps or the run's at equal world and batch."""
    medians: dict[int, dict[int, tuple[int, bool, int | None]]] = {}
    for s in sessions:
        steps: dict[int, list[tuple[int, Row]]] = defaultdict(list)
        for life in s.lives:
            for row in life.steps:
                steps[row["step"]].append((plain(life, row), row))
        medians[s.number] = {
            step: (
                lower_median([p for p, _ in rows]),
                not any(r.get(f"{k}_ns") for _, r in rows for k in UNUSUAL),
                lower_median([r["tokens"] for _, r in rows if r.get("tokens") is not None]),
            )
            for step, rows in steps.items()
        }  # fmt: skip
        mine = medians[s.number].values()
        s.batch = lower_median([t for _, _, t in mine if t is not None])
        s.rough = lower_median([p for p, _, _ in mine])
    for s in sessions:
        alike = [o for o in sessions if (o.world, o.batch) == (s.world, s.batch)]
        pool = [p for o in alike for p, usable, _ in medians[o.number].values() if usable]
        own = [p for p, usable, _ in medians[s.number].values() if usable]
        for some in (own, pool):
            if s.b is None and len(some) >= 20 and lower_median(some) > 0:
                s.b = lower_median(some)
        if not medians[s.number]:
            s.b = None
        elif s.b is not None:
            s.rough = s.b
            good = [k for k, (p, _, _) in medians[s.number].items() if 2 * p <= 3 * s.b]
            s.first_usual = min(good, default=None)


def own_ns(life: Life, row: Row) -> int:
    return sum(z - a for a, z, what in life.pieces if what is row)


def plain(life: Life, row: Row) -> int:
    parts = (*E_PARTS, "data", "wait_activation", "wait_gradient", "send", "comm", "host")
    return own_ns(life, row) - sum(row.get(f"{k}_ns") or 0 for k in parts)


def rank_leaves(s: Session, life: Life, skipped: set[int]) -> dict[str, int]:
    """Leaves of one rank's session: gaps, spans, steps and its end."""
    out: dict[str, int] = defaultdict(int)
    first = life.steps[0]["start_ns"] if life.steps else None
    fates = {id(r): fate(s, life, r, skipped) for r in life.steps}
    waits = {id(r): [r.get("pre_data_ns") or 0, 0, 0, 0, 0] for r in life.steps}
    # of each step: left of its wait, seen gaps, data before spans, gap, data in the gap
    at = s.start
    for a, z, what in life.pieces:
        gap, is_step = a - at, isinstance(what, dict)
        if gap and (first is None or at < first):
            wait = min(gap, what.get("pre_data_ns") or 0) if is_step else 0
            out["C.data"] += wait
            out["C.model"] += gap - wait
        elif gap and is_step:
            w = waits[id(what)]
            w[3] += gap
        elif gap:
            following = next((r for r in life.steps if r["start_ns"] >= a), None)
            data = 0
            if following is not None:
                w = waits[id(following)]
                data = min(gap, max(w[0] - w[1], 0))
                w[1] += gap
                w[2] += data
            out["U.unaccounted"] += gap - data
        if what == "G.data":
            following = next((r for r in life.steps if r["start_ns"] >= a), None)
            lost = fates[id(following)] if following is not None else "kept"
            out["G.data" if lost == "kept" else lost] += z - a
        elif not is_step:
            out[what] += z - a
        at = z
    for r in life.steps:
        w = waits[id(r)]
        in_gap = min(w[3], w[0] - w[2])
        for leaf, ns in divide(
            s, life, r, fates[id(r)], wait=w[2] + in_gap, outside=w[2] + w[3]
        ).items():
            out[leaf] += ns
    ending(s, life, at, out)
    return out


def fate(s: Session, life: Life, row: Row, skipped: set[int]) -> str:
    if rewound(life, row):
        return "D.rewind"
    if s.upto is None or row["step"] > s.upto:
        return "D.partial"
    if row["step"] > s.kept_upto:
        return s.lost_leaf
    return "F.skipped" if row["step"] in skipped else "kept"


def divide(
    s: Session, life: Life, row: Row, what: str, *, wait: int, outside: int
) -> dict[str, int]:
    """Level 2. ``outside``: gap and early data wait of the step, ``wait`` of it data."""
    own = own_ns(life, row)
    time = own + outside
    over = 0 if s.b is None else max(plain(life, row) - s.b, 0)
    early = s.b is not None and (s.first_usual is None or row["step"] < s.first_usual)
    compiled = row.get("compile_ns") or 0
    warm = max(compiled, over) if early or compiled > 0 else 0
    if what != "kept":
        return {"U.unaccounted": time} if warm > time else {"C.warmup": warm, what: time - warm}
    some = {k: row.get(f"{k}_ns") or 0 for k in (*E_PARTS, "data", "comm", "host")}
    bubble = (row.get("wait_activation_ns") or 0) + (row.get("wait_gradient_ns") or 0)
    out = {
        "C.warmup": warm, "G.data": some["data"] + wait, "G.bubble": bubble,
        "G.comm": some["comm"] + (row.get("send_ns") or 0),
        "G.host": some["host"] + outside - wait,
    } | {f"E.{k}": some[k] for k in E_PARTS}  # fmt: skip
    booked = sum(out.values())
    if booked > time:
        return {"U.unaccounted": time}
    odd = over if not warm and s.b is not None and plain(life, row) > 3 * s.b else 0
    odd = 0 if booked + odd > time else odd
    rest = time - booked - odd
    pad, tokens = row.get("padding") or 0, row.get("tokens")
    padded = rest * pad // tokens if pad > 0 and tokens is not None and tokens >= pad else 0
    return out | {"U.unaccounted": odd, "F.padding": padded, "H.productive": rest - padded}


def ending(s: Session, life: Life, at: int, out: dict[str, int]) -> None:
    """What follows the last step or span of a rank."""
    death = min(life.end if life.death is not None else s.end, s.end)
    noticed = min(max(s.end if s.failed_ns is None else s.failed_ns, at), s.end)
    if not life.steps:
        until = min(max(death if s.completed else noticed, at), s.end)
        out["C.model"] += until - at
        out["B.teardown"] += s.end - until
    elif s.completed or not s.ended:
        out["B.teardown" if s.completed else "U.unaccounted"] += s.end - at
    else:
        until = min(noticed, at + max(s.rough or 0, 0))
        out["D.partial"] += until - at
        out["B.hang"] += noticed - until
        out["B.teardown"] += s.end - noticed
