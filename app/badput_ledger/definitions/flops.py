"""MFU and HFU, and the two products that end in MFU: FLOPs counted by a named formula.

A formula has an id, and its figure may only be compared with one of the same id: at long
sequences the ids differ by far more than the runs do.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from badput_ledger.definitions.bridge import Term, between
from badput_ledger.definitions.peaks import peak_of
from badput_ledger.definitions.result import Input, Result

if TYPE_CHECKING:
    from badput_ledger.definitions.bridge import Bridge
    from badput_ledger.definitions.summary import Summary

FORMULAS: dict[str, str] = {
    "per_token": "FLOPs a token as given",
    "dense6N": "6 N",
    "palm12": "6 N + 12 L H Q T",
    "causal6": "6 N + 6 L H Q T",
}
"""Training FLOPs a token by formula id. N parameters (of a mixture of experts the active
ones), L layers, H heads, Q dimension of a head, T length of a sequence."""
_PALM = "Chowdhery et al. 2022, PaLM: Scaling Language Modeling with Pathways, appendix B"


class UnknownError(Exception):
    """Why the FLOPs or the peak are not known, in words for a person."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the kept tokens would take at the peak rate."""

    formula: str
    per_token: Fraction
    hardware_factor: Fraction | None
    """Executed over useful FLOPs; None where nothing is said of recomputed activations."""
    peak: Fraction
    """TFLOP/s of a GPU, the mean over kept time where types differ."""
    peak_source: str
    ideal_ns: Fraction
    """GPU-nanoseconds at the peak rate."""


def work_of(s: Summary) -> Work:
    """Raises UnknownError."""
    formula, per_token, factor = flops_per_token(s.formula, s.formula_inputs)
    if s.kept_tokens is None:
        raise UnknownError(s.tokens_reason or "no tokens were recorded")
    if not s.gpu_ns:
        raise UnknownError("no step was kept")
    peak, source = _peak(s)
    ideal = s.kept_tokens * per_token * 10**9 / (peak * 10**12)
    return Work(formula, per_token, factor, peak, source, ideal)


def flops_per_token(
    formula: str | None, inputs: dict[str, Any]
) -> tuple[str, Fraction, Fraction | None]:
    """Formula id, training FLOPs a token, and executed over useful FLOPs. Raises UnknownError."""
    if formula is None:
        raise UnknownError(
            "the run does not say its FLOPs; badput.init(flops=...) takes a number, or a formula "
            "id with its inputs"
        )
    if formula not in FORMULAS:
        raise UnknownError(f"the FLOP formula {formula!r} is none of {', '.join(FORMULAS)}")
    if formula == "per_token":
        useful = _number(inputs, "flops_per_token")
    else:
        useful = 6 * _parameters(inputs)
        if formula != "dense6N":
            width = _number(inputs, "heads") * _number(inputs, "head_dim")
            spread = _number(inputs, "layers") * width * _number(inputs, "seq_len")
            useful += (12 if formula == "palm12" else 6) * spread
    return formula, useful, _factor(inputs)


def comparable(one: str | None, two: str | None) -> str | None:
    """Why figures of two formula ids cannot be compared; None if they can."""
    if one is None or two is None:
        return "the FLOP formula of one run is not known"
    if one != two:
        return f"MFU by {one} and by {two} are different figures; recompute one of them"
    return None


def mfu(s: Summary) -> Result:
    """Model FLOPs utilisation of kept steps."""
    about = Result(
        "MFU",
        "FLOPs a token x kept tokens / (peak x (F.padding + G + H))",
        _PALM,
        "of kept steps only; model FLOPs, so recomputed activations do not count; "
        "dense bf16 peak; comparable only at the same formula id",
    )
    return _utilisation(s, about, hardware=False)


def hfu(s: Summary) -> Result:
    """Hardware FLOPs utilisation: with recomputed activations."""
    about = Result(
        "HFU",
        "executed FLOPs a token x kept tokens / (peak x (F.padding + G + H))",
        "Chowdhery et al. 2022, PaLM; Korthikanti et al. 2022, Reducing Activation Recomputation",
        "as MFU, with the forward work that is done again: full recomputation is 4/3 of MFU",
    )
    return _utilisation(s, about, hardware=True)


def _utilisation(s: Summary, about: Result, *, hardware: bool) -> Result:
    try:
        work = work_of(s)
    except UnknownError as error:
        return _no(about, str(error))
    ideal = work.ideal_ns
    if hardware:
        if work.hardware_factor is None:
            return _no(about, "nothing says whether activations are recomputed; add recompute")
        ideal *= work.hardware_factor
    base = s.kept + s.leaves.get("F.padding", 0)
    terms = [
        Term(leaf, "not in kept steps, so not in their total", Fraction(0), Fraction(ns))
        for leaf, ns in s.leaves.items()
        if leaf[0] not in "GH" and leaf != "F.padding"
    ]
    bridge = between(s.leaves, ideal, Fraction(base), _to_peak(s, ideal) + terms)
    return _with(about, bridge, _inputs(s, work, ideal))


def ml_productivity(s: Summary) -> Result:
    """Google's ML Productivity Goodput: scheduling x runtime x program."""
    return _product(
        s,
        Result(
            "ML Productivity Goodput",
            "SG x RG x PG = (total - A) / total x (G + H) / (total - A) x ideal / (G + H)",
            "Wongpanich et al. 2025, Machine Learning Fleet Efficiency; Google Cloud 2024, "
            "Introducing ML Productivity Goodput",
            "program goodput is taken against the compute roofline, which is MFU of kept steps",
        ),
        ("scheduling goodput SG", "runtime goodput RG", "program goodput PG"),
        ("A.",),
    )


def aws(s: Summary) -> Result:
    """AWS: infrastructure x framework x MFU."""
    return _product(
        s,
        Result(
            "AWS goodput",
            "infrastructure x framework x MFU = (total - A - B) / total x (G + H) / "
            "(total - A - B) x ideal / (G + H)",
            "Roy (AWS) 2026, AI training efficiency: from throughput to goodput",
            "failures and their detection are infrastructure, restarts, lost work and "
            "checkpoints are the framework's",
        ),
        ("infrastructure goodput", "framework goodput", "model goodput (MFU)"),
        ("A.", "B."),
    )


def _product(
    s: Summary, about: Result, names: tuple[str, str, str], first: tuple[str, ...]
) -> Result:
    """Three factors whose product is ideal time / total."""
    total, kept = s.total, s.kept
    left = total - s.sum(*first)
    factors = [
        Input(names[0], Fraction(left, total) if total else None, "ratio"),
        Input(names[1], Fraction(kept, left) if left > 0 else None, "ratio"),
    ]
    try:
        work = work_of(s)
    except UnknownError as error:
        missing = f"the last factor is not known: {error}"
        return _no(about, missing, (*factors, Input(names[2], None, "ratio")))
    if kept > 0:
        factors.append(Input(names[2], work.ideal_ns / kept, "ratio"))
    bridge = between(s.leaves, work.ideal_ns, Fraction(total), _to_peak(s, work.ideal_ns))
    return _with(about, bridge, (*factors, *_inputs(s, work, work.ideal_ns)))


def _to_peak(s: Summary, ideal: Fraction) -> list[Term]:
    """From kept time to the time that its FLOPs take at the peak: every G leaf is not at it."""
    lost = [
        Term(leaf, "inside kept steps, not at the peak rate", Fraction(-ns))
        for leaf, ns in s.leaves.items()
        if leaf[0] == "G" and ns
    ]
    rest = Term("H.productive", "kept steps below the peak rate", ideal - s.sum("H"))
    return [*lost, rest]


def _inputs(s: Summary, work: Work, ideal: Fraction) -> tuple[Input, ...]:
    return (
        Input("formula", f"{work.formula}: {FORMULAS[work.formula]}", "FLOPs a token"),
        *(Input(k, _shown(v), "as given") for k, v in sorted(s.formula_inputs.items())),
        Input("FLOPs a token", work.per_token, "FLOP"),
        Input("kept tokens", s.kept_tokens, "tokens, without padding"),
        Input("peak of a GPU", work.peak, "TFLOP/s, dense bf16"),
        Input("source of the peak", work.peak_source, ""),
        Input("time at the peak rate", ideal / 10**9, "GPU-seconds"),
    )


def _shown(value: object) -> str | int | float | None:
    if value is None or isinstance(value, bool):
        return str(value)
    return value if isinstance(value, int | float) else str(value)[:100]


def _peak(s: Summary) -> tuple[Fraction, str]:
    if s.peak_tflops is not None:
        return s.peak_tflops, "given"
    peaks: list[tuple[Fraction, int]] = []
    sources: list[str] = []
    for kind, ns in sorted(s.gpu_ns.items()):
        peak, why = peak_of(kind)
        if peak is None:
            raise UnknownError(why)
        peaks.append((peak, ns))
        sources.append(f"{kind}: {why}")
    whole = sum(ns for _, ns in peaks)
    return sum((p * ns for p, ns in peaks), Fraction(0)) / whole, "; ".join(sources)


def _number(inputs: dict[str, Any], name: str) -> Fraction:
    value = inputs.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise UnknownError(f"the FLOP formula's input {name} is missing or no number above 0")
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _parameters(inputs: dict[str, Any]) -> Fraction:
    """Active parameters: of a mixture of experts the total says nothing of a token's work."""
    if "params_active" in inputs:
        return _number(inputs, "params_active")
    if any(name in inputs for name in ("experts", "num_experts", "params_total")):
        raise UnknownError(
            "of a mixture of experts the active parameters count: give params_active"
        )
    return _number(inputs, "params")


def _factor(inputs: dict[str, Any]) -> Fraction | None:
    """Executed over useful FLOPs: one more forward pass, a third of the whole, or none."""
    said = inputs.get("recompute")
    if said in ("full", True):
        return Fraction(4, 3)
    if said in ("none", False):
        return Fraction(1)
    given = inputs.get("hardware_factor")
    if isinstance(given, int | float) and not isinstance(given, bool) and 1 <= given <= 4:
        return Fraction(repr(given)) if isinstance(given, float) else Fraction(given)
    return None


def _no(about: Result, reason: str, inputs: tuple[Input, ...] = ()) -> Result:
    return Result(about.name, about.formula, about.source, about.note, reason=reason, inputs=inputs)


def _with(about: Result, bridge: Bridge | None, inputs: tuple[Input, ...]) -> Result:
    if bridge is None:
        return _no(about, "no time of kept steps")
    return Result(
        about.name, about.formula, about.source, about.note, bridge.value, None,
        about.unit, inputs, bridge,
    )  # fmt: skip
