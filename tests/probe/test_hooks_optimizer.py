"""Optimizer hooks, with real torch on CPU: what was applied, which one counts, auto mode."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import badput

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def begin(box: Any) -> Iterator[Any]:
    """Begin to record with some hooks; ``end`` closes and gives the box with its rows."""

    def start(**given: Any) -> Any:
        badput.init(box.run, **given)
        return box

    yield start
    badput.close()


def end(box: Any) -> Any:
    badput.close(timeout=5)
    box.ends()
    return box


def model_and(kind: Any = None, size: int = 4, **given: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(size, 2)
    return model, (kind or torch.optim.SGD)(model.parameters(), lr=0.1, **given)


def train(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, model.in_features)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_a_scalers_skip_is_a_step_that_was_not_applied_or_unknown(begin: Any, fused: bool) -> None:
    box = begin(hooks="optimizer")
    model, optimizer = model_and(torch.optim.AdamW, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    for number in range(1, 11):
        with badput.step(tokens=1):
            before = [p.detach().clone() for p in model.parameters()]
            loss = model(torch.ones(3, 4)).sum()
            scaler.scale(loss * (float("inf") if number == 3 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert same is (number == 3)
    rows = end(box).rows("steps")
    assert [r["step"] for r in rows] == list(range(1, 11))
    applied = [r["applied"] for r in rows]
    assert applied == ([None] * 10 if fused else [True] * 2 + [False] + [True] * 7)


def test_micro_batches_are_not_steps_left_out(begin: Any) -> None:
    box = begin(hooks="optimizer")
    model, optimizer = model_and()
    for number in range(8):
        with badput.step(tokens=3):
            model(torch.ones(3, 4)).sum().backward()
            if number % 4 == 3:
                optimizer.step()
    assert [r["applied"] for r in end(box).rows("steps")] == [None, None, None, True] * 2


def test_the_programs_own_word_stands(begin: Any) -> None:
    box = begin(hooks="optimizer")
    model, optimizer = model_and()
    with badput.step() as step:
        step.log(applied=False)
        train(model, optimizer)
    with badput.step() as step:
        train(model, optimizer)
        step.log(applied=False)
    assert [r["applied"] for r in end(box).rows("steps")] == [False, False]


def auto(box: Any, body: Any, count: int) -> list[dict[str, Any]]:
    for _ in range(count):
        body()
    return end(box).rows("steps")


def test_auto_mode_makes_one_step_an_update_with_accumulation(begin: Any) -> None:
    box = begin(hooks="default", auto_steps=True)
    model, optimizer = model_and()
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=1)
    for number, batch in enumerate(loader):
        model(batch).sum().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    rows = end(box).rows("steps")
    assert [r["step"] for r in rows] == [1, 2]
    assert all(r["tokens"] is None and r["applied"] for r in rows)
    assert all(r["data_ns"] > 0 for r in rows)
    assert rows[1]["start_ns"] >= rows[0]["start_ns"] + rows[0]["dur_ns"]
    assert box.events("steps")[0]["attrs"] == {"made_by": "optimizer", "counted_from": 1}


def test_auto_mode_counts_skips_and_the_first_explicit_step_ends_it(begin: Any) -> None:
    box = begin(hooks="optimizer", auto_steps=True)
    model, optimizer = model_and()
    scaler = torch.amp.GradScaler("cpu")
    for number in range(3):
        loss = model(torch.ones(3, 4)).sum() * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with badput.step(tokens=7):
        train(model, optimizer)
    rows = end(box).rows("steps")
    assert [(r["step"], r["applied"], r["tokens"]) for r in rows] == [
        (1, True, None), (2, False, None), (3, True, None), (4, True, 7),
    ]  # fmt: skip


def test_an_optimizer_hook_that_is_off_stays_off_and_is_said(
    begin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    box = begin(hooks="none", auto_steps=True)
    train(*model_and())
    assert end(box).rows("steps") == []
    assert caplog.text.count("add +optimizer to the hooks") == 1


@pytest.mark.parametrize("named", [False, True])
def test_of_several_optimizers_the_largest_or_the_named_one_counts(
    begin: Any, named: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    box = begin(hooks="optimizer", auto_steps=True)
    small, large = model_and(), model_and(size=9)
    if named:
        badput.primary(small[1])
    for _ in range(100):
        train(*small)
        train(*large)
    assert len(end(box).rows("steps")) == 100
    ratio = box.events("optimizers")[-1]["attrs"]
    assert [o["steps"] for o in ratio["optimizers"]] == [100, 100]
    assert ratio["chosen"] == ("named" if named else "most parameters")
    said = (capsys.readouterr().err + caplog.text).count("several optimizers step")
    assert said == (0 if named else 1)


def test_a_copy_that_trains_on_takes_over(begin: Any) -> None:
    box = begin(auto_steps=True, hooks="optimizer")
    model, optimizer = model_and()
    for _ in range(5):
        train(model, optimizer)
    copied = copy.deepcopy(model)
    other = torch.optim.SGD(copied.parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    for _ in range(5):
        train(copied, other)
    assert len(end(box).rows("steps")) == 9  # its first one could have been a second optimizer's


def test_an_optimizer_whose_step_raised_and_was_tried_again(begin: Any) -> None:
    box = begin(hooks="optimizer")
    model, optimizer = model_and()
    with badput.step():
        with pytest.raises(TypeError):
            optimizer.step(closure=3)
        train(model, optimizer)
    assert [r["applied"] for r in end(box).rows("steps")] == [True]
    assert [e["attrs"] for e in box.events("failed_attempt")] == [{"optimizer": "SGD"}]


def test_schedulers_copies_pickles_and_state_are_what_they_are_without(begin: Any) -> None:
    def everything(hooked: bool) -> bytes:
        model, optimizer = model_and(torch.optim.AdamW)
        before = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        if hooked:
            begin(hooks="all")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after = torch.optim.lr_scheduler.StepLR(optimizer, 3)
            for _ in range(4):
                train(model, optimizer)
                before.step()
                after.step()
        twin = pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
        assert "badput" not in str(vars(optimizer).keys())
        assert not optimizer._optimizer_step_pre_hooks
        saved = io.BytesIO()
        torch.save([optimizer.state_dict(), twin.state_dict(), model.state_dict()], saved)
        return saved.getvalue()

    assert everything(hooked=False) == everything(hooked=True)


def test_closing_takes_everything_back_and_twice_is_once(begin: Any) -> None:
    from torch.optim import optimizer as module

    def state() -> list[Any]:
        held = [torch.save, torch.load, torch.amp.GradScaler.step]
        held += [torch.utils.data.DataLoader.__iter__, torch.distributed.all_reduce]
        held += [torch.distributed.init_process_group, torch.serialization.save]
        return [*held, *module._global_optimizer_pre_hooks, *module._global_optimizer_post_hooks]

    before = state()
    for _ in range(2):
        begin(hooks="all")
        begin(hooks="all")
        assert len(module._global_optimizer_post_hooks) == 1
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
        assert state() != before
        badput.close()
        assert state() == before


def test_tensors_given_as_loss_are_not_kept(begin: Any) -> None:
    import gc
    import weakref

    box = begin(hooks="all")
    model, optimizer = model_and()
    alive = []
    for _ in range(20):
        optimizer.zero_grad()
        with badput.step() as step:
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            optimizer.step()
            step.log(loss=loss, grad_norm=loss)
        alive.append(weakref.ref(loss))
    del loss
    gc.collect()
    assert not [ref for ref in alive if ref() is not None]
    assert all(r["loss"] is None for r in end(box).rows("steps"))


def test_compiled_code_has_the_same_graphs_with_hooks_as_without(begin: Any) -> None:
    counters = pytest.importorskip("torch._dynamo.testing")

    def graphs() -> tuple[int, int, Any]:
        torch._dynamo.reset()
        seen = torch._dynamo.utils.counters
        seen.clear()
        model, optimizer = model_and()
        counter = counters.CompileCounter()
        forward = torch.compile(model, backend=counter)
        update = torch.compile(optimizer.step, backend=counter)
        for size in (3, 3, 5, 7):
            optimizer.zero_grad()
            with badput.step():
                forward(torch.ones(size, 4)).sum().backward()
                update()
        told = {name: dict(seen[name]) for name in ("stats", "graph_break")}
        return counter.frame_count, counter.op_count, told

    graphs()  # what a process compiles only once
    without = graphs()
    box = begin(hooks="all")
    assert graphs() == without
    begun = {e["attrs"]["id"]: e["attrs"]["recompile"] for e in end(box).events("compile")}
    assert len(begun) >= 3
    assert any(begun.values())
    assert not all(begun.values())
