"""The optimizers against a slow twin, torch's own, and what can be worked out by hand."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from badput_trainer import model, optim
from badput_trainer.config import OPTIMIZERS, ConfigError, ModelConfig, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_SPEC = importlib.util.spec_from_file_location(
    "reference_optim", Path(__file__).with_name("reference_optim.py")
)
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
sys.modules["reference_optim"] = reference  # dataclasses look their module up
_SPEC.loader.exec_module(reference)

HIDDEN = "blocks.0.up.weight"
SHAPES = [(6, 6), (4, 10), (10, 4), (1, 5), (5, 1)]
EVERY = pytest.mark.parametrize("kind", list(OPTIMIZERS))


def single(
    kind: str,
    weight: Tensor,
    *,
    momentum: float | None = None,
    alpha: float = 0.0,
    decay: float = 0.0,
    dtype: torch.dtype | None = None,
) -> optim.Optimizer:
    """The optimizer of one hidden matrix."""
    beta = OPTIMIZERS[kind] if momentum is None else momentum
    rule = optim.rule_of(kind, HIDDEN, weight, momentum=beta, newton_schulz_dtype=dtype)
    return optim.Optimizer({HIDDEN: rule}, weight_decay=decay, correction=alpha)


def gradients(shape: tuple[int, ...], count: int, dtype: torch.dtype = torch.float64):
    random = torch.Generator().manual_seed(sum(shape))
    return [
        torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for _ in range(count)
    ]


@EVERY
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_optimizer_agrees_with_the_slow_twin(kind, alpha, shape):
    weight = torch.ones(shape, dtype=torch.float64)
    mine = single(kind, weight, alpha=alpha, decay=0.1)
    twin = reference.Reference(kind, OPTIMIZERS[kind], alpha, 0.1)
    theirs = weight.numpy().copy()
    for t, gradient in enumerate(gradients(shape, 12)):
        lr = 0.01 * (1 + t % 3)  # a rate that changes: nothing may remember the last one
        [weight] = mine.step([weight], [gradient], lr)
        theirs = twin.step(theirs, gradient.numpy(), lr)
        np.testing.assert_allclose(weight.numpy(), theirs, rtol=1e-9, atol=1e-12)


def test_the_twin_moves_singular_values_as_the_polynomial_says():
    z = gradients((7, 4), 1)[0].numpy()
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    s /= np.linalg.norm(z)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    np.testing.assert_allclose(reference.newton_schulz(z), u @ np.diag(s) @ vt, rtol=1e-9)


def test_adamw_gives_the_bits_of_one_update_in_place_and_agrees_with_torch():
    """The trainer has always rounded u before the rate is applied; torch folds the two."""
    lr, decay = 0.003, 0.1
    weight = torch.linspace(-1, 1, 35).view(5, 7)
    in_place, theirs = weight.clone(), weight.clone().requires_grad_()
    m, v = torch.zeros(5, 7), torch.zeros(5, 7)
    mine = single("adamw", weight, decay=decay)
    torchs = torch.optim.AdamW(
        [theirs], lr=lr, betas=(0.9, 0.95), weight_decay=decay, foreach=False
    )
    for t, gradient in enumerate(gradients((5, 7), 30, torch.float32), 1):
        [weight] = mine.step([weight], [gradient], lr)
        m.lerp_(gradient, 1 - 0.9)
        v.mul_(0.95).addcmul_(gradient, gradient, value=1 - 0.95)
        u = (m / (1 - 0.9**t)).div_((v / (1 - 0.95**t)).sqrt_().add_(1e-8))
        in_place.mul_(1 - lr * decay).sub_(u, alpha=lr)
        assert torch.equal(weight, in_place)
        theirs.grad = gradient.clone()
        torchs.step()
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (64, 64), (192, 64), (64, 256), (33, 17)], ids=str)
def test_muon_in_bfloat16_gives_the_bits_of_torchs_own(dtype, shape):
    """Its default scale is another one, so that has to be named."""
    lr, decay = 0.01, 0.1
    weight = gradients(shape, 1, dtype)[0]
    theirs = weight.clone().requires_grad_()
    mine = single("muon", weight, decay=decay, dtype=torch.bfloat16)
    torchs = torch.optim.Muon(
        [theirs], lr=lr, momentum=0.95, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    )
    for gradient in gradients(shape, 20, dtype):
        [weight] = mine.step([weight], [gradient], lr)
        theirs.grad = gradient.clone()
        torchs.step()
        assert weight.dtype == dtype
        assert torch.equal(weight, theirs.detach())


@pytest.mark.parametrize("shape", [(64, 64), (192, 64), (64, 256), (256, 256)], ids=str)
def test_newton_schulz_is_as_exact_as_it_says(shape):
    [matrix] = gradients(shape, 1)
    exact = optim.newton_schulz(matrix)
    assert exact.dtype == torch.float64
    single_precision = optim.newton_schulz(matrix.float())
    assert single_precision.dtype == torch.float32
    assert (single_precision - exact).norm() / exact.norm() < 1e-5
    half = optim.newton_schulz(matrix.float(), torch.bfloat16)
    assert 1e-3 < (half - exact).norm() / exact.norm() < 0.03


def test_newton_schulz_brings_singular_values_near_one():
    shape = (96, 32)
    u, _, vt = torch.linalg.svd(gradients(shape, 1)[0], full_matrices=False)
    wide = torch.logspace(0, -2.4, 32, dtype=torch.float64)  # the least is 0.0021 of the norm
    out = torch.linalg.svdvals(optim.newton_schulz(u @ torch.diag(wide) @ vt))
    assert out.min() > 0.68
    assert out.max() < 1.21


def test_newton_schulz_leaves_its_input_alone_and_survives_a_gradient_of_zero():
    """torch 2.13 normalises in place what has the dtype already: that would be the momentum."""
    for shape in SHAPES:
        matrix = gradients(shape, 1, torch.bfloat16)[0]
        before = matrix.clone()
        optim.newton_schulz(matrix, torch.bfloat16)
        assert torch.equal(matrix, before)
    assert torch.equal(optim.newton_schulz(torch.zeros(3, 4)), torch.zeros(3, 4))


@EVERY
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_step_is_out_of_place(kind, alpha):
    weight, gradient = gradients((4, 6), 2)
    mine = single(kind, weight, alpha=alpha, decay=0.1)
    old, seen = weight.clone(), gradient.clone()
    [first] = mine.step([weight], [gradient], 0.1)
    kept = first.clone()
    [second] = mine.step([first], [gradient], 0.1)
    for now, then in ((weight, old), (gradient, seen), (first, kept)):
        assert torch.equal(now, then)
    assert len({t.data_ptr() for t in (weight, first, second)}) == 3
    assert not torch.equal(second, first)


@EVERY
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_restored_optimizer_goes_on_with_the_same_bits(kind, alpha, tmp_path):
    config = TrainConfig(optimizer=kind, model=ModelConfig(width=16, heads=2))
    weights = dict(model.build(config.model, 0, 2, seed=1).named_parameters())

    def made() -> optim.Optimizer:
        rules = {
            name: optim.rule_of(kind, name, weight, momentum=0.9)
            for name, weight in weights.items()
        }
        return optim.Optimizer(rules, weight_decay=0.1, correction=alpha)

    def run(optimizer: optim.Optimizer, params: list[Tensor], steps: range) -> list[Tensor]:
        for t in steps:
            grads = [torch.sin(p.detach() * 50 + t) for p in params]
            params = optimizer.step(params, grads, 0.01)
        return params

    first = made()
    half = run(first, list(weights.values()), range(5))
    torch.save(first.state(), tmp_path / "state")
    whole = run(first, half, range(5, 9))

    again = made()
    saved = torch.load(tmp_path / "state", weights_only=True)
    untouched = copy.deepcopy(saved)
    again.load_state(saved)
    assert again.updates == 5
    for mine, theirs in zip(run(again, half, range(5, 9)), whole, strict=True):
        assert torch.equal(mine, theirs)
    torch.testing.assert_close(saved, untouched, rtol=0, atol=0)


@pytest.mark.parametrize("harm", ["optimizer", "correction", "shape", "names"])
def test_a_state_that_does_not_fit_is_refused(harm):
    weight, gradient = gradients((4, 6), 2)
    mine = single("adamw", weight, alpha=1.0)
    mine.step([weight], [gradient], 0.1)
    other = {
        "optimizer": lambda: single("muon", weight, alpha=1.0),
        "correction": lambda: single("adamw", weight),
        "shape": lambda: single("adamw", weight[:1], alpha=1.0),
        "names": lambda: optim.Optimizer(
            {"x.qkv.weight": optim.rule_of("adamw", "x.qkv.weight", weight, momentum=0.9)},
            weight_decay=0,
            correction=1.0,
        ),
    }[harm]()
    if harm == "optimizer":  # Muon keeps less than AdamW: only the other way is a lack
        mine, other = other, mine
        mine.step([weight], [gradient], 0.1)
    with pytest.raises(ValueError, match="optimizer state"):
        other.load_state(mine.state())


def test_muon_steps_the_matrices_inside_the_layers_and_nothing_else():
    weights = dict(model.build(ModelConfig(layers=2), 0, 1, seed=0).named_parameters())
    built = optim.build(TrainConfig(optimizer="muon"), weights).state()["buffers"]
    muons = {name for name, buffers in built.items() if buffers.keys() == {"m"}}
    inside = ("qkv", "out", "up", "down")
    assert muons == {f"blocks.{i}.{part}.weight" for i in range(2) for part in inside}
    assert all(built[name].keys() == {"m", "v"} for name in built.keys() - muons)
    assert {"embed.weight", "position.weight", "head.weight"} <= built.keys() - muons


@pytest.mark.parametrize("name", ["blocks.0.gate.weight", "blocks.0.up.bias"])
def test_a_weight_that_no_list_names_is_refused_by_muon(name):
    with pytest.raises(ValueError, match=name):
        optim.rule_of("muon", name, torch.zeros(4), momentum=0.95)


def test_beside_muon_adamw_has_its_own_momentum_and_the_correction_too():
    weight, *grads = gradients((3, 5), 6)
    beside = optim.build(TrainConfig(optimizer="muon"), {"head.weight": weight})
    alone = single("adamw", weight, decay=0.1)
    for gradient in grads:
        [one] = beside.step([weight], [gradient], 0.01)
        [two] = alone.step([weight], [gradient], 0.01)
        assert torch.equal(one, two)
    rule = optim.rule_of("muon", "head.weight", weight, momentum=0.95)
    corrected = optim.Optimizer({"head.weight": rule}, weight_decay=0.1, correction=1.0)
    twin = reference.Reference("adamw", 0.9, 1.0, 0.1)
    for gradient in grads:
        [mine] = corrected.step([weight], [gradient], 0.01)
        np.testing.assert_allclose(mine, twin.step(weight.numpy(), gradient.numpy(), 0.01), 1e-9)


# What one step of delay does to a quadratic, worked out by hand. With x = lr h, c = 1 - mu and
# k = c x, the characteristic polynomials are
#   no delay           (z - 1)(z - mu) + k z                 stable below x = 2 (1 + mu) / c
#   delay              (z - 1)(z - mu) + k                   stable below x = 1
#   delay, correction  z (z - 1)(z - mu) + k (2 z - 1)       stable below (sqrt(1 + 4 / c) - 1) / 2


def limit(mu: float, delay: int, alpha: float) -> float:
    if not delay:
        return 2 * (1 + mu) / (1 - mu)
    return (math.sqrt(1 + 4 / (1 - mu)) - 1) / 2 if alpha else 1.0


CASES = [(mu, *case) for mu in (0.0, 0.9, 0.95) for case in ((0, 0.0), (1, 0.0), (1, 1.0))]


def test_the_closed_forms_give_the_published_table():
    table = [2.0, 1.0, 0.62, 38.0, 1.0, 2.70, 78.0, 1.0, 4.0]
    assert [round(limit(*case), 2) for case in CASES] == table
    assert limit(0.5, 1, 1.0) == pytest.approx(1)  # there the correction gains nothing
    assert limit(0.51, 1, 1.0) > 1 > limit(0.49, 1, 1.0)


def course(optimizer: optim.Optimizer, x: float, delay: int, steps: int) -> list[float]:
    """|W_t| on f(W) = W^2 / 2, from W_0 = 1."""
    weights = [torch.ones(1, 1, dtype=torch.float64)]
    for t in range(steps):
        [new] = optimizer.step([weights[-1]], [weights[max(t - delay, 0)]], x)
        weights.append(new)
    return [abs(w.item()) for w in weights]


@pytest.mark.parametrize(("mu", "delay", "alpha"), CASES)
def test_a_quadratic_is_stable_up_to_the_closed_form_and_not_above(mu, delay, alpha):
    weight = torch.ones(1, 1, dtype=torch.float64)
    for factor, stable in ((0.95, True), (1.05, False)):
        optimizer = single("sgd", weight, momentum=mu, alpha=alpha)
        values = course(optimizer, factor * limit(mu, delay, alpha), delay, 600)
        late, early = max(values[-50:]), max(values[150:200])
        assert (late < 0.9 * early) is stable
        assert (late > 1.1 * early) is not stable


@EVERY
def test_the_correction_is_one_step_of_weight_prediction(kind):
    """z_{t+1} = z_t - lr u_t, W_t = z_t - lr u_{t-1}: gradients at W_{t-1}, no corrected step."""
    lr = 0.02
    start = gradients((4, 6), 1)[0]

    def gradient(weight: Tensor) -> Tensor:
        return torch.tanh(3 * weight) + 0.3 * weight.flip(0)

    corrected = single(kind, start, alpha=1.0)
    plain = single(kind, start)  # asked for directions only: a step of rate 1 from zero
    weights = [start]
    z = previous = None
    for t in range(60):
        late = gradient(weights[max(t - 1, 0)])
        [new] = corrected.step([weights[-1]], [late], lr)
        weights.append(new)
        u = -plain.step([torch.zeros_like(start)], [late], 1.0)[0]
        z = weights[0] + lr * u if z is None else z  # u_{-1} := u_0
        previous = u if previous is None else previous
        torch.testing.assert_close(weights[t], z - lr * previous, rtol=1e-11, atol=1e-12)
        z, previous = z - lr * u, u
    assert (weights[-1] - start).norm() > 0.1


def from_own_output(u: list[float]) -> list[float]:
    """The look-alike a_t = u_t + (u_t - a_{t-1})."""
    a: list[float] = []
    for now in u:
        a.append(2 * now - (a[-1] if a else now))
    return a


def delay_as_compressor(u: list[float]) -> list[float]:
    """The look-alike that feeds back what the delay line holds: a_t = p_{t-1}, p_t = u_t + E_t."""
    a, memory, held = [], 0.0, u[0]
    for now in u:
        entered = now + memory
        a.append(held)
        memory, held = entered - held, entered
    return a


def applied(u: list[float]) -> list[float]:
    """The a_t of what is built, from a step of rate 1 and zero weights."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    optimizer = single("sgd", zero, momentum=0.0, alpha=1.0)
    return [-optimizer.step([zero], [torch.full_like(zero, g)], 1.0)[0].item() for g in u]


@pytest.mark.parametrize("look_alike", [from_own_output, delay_as_compressor])
def test_the_look_alikes_ring_for_ever_after_one_push_and_what_is_built_does_not(
    look_alike: Callable[[list[float]], list[float]],
):
    push = [0.0, 0.0, 1.0] + [0.0] * 60
    assert applied(push) == [0.0, 0.0, 2.0, -1.0] + [0.0] * 59
    assert max(abs(a) for a in look_alike(push)[-6:]) >= 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"optimizer": "lion"}, "--optimizer lion is unknown; it is one of adamw, muon, sgd."),
        ({"momentum": 1.0}, "--momentum must be at least 0 and below 1, not 1.0."),
        ({"momentum": float("nan")}, "--momentum must be at least 0 and below 1, not nan."),
        ({"correction": 1.5}, "--correction must lie in 0 to 1, not 1.5."),
        ({"correction": 1.0}, "which --schedule 1f1b does not make"),
        (
            {"correction": 1.0, "optimizer": "sgd", "momentum": 0.0},
            "--correction 1.0 needs a momentum above 0.5, but --optimizer sgd has 0.0",
        ),
    ],
)
def test_settings_of_the_optimizer_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**changes)
    assert sentence in str(caught.value)
