"""The report's text about money."""

from __future__ import annotations

from typing import Any

from badput_ledger.units import amount, money, time_scale

SHOWN = 4
"""Rates that the text lists; all are in the JSON."""


def cost_lines(report: dict[str, Any]) -> list[str]:
    """What was paid, at which rates, and what a kept token cost. Lines to be wrapped."""
    cost = report["cost"]
    if cost["source"] is None:
        return []
    if cost["total"] is None:
        known = ""
        if cost["known"]:
            known = f"; {money(cost['known'], cost['currency'])} for what has a price"
        return [f"cost      not known: {cost['reason']}{known}"]
    held = _time(report["held_gpu_seconds"], report)
    text = f"cost      {money(cost['total'], cost['currency'])} for {held} held"
    if cost["per_kept_token"] is not None:
        per = money(cost["per_kept_token"] * 1e6, cost["currency"])
        text += f", {per} per million kept tokens"
    return [text, *_rates(report)]


def _rates(report: dict[str, Any]) -> list[str]:
    cost = report["cost"]
    if len(cost["rates"]) < 2 and cost["source"] in ("given", "run configuration"):
        return []
    lines: list[str] = []
    for rate in cost["rates"][:SHOWN]:
        price = money(rate["per_gpu_hour"], cost["currency"])
        when = f" from {rate['from']}" if rate["from"] else ""
        when += f" until {rate['to']}" if rate["to"] else ""
        kind = f"{rate['purchase']} " if rate["purchase"] else ""
        what = rate["gpu_type"] or "unknown type"
        spent = _time(rate["held_gpu_seconds"], report)
        lines.append(f"          {kind}{what} at {price} an hour{when}: {spent}")
    more = len(cost["rates"]) - SHOWN
    return [*lines, *([f"          and {more} more rates in --json"] if more > 0 else [])]


def _time(seconds: float, report: dict[str, Any]) -> str:
    scale, word, _ = time_scale(report["total_gpu_seconds"])
    return f"{amount(seconds / scale)} {report['units']}-{word}"
