"""The report's text about money, tokens and what the run descends from."""

from __future__ import annotations

from typing import Any

from badput_ledger.units import amount, money, plural, time_scale

SHOWN = 4
"""Rates that the text lists; all are in the JSON."""
BRANCHES = 12
"""Sessions that the text lists in the tree."""


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


def energy_lines(report: dict[str, Any]) -> list[str]:
    """Energy and what it was taken from; nothing where no GPU was sampled. Lines to be wrapped."""
    energy = report["cost"]["energy"]
    if energy["coverage"] is None:
        return []
    if energy["joules"] is None:
        return [f"energy    not known: {energy['reason']}"]
    text = f"energy    {amount(energy['kwh'])} kWh ({energy['source'].replace('_', ' ')}, "
    text += f"{energy['coverage']:.1%} of the held time sampled)"
    if energy["co2_g"] is not None:
        text += f", {amount(energy['co2_g'] / 1000)} kg CO2 at {energy['co2_g_per_kwh']:g} g/kWh"
    if energy["cost"] is not None:
        text += f", {money(energy['cost'], report['cost']['currency'])} of electricity"
    return [text]


def token_lines(report: dict[str, Any]) -> list[str]:
    """Tokens by what became of them. Lines to be wrapped."""
    tokens = report["tokens"]
    if tokens["processed"] is None:
        return []
    text = f"tokens    {tokens['processed']:,} processed = {tokens['kept']:,} kept + "
    text += f"{tokens['lost']:,} lost + {tokens['skipped']:,} skipped"
    if tokens["padding"] is not None:
        text += f" + {tokens['padding']:,} padding"
    if tokens["lo"] != tokens["hi"]:
        more = "or more" if tokens["hi"] is None else f"to {tokens['hi']:,}"
        text += f" (processed: {tokens['lo']:,} {more})"
    risk, lines = tokens["at_risk"], [text]
    if risk["steps"]:
        many = "" if risk["tokens"] is None else f", {risk['tokens']:,} tokens"
        lines.append(
            f"at risk   {plural(risk['steps'], 'step')}{many} since the last durable "
            f"checkpoint, of step {risk['after_step']}"
        )
    return lines


def waterfall_lines(report: dict[str, Any]) -> list[str]:
    """From billed time to learning, each stage as a share of the one before."""
    stages = report["waterfall"]["stages"]
    if not stages[0]["gpu_seconds"]:
        return []
    currency = report["cost"]["currency"]
    unit = time_scale(report["total_gpu_seconds"])[1]
    head = f"{'from paid to learning':<24}{report['units'] + '-' + unit:>14}"
    head += f"{'of previous':>13}{'of all':>9}"
    lines = ["", head + (f"{currency:>12}" if stages[0]["cost"] is not None else "")]
    unknown: list[str] = []
    for stage in stages:
        name = stage["stage"].replace("_", " ")
        if stage["gpu_seconds"] is None:
            unknown.append(f"{name} is not known: {stage['reason']}")
            continue
        scale = time_scale(report["total_gpu_seconds"])[0]
        row = f"  {name:<22}{amount(stage['gpu_seconds'] / scale):>14}"
        share = stage["share_of_previous"]
        row += f"{share:>13.1%}" if share is not None else f"{'':>13}"
        row += f"{stage['share_of_allocated']:>9.1%}"
        row += f"{money(stage['cost'], currency):>12}" if stage["cost"] is not None else ""
        lines.append(row)
    return lines + [f"  {sentence}" for sentence in unknown]


def learning_lines(report: dict[str, Any]) -> list[str]:
    """How much kept tokens taught, where that is known. Lines to be wrapped."""
    learning, lines = report["learning"], list[str]()
    against, noise = learning["reference"], learning["gradient_noise"]
    if against["efficiency"] is not None:
        lines.append(
            f"learning  {against['efficiency']:.1%} of the reference {against['run']}: at loss "
            f"{against['loss']:.4g} {against['tokens']:,.0f} tokens here, "
            f"{against['effective_tokens']:,.0f} there ({against['lo']:.1%} to {against['hi']:.1%} "
            "over the last quarter)"
        )
    elif against["run"] is not None:
        lines.append(f"learning  not held against {against['run']}: {against['reason']}")
    if noise["efficiency"] is not None:
        lines.append(
            f"learning  {noise['efficiency']:.1%} by gradient noise: noise scale "
            f"{amount(noise['noise_scale'])} samples at a batch of {noise['batch']:,}, against one "
            f"of {noise['first_batch']:,} ({noise['first_batch_source']})"
        )
    return lines


def tree_lines(report: dict[str, Any]) -> list[str]:
    """What each session went on from, kept and lost; nothing where one session is all."""
    nodes = report["tokens"]["tree"]
    if len(nodes) < 2 and not any(n["rewound_to"] for n in nodes):
        return []
    lines = ["", "rollback tree"]
    for node in nodes[:BRANCHES]:
        steps, tokens = node["steps"], node["tokens"]
        origin = f" <- {node['parent']} at step {node['from_step']}" if node["parent"] else ""
        if node["last_step"] is None:
            lines.append(f"  {node['session']}: no step")
            continue
        parts = [
            f"{steps[what]:,} {what}"
            + (f" ({tokens[what]:,} tokens)" if tokens[what] is not None else "")
            for what in ("kept", "lost", "skipped")
            if steps[what]
        ]
        apart = "" if node["on_path"] else "; not in the final model"
        undone = ", ".join(str(step) for step in node["rewound_to"][:SHOWN])
        back = f"; rolled back to {undone}" if undone else ""
        lines.append(f"  {node['session']}{origin}: {', '.join(parts) or 'nothing'}{back}{apart}")
    more = len(nodes) - BRANCHES
    return [*lines, *([f"  and {plural(more, 'session')} more in --json"] if more > 0 else [])]


def _time(seconds: float, report: dict[str, Any]) -> str:
    scale, word, _ = time_scale(report["total_gpu_seconds"])
    return f"{amount(seconds / scale)} {report['units']}-{word}"
