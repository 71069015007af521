"""The verdict: the number, the reason and the next action."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badput_ledger.clock import span
from badput_ledger.hangs import advice as hang_advice
from badput_ledger.processes import attrs_of
from badput_ledger.taxonomy import BY_ID, COMPUTE
from badput_ledger.units import amount, money, plural, time_scale

if TYPE_CHECKING:
    from badput_ledger.books import Books


class _Words:
    """The report's figures on the time that was held, in the words and units of the report."""

    def __init__(self, books: Books, report: dict[str, Any]) -> None:
        self.books = books
        self.report = report
        total, held = report["total_gpu_seconds"], report["held_gpu_seconds"]
        self.released = total - held if held > 0 else 0.0
        self.base = held if held > 0 else total
        self.held = "held " if self.released else ""
        self.scale, self.word, _ = time_scale(total)
        self.failures = [i for i in report["incidents"] if i["kind"] != "hang"]
        self.losses: dict[str, float] = {
            leaf: row["held_gpu_seconds"] if held > 0 else row["gpu_seconds"]
            for leaf, row in report["leaves"].items()
            if leaf not in COMPUTE and row["gpu_seconds"]
        }

    def time(self, seconds: float) -> str:
        """Slot time, such as 9.32 GPU-hours."""
        return f"{amount(seconds / self.scale)} {self.report['units']}-{self.word}"

    def share(self, seconds: float) -> str:
        """Seconds as a share of the time that was held."""
        return f"{seconds / self.base:.1%} of the {self.held}time"

    def money(self, value: float) -> str:
        return money(value, self.report["cost"]["currency"])

    def failed_seconds(self) -> float:
        """What the failures cost together."""
        return sum(i["held_gpu_seconds"] for i in self.failures)

    def phase_sums(self) -> dict[str, float]:
        """What the failures cost, by leaf."""
        phases: dict[str, float] = {}
        for incident in self.failures:
            for leaf, spent in incident["held_phases"].items():
                phases[leaf] = phases.get(leaf, 0.0) + spent
        return phases


def build_verdict(books: Books, report: dict[str, Any]) -> dict[str, str]:
    """Three sentences for somebody who reads nothing else, and the reason in a few words."""
    if books.facts.launchers and not books.facts.sessions:
        return _launcher_only(books)
    if report["kept_time"]["value"] is None:
        return {
            "headline": "The books are empty: no process lived for a measurable time.",
            "why": "Nothing was recorded.",
            "next": "Record a run with badput.init() and badput.step().",
            "short": "nothing was recorded",
        }
    words = _Words(books, report)
    if not report["steps"]["executed"]:
        return _untrained(words)
    headline = _headline(words)
    losses = words.losses
    if not any(losses.values()):
        return {
            "headline": headline,
            "why": "Nothing was lost.",
            "next": "Nothing to do.",
            "short": "nothing was lost",
        }
    worst = max(losses, key=lambda leaf: losses[leaf])
    failed = words.failed_seconds()
    slow = straggling(books)
    # Steps that vary everywhere are nobody's fault: what failed is where to begin.
    jitter = worst == "G.straggler" and slow is not None and slow.spread
    if failed > losses[worst] or (jitter and 2 * failed > losses[worst]):
        verdict = _failures(words)
        if jitter:
            verdict["why"] += (
                f" Steps that vary on every rank took another {words.share(losses[worst])}."
            )
        return {"headline": headline, **verdict}
    why = _why(words, worst, losses[worst])
    short = f"lost most to {BY_ID[worst].title}: {losses[worst] / words.base:.1%}"
    if words.failures and not any(worst in i["phases"] for i in words.failures):
        why += f" {_failures_cost(words)}."
        short += f", {plural(len(words.failures), 'failure')}: {failed / words.base:.1%}"
    next_ = _next(words, worst, losses[worst], len(report["sessions"]))
    return {"headline": headline, "why": why, "next": next_, "short": short}


def _launcher_only(books: Books) -> dict[str, str]:
    """A command that `badput run` saw begin and end, and no rank of it: often no training."""
    rows = books.rows(
        "SELECT e.attrs FROM events e JOIN processes p USING (process_id) "
        "WHERE e.kind = 'exit' AND p.role = 'launcher' ORDER BY e.time_ns DESC, e.seq DESC LIMIT 1"
    )
    said = attrs_of(rows[0]["attrs"]) if rows else {}
    how = "nothing says how it ended"
    if said.get("signal"):
        how = f"ended by signal {said['signal']}"
    elif said.get("exit_code") is not None:
        how = f"ended with exit code {said['exit_code']}"
    why = f"{said.get('program') or 'The command'} {how}." if rows else "Nothing says how it ended."
    return {
        "headline": "Only a launcher was seen: no rank left a record, so there are no books.",
        "why": why,
        "next": (
            "If the command trains, see what keeps badput out of its processes "
            "(docs/adapters.md), or call badput.init() in the script."
        ),
        "short": f"only a launcher was seen: {how}",
    }


def _headline(words: _Words) -> str:
    report = words.report
    kept = report["kept_time"]["value"] * report["total_gpu_seconds"] / words.base
    text = (
        f"{kept:.1%} of {amount(words.base / words.scale)} {words.held}{report['units']}-"
        f"{words.word} went into steps that the final model keeps"
    )
    good = report["goodput"]["value"]
    if report["goodput"]["measured"] and good is not None:
        good *= report["total_gpu_seconds"] / words.base
        if f"{good:.1%}" != f"{kept:.1%}":
            text += f", {good:.1%} into their compute alone"
    cost = report["cost"]
    if cost["wasted"] is not None:
        text += f"; {words.money(cost['wasted'])} of {words.money(cost['total'])} "
        text += "bought no progress"
    return text + _not_held(words)


def _not_held(words: _Words) -> str:
    if not words.released:
        return "."
    return f". Another {words.time(words.released)} between its sessions were not held."


def _untrained(words: _Words) -> dict[str, str]:
    """A run without a finished step: what it spent, and what kept it from training."""
    cost = words.report["cost"]["total"]
    spent = words.time(words.base) + ("" if cost is None else f", {words.money(cost)},")
    if not words.failures:
        return {
            "headline": f"No step has finished: {spent} went into getting ready{_not_held(words)}",
            "why": "Nothing says how it ended, or it has not ended.",
            "next": "Look at what it did last, in the timeline or with `badput sql`.",
            "short": "no step has finished",
        }
    known = [i for i in words.failures if i["kind"] != "unknown"] or words.failures
    last = known[-1]
    many, cause = len(words.failures), _cause(last)
    why = f"{cause[:1].upper()}{cause[1:]}."
    if many > 1:
        which = "Both" if many == 2 else f"All {many}"
        why = f"{which} attempts ended that early; the last: {cause}."
    return {
        "headline": (
            f"It ended before the first step: nothing was trained, and {spent} were spent"
            f"{_not_held(words)}"
        ),
        "why": why,
        "next": f"Fix this cause: {_brief(last['cause'])}",
        "short": f"ended before the first step: {_brief(last['cause'])}",
    }


def _failures(words: _Words) -> dict[str, str]:
    """Why and next where failures, with all that follows from them, outweigh every single leaf."""
    phases = words.phase_sums()
    worst = max(phases, key=lambda leaf: phases[leaf])
    why = f"{_failures_cost(words)}. Most of it is {worst} ({BY_ID[worst].title})."
    many, share = len(words.failures), words.failed_seconds() / words.base
    # These seconds are of the starts after failures alone, not of the others.
    starts = sum(i["held_phases"].get(worst, 0) > 0 for i in words.failures)
    return {
        "why": why,
        "next": _next(words, worst, phases[worst], starts),
        "short": f"{plural(many, 'failure')}: {share:.1%}, mostly {BY_ID[worst].title}",
    }


def _failures_cost(words: _Words) -> str:
    """What the failures cost together, and the cause of the worst."""
    failures, seconds = words.failures, words.failed_seconds()
    lost = sum(i["lost_steps"] for i in failures)
    most = max(failures, key=lambda i: i["held_gpu_seconds"])
    many = "One failure" if len(failures) == 1 else f"{len(failures)} failures"
    which = "" if len(failures) == 1 else "the worst: "
    return (
        f"{many} cost {words.share(seconds)}, {words.time(seconds)} with teardown, restart and "
        f"{plural(lost, 'lost step')}; {which}{_cause(most)}"
    )


def _cause(incident: dict[str, Any]) -> str:
    """The cause of an incident with its session and the line that says so."""
    line = next((e for e in incident["evidence"] if "file" in e), None)
    where = f" ({line['file']}:{line['line']})" if line is not None else ""
    return f"{incident['cause'].rstrip('.')} in session {incident['session']}{where}"


def _brief(cause: str) -> str:
    """A cause that is quoted in full elsewhere."""
    return cause if len(cause) <= 140 else f"{cause[:139].rstrip()} …"


def _why(words: _Words, leaf: str, seconds: float) -> str:
    text = (
        f"The biggest loss is {leaf} ({BY_ID[leaf].title}): {words.share(seconds)}, "
        f"{words.time(seconds)}"
    )
    charged = [i for i in words.report["incidents"] if leaf in i["phases"]]
    if charged:
        most = max(charged, key=lambda i: i["held_phases"][leaf])
        if most["held_phases"][leaf] >= seconds / 2:
            text += f"; most of it after {_cause(most)}"
    return text + "."


def _next(words: _Words, leaf: str, seconds: float, starts: int) -> str:
    """What to do about ``seconds`` of a leaf, which are those of ``starts`` starts."""
    if leaf.startswith("D.") and leaf not in _ON_PURPOSE:
        return _checkpoint_oftener(words)
    if leaf == "G.straggler":
        return _find_straggler(words.books, seconds)
    if leaf == "G.bubble":
        return _bubble(words.report)
    if leaf == "A.requeue":
        return _requeue(words, seconds)
    if leaf[0] == "C":
        ranks = max(1, words.report["run"]["world_size"] or 1)
        each = span(seconds / max(1, starts) / ranks)
        over = "" if starts <= 1 else f" over {starts} starts"
        return f"Shorten {BY_ID[leaf].title}: it took {each} a start{over}."
    said = hang_advice(words.report, leaf)
    return said or _ADVICE.get(leaf, "Look at the rows behind this leaf with `badput sql`.")


def _requeue(words: _Words, seconds: float) -> str:
    """Time between sessions counts here only as far as it was paid."""
    ranks = max(1, words.report["run"]["world_size"] or 1)
    idle = f"Restart sooner: for {span(seconds / ranks)} between its sessions nothing ran"
    if words.report["gaps"] == "unknown":
        return (
            f"{idle}. That it was paid is assumed: if the GPUs were given back, say so "
            "(--gaps released)."
        )
    return f"{idle}, and the GPUs were held."


_ON_PURPOSE = ("D.rewind", "D.branch")
"""Steps that somebody gave up: no checkpoint would have kept them."""
_ADVICE = {
    "A.queue": "Ask the scheduler why the run waited before its first start.",
    "A.capacity": "Replace the lost places, or shrink the request to the ranks that run.",
    "B.hang": "Shorten the watchdog's timeout: nobody noticed the hang for this long.",
    "B.teardown": "Kill the other ranks as soon as one has failed, and exit sooner at the end.",
    "D.rewind": "Find out why training was taken back, and look for it sooner: more saves would "
    "not have kept these steps.",
    "D.branch": "The final model does not descend from these steps: if they were an experiment, "
    "give it a folder of its own.",
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


def _checkpoint_oftener(words: _Words) -> str:
    """Young's interval from the cost of a save and the time between failures."""
    report, failures = words.report, words.failures
    by_fate = report["steps"]["by_fate"]
    lost = report["steps"]["lost"] - sum(by_fate.get(leaf, 0) for leaf in _ON_PURPOSE)
    if not lost and failures:
        most = max(failures, key=lambda i: i["held_gpu_seconds"])
        return f"Fix this cause: {_brief(most['cause'])}"
    plain = f"Save checkpoints more often: {plural(lost, 'step')} were lost"
    if failures:
        plain += f" in {plural(len(failures), 'failure')}"
    saves = [c["blocked_s"] for c in report["checkpoints"] if c["op"] == "save" and c["blocked_s"]]
    places = max(1, report["run"]["world_size"] or 1)
    wall = words.base / places
    if not saves or not failures:
        return plain + "."
    cost = sorted(saves)[(len(saves) - 1) // 2]
    best = math.sqrt(2 * cost * wall / len(failures))
    return f"{plain}. At {span(cost)} a save, one about every {span(best)} would cost least."


@dataclass(frozen=True, slots=True)
class Straggling:
    """What ranks were busy beyond their stage's usual step, in seconds."""

    rank: int
    slowest: float
    total: float
    ranks: int

    @property
    def spread(self) -> bool:
        """Is no single rank behind most of it?"""
        return self.ranks > 1 and self.slowest < 0.7 * self.total


def straggling(books: Books) -> Straggling | None:
    """Who was slow in kept steps; None if nobody was, or if it was not measured."""
    rows = books.rows(
        "SELECT rank, sum(slow_ns)::BIGINT AS ns FROM excess WHERE fate = 'kept' "
        "GROUP BY rank HAVING sum(slow_ns) > 0 ORDER BY ns DESC, rank"
    )
    if not rows:
        return None
    total = sum(int(r["ns"]) for r in rows) / 1e9
    return Straggling(int(rows[0]["rank"]), int(rows[0]["ns"]) / 1e9, total, len(rows))


def _find_straggler(books: Books, seconds: float) -> str:
    """One slow rank is a machine to look at; slowness on every rank is something shared."""
    slow = straggling(books)
    if slow is None:
        return "Look for the slow rank with `badput sql`."
    waited = seconds - slow.total
    rest = f"; the other {span(waited)} the other stages waited for it" if waited > 0 else ""
    if slow.spread:
        return (
            f"Steps vary on every rank: of the {span(seconds)}, {span(slow.total)} are above the "
            f"usual step, {span(slow.slowest)} of them on rank {slow.rank}{rest}. "
            "Look for other work on these machines."
        )
    rank = slow.rank
    hosts = [p.host for s in books.facts.sessions for p in s.members if p.rank == rank and p.host]
    where = f" on {hosts[-1]}" if hosts else ""
    more = slow.total - slow.slowest
    others = f", other ranks {span(more)}" if more > 0 else ""
    return (
        f"Look at rank {rank}{where}: of the {span(seconds)} it was busy {span(slow.slowest)} "
        f"longer than its usual step{others}{rest}."
    )


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
