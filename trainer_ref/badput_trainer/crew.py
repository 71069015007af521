"""Stage processes that train one configuration after the other, for the proof.

Loading torch takes longer than the training there, so the processes are kept. Each trains
with ``worker.Worker`` as the launcher's do, or with torch.distributed.pipelining.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from badput_trainer import data, model, optim
from badput_trainer.config import TrainConfig
from badput_trainer.mutants import MUTANTS
from badput_trainer.worker import Worker

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PATIENCE_S = 120.0
"""How long nobody may say anything."""


class CrewError(RuntimeError):
    """A run ended in a failure; the message is that of its first rank that failed."""


class Crew:
    """Stage processes that train what they are told to. Use as a context."""

    def __init__(self, stages: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ranks: list[Any] = []
        self._lines: list[Connection] = []
        for rank in range(stages):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append(process)
            self._lines.append(mine)

    def run(self, config: TrainConfig, kind: str = "ours") -> list[dict[str, Any]]:
        """Train; returns the state of each stage. ``kind``: ours, peer or the name of a mutant.

        Raises CrewError if a rank fails, after which the crew is of no use.
        """
        port = _free_port()
        for line in self._lines:
            line.send((config.to_json(), port, kind))
        states: dict[int, dict[str, Any]] = {}
        while len(states) < len(self._lines):
            waiting = [line for r, line in enumerate(self._lines) if r not in states]
            ready = multiprocessing.connection.wait(waiting, PATIENCE_S)
            if not ready:
                raise CrewError(f"nothing for {PATIENCE_S:.0f} s")
            for line in ready:
                rank = self._lines.index(line)  # type: ignore[arg-type]
                try:
                    good, payload = self._lines[rank].recv()
                except EOFError:
                    raise CrewError(f"rank {rank} is gone") from None
                if not good:
                    raise CrewError(f"rank {rank}: {payload}")
                states[rank] = torch.load(io.BytesIO(payload), weights_only=True)
        return [states[rank] for rank in range(len(self._lines))]

    def __enter__(self) -> Crew:
        """Nothing to do; the processes are there."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            process.join()


def _serve(rank: int, line: Connection) -> None:
    """One rank of a crew; ends with its parent."""
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            text, port, kind = line.recv()
            config = TrainConfig.from_json(text)
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            os.environ |= {"MASTER_PORT": str(port), "RANK": str(rank)}
            os.environ["WORLD_SIZE"] = str(config.stages)
            try:
                buffer = io.BytesIO()
                torch.save(_trained(config, rank, kind), buffer)
                line.send((True, buffer.getvalue()))
            except Exception as error:  # noqa: BLE001 - the parent has to hear of it
                where = traceback.extract_tb(error.__traceback__)[-1]
                at = f"{type(error).__name__} in {where.name}, {Path(where.filename).name}"
                line.send((False, f"{at}: {error}"))


def _trained(config: TrainConfig, rank: int, kind: str) -> dict[str, Any]:
    if kind == "peer":
        return _peer(config, rank)
    stage_type = {"stage_type": MUTANTS[kind]} if kind in MUTANTS else {}
    with contextlib.redirect_stdout(io.StringIO()):
        worker = Worker(config, rank, **stage_type)
        worker.train()
        worker.finish()
    return worker.stage.state()


def _peer(config: TrainConfig, rank: int) -> dict[str, Any]:
    """The same training by torch.distributed.pipelining; weights after the last step."""
    m, last = config.microbatches, config.stages - 1
    dist.init_process_group("gloo")
    module = model.build(config.model, rank, config.stages, config.seed)
    corpus = data.load(config.data.path, config.data.sha256, config.model.context)
    stage = pipelining.PipelineStage(module, rank, config.stages, torch.device("cpu"))
    kinds = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}
    # Ours divides the loss before the backward pass; theirs would divide the gradients after.
    schedule = kinds[config.schedule](
        stage, m, loss_fn=lambda out, y: model.loss_of(out, y) / m, scale_grads=False
    )
    weights: dict[str, torch.Tensor] = dict(module.named_parameters())
    optimizer = optim.build(config, weights)
    for step in range(1, config.steps + 1):
        x, y = (
            torch.from_numpy(part)
            for part in data.batch(
                corpus.train,
                seed=config.seed,
                step=step,
                sequences=m * config.microbatch,
                context=config.model.context,
            )
        )
        schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == last else {}))
        gradients = [w.grad for w in weights.values() if w.grad is not None]
        new = optimizer.step(list(weights.values()), gradients, config.lr)
        with torch.no_grad():
            for weight, value in zip(weights.values(), new, strict=True):
                weight.copy_(value)
                weight.grad = None
    dist.destroy_process_group()
    return {
        "slots": [{"version": config.steps, "weights": {n: w.detach() for n, w in weights.items()}}]
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
