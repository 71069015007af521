"""The comparison in words: the verdict, and the tables as text and Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from badput_ledger.compare import COST, COST_PER, KEPT, NANO, TIME_PER
from badput_ledger.taxonomy import BY_ID
from badput_ledger.units import amount, decimals, money, time_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from badput_ledger.compare import Side


def verdict(found: dict[str, Any], a: Side, b: Side) -> dict[str, Any]:
    """Which run is better, by what, and because of which leaf.

    By money for a kept token where that is known, else by time for one, else by kept time.
    """
    alike = not (a.gpu_types and b.gpu_types and a.gpu_types != b.gpu_types)
    if COST_PER in found["measures"]:
        said = _per_token(found, a, b, COST_PER)
    elif TIME_PER in found["measures"] and alike:
        said = _per_token(found, a, b, TIME_PER)
    else:
        said = _by_kept_time(found, a, b)
    return said


def _per_token(found: dict[str, Any], a: Side, b: Side, measure: str) -> dict[str, Any]:
    total = {k: int(found["total"][k][measure]) for k in ("a", "b", "diff")}

    def say(value: int) -> str:
        if measure == COST_PER:
            return money(value / NANO, found["currency"])
        scale, word, _ = _scale(found)
        return f"{amount(value / NANO / scale)} {found['units']}-{word}"

    basis = "a million kept tokens"
    diff = total["diff"]
    if not diff:
        both = f"Neither is better: both took {say(total['a'])} for {basis}."
        return _answer(None, measure, None, (both, ""))
    better = b if diff < 0 else a
    most, least = max(total["a"], total["b"]), min(total["a"], total["b"])
    less = f", {(most - least) / most:.1%} less" if most > 0 else ""
    head = f"{better.name} is better: {say(least)} for {basis} against {say(most)}{less}"
    # The bounds: steps that may have been lost take their tokens with them.
    certain = least * _may_lose(better) < most
    leaf = _cause(found, measure, diff)
    why = _because(found, measure, leaf, say)
    return _answer(better.label, measure, leaf, (_closed(head, certain), why), certain=certain)


def _may_lose(side: Side) -> float:
    """By what factor a kept token gets dearer if every step that may be lost is."""
    steps = side.report["steps"]
    left = steps["kept"] - (steps["lost_hi"] - steps["lost"])
    return steps["kept"] / left if left > 0 else float("inf")


def _because(found: dict[str, Any], measure: str, leaf: str, say: Callable[[int], str]) -> str:
    row = next(r for r in found["rows"] if r["leaf"] == leaf)
    total = int(found["total"]["diff"][measure])
    low, high = sorted(int(row[side][measure]) for side in "ab")
    share = int(row["diff"][measure]) / total
    part = f"{share:.0%} of the difference" if share <= 1 else "more than the whole difference"
    what = "the kept steps themselves" if leaf == KEPT else f"{leaf} ({BY_ID[leaf].title})"
    less = f"{say(low)} against {say(high)}, {say(high - low)} less"
    return f"The largest part is {what}: {less}, {part}."


def _by_kept_time(found: dict[str, Any], a: Side, b: Side) -> dict[str, Any]:
    pair = found["kept_time"]
    diff = pair["diff"]
    if not diff:
        head = f"Neither is better: both kept {pair['a']['value']:.2%} of their time."
        return _answer(None, "kept_time", None, (head, ""))
    better, worse = (b, a) if diff > 0 else (a, b)
    key, other = better.label.lower(), worse.label.lower()
    head = (
        f"{better.name} is better: {pair[key]['value']:.2%} of its time is in kept steps, "
        f"against {pair[other]['value']:.2%}"
    )
    rows = [r for r in found["rows"] if r["leaf"][0] not in "GH"]
    sign = 1 if better is b else -1
    row = min(rows, key=lambda r: sign * r["diff"]["share"], default=None)
    why = ""
    if row is not None and sign * row["diff"]["share"] < 0:
        leaf = row["leaf"]
        why = (
            f"The largest part is {leaf} ({BY_ID[leaf].title}): {row[key]['share']:.2%} of its "
            f"time against {row[other]['share']:.2%}."
        )
    leaf = row["leaf"] if why and row is not None else None
    said = _closed(head, pair["certain"]), why
    return _answer(better.label, "kept_time", leaf, said, certain=pair["certain"])


def _closed(head: str, certain: bool) -> str:
    return f"{head}." if certain else f"{head}; within their bounds they may also be equal."


def _cause(found: dict[str, Any], measure: str, diff: int) -> str:
    """The row that moves furthest in the direction of the whole."""
    sign = 1 if diff > 0 else -1
    return max(found["rows"], key=lambda r: sign * int(r["diff"][measure]))["leaf"]


def _answer(
    better: str | None, basis: str, leaf: str | None, said: tuple[str, str], *, certain: bool = True
) -> dict[str, Any]:
    return {
        "better": better,
        "basis": basis,
        "certain": certain,
        "leaf": leaf,
        "headline": said[0],
        "why": said[1],
    }


def columns(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Heading and key of the columns that the comparison has, beside the leaf."""
    unit = found["units"]
    short = _scale(found)[2]
    cols = [(f"A {unit}-{short}", "a.gpu_hours"), (f"B {unit}-{short}", "b.gpu_hours")]
    cols += [("B - A", "diff.gpu_hours"), ("A share", "a.share"), ("B share", "b.share")]
    if COST in found["measures"]:
        cols.append((f"B - A {found['currency']}", "diff.cost"))
    if COST_PER in found["measures"]:
        cols.append((f"{found['currency']}/Mtok", "diff.cost_per_mtok"))
    elif TIME_PER in found["measures"]:
        cols.append((f"{unit}-s/Mtok", "diff.gpu_seconds_per_mtok"))
    return cols


def _longest(found: dict[str, Any]) -> float:
    """Slot-seconds of the longer run, which decides the unit and the decimals of both."""
    return max(float(found["total"][side]["gpu_hours"]) * 3600 for side in "ab")


def _scale(found: dict[str, Any]) -> tuple[float, str, str]:
    return time_scale(_longest(found))


def _cell(found: dict[str, Any], row: dict[str, Any], key: str) -> str:
    """One cell of the table, differences with their sign."""
    side, name = key.split(".")
    value = row[side][name]
    sign = "+" if side == "diff" and value > 0 else ""
    currency = found["currency"]
    if name == "gpu_hours":
        scale = _scale(found)[0]
        digits = decimals(_longest(found), scale)
        return f"{sign}{value * 3600 / scale:,.{digits}f}"
    if name == "share":
        return f"{value:.1%}"
    if name in ("cost", "cost_per_mtok"):
        return sign + money(value, currency or "")
    return sign + amount(value)


def _lines(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows and, last, the total."""
    total: dict[str, Any] = {"leaf": "total", "with": list[str](), **found["total"]}
    return [*found["rows"], total]


def name_of(row: dict[str, Any]) -> str:
    """The leaf, and what only one run measured inside it."""
    more = f" + {', '.join(row['with'])}" if row["with"] else ""
    return f"{row['leaf']}{more}"


def figures(found: dict[str, Any]) -> list[str]:
    """Kept time and goodput of both, a sentence each."""
    lines: list[str] = []
    for key, name in _FIGURES:
        pair = found[key]
        if pair is None:
            continue
        text = f"{name}: A {pair['a']['value']:.2%}, B {pair['b']['value']:.2%}"
        if not pair["certain"] and pair["diff"]:
            bounds = [f"{pair[s]['lo']:.2%}..{pair[s]['hi']:.2%}" for s in "ab"]
            text += f" (bounds overlap: A {bounds[0]}, B {bounds[1]})"
        lines.append(text)
    return lines


_FIGURES = (("kept_time", "kept time"), ("goodput", "goodput"), ("at_peak", "at peak"))


def heads(found: dict[str, Any]) -> list[str]:
    """Which run is A and which is B, a line each."""
    return [
        f"{label}: {found[label.lower()]['name']}, {found[label.lower()]['start']} to "
        f"{found[label.lower()]['end']}, {found[label.lower()]['path']}"
        for label in "AB"
    ]


def remarks(found: dict[str, Any]) -> list[str]:
    """What was not compared and why, and what else to know."""
    lines = [f"not compared: {r['what']}: {r['why']}." for r in found["refused"]]
    folded = [leaf for row in found["rows"] for leaf in row["with"]]
    if folded:
        lines.append(
            f"{', '.join(folded)}: not measured alike in both runs, so it stays inside {KEPT} "
            "for both."
        )
    return lines + [f"note: {n}." for n in found["notes"]]


def render_text(found: dict[str, Any]) -> str:
    """The comparison for a terminal, verdict first."""
    import textwrap

    from badput_ledger.text import WIDTH, clean

    def wrap(text: str) -> list[str]:
        return textwrap.wrap(clean(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)

    said = found["verdict"]
    lines = [x for text in (said["headline"], said["why"]) for x in wrap(text)]
    lines += ["", *(x for text in heads(found) for x in wrap(text)), ""]
    cols = columns(found)
    table = [["", *(h for h, _ in cols)]]
    rows = _lines(found)
    table += [[name_of(r), *(_cell(found, r, k) for _, k in cols)] for r in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(cols) + 1)]
    for line in table:
        cells = [line[0].ljust(widths[0])]
        cells += [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(len(lines) - 1, "-" * max(len(x) for x in lines[-len(table) :]))
    lines += ["", *(x for text in figures(found) + remarks(found) for x in wrap(text))]
    return "\n".join(lines) + "\n"


def render_markdown(found: dict[str, Any]) -> str:
    """The comparison for an issue or a chat, verdict first."""
    from badput_ledger.markdown import bullet, escape, table

    said = found["verdict"]
    lines = [f"**{escape(said['headline'])}** {escape(said['why'])}".rstrip(), ""]
    lines += [bullet(x) for x in heads(found)]
    cols = columns(found)
    rows = _lines(found)
    cells = [[name_of(r), *(_cell(found, r, k) for _, k in cols)] for r in rows]
    lines += ["", *table(["leaf", *(h for h, _ in cols)], cells, right=len(cols)), ""]
    lines += [bullet(x) for x in figures(found) + remarks(found)]
    return "\n".join(lines) + "\n"
