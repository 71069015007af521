"""Which hooks are on, and waiting for modules without breaking their import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import badput
from badput import guard, hooks
from badput.hooks import imports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "badput_made_up_module"


@pytest.mark.parametrize(
    ("given", "environment", "chosen"),
    [
        (None, None, hooks.DEFAULT),
        ("default", None, hooks.DEFAULT),
        ("all", None, set(hooks.NAMES)),
        ("none", None, set()),
        ([], None, set()),
        (["gc", "checkpoint"], None, {"gc", "checkpoint"}),
        ("gc, cuda", None, {"gc", "cuda"}),
        ("all,-cuda", None, set(hooks.NAMES) - {"cuda"}),
        ("-gc", None, hooks.DEFAULT - {"gc"}),
        (None, "none", set()),
        (None, "", hooks.DEFAULT),
        ("none", "all,-cuda", set(hooks.NAMES) - {"cuda"}),
        (["gc"], "+collectives", {"gc", "collectives"}),
        (["gc"], "-gc", set()),
        ("default", "-all +gc", {"gc"}),
        (None, "optimiser", hooks.DEFAULT),
        (["gc"], "on", {"gc"}),
        (None, "gc,optimiser", {"gc"}),
        (None, "optimiser -gc", hooks.DEFAULT - {"gc"}),
    ],
)
def test_names(given: Any, environment: str | None, chosen: Any) -> None:
    assert hooks.choose(given, environment) == chosen


@pytest.mark.parametrize("given", ["gc,optimiser", 7, [3]])
def test_unknown_names_cost_one_line(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    guard.reset()
    for _ in range(2):
        hooks.choose(given, None)
    assert len(caplog.records) == 1
    assert "init(hooks=)" in caplog.text


def test_a_name_that_is_none_is_said_to_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    guard.reset()
    hooks.choose(None, "optimiser")
    assert "BADPUT_HOOKS: there is no hook 'optimiser', it is ignored; there are" in caplog.text


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"{NAME}.py"
    file.write_text("there = __loader__, __spec__.loader\n")
    yield file
    imports.forget()
    sys.modules.pop(NAME, None)
    assert imports._FINDER not in sys.meta_path


def test_the_module_is_what_it_would_have_been(module: Path) -> None:
    plain = importlib.import_module(NAME)
    loader = type(plain.__loader__)
    del sys.modules[NAME]
    came: list[Any] = []
    hooks.when_imported(NAME, came.append)
    hooks.when_imported(NAME, came.append)
    assert importlib.util.find_spec(NAME) is not None  # looking is not importing
    assert not came
    found = importlib.import_module(NAME)
    assert came == [found]
    assert found.there == (found.__loader__, found.__spec__.loader)
    assert type(found.__loader__) is loader
    assert "exec_module" not in vars(found.__loader__)
    assert imports._FINDER not in sys.meta_path
    hooks.when_imported(NAME, came.append)
    assert came == [found, found]


def test_an_import_that_fails_fails_as_it_would_and_may_be_tried_again(module: Path) -> None:
    came: list[Any] = []
    hooks.when_imported(NAME, came.append)
    module.write_text("raise ImportError('mine')\n")
    with pytest.raises(ImportError, match="mine"):
        importlib.import_module(NAME)
    module.unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match=NAME):
        importlib.import_module(NAME)
    module.write_text("fine = 1\n# a longer file\n")
    importlib.invalidate_caches()
    assert importlib.import_module(NAME).fine == 1
    assert len(came) == 1


def test_an_action_that_raises_is_ours_alone(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BADPUT_STRICT", raising=False)
    guard.reset()
    came: list[Any] = []

    def broken(_: Any) -> None:
        raise RuntimeError("made up")

    hooks.when_imported(NAME, broken)
    hooks.when_imported(NAME, came.append)
    assert importlib.import_module(NAME)
    assert len(came) == 1
    assert guard.counts() == {"hook imports.run": 1}


def test_other_finders_that_raise_or_find_something_odd(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raises:
        def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
            if name == NAME:
                raise OSError("of its own")

    came: list[Any] = []
    finder = Raises()
    sys.meta_path.insert(0, finder)
    try:
        hooks.when_imported(NAME, came.append)
        with pytest.raises(OSError, match="of its own"):
            importlib.import_module(NAME)
    finally:
        sys.meta_path.remove(finder)
    assert importlib.import_module(NAME)
    assert len(came) == 1


def test_a_loader_of_many_modules_is_left_alone_and_polled(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.unlink()
    archive = tmp_path / "many.zip"
    with zipfile.ZipFile(archive, "w") as pack:
        pack.writestr(f"{NAME}.py", "x = 1\n")
    monkeypatch.syspath_prepend(str(archive))
    came: list[Any] = []
    hooks.when_imported(NAME, came.append)
    importlib.import_module(NAME)
    assert not came
    imports.poll()
    assert len(came) == 1


def test_many_threads_import_while_one_waits(module: Path) -> None:
    came: list[Any] = []
    hooks.when_imported(NAME, came.append)
    threads = [threading.Thread(target=importlib.import_module, args=(NAME,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(came) == 1
    imports.poll()


def test_torch_that_comes_late_is_hooked_at_once(box: Any) -> None:
    pytest.importorskip("torch")
    code = """
import os, sys, badput
badput.init(os.environ["RUN"], hooks="default")
assert "torch" not in sys.modules
import torch
assert torch.save.__wrapped__
import torch.distributed.checkpoint as dcp
assert dcp.save.__wrapped__
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
with badput.step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
import torch._dynamo.callback
assert not [f for f in sys.meta_path if type(f).__module__.startswith("badput")]
badput.close(5)
"""
    child = box.run_child(code)
    assert child.returncode == 0, child.stderr
    box.ends()
    assert [r["applied"] for r in box.rows("steps")] == [True]
    assert "torch" in box.events("frameworks")[0]["attrs"]


def test_a_forked_child_has_no_hooks_until_it_begins_itself(box: Any) -> None:
    pytest.importorskip("torch")
    code = """
import os, sys, torch, badput
from torch.optim import optimizer as module
badput.init(os.environ["RUN"], hooks="all")
pid = os.fork()
if pid == 0:
    assert not hasattr(torch.save, "__wrapped__")
    assert not module._global_optimizer_pre_hooks
    badput.init(os.environ["RUN"], hooks="gc,checkpoint")
    assert torch.save.__wrapped__
    torch.save(torch.zeros(1 << 19), os.environ["RUN"] + ".pt")
    badput.close(5)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert torch.save.__wrapped__
for batch in torch.utils.data.DataLoader(torch.zeros(8), num_workers=2):
    with badput.step():
        pass
badput.close(5)
"""
    child = box.run_child(code)
    assert child.returncode == 0, child.stderr
    box.ends(2)
    assert len(box.rows("checkpoints")) == 1
    steps = box.rows("steps")
    assert len(steps) == 8
    assert len({r["process_id"] for r in steps}) == 1
    assert steps[0]["pre_data_ns"] > 0
    assert badput.__version__
