"""One step recorded by badput and by its peers: what each one calls for it.

Each function makes a recorder in ``folder`` and returns the action that records one step whose
block is empty, and what ends it. ImportError: it is not installed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Made = tuple[Callable[[], None], Callable[[], object]]

TOKENS = 4096
_clock = time.perf_counter


def badput_step(folder: Path) -> Made:
    """Begin, tokens, end, into the spool; a collector is running."""
    import badput

    os.environ["BADPUT_SPOOL"] = str(folder / "spool")
    badput.init(folder / "run", name="overhead")

    def action() -> None:
        with badput.step(tokens=TOKENS):
            pass

    return action, badput.close


def badput_full(folder: Path) -> Made:
    """The same with one span inside and a loss."""
    import badput

    os.environ["BADPUT_SPOOL"] = str(folder / "spool")
    badput.init(folder / "run", name="overhead")

    def action() -> None:
        with badput.step(tokens=TOKENS) as step:
            with badput.span("forward"):
                pass
            step.log(loss=1.5)

    return action, badput.close


def ml_goodput_call(folder: Path) -> Made:
    """What the package does for a step's start, its logger replaced by one that does nothing."""
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    class Nothing:
        def write_cloud_logging_entry(self, entry: object) -> None:
            pass

    return _ml_goodput(GoodputRecorder("job", "log", logging_enabled=True, cloud_logger=Nothing()))


def ml_goodput(folder: Path) -> Made:
    """The package's own code with its own logger. The cloud client below is a stub: a log handler
    that does nothing, where the real one puts the entry into a queue for a thread that sends it."""
    from ml_goodput_measurement.src.goodput import GoodputRecorder

    class Client:
        project = "none"

        def logger(self, name: str) -> object:
            return object()

    class Handler(logging.Handler):
        def __init__(self, **_: object) -> None:
            super().__init__()

        def emit(self, record: object) -> None:
            pass

    names = ("google.cloud.logging", "google.cloud.logging_v2.handlers")
    transports = "google.cloud.logging_v2.handlers.transports"
    for name in ("google", "google.cloud", "google.cloud.logging_v2", *names, transports):
        sys.modules[name] = ModuleType(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, sys.modules[name])
    vars(sys.modules[names[0]])["Client"] = Client
    vars(sys.modules[names[1]])["CloudLoggingHandler"] = Handler
    vars(sys.modules[transports])["BackgroundThreadTransport"] = object
    return _ml_goodput(GoodputRecorder("job", "log", logging_enabled=True))


def _ml_goodput(recorder: Any) -> Made:
    number = 0

    def action() -> None:
        nonlocal number
        number += 1
        recorder.record_step_start_time(number)

    return action, lambda: None


def opentelemetry(folder: Path) -> Made:
    """A span with one attribute, exported in batches to nothing."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    tracer = provider.get_tracer("overhead")

    def action() -> None:
        with tracer.start_as_current_span("step") as span:
            span.set_attribute("tokens", TOKENS)

    return action, provider.shutdown


def tensorboard(folder: Path) -> Made:
    """One scalar, the step's seconds."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    number = 0

    def action() -> None:
        nonlocal number
        begin = _clock()
        number += 1
        writer.add_scalar("step_s", _clock() - begin, number)

    return action, writer.close


def wandb_offline(folder: Path) -> Made:
    """One log of the step's seconds and tokens, in offline mode."""
    import wandb

    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        os.environ[name] = str(folder / "wandb")
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    run = wandb.init(project="overhead", mode="offline", dir=str(folder), settings=settings)

    def action() -> None:
        begin = _clock()
        run.log({"step_s": _clock() - begin, "tokens": TOKENS})

    return action, run.finish


def record_function(folder: Path) -> Made:
    """torch.profiler.record_function, with no profiler running."""
    from torch.profiler import record_function as record

    def action() -> None:
        with record("step"):
            pass

    return action, lambda: None


def prometheus(folder: Path) -> Made:
    """A histogram of the step's seconds and a counter of tokens, in memory."""
    from prometheus_client import Counter, Histogram

    seconds, tokens = Histogram("step_seconds", "step"), Counter("tokens", "tokens")

    def action() -> None:
        begin = _clock()
        seconds.observe(_clock() - begin)
        tokens.inc(TOKENS)

    return action, lambda: None


def zeus(folder: Path) -> Made:
    """A measurement window without a device: on a GPU it costs more."""
    from zeus.monitor import ZeusMonitor

    monitor: Any = ZeusMonitor(gpu_indices=[], cpu_indices=[])

    def action() -> None:
        monitor.begin_window("step", sync_execution=False)
        monitor.end_window("step", sync_execution=False)

    return action, lambda: None


RECORDERS: dict[str, Callable[[Path], Made]] = {
    "badput step": badput_step,
    "badput step, a span and a loss": badput_full,
    "ml-goodput-measurement, its call alone": ml_goodput_call,
    "ml-goodput-measurement (cloud client stubbed)": ml_goodput,
    "prometheus_client (in memory)": prometheus,
    "zeus (no device)": zeus,
    "torch record_function (no profiler)": record_function,
    "opentelemetry-sdk (exports to nothing)": opentelemetry,
    "tensorboard": tensorboard,
    "wandb offline": wandb_offline,
}
SURVIVES_KILL = ("badput step", "badput step, a span and a loss")
