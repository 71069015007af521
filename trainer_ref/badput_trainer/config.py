"""The settings of one run: checked once, frozen, and carried as JSON to every stage.

``TrainConfig.hash`` covers what decides the weights after a given number of steps, and
nothing else: a checkpoint may be continued for more steps, with another schedule of the
same delay or another checkpoint interval, but never with another model, text, batch or
learning rate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from badput_trainer import faults
from badput_trainer.schedule import DELAYS, SCHEDULES

BACKENDS = ("gloo", "nccl")
"""How tensors travel between stages."""

MODES = ("blocking", "background")
"""How checkpoints are saved, see ``saver``."""

SYNCHRONOUS = ("1f1b", "gpipe")
"""Schedules that drain before each step: no gradient is late."""

VOCABULARY = 256
"""The model reads bytes."""

OPTIMIZERS = {"adamw": 0.9, "muon": 0.95, "sgd": 0.9}
"""Every optimizer by its name on the command line, with its usual momentum."""

LEAST_MOMENTUM = 0.5
"""Up to here the correction narrows the range of stable learning rates instead of widening it."""


class ConfigError(ValueError):
    """A setting cannot work; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of the byte-level GPT."""

    layers: int = 4
    width: int = 64
    heads: int = 4
    context: int = 64
    """Tokens in one sequence."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The text and the digest that pins it."""

    path: str | None = None
    """A file or folder; None is the standard library's own sources."""
    sha256: str = ""
    """Digest of the whole text, filled in by the launcher and checked by every stage."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that a stage process needs to know. Raises ConfigError if it cannot work."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    name: str = "train"
    run: str | None = None
    """The run folder that badput records into; None records nothing."""
    checkpoint_dir: str = "checkpoints"
    stages: int = 2
    steps: int = 200
    microbatches: int = 8
    microbatch: int = 4
    """Sequences in one microbatch."""
    schedule: str = "1f1b"
    seed: int = 0
    optimizer: str = "adamw"
    momentum: float | None = None
    """Of the gradient's running mean (AdamW: beta1); None is the optimizer's usual."""
    correction: float = 0.0
    """alpha of a_t = u_t + alpha (u_t - u_{t-1}); 0 is none."""
    lr: float = 3e-3
    weight_decay: float = 0.1
    checkpoint_every: int = 50
    """Steps between checkpoints; 0 saves none."""
    keep: int = 3
    """Checkpoints that each stage keeps."""
    eval_every: int = 0
    log_every: int = 10
    faults: tuple[str, ...] = ()
    save: str = "blocking"
    """blocking, or background: training waits for the copy alone."""
    timeout: float = 600.0
    """Seconds to wait for another rank before it counts as lost."""
    rewind_above: float = 0.0
    """A loss this many times its recent mean makes all ranks go back; 0 never does."""
    backend: str = "gloo"
    lanes: bool = False
    """A process group for each direction and pair of neighbours; always so with NCCL."""
    jitter: float = 0.0
    """Random sleep of up to this many milliseconds in every pass, to stir up the order."""

    def __post_init__(self) -> None:
        """Check every value and every pair of values that must fit together."""
        self._check_ranges()
        if self.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise ConfigError(f"--schedule {self.schedule} is unknown; it is one of {known}.")
        if self.model.width % self.model.heads:
            raise ConfigError(
                f"--width {self.model.width} cannot be divided among --heads {self.model.heads}; "
                f"choose a multiple of it."
            )
        if self.stages > self.model.layers:
            raise ConfigError(
                f"--stages {self.stages} needs at least {self.stages} layers, "
                f"one for each stage; --layers is {self.model.layers}."
            )
        self._check_optimizer()
        if DELAYS[self.schedule] and self.microbatches < self.stages - 1:
            raise ConfigError(
                f"--schedule {self.schedule} with --stages {self.stages} needs at least "
                f"{self.stages - 1} --microbatches, not {self.microbatches}: "
                f"a stage runs at most one step ahead."
            )
        self._check_optimizer()
        if self.model.layers % self.stages:
            raise ConfigError(
                f"--layers {self.model.layers} cannot be divided among --stages {self.stages}; "
                f"choose a multiple of it."
            )
        self._check_running()
        self._check_faults()

    def _check_running(self) -> None:
        """What decides how it runs, not what comes out."""
        if self.save not in MODES:
            raise ConfigError(f"--save {self.save} is unknown; it is one of {', '.join(MODES)}.")
        if self.backend not in BACKENDS:
            known = ", ".join(BACKENDS)
            raise ConfigError(f"--backend {self.backend} is unknown; it is one of {known}.")
        if not 1 <= self.timeout <= 86_400:
            raise ConfigError(f"--timeout must be 1 to 86400 seconds, not {self.timeout}.")
        if self.rewind_above and not 1 < self.rewind_above <= 1e6:
            raise ConfigError(
                f"--rewind-above must be 0 or above 1, not {self.rewind_above}: "
                f"it is a multiple of the recent mean loss."
            )
        if self.rewind_above and not self.checkpoint_every:
            raise ConfigError(
                "--rewind-above needs checkpoints to go back to; --checkpoint-every is 0."
            )

    def _check_ranges(self) -> None:
        least = {
            "layers": (self.model.layers, 1),
            "width": (self.model.width, 1),
            "heads": (self.model.heads, 1),
            "context": (self.model.context, 1),
            "stages": (self.stages, 1),
            "steps": (self.steps, 1),
            "microbatches": (self.microbatches, 1),
            "microbatch": (self.microbatch, 1),
            "seed": (self.seed, 0),
            "checkpoint-every": (self.checkpoint_every, 0),
            "keep": (self.keep, 3),
            "eval-every": (self.eval_every, 0),
            "log-every": (self.log_every, 1),
        }
        for name, (value, low) in least.items():
            if value < low:
                raise ConfigError(f"--{name} must be at least {low}, not {value}.")
        if self.seed >= 2**63:
            raise ConfigError(f"--seed must be below 2**63, not {self.seed}.")
        # A NaN fails these comparisons too.
        if not 0 <= self.jitter <= 10_000:
            raise ConfigError(f"--jitter must be 0 to 10000 ms, not {self.jitter}.")
        if not 0 < self.lr <= 10:
            raise ConfigError(f"--lr must be above 0 and at most 10, not {self.lr}.")
        if not 0 <= self.weight_decay * self.lr < 1:
            raise ConfigError(
                f"--weight-decay {self.weight_decay} at --lr {self.lr} would turn weights around; "
                f"their product must lie in 0 to 1."
            )

    def _check_optimizer(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ConfigError(f"--optimizer {self.optimizer} is unknown; it is one of {known}.")
        if not 0 <= self.beta < 1:
            raise ConfigError(f"--momentum must be at least 0 and below 1, not {self.momentum}.")
        if not 0 <= self.correction <= 1:
            raise ConfigError(f"--correction must lie in 0 to 1, not {self.correction}.")
        if self.correction and self.beta <= LEAST_MOMENTUM:
            raise ConfigError(
                f"--correction {self.correction} needs a momentum above {LEAST_MOMENTUM}, but "
                f"--optimizer {self.optimizer} has {self.beta}; with that it makes training less "
                f"stable, so leave it out or raise --momentum."
            )
        if self.correction and self.schedule in SYNCHRONOUS:
            raise ConfigError(
                f"--correction {self.correction} is for gradients that are one step late, "
                f"which --schedule {self.schedule} does not make; leave it out."
            )

    def _check_faults(self) -> None:
        for text in self.faults:
            try:
                fault = faults.parse(text)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            if fault.rank >= self.stages:
                raise ConfigError(
                    f"--fault {text} names rank {fault.rank}, "
                    f"but {self.stages} stages are ranks 0 to {self.stages - 1}."
                )
            last = self.steps * self.microbatches
            if fault.microbatch > last:
                raise ConfigError(
                    f"--fault {text} would never fire: the run has {last} microbatches "
                    f"({self.steps} steps of {self.microbatches})."
                )
            self._check_fault_fits(text, fault)

    def _check_fault_fits(self, text: str, fault: faults.Fault) -> None:
        saves = (*faults.ON_CHECKPOINTS, "kill-save", "term")
        if fault.kind in saves and not self.checkpoint_every:
            raise ConfigError(f"--fault {text} needs checkpoints, but --checkpoint-every is 0.")
        first = self.checkpoint_every * self.microbatches
        if fault.kind in faults.ON_CHECKPOINTS and fault.microbatch <= first:
            raise ConfigError(
                f"--fault {text} would find no checkpoint: the first is written after "
                f"microbatch {first}, so name a later one."
            )
        if fault.kind == "spike" and fault.rank not in (0, self.stages - 1):
            raise ConfigError(f"--fault {text}: only rank 0 and rank {self.stages - 1} read data.")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees."""
        return self.microbatches * self.microbatch * self.model.context

    @property
    def beta(self) -> float:
        """The momentum that the optimizer has."""
        return OPTIMIZERS[self.optimizer] if self.momentum is None else self.momentum

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides the weights after n steps."""
        return {
            "model": dataclasses.asdict(self.model),
            "text": self.data.sha256,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "microbatch": self.microbatch,
            "seed": self.seed,
            "delay": DELAYS[self.schedule],
            "optimizer": self.optimizer,
            "momentum": self.beta,
            "correction": self.correction,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
        }

    @property
    def hash(self) -> str:
        """Digest of ``decisive``, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.decisive, sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """The settings as badput keeps them with the run."""
        out = dataclasses.asdict(self)
        for where_it_lies in ("name", "run", "checkpoint_dir"):
            del out[where_it_lies]
        return {**out, "tokens_per_step": self.tokens_per_step, "config_hash": self.hash}

    def to_json(self) -> str:
        """The whole configuration, for a stage process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """The inverse of ``to_json``."""
        raw = json.loads(text)
        raw["model"] = ModelConfig(**raw["model"])
        raw["data"] = DataConfig(**raw["data"])
        raw["faults"] = tuple(raw["faults"])
        return cls(**raw)
