"""A falling curve through noisy points: least squares under the condition that it never rises."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring points that share one value."""

    x: float
    """Their mean place."""
    y: float
    weight: float


def falling(points: list[tuple[float, float]]) -> list[Block]:
    """Pool adjacent violators: blocks in order of x, their values strictly falling.

    ``points`` are (x, y) in order of x.
    """
    blocks: list[Block] = []
    for x, y in points:
        block = Block(x, y, 1.0)
        while blocks and blocks[-1].y <= block.y:
            block = _pooled(blocks.pop(), block)
        blocks.append(block)
    return blocks


def _pooled(a: Block, b: Block) -> Block:
    weight = a.weight + b.weight
    x = (a.x * a.weight + b.x * b.weight) / weight
    return Block(x, (a.y * a.weight + b.y * b.weight) / weight, weight)


def reached(blocks: list[Block], y: float) -> float | None:
    """Where the curve first comes down to ``y``; None outside the values that it takes.

    Between the middles of two blocks it is a straight line.
    """
    if not blocks or not blocks[-1].y <= y <= blocks[0].y:
        return None
    for before, after in pairwise(blocks):
        if after.y <= y:
            share = (before.y - y) / (before.y - after.y)
            return before.x + share * (after.x - before.x)
    return blocks[0].x
