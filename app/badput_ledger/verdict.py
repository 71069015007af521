"""The verdict: the number, the reason and the next action."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import span
from badput_ledger.taxonomy import BY_ID

if TYPE_CHECKING:
    from badput_ledger.books import Books


def build_verdict(books: Books, report: dict[str, Any]) -> dict[str, str]:
    """Three sentences for somebody who reads nothing else."""
    kept = report["kept_time"]["value"]
    unit = report["units"]
    hours = report["total_gpu_seconds"] / 3600
    if kept is None:
        return {
            "headline": "The books are empty: no process lived for a measurable time.",
            "why": "Nothing was recorded.",
            "next": "Record a run with badput.init() and badput.step().",
        }
    headline = f"{kept:.1%} of {hours:.4g} {unit}-hours went into steps that the final model keeps"
    good = report["goodput"]["value"]
    if report["goodput"]["measured"] and good is not None and f"{good:.1%}" != f"{kept:.1%}":
        headline += f", {good:.1%} into their compute alone"
    cost = report["cost"]
    if cost["wasted"] is not None:
        headline += (
            f"; {cost['wasted']:,.2f} of {cost['total']:,.2f} {cost['currency']} bought no progress"
        )
    headline += "."
    losses = {
        leaf: row["gpu_seconds"]
        for leaf, row in report["leaves"].items()
        if leaf != "H.productive" and row["gpu_seconds"]
    }
    if not losses:
        return {"headline": headline, "why": "Nothing was lost.", "next": "Nothing to do."}
    worst = max(losses, key=lambda leaf: losses[leaf])
    failures = [i for i in report["incidents"] if i["kind"] != "hang"]
    if sum(i["gpu_seconds"] for i in failures) > losses[worst]:
        return {"headline": headline, **_failures(books, report, failures)}
    why = _why(report, worst, losses[worst])
    if failures and not any(worst in i["phases"] for i in failures):
        why += f" {_failures_cost(report, failures)}."
    return {"headline": headline, "why": why, "next": _next(books, report, worst, losses[worst])}


def _failures(
    books: Books, report: dict[str, Any], failures: list[dict[str, Any]]
) -> dict[str, str]:
    """Why and next where failures, with all that follows from them, outweigh every single leaf."""
    phases: dict[str, float] = {}
    for incident in failures:
        for leaf, spent in incident["phases"].items():
            phases[leaf] = phases.get(leaf, 0.0) + spent
    worst = max(phases, key=lambda leaf: phases[leaf])
    why = f"{_failures_cost(report, failures)}. Most of it is {worst} ({BY_ID[worst].title})."
    return {"why": why, "next": _next(books, report, worst, phases[worst])}


def _failures_cost(report: dict[str, Any], failures: list[dict[str, Any]]) -> str:
    """What the failures cost together, and the cause of the worst."""
    seconds = sum(i["gpu_seconds"] for i in failures)
    lost = sum(i["lost_steps"] for i in failures)
    most = max(failures, key=lambda i: i["gpu_seconds"])
    many = "One failure" if len(failures) == 1 else f"{len(failures)} failures"
    which = "" if len(failures) == 1 else "the worst: "
    line = next((e for e in most["evidence"] if "file" in e), None)
    where = f" ({line['file']}:{line['line']})" if line is not None else ""
    return (
        f"{many} cost {seconds / report['total_gpu_seconds']:.1%} of the time, "
        f"{seconds / 3600:.4g} {report['units']}-hours with teardown, restart and {lost} lost "
        f"steps; {which}{most['cause']} in session {most['session']}{where}"
    )


def _why(report: dict[str, Any], leaf: str, seconds: float) -> str:
    share = seconds / report["total_gpu_seconds"]
    text = (
        f"The biggest loss is {leaf} ({BY_ID[leaf].title}): {share:.1%} of the time, "
        f"{seconds / 3600:.4g} {report['units']}-hours"
    )
    charged = [i for i in report["incidents"] if leaf in i["phases"]]
    if charged:
        most = max(charged, key=lambda i: i["phases"][leaf])
        if most["phases"][leaf] < seconds / 2:
            return text + "."
        where = f"; most of it after {most['cause']} in session {most['session']}"
        line = next((e for e in most["evidence"] if "file" in e), None)
        if line is not None:
            where += f" ({line['file']}:{line['line']})"
        text += where
    return text + "."


def _next(books: Books, report: dict[str, Any], leaf: str, seconds: float) -> str:
    if leaf.startswith("D."):
        return _checkpoint_oftener(report)
    if leaf == "G.straggler":
        return _find_straggler(books)
    if leaf == "G.bubble":
        return _bubble(report)
    starts = max(1, len(report["sessions"]))
    if leaf[0] == "C":
        ranks = max(1, report["run"]["world_size"] or 1)
        each = span(seconds / starts / ranks)
        return f"Shorten {BY_ID[leaf].title}: it took {each} a start over {starts} start(s)."
    return _ADVICE.get(leaf, "Look at the rows behind this leaf with `badput sql`.")


_ADVICE = {
    "A.queue": "Ask the scheduler why the run waited before its first start.",
    "A.requeue": "Keep the allocation over restarts, or say with --gaps that it was released.",
    "A.capacity": "Replace the lost places, or shrink the request to the ranks that run.",
    "B.hang": "Shorten the watchdog's timeout: nobody noticed the hang for this long.",
    "B.teardown": "Kill the other ranks as soon as one has failed, and exit sooner at the end.",
    "E.save": "Save checkpoints asynchronously, or less often if failures are rare.",
    "E.snapshot": "Stage less per snapshot, or let fewer ranks wait for it.",
    "E.eval": "Evaluate less often, on fewer batches, or on other machines.",
    "E.overhead": "Log and profile less inside the loop.",
    "F.skipped": "Find out why updates are skipped: loss scale, or gradients that are not finite.",
    "F.uncommitted": "Find out why steps are not committed.",
    "F.padding": "Pack sequences, so that fewer tokens are padding.",
    "G.data": "Give the loader more workers and prefetching: training waits for data.",
    "G.comm": "Overlap communication with compute, or use larger buckets.",
    "G.host": "Look at what the loop does between steps on the host.",
    "U.unaccounted": "No fact covers this time: put badput.span() around what runs between steps.",
}


def _checkpoint_oftener(report: dict[str, Any]) -> str:
    """Young's interval from the cost of a save and the time between failures."""
    failures = [i for i in report["incidents"] if i["kind"] != "hang"]
    lost = report["steps"]["lost"]
    plain = f"Save checkpoints more often: {lost} steps were lost in {len(failures)} failure(s)"
    saves = [c["blocked_s"] for c in report["checkpoints"] if c["op"] == "save" and c["blocked_s"]]
    places = max(1, report["run"]["world_size"] or 1)
    wall = report["total_gpu_seconds"] / places
    if not saves or not failures:
        return plain + "."
    cost = sorted(saves)[(len(saves) - 1) // 2]
    best = math.sqrt(2 * cost * wall / len(failures))
    return f"{plain}. At {span(cost)} a save, one about every {span(best)} would cost least."


def _find_straggler(books: Books) -> str:
    """One slow rank is a machine to look at; slowness on every rank is something shared."""
    rows = books.rows(
        "SELECT rank, sum(slow_ns)::BIGINT AS ns FROM excess WHERE fate = 'kept' "
        "GROUP BY rank HAVING sum(slow_ns) > 0 ORDER BY ns DESC, rank"
    )
    if not rows:
        return "Look for the slow rank with `badput sql`."
    rank, slow = int(rows[0]["rank"]), int(rows[0]["ns"]) / 1e9
    total = sum(int(r["ns"]) for r in rows) / 1e9
    if len(rows) > 1 and slow < 0.7 * total:
        return (
            f"Steps vary on every rank: {span(total)} above the usual step in all, {span(slow)} of "
            f"it on rank {rank}. Look for other work on these machines."
        )
    hosts = [p.host for s in books.facts.sessions for p in s.members if p.rank == rank and p.host]
    where = f" on {hosts[-1]}" if hosts else ""
    return f"Look at rank {rank}{where}: it was busy {span(slow)} longer than its usual step."


def _bubble(report: dict[str, Any]) -> str:
    pipe: dict[str, Any] = report["pipeline"] or {}
    ideal, actual = pipe.get("ideal_bubble"), pipe.get("actual_bubble")
    if ideal is None or actual is None:
        return "Use more microbatches a step, or balance the stages."
    if actual > 1.5 * ideal:
        return (
            f"Balance the stages: the bubble is {actual:.1%} where the schedule alone "
            f"would cost {ideal:.1%}."
        )
    return (
        f"Use more than {pipe['microbatches']} microbatches a step: the schedule alone costs "
        f"{ideal:.1%}, and {actual:.1%} was measured."
    )
