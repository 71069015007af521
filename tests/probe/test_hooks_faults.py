"""A fault in any body of any hook leaves training as it is, to the last bit."""

from __future__ import annotations

import json
import pkgutil

import pytest

from badput import hooks

pytest.importorskip("torch")

TRAIN = r"""
import gc, hashlib, json, os, sys, threading, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import badput
from badput import hooks
from badput.hooks import base

folder = os.environ["FOLDER"]
torch.use_deterministic_algorithms(True)


class Event:  # what CUDA gives at the lowest place that a machine without a GPU has
    def __init__(self, **_): pass
    def record(self): pass
    def query(self): return True
    def elapsed_time(self, other): return 1.5


class Properties:
    name, uuid, total_memory, pci_bus_id, pci_device_id, pci_domain_id = "Fake", "ab", 1, 2, 0, 0


def fake_cuda():
    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _: Properties
    torch.cuda.Event = Event


def train(turn, about="all"):
    torch.manual_seed(3)
    place = f"{folder}/{turn}"
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = torch.nn.Linear(520, 520)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    data = torch.randn(24, 520, generator=torch.Generator().manual_seed(1))
    for number, batch in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
        with badput.step(tokens=4):
            loss = model(batch).square().mean()
            scaler.scale(loss).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, async_op=True).wait()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number == 0:
                gc.collect()
    state = {"model": model.state_dict()}
    torch.save(state, place + ".pt")
    with badput.span("save", step=6):
        torch.save(state, place + ".pt")
    model.load_state_dict(torch.load(place + ".pt")["model"])
    if about in ("all", "dcp"):
        dcp.save(state, checkpoint_id=place + "-a")
        dcp.async_save(state, checkpoint_id=place + "-b").result()
        dcp.load(state, checkpoint_id=place + "-b")
    compiled = torch.compile(model, backend="eager") if about in ("all", "compile") else model
    with badput.span("eval"):
        loss = float(compiled(data).square().mean())
    torch._dynamo.reset()
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    badput.primary(optimizer)
    dist.destroy_process_group()
    sys.excepthook(ValueError, ValueError("x"), None)
    whole = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(whole).hexdigest(), loss


threading.excepthook = sys.excepthook = lambda *_: None
fake_cuda()
found = {"plain": train("plain")}
badput.init(os.environ["RUN"], hooks="all")
found["hooks"] = train("hooks")
badput.close(5)
names, called = sorted(base.BODIES), {}
assert len(names) > 25, names
for number, name in enumerate(names):
    body = base.BODIES[name]
    cell = body.__closure__[body.__code__.co_freevars.index("func")]
    original = cell.cell_contents
    calls = []

    def fault(*args, **kwargs):
        calls.append(1)
        kinds = (RuntimeError, MemoryError, torch.OutOfMemoryError, KeyError, RecursionError)
        raise kinds[len(calls) % len(kinds)]("made up")

    cell.cell_contents = fault
    badput.init(os.environ["RUN"], hooks="all")
    if name.startswith("imports"):
        sys.modules.pop("badput_made_up", None)
        hooks.when_imported("badput_made_up", lambda _: None)
        import badput_made_up
    found[name] = train(f"t{number}", name.partition(".")[0])
    badput.close(0)
    called[name] = len(calls)
    cell.cell_contents = original
modules = {body.__wrapped__.__module__ for body in base.BODIES.values()}
print(json.dumps({"found": found, "called": called, "modules": sorted(modules)}))
"""


@pytest.mark.timeout(600)
def test_a_fault_in_every_hook_body_changes_nothing(box, tmp_path):
    (tmp_path / "badput_made_up.py").write_text("here = True\n")
    env = {**box.env, "FOLDER": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    del env["BADPUT_STRICT"]
    box.env = env
    child = box.start(TRAIN, stdout=-1, stderr=-1)
    out, err = child.communicate(timeout=580)
    assert child.returncode == 0, err[-4000:]
    told = json.loads(out.splitlines()[-1])
    assert [name for name, count in told["called"].items() if not count] == []
    # Every module of the package has bodies, and the training above has loaded each of them.
    names = {m.name for m in pkgutil.iter_modules(hooks.__path__, "badput.hooks.")}
    assert set(told["modules"]) == {"badput.hooks", *names} - {"badput.hooks.base"}
    plain = told["found"]["plain"]
    assert {name: value for name, value in told["found"].items() if value != plain} == {}
    assert len(box.rows("device_times")) > 0
    assert len(box.rows("collectives")) > 0
