"""Definitions that count steps, checkpoints and failures instead of sorting time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from badput_ledger.definitions.bridge import Bridge, Term, between
from badput_ledger.definitions.result import Input, Result

if TYPE_CHECKING:
    from badput_ledger.definitions.summary import Summary

_DAY = 86_400 * 10**9
_S = 10**9
_USUAL = ("G.bubble", "G.comm")
"""What belongs to an iteration that nothing disturbs."""
_COMPUTE = ("G.recompute", "G.kernel")
"""Compute, like H: only its rate is low."""


def google_resiliency(s: Summary) -> Result:
    """(max saved step - min loaded step) x step time / (last - first event)."""
    about = Result(
        "google-resiliency",
        "(max saved step - min loaded step) x step time / (last - first event)",
        "Google, AI-Hypercomputer/resiliency, goodput_measure/calculator.py, 2025",
        "wall clock: it counts every place as training, whichever were there; steps before the "
        "first load and after the last save count as nothing; how often a step ran does not matter",
    )
    inputs = (
        Input("max saved step", s.max_saved_step, "step"),
        Input("min loaded step", s.min_loaded_step, "step"),
        Input("step time", s.step_time_s, "s"),
        Input("last - first event", Fraction(s.wall_ns, _S), "s"),
    )
    about = replace(about, inputs=inputs)
    if s.max_saved_step is None:
        return replace(about, reason="no checkpoint was saved")
    if s.min_loaded_step is None:
        return replace(about, reason="no checkpoint was loaded")
    if s.step_time_s is None:
        return replace(about, reason="it needs a reference time of a step: give --step-time S")
    steps = s.max_saved_step - s.min_loaded_step
    if steps <= 0 or s.wall_ns <= 0:
        return replace(about, reason="no step was saved beyond the first one loaded")
    each = s.step_time_s * _S
    good, base = each * steps * s.places, Fraction(s.wall_ns * s.places)
    present = sum((each * k.kept_steps * k.world_size for k in s.lives), Fraction(0))
    full = sum((each * k.kept_steps * s.places for k in s.lives), Fraction(0))
    terms = [
        Term(
            "H.productive",
            "kept steps at the reference step time instead of as long as they took",
            present - s.kept,
        ),
        Term("A.capacity", "empty places counted as training during kept steps", full - present),
        Term("steps", "steps from the first load to the last save that are not kept", good - full),
        Term("total", "time outside the first and last event", Fraction(0), s.total - base),
    ]
    return _bridged(about, between(s.leaves, good, base, terms))


def megascale(s: Summary) -> Result:
    """Iterations x usual time of an iteration / total."""
    about = Result(
        "MegaScale effective training time",
        "sum of kept steps x usual step time / total",
        "Jiang et al. 2024, MegaScale: Scaling Large Language Model Training, section 6.3",
        "each kept step counts as long as a usual one of its session (b of docs/ledger.md) with "
        "the run's mean pipeline bubble and exposed communication; what made steps slower than "
        "that is not good",
        inputs=(Input("kept steps", sum(k.kept_steps for k in s.lives), "steps"),),
    )
    if any(k.kept_steps and k.usual_ns is None for k in s.lives):
        return replace(about, reason="a session with fewer than 20 plain steps has no usual step")
    plain = Fraction(sum(k.kept_steps * (k.usual_ns or 0) * k.world_size for k in s.lives))
    good = plain + s.sum(*_USUAL)
    terms = [
        Term(leaf, "inside kept steps, counted at the usual step time", Fraction(-ns))
        for leaf, ns in s.leaves.items()
        if leaf[0] == "G" and leaf not in (*_USUAL, *_COMPUTE)
    ]
    rest = plain - s.sum("H", *_COMPUTE)
    terms.append(Term("H.productive", "kept steps at the usual step time", rest))
    return _bridged(about, between(s.leaves, good, Fraction(s.total), terms))


def expected_ettr(s: Summary) -> Result:
    """What the rates of failures and checkpoints let expect."""
    about = Result(
        "expected ETTR",
        "(1 - N r_f (u0 + dt / 2)) / (1 + w / dt)",
        "Kokolis et al. 2024, Revisiting Reliability in Large-Scale ML Research Clusters",
        "a model, not a measurement: failures at a constant rate, checkpoints at equal intervals; "
        "u0 = (B + C) a restart, dt = loop time a durable save, w = blocked time a save",
    )
    places = max(s.places, 1)
    running = Fraction(s.total - s.sum("A.queue", "A.requeue"), places)
    restarts = max(s.starts - 1, 0)
    loop = Fraction(s.sum("D", "E", "F", "G", "H"), places)
    rate = Fraction(s.failures) / (running / _DAY) if running > 0 else None
    u0 = Fraction(s.sum("B", "C"), places * restarts) if restarts else None
    dt = loop / s.saves if s.saves and loop else None
    blocked = not {"E.save", "E.snapshot"} <= s.null.keys()
    w = Fraction(s.sum("E.save", "E.snapshot"), places * s.saves) if s.saves and blocked else None
    per_node = rate / s.nodes if rate is not None and s.nodes else None
    about = replace(
        about,
        inputs=(
            Input("N, nodes", s.nodes, "nodes"),
            Input("r_f, failures", per_node, "per node-day"),
            Input("N r_f, failures", rate, "per day"),
            Input("u0, restart", None if u0 is None else u0 / _S, "s"),
            Input("dt, checkpoint interval", None if dt is None else dt / _S, "s"),
            Input("w, checkpoint write", None if w is None else w / _S, "s"),
        ),
    )
    if rate is None or dt is None:
        return replace(about, reason="no durable checkpoint" if rate is not None else "no time")
    if w is None:
        return replace(about, reason="the time that a checkpoint blocks was not recorded")
    if s.failures and u0 is None:
        return replace(about, reason="it failed and was never started again: u0 is not known")
    lost = rate * ((u0 or Fraction(0)) + dt / 2) / _DAY
    value = (1 - lost) / (1 + w / dt)
    total = Fraction(s.total)
    term = Term("model", "expected from rates instead of counted", value * total - s.kept)
    return _bridged(about, between(s.leaves, value * total, total, [term]))


def pollux(s: Summary) -> Result:
    """Goodput of Pollux: throughput x statistical efficiency."""
    about = Result(
        "Pollux",
        "throughput x (phi + M0) / (phi + M)",
        "Qiao et al. 2021, Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Learning",
        "samples a second that count as those of the first batch size; phi is the gradient noise "
        "scale. Not a share of time, so it has no bridge",
        unit="samples/s",
    )
    phi = _positive(s.learning.get("noise_scale"))
    batch, first = _positive(s.learning.get("batch")), _positive(s.learning.get("first_batch"))
    throughput = (
        Fraction(s.kept_samples * _S, s.wall_ns) if s.kept_samples and s.wall_ns > 0 else None
    )
    about = replace(
        about,
        inputs=(
            Input("throughput", throughput, "samples/s"),
            Input("phi, gradient noise scale", phi, "samples"),
            Input("M, batch", batch, "samples"),
            Input("M0, first batch", first, "samples"),
        ),
    )
    if phi is None or batch is None or first is None:
        return replace(about, reason="the gradient noise scale was not recorded")
    if throughput is None:
        return replace(about, reason="no samples were recorded")
    return replace(about, value=throughput * (phi + first) / (phi + batch))


def _positive(value: object) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        return None
    return Fraction(value)


def _bridged(about: Result, bridge: Bridge | None) -> Result:
    if bridge is None:
        return replace(about, reason="no time was booked")
    return replace(about, value=bridge.value, bridge=bridge)
