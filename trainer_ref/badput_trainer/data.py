"""The text, without a download: the sources of Python's own standard library.

Files are read in the order of their relative paths and joined; the sha256 of the whole
is pinned in the run's configuration, so a run cannot be continued on another text by
accident (after an upgrade of Python, say). Batches depend on the seed and the step
number alone: a restarted run sees what the uninterrupted one saw.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BLOCKS = 20
"""The text is cut into this many equal blocks, and every tenth is for validation."""

_SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__"})


class DataError(ValueError):
    """The text cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The two parts of the text, as bytes."""

    train: np.ndarray
    validation: np.ndarray


def read_text(path: str | None) -> bytes:
    """All files below ``path`` (or the one file), joined; None is the standard library.

    Raises DataError if there is nothing to read.
    """
    if path is not None and Path(path).is_file():
        return Path(path).read_bytes()
    root = Path(path if path is not None else sysconfig.get_paths()["stdlib"])
    if not root.is_dir():
        raise DataError(f"--text {path} does not exist; name a file or a folder of *.py files.")
    files = {p.relative_to(root).as_posix(): p for p in root.rglob("*.py")}
    wanted = sorted(name for name in files if _SKIPPED.isdisjoint(name.split("/")))
    if not wanted:
        raise DataError(f"{root} holds no *.py files; name a text with --text FILE.")
    return b"".join(files[name].read_bytes() for name in wanted)


def digest(text: bytes) -> str:
    """The sha256 that pins a text."""
    return hashlib.sha256(text).hexdigest()


def load(path: str | None, sha256: str, context: int) -> Corpus:
    """Read the text, check that it is the pinned one and split it.

    Raises DataError if the text has changed or is too short for ``context``.
    """
    text = read_text(path)
    if digest(text) != sha256:
        raise DataError(
            f"the text is not the one this run began with (sha256 {digest(text)[:12]}, "
            f"expected {sha256[:12]}); use the same Python version or the same --text."
        )
    return split(text, context)


def split(text: bytes, context: int) -> Corpus:
    """Cut the text into blocks; blocks 10 and 20 are for validation.

    Raises DataError if a part is shorter than one sequence.
    """
    blocks = np.array_split(np.frombuffer(text, dtype=np.uint8), BLOCKS)
    validation = np.concatenate([b for i, b in enumerate(blocks) if i % 10 == 9])
    train = np.concatenate([b for i, b in enumerate(blocks) if i % 10 != 9])
    if len(validation) <= context:
        raise DataError(
            f"the text has {len(text)} bytes, too few for --context {context}; "
            f"it needs at least {10 * (context + 2)}."
        )
    return Corpus(train, validation)


def batch(
    part: np.ndarray, *, seed: int, step: int, sequences: int, context: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and next-byte targets of step ``step``, both int64 [sequences, context]."""
    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    starts = random.integers(0, len(part) - context, size=sequences)
    windows = part[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return windows[:, :-1], windows[:, 1:]
