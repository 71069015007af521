"""Definitions that only sort the leaves: what is good, and what their total leaves out.

They are published as ratios of wall-clock time of one job. Here they are taken on the time of
all places, which is the same while every session fills them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger.definitions.bridge import of_leaves
from badput_ledger.definitions.result import Input, Result

if TYPE_CHECKING:
    from badput_ledger.definitions.summary import Summary


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio of sums of leaves, given by prefixes of their ids."""

    name: str
    formula: str
    source: str
    note: str
    good: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Leaves without which it says nothing."""

    def compute(self, s: Summary) -> Result:
        """The share of these books."""
        inputs = tuple(Input(leaf, ns / 1e9, "GPU-seconds") for leaf, ns in s.leaves.items() if ns)
        bridge = of_leaves(
            s.leaves,
            lambda leaf: leaf.startswith(self.good),
            lambda leaf: bool(self.left_out) and leaf.startswith(self.left_out),
        )
        missing = next((s.null[leaf] for leaf in self.needs if leaf in s.null), None)
        reason = missing or (None if bridge else "no time is left that it would count")
        if reason is not None or bridge is None:
            return Result(self.name, self.formula, self.source, self.note, reason=reason)
        return Result(
            self.name,
            self.formula,
            self.source,
            self.note,
            bridge.value,
            inputs=inputs,
            bridge=bridge,
        )


_KOKOLIS = "Kokolis et al. 2024, Revisiting Reliability in Large-Scale ML Research Clusters"
_STEPS = ("F.", "G.", "H.")

SHARES: tuple[Share, ...] = (
    Share(
        "ml-goodput-measurement",
        "(time between starts of steps that were kept - excess of first steps - blocking saves "
        "- custom events) / (job end - first job start)",
        "Google, ml-goodput-measurement 0.2.3, 2026",
        "what it means to measure, on these books: a data stall, a straggler and a skipped step "
        "count as good; asynchronous data loading and step deviation it reports apart. What the "
        "library itself makes of some timelines is in docs/definitions.md",
        good=(*_STEPS, "E.interference", "E.overhead"),
        left_out=("A.queue",),
    ),
    Share(
        "ETTR with queue wait",
        "(G + H) / total",
        _KOKOLIS,
        "productive run time over wall-clock time from submission on",
        good=("G.", "H."),
    ),
    Share(
        "ETTR without queue wait",
        "(G + H) / (total - A.queue - A.requeue)",
        _KOKOLIS,
        "only time in which the job was scheduled",
        good=("G.", "H."),
        left_out=("A.queue", "A.requeue"),
    ),
    Share(
        "Llama 3 effective training time",
        "(F + G + H) / total",
        "Llama Team 2024, The Llama 3 Herd of Models, section 3.3.4",
        "time spent on useful training over elapsed time; the paper gives no finer rule, so "
        "steps whose update was skipped count as training",
        good=_STEPS,
    ),
    Share(
        "NVIDIA cluster-readiness-engine",
        "(t_w - lost - resume - reschedule - save) / (t_w - reschedule)",
        "NVIDIA, cluster-readiness-engine 0.11, GoodputMeasurement, 2026",
        "lost = D + B.hang, resume = C, reschedule = A but the queue, B.teardown and "
        "B.diagnosis; t_w begins with the first process; evaluation counts as good",
        good=("E.interference", "E.eval", "E.overhead", *_STEPS, "U."),
        left_out=("A.", "B.teardown", "B.diagnosis"),
    ),
    Share(
        "MLPerf Storage accelerator utilisation",
        "compute time / (compute time + wait for data)",
        "MLCommons, MLPerf Storage 2.0 rules, 2025",
        "of executed steps that were not lost; start-up, checkpoints and failures are outside it. "
        "The benchmark replays compute as sleep; here it is the step without its wait",
        good=("F.", "G.b", "G.s", "G.c", "G.h", "G.t", "G.r", "G.k", "H."),
        left_out=("A.", "B.", "C.", "D.", "E.", "U."),
        needs=("G.data",),
    ),
)
