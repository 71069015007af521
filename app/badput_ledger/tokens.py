"""The token ledger: processed = kept + lost + skipped + padding, and which rank says so.

The ranks of one data replica work on the same tokens, so a replica counts once, however many of
its ranks tell. Where they disagree about a step, the greatest number counts: a rank can fail to
count tokens that were there, it cannot count ones that were not. The least is the lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import iso

if TYPE_CHECKING:
    from badput_ledger.books import Books

Place = tuple[str, int]
"""Session and data replica."""


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens of one fate in one session and replica."""

    session: str
    replica: int
    fate: str
    rank: int
    """The rank whose number counts; of several, the one that told most."""
    tokens: int
    padding: int | None
    """Tokens of kept steps that are padding; None where nothing says."""
    least: int
    """The same by the ranks that told least."""


@dataclass(slots=True)
class Tokens:
    """Every count of a run, and what is not known."""

    counts: list[Count] = field(default_factory=list[Count])
    odd: dict[Place, list[int]] = field(default_factory=dict[Place, list[int]])
    """Replicas whose ranks disagree, with those ranks."""
    silent: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By session, replicas that made steps and tell no tokens."""

    def total(self, begins: str, session: str | None = None) -> int | None:
        """Tokens of the fates that begin so, padding included; None without any count."""
        told = [c for c in self.counts if session in (None, c.session)]
        return sum(c.tokens for c in told if c.fate.startswith(begins)) if told else None

    def padding(self) -> int | None:
        """Padding of kept steps; None if nothing says."""
        found = [c.padding for c in self.counts if c.padding is not None and c.fate == "kept"]
        return sum(found) if found else None

    def by_leaf(self) -> dict[str, int]:
        """The same by the leaf that takes them; kept ones without their padding are H's."""
        found: dict[str, int] = {}
        for c in self.counts:
            leaf, padding = ("H.productive", c.padding or 0) if c.fate == "kept" else (c.fate, 0)
            found[leaf] = found.get(leaf, 0) + c.tokens - padding
            if padding:
                found["F.padding"] = found.get("F.padding", 0) + padding
        return found


def count_tokens(books: Books) -> Tokens:
    """Count every replica once, as the view token_carriers does."""
    found = Tokens()
    for row in books.rows(
        "SELECT session, replica, count(tokens) = 0 AS silent FROM step_sums "
        "WHERE fate <> 'D.partial' GROUP BY ALL ORDER BY ALL"
    ):
        if row["silent"]:
            found.silent.setdefault(str(row["session"]), []).append(int(row["replica"]))
    for row in books.rows(
        "SELECT session, replica, rank FROM token_told WHERE odd GROUP BY ALL ORDER BY ALL"
    ):
        place = str(row["session"]), int(row["replica"])
        found.odd.setdefault(place, []).append(int(row["rank"]))
    for row in books.rows("FROM token_carriers ORDER BY session, replica, fate"):
        found.counts.append(
            Count(
                str(row["session"]),
                int(row["replica"]),
                str(row["fate"]),
                int(row["rank"]),
                int(row["tokens"]),
                None if row["padding"] is None else int(row["padding"]),
                int(row["least"]),
            )
        )
    return found


def build_tokens(books: Books) -> dict[str, Any]:
    """The report's tokens; docs/learning.md describes them."""
    tokens = books.tokens
    padding, kept = tokens.padding(), tokens.total("kept")
    processed = tokens.total("")
    least = sum(c.least for c in tokens.counts)
    reason = None
    if processed is None:
        reason = "no step says how many tokens it took"
    elif tokens.silent:
        many = sum(len(replicas) for replicas in tokens.silent.values())
        reason = f"{many} replicas in {len(tokens.silent)} sessions tell none: counted without them"
    return {
        "processed": processed,
        "kept": None if kept is None else kept - (padding or 0),
        "lost": tokens.total("D."),
        "skipped": tokens.total("F."),
        "padding": padding,
        "lo": None if processed is None else least,
        "hi": None if tokens.silent else processed,
        "complete": processed is not None and not tokens.silent,
        **({"reason": reason} if reason else {}),
        "carried_by": _carriers(tokens),
        "at_risk": at_risk(books),
        "tree": tree(books),
    }


def _carriers(tokens: Tokens) -> list[dict[str, Any]]:
    """What each replica carried over all sessions, replicas with equal counts together."""
    sums: dict[int, dict[str, int | None]] = {}
    for c in tokens.counts:
        row = sums.setdefault(c.replica, {"kept": 0, "lost": 0, "skipped": 0, "padding": None})
        name = _short(c.fate)
        row[name] = (row[name] or 0) + c.tokens - (c.padding or 0)
        if c.padding is not None:
            row["padding"] = (row["padding"] or 0) + c.padding
    groups: dict[tuple[int | None, ...], list[int]] = {}
    for replica, row in sorted(sums.items()):
        groups.setdefault(tuple(row.values()), []).append(replica)
    ranks: dict[int, set[int]] = {}
    for c in tokens.counts:
        ranks.setdefault(c.replica, set()).add(c.rank)
    return [
        {
            "replicas": replicas,
            "ranks": sorted({r for replica in replicas for r in ranks[replica]}),
            **dict(zip(("kept", "lost", "skipped", "padding"), values, strict=True)),
        }
        for values, replicas in groups.items()
    ]


def at_risk(books: Books) -> dict[str, Any]:
    """Steps and tokens that a failure right now would lose, since the last durable checkpoint."""
    empty: dict[str, Any] = {"steps": None, "tokens": None, "after_step": None, "durable_at": None}
    if books.facts.over:
        return empty | {"steps": 0, "tokens": 0, "reason": "the run is over"}
    cut = books.rows(
        "SELECT session, at_risk_after, completed_upto FROM cuts WHERE at_risk_after IS NOT NULL"
    )
    durable = books.rows(
        "SELECT max(step) AS step, max(durable_ns) AS ns FROM saves WHERE durable"
    )[0]
    if durable["step"] is None:
        return empty | {"reason": "no durable checkpoint was recorded"}
    found = empty | {"after_step": durable["step"], "durable_at": iso(durable["ns"])}
    if not cut:
        return found | {"steps": 0, "tokens": 0}
    session, after = cut[0]["session"], int(cut[0]["at_risk_after"])
    steps = int(cut[0]["completed_upto"]) - after
    rows = books.rows(
        "SELECT replica, max(tokens) AS tokens, max(steps) AS steps FROM ("
        "SELECT replica, rank, sum(tokens)::BIGINT AS tokens, sum(steps)::BIGINT AS steps FROM ("
        "SELECT replica, rank, sum(tokens)::BIGINT AS tokens, sum(n_steps)::BIGINT AS steps "
        "FROM divided "
        "WHERE session = $1 AND step > $2 AND fate NOT LIKE 'D.%' GROUP BY ALL UNION ALL "
        "SELECT replica, rank, sum(tokens)::BIGINT, sum(steps)::BIGINT FROM stretch_fates "
        "WHERE session = $1 AND before_step >= $2 AND fate NOT LIKE 'D.%' GROUP BY ALL"
        ") GROUP BY replica, rank) GROUP BY replica",
        [session, after],
    )
    known = bool(rows) and all(r["tokens"] is not None and r["steps"] == steps for r in rows)
    tokens = sum(int(r["tokens"]) for r in rows) if known else None
    why = {} if known else {"reason": "not every step after it tells its tokens"}
    return found | {"after_step": after, "steps": steps, "tokens": tokens, **why}


def tree(books: Books) -> list[dict[str, Any]]:
    """The sessions as a tree: where each went on from, and what it kept and lost."""
    steps: dict[str, dict[str, int]] = {}
    for row in books.rows("FROM step_counts"):
        name = _short(str(row["fate"]))
        own = steps.setdefault(str(row["session"]), {})
        own[name] = own.get(name, 0) + int(row["steps"])
    back: dict[str, list[int]] = {}
    for row in books.rows(
        "SELECT session, to_step, min(time_ns) AS ns FROM rewinds WHERE declared "
        "GROUP BY session, to_step ORDER BY ns"
    ):
        back.setdefault(str(row["session"]), []).append(int(row["to_step"]))
    found: list[dict[str, Any]] = []
    for row in books.rows("FROM cuts ORDER BY ord"):
        session = str(row["session"])
        told = {name: books.tokens.total(begins, session) for name, begins in _NAMES}
        own = steps.get(session, {})
        found.append(
            {
                "session": session,
                "parent": row["parent"],
                "because": row["because"],
                "from_step": row["resumed_from"] if row["parent"] else None,
                "first_step": row["first_step"],
                "last_step": row["completed_upto"],
                "kept_upto": row["kept_upto"] if row["completed_upto"] is not None else None,
                "on_path": bool(row["on_path"]),
                "rewound_to": back.get(session, []),
                "steps": {name: own.get(name, 0) for name, _ in _NAMES},
                "tokens": told,
            }
        )
    return found


_NAMES = (("kept", "kept"), ("lost", "D."), ("skipped", "F."))


def _short(fate: str) -> str:
    return next(name for name, begins in _NAMES if fate.startswith(begins))
