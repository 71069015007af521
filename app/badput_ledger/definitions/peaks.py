"""Dense bf16 peaks by GPU name, from ``peaks.json``; unknown or ambiguous names have none."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any


def peak_of(gpu_type: str) -> tuple[Fraction | None, str]:
    """TFLOP/s of ``gpu_type`` and where that is from, or None and why not.

    A name is split into words; the entry whose words are all among them counts, the one with
    most words if several do. So A10 is no A100, and a bare H100, of which there are three
    kinds, has no peak.
    """
    words = _words(gpu_type)
    if "mig" in words:
        return None, f"{gpu_type} is a part of a GPU; set its peak"
    best: dict[str, Any] | None = None
    size = 0
    for entry in _table():
        for name in entry["names"]:
            wanted = _words(name)
            if wanted <= words and len(wanted) > size:
                best, size = entry, len(wanted)
    if best is None or best["tflops"] is None:
        why = best["source"] if best else f"no dense bf16 peak known for {gpu_type or 'the GPU'}"
        return None, f"{why}; set its peak"
    return Fraction(str(best["tflops"])), str(best["source"])


def _words(name: str) -> frozenset[str]:
    found = re.split(r"[^a-z0-9.]+", name.lower())
    return frozenset(w for w in found if w and w not in ("nvidia", "amd", "tesla", "geforce"))


@cache
def _table() -> list[dict[str, Any]]:
    text = files("badput_ledger.definitions").joinpath("peaks.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["peaks"]
    return found
