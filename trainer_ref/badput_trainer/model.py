"""A byte-level GPT, cut into pipeline stages.

Letters in the shape comments: B sequences of a microbatch, T tokens of a sequence,
D width, H heads, V = 256 bytes. The embedding and the output head are separate
matrices: sharing them would tie the first stage to the last.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from badput_trainer.config import VOCABULARY, ModelConfig

INIT_STD = 0.02


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.out(self._attend(self.norm_attention(x)))
        return x + self.down(functional.gelu(self.up(self.norm_mlp(x))))

    def _attend(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, d // self.heads)  # [B, T, 3, H, D/H]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, D/H]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(b, t, d)  # [B, T, D]


class StageModel(nn.Module):
    """The layers of one stage; the first also embeds, the last also predicts.

    Parameter names carry the layer's number in the whole model, so that the same weight
    has the same name, and the same initial value, however the model is cut.
    """

    def __init__(self, config: ModelConfig, stage: int, stages: int) -> None:
        super().__init__()
        first, last = stage == 0, stage == stages - 1
        width = config.width
        self.embed = nn.Embedding(VOCABULARY, width) if first else None
        self.position = nn.Embedding(config.context, width) if first else None
        numbers = layers_of(config.layers, stage, stages)
        self.blocks = nn.ModuleDict({str(i): Block(width, config.heads) for i in numbers})
        self.norm = nn.LayerNorm(width) if last else None
        self.head = nn.Linear(width, VOCABULARY, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, T] bytes on the first stage, else [B, T, D] -> [B, T, D], on the last [B, T, V]."""
        if self.embed is not None and self.position is not None:
            places = torch.arange(x.shape[1])
            x = self.embed(x) + self.position(places)  # [B, T] -> [B, T, D]
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))  # [B, T, D] -> [B, T, V]
        return x


def layers_of(layers: int, stage: int, stages: int) -> range:
    """The numbers of the layers of ``stage``: contiguous, and as even as can be."""
    return range(layers * stage // stages, layers * (stage + 1) // stages)


def build(config: ModelConfig, stage: int, stages: int, seed: int) -> StageModel:
    """One stage with its initial weights, which depend on the seed and the names alone."""
    model = StageModel(config, stage, stages)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue  # LayerNorm starts as the identity
            residual = name.endswith(("out.weight", "down.weight"))
            scale = INIT_STD / math.sqrt(2 * config.layers) if residual else INIT_STD
            parameter.normal_(0.0, scale, generator=_generator(seed, name))
    return model


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats a byte: [B, T, V] and [B, T] -> scalar."""
    return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def weights_digest(weights: dict[str, Tensor]) -> str:
    """sha256 over names, shapes and raw bytes, in the order of the names."""
    out = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().contiguous()
        out.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        out.update(value.numpy().tobytes())
    return out.hexdigest()


def _generator(seed: int, name: str) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7])
    return torch.Generator().manual_seed(number)
