"""Device time with a stand-in for ``torch.cuda``, and none of it without CUDA."""

from __future__ import annotations

import types
from typing import Any

import pytest

import badput

torch = pytest.importorskip("torch")


class Fake:
    """What the hook may call of CUDA; anything else is an error, above all a wait."""

    def __init__(self) -> None:
        self.made = self.recorded = 0
        self.capturing = self.ready = self.on = False
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                fake.made += 1

            def record(self) -> None:
                assert not fake.capturing
                fake.recorded += 1

            def query(self) -> bool:
                assert not fake.capturing
                return fake.ready

            def elapsed_time(self, _end: Any) -> float:
                assert fake.ready
                return 2.5

        self.Event = Event

    def is_initialized(self) -> bool:
        return self.on

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _index: int) -> Any:
        return types.SimpleNamespace(
            name="NVIDIA H100", uuid="abc", total_memory=5, pci_bus_id=0x3B, pci_device_id=0,
            pci_domain_id=0,
        )  # fmt: skip


def test_device_times_of_steps(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(torch, "cuda", fake)
    badput.init(box.run, hooks="cuda")
    fake.on = True
    for number in range(1, 13):
        fake.capturing = number in (4, 5)
        fake.ready = number > 8
        with badput.step(tokens=number) as step:
            step.log(loss=0.5)
    assert fake.recorded == 20
    badput.close(timeout=5)
    box.ends()
    assert [r["step"] for r in box.rows("steps")] == list(range(1, 13))
    times = {r["step"]: r["device_ns"] for r in box.rows("device_times")}
    assert times == dict.fromkeys([1, 2, 3, 6, 7, 8, 9, 10, 11, 12], 2_500_000)
    device = box.events("device")[0]["attrs"]
    assert device["gpu_uuid"] == "GPU-abc"
    assert device["pci_bus_id"] == "00000000:3b:00.0"


def test_a_device_that_never_gets_there_costs_no_memory_and_is_unknown(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    fake.on = True
    monkeypatch.setattr(torch, "cuda", fake)
    badput.init(box.run, hooks="cuda")
    for _ in range(400):
        with badput.step():
            pass
    assert fake.made == 2 * 256
    badput.close(timeout=5)
    box.ends()
    assert box.rows("device_times") == []
    assert len(box.rows("steps")) == 400


def test_without_cuda_nothing_is_called(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(torch, "cuda", fake)
    badput.init(box.run, hooks="cuda")
    with badput.step():
        pass
    assert fake.made == 0
    badput.close(timeout=5)
    box.ends()
    assert box.events("device") == []
