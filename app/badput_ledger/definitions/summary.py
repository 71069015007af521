"""What the definitions need of the books: exact sums, plain values, no database."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.figures import leaf_sums

if TYPE_CHECKING:
    from badput_ledger.books import Books


@dataclass(frozen=True, slots=True)
class Life:
    """One session: how many steps it kept, on how many ranks, and its usual step."""

    kept_steps: int
    world_size: int
    usual_ns: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The books of a run as the definitions see them. Times are slot-nanoseconds."""

    leaves: dict[str, int]
    """Every leaf of the taxonomy; one that nothing measured is 0 here and named in ``null``."""
    null: dict[str, str] = field(default_factory=dict[str, str])
    """Leaves without a measurement, with the reason."""
    places: int = 0
    """Requested GPUs (or ranks, where ranks have none of their own)."""
    wall_ns: int = 0
    """From the first submission or sign of life to the last."""
    lives: tuple[Life, ...] = ()
    starts: int = 0
    failures: int = 0
    """Sessions that did not end on purpose."""
    nodes: int | None = None
    saves: int = 0
    """Checkpoints that became durable."""
    max_saved_step: int | None = None
    min_loaded_step: int | None = None
    step_time_s: Fraction | None = None
    """Reference time of a step, where somebody gave one."""
    kept_tokens: int | None = None
    """Without padding."""
    tokens_reason: str | None = None
    """Why they are not known."""
    kept_samples: int | None = None
    formula: str | None = None
    formula_inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    gpu_ns: dict[str, int] = field(default_factory=dict[str, int])
    """Kept time (G + H) by GPU type; the type "" is unknown."""
    peak_tflops: Fraction | None = None
    """Dense bf16 peak of one GPU, where the user gave it."""
    learning: dict[str, Any] = field(default_factory=dict[str, Any])

    def sum(self, *prefixes: str) -> int:
        """Slot-nanoseconds of the leaves that begin with one of ``prefixes``."""
        return sum(ns for leaf, ns in self.leaves.items() if leaf.startswith(prefixes))

    @property
    def total(self) -> int:
        """All booked time."""
        return sum(self.leaves.values())

    @property
    def kept(self) -> int:
        """G + H."""
        return self.sum("G", "H")


def summarize(
    books: Books,
    *,
    learning: dict[str, Any] | None = None,
    step_time_s: float | None = None,
    peak_tflops: float | None = None,
) -> Summary:
    """Read the books once. Given values win over the run's own configuration."""
    sums = leaf_sums(books)
    config = books.facts.config
    lives = tuple(Life(int(r["kept"]), int(r["world_size"]), r["b_ns"]) for r in books.rows(_LIVES))
    window = books.rows("SELECT max(end_ns) - min(start_ns) AS ns FROM allocations")[0]["ns"]
    saves = books.rows(
        "SELECT count(DISTINCT (session, step)) AS n, max(step) AS top FROM saves WHERE durable"
    )[0]
    low = books.rows("SELECT min(step) AS step FROM checkpoints WHERE op = 'load'")[0]["step"]
    sessions = books.facts.sessions
    tokens, why = _kept_tokens(books)
    return Summary(
        leaves={leaf.id: leaf.ns or 0 for leaf in sums},
        null={leaf.id: leaf.reason or "not measured" for leaf in sums if leaf.ns is None},
        places=books.facts.slots,
        wall_ns=int(window or 0),
        lives=lives,
        starts=len(sessions),
        failures=sum(
            s.end_reason != "completed" and (s is not sessions[-1] or s.fail_ns is not None)
            for s in sessions
        ),
        nodes=_nodes(books),
        saves=int(saves["n"]),
        max_saved_step=saves["top"],
        min_loaded_step=low,
        step_time_s=exact(step_time_s if step_time_s is not None else config.get("step_time_s")),
        kept_tokens=tokens,
        tokens_reason=why,
        # Only Pollux asks, and only where there is a noise scale: it takes a look at every step.
        kept_samples=_kept_samples(books) if (learning or {}).get("noise_scale") else None,
        formula=_text(books.facts.run.get("flops_formula")),
        formula_inputs=_object(books.facts.run.get("flops_inputs")),
        gpu_ns=_gpu_types(books),
        peak_tflops=exact(peak_tflops if peak_tflops is not None else config.get("peak_tflops")),
        learning=learning or {},
    )


_LIVES = """
SELECT s.world_size, u.b_ns,
       coalesce(sum(c.steps) FILTER (WHERE c.fate = 'kept'), 0)::BIGINT AS kept
FROM sessions s LEFT JOIN usual u USING (session) LEFT JOIN step_counts c USING (session)
GROUP BY s.session, s.ord, s.world_size, u.b_ns ORDER BY s.ord
"""


def _nodes(books: Books) -> int | None:
    said = books.facts.config.get("nodes")
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return said
    hosts = [{p.host for p in s.members} for s in books.facts.sessions]
    if not hosts or any(None in found for found in hosts):
        return None
    full = all(len(s.members) == s.world_size for s in books.facts.sessions)
    return max(len(found) for found in hosts) if full else None


def _kept_tokens(books: Books) -> tuple[int | None, str | None]:
    """Kept tokens without their padding, or why they are not known: a part is not the whole."""
    tokens = books.tokens
    kept = tokens.total("kept")
    if kept is None:
        return None, "no tokens were recorded"
    if tokens.silent:
        return None, "not every replica tells its tokens"
    return kept - (tokens.padding() or 0), None


def _kept_samples(books: Books) -> int | None:
    """Samples of kept steps: the greatest sum among a replica's ranks, over replicas."""
    found = books.rows(_SAMPLES)[0]["samples"]
    return None if found is None else int(found)


_SAMPLES = """
WITH of_rank AS (
    SELECT m.session, m.replica, m.rank, sum(s.samples) AS samples
    FROM steps s JOIN members m USING (process_id) JOIN cuts c USING (session)
    WHERE s.step <= least(c.kept_upto, c.completed_upto)
      AND NOT EXISTS (FROM skips k WHERE k.session = m.session AND k.step = s.step)
      AND NOT EXISTS (FROM rewinds w WHERE w.session = m.session AND w.rank = m.rank
                      AND w.time_ns > s.start_ns AND w.to_step < s.step)
    GROUP BY m.session, m.replica, m.rank
),
of_replica AS (SELECT max(samples) AS samples FROM of_rank GROUP BY session, replica)
SELECT sum(samples)::BIGINT AS samples FROM of_replica
"""


def _gpu_types(books: Books) -> dict[str, int]:
    types = {(s.id, p.rank or 0): p.gpu_type for s in books.facts.sessions for p in s.members}
    said = books.facts.config.get("gpu_type")
    default = said if isinstance(said, str) else None
    found: dict[str, int] = {}
    for row in books.rows(
        "SELECT session, rank, sum(ns * weight)::HUGEINT AS ns FROM rank_leaves "
        "JOIN members USING (session, rank) "
        "WHERE leaf LIKE 'G.%' OR leaf LIKE 'H.%' GROUP BY session, rank"
    ):
        kind = types.get((str(row["session"]), int(row["rank"]))) or default or ""
        found[kind] = found.get(kind, 0) + int(row["ns"])
    return {kind: ns for kind, ns in found.items() if ns > 0}


def exact(value: object) -> Fraction | None:
    """A finite number above 0 as the decimal that it was written as; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    number = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    return number if number > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: object) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
