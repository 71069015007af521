"""Statistical efficiency: how much a kept token taught. A factor, never a bucket of time.

Two ways: against a reference run, as the tokens that it needed to reach the same loss, and
from the gradient noise scale, as in Pollux. What was not measured is None with a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from badput_ledger.isotonic import Block, falling, reached
from badput_ledger.noise import KEPT, build_noise

if TYPE_CHECKING:
    from badput_ledger.books import Books

LEAST_STEPS = 20
"""Kept steps with a loss; fewer make no curve."""
BINS = 256
"""Points of a curve at most: means of equally many steps, so that no single step decides."""
BIN_STEPS = 5
"""Steps in a bin at least."""
LAST = 0.25
"""Share of the common range, in tokens, over which the least and greatest efficiency are told."""
UNITS = ("token_unit", "tokenizer", "vocab_size", "vocabulary")
"""Settings of a run's configuration that say what a token is."""

Curve = list[tuple[float, float]]
"""Cumulative kept tokens and mean loss."""


def build_learning(books: Books, reference: Books | None = None) -> dict[str, Any]:
    """The report's learning; docs/learning.md describes it."""
    against = _against(books, reference)
    noise = build_noise(books)
    chosen = next((n for n, e in (("reference", against), ("noise_scale", noise))
                   if e["efficiency"] is not None), None)  # fmt: skip
    efficiency = against if chosen == "reference" else noise
    kept = books.tokens.total("kept")
    kept = None if kept is None else kept - (books.tokens.padding() or 0)
    value = efficiency["efficiency"]
    return {
        "efficiency": value,
        "source": chosen,
        "effective_tokens": None if value is None or kept is None else value * kept,
        **({} if chosen else {"reason": f"{against['reason']}; {noise['reason']}"}),
        "noise_scale": noise["noise_scale"],
        "batch": noise["batch"],
        "first_batch": noise["first_batch"],
        "reference": against,
        "gradient_noise": noise,
    }


def _no(reason: str, name: str | None = None) -> dict[str, Any]:
    return {"efficiency": None, "reason": reason, "run": name}


def _against(books: Books, reference: Books | None) -> dict[str, Any]:
    if reference is None:
        return _no("no reference run was given (--reference)")
    name = str(reference.facts.run.get("name") or reference.path.resolve().name)
    unlike = _other_unit(books, reference)
    if unlike:
        return _no(unlike, name)
    curves: list[list[Block]] = []
    for which, run in (("this run", books), ("the reference", reference)):
        curve = loss_curve(run)
        if isinstance(curve, str):
            return _no(f"{which}: {curve}", name)
        curves.append(falling(curve))
    return compare_curves(curves[0], curves[1], name)


def _other_unit(books: Books, reference: Books) -> str | None:
    """Why a token of one is none of the other, by what both say of themselves."""
    for key in UNITS:
        one, two = (b.facts.config.get(key) for b in (books, reference))
        if one is not None and two is not None and one != two:
            return f"the tokens are not the same: {key} is {one!r} here and {two!r} there"
    return None


def loss_curve(books: Books) -> Curve | str:
    """Mean loss over cumulative kept tokens, or why there is none."""
    if books.tokens.total("kept") in (None, 0):
        return "no kept tokens are recorded"
    if books.tokens.silent:
        return "some replicas tell no tokens"
    rows = books.rows(
        # one number a step: of the ranks of a replica the greatest count, as in the token ledger
        f"{KEPT}, told AS (SELECT session, replica, step, max(tokens) AS tokens, "  # noqa: S608
        "avg(loss) FILTER (WHERE abs(loss) < 1e100) AS loss, max(n_steps) AS n "
        "FROM kept GROUP BY session, replica, step), "
        "step AS (SELECT session, step, sum(tokens) AS tokens, avg(loss) AS loss, max(n) AS n "
        "FROM told GROUP BY session, step) "
        "SELECT z.ord, step, tokens::BIGINT AS tokens, loss, n FROM step "
        "JOIN sessions z USING (session) ORDER BY z.ord, step"
    )
    if not any(r["loss"] is not None for r in rows):
        return "no kept step has a loss"
    points: Curve = []
    total = 0
    for row in rows:
        if row["tokens"] is None:
            return f"step {row['step']} tells no tokens"
        total += int(row["tokens"])
        if row["loss"] is not None:
            # the loss of a step is that of the model before it: at the middle of its tokens
            points.append((total - int(row["tokens"]) / 2, float(row["loss"])))
    if len(points) < LEAST_STEPS:
        return f"only {len(points)} kept steps have a loss, and a curve needs {LEAST_STEPS}"
    return _binned(points)


def _binned(points: Curve) -> Curve:
    bins = max(1, min(BINS, len(points) // BIN_STEPS))
    found: Curve = []
    for i in range(bins):
        part = points[len(points) * i // bins : len(points) * (i + 1) // bins]
        found.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return found


def compare_curves(run: list[Block], ref: list[Block], name: str) -> dict[str, Any]:
    """Tokens of the reference for the loss that the run reached, over the run's own."""
    high, low = min(run[0].y, ref[0].y), max(run[-1].y, ref[-1].y)
    if low >= high:
        return _no(
            f"the losses do not overlap: {run[0].y:.4g} to {run[-1].y:.4g} here, "
            f"{ref[0].y:.4g} to {ref[-1].y:.4g} there",
            name,
        )
    points = [_point(run, ref, y) for y in _levels(run, ref, low, high)]
    end = points[-1]
    late = [p for p in points if p["tokens"] >= (1 - LAST) * end["tokens"]]
    beyond = None
    if run[-1].y < ref[-1].y:
        beyond = (
            "this run went on to a loss that the reference never reached; that part is not in it"
        )
    return {
        "efficiency": end["efficiency"],
        "lo": min(p["efficiency"] for p in late),
        "hi": max(p["efficiency"] for p in late),
        "run": name,
        "loss": end["loss"],
        "tokens": end["tokens"],
        "effective_tokens": end["effective_tokens"],
        "holds": {"loss": [high, low], "tokens": [points[0]["tokens"], end["tokens"]]},
        **({"note": beyond} if beyond else {}),
        "points": points[:: max(1, len(points) // 32)],
    }


def _levels(run: list[Block], ref: list[Block], low: float, high: float) -> list[float]:
    """The losses at which either curve has a corner, within both, from high to low."""
    found = {b.y for b in [*run, *ref] if low < b.y < high} | {low, high}
    return sorted(found, reverse=True)


def _point(run: list[Block], ref: list[Block], loss: float) -> dict[str, float]:
    mine, theirs = cast("float", reached(run, loss)), cast("float", reached(ref, loss))
    return {
        "loss": loss,
        "tokens": mine,
        "effective_tokens": theirs,
        "efficiency": theirs / mine if mine else 1.0,
    }
