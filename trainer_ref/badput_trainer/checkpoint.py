"""Checkpoints: every stage saves its own, and a step counts only where all stages have it.

    FOLDER/step-00000050/stage-0.pt     weights, optimizer, steps done
    FOLDER/step-00000050/stage-0.json   the manifest: size, sha256, configuration

Each file is written under a temporary name, flushed to disk and renamed; the manifest
comes last. A file that is missing, cut short or of another configuration makes its step
unusable for that stage, and the next older step that all stages have is taken instead.
Nothing here needs torch until a state is written or read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1


def step_folder(folder: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of ``step`` lies; all stages share it."""
    return Path(folder) / f"step-{step:08d}"


def save(
    folder: str | os.PathLike[str],
    *,
    step: int,
    stage: int,
    config_hash: str,
    state: dict[str, Any],
) -> int:
    """Write the state of one stage after ``step``; returns its bytes once they are on disk.

    Raises OSError (disk full, no permission); then the step is not usable.
    """
    import torch

    # Cloned first: what is written must not change under a later step (seam for saving
    # in the background), and views would drag the whole of their storage along.
    buffer = io.BytesIO()
    torch.save(_cloned(state), buffer)
    payload = buffer.getbuffer()
    target = step_folder(folder, step)
    target.mkdir(parents=True, exist_ok=True)
    name = f"stage-{stage}.pt"
    _write(target / name, payload)
    manifest = {
        "format": FORMAT,
        "step": step,
        "stage": stage,
        "config": config_hash,
        "file": name,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    _write(target / f"stage-{stage}.json", json.dumps(manifest).encode())
    _sync_folder(target)
    return len(payload)


def load(folder: str | os.PathLike[str], *, step: int, stage: int) -> dict[str, Any]:
    """The state of one stage. Only tensors and plain values are accepted from the file."""
    import torch

    path = step_folder(folder, step) / f"stage-{stage}.pt"
    return torch.load(path, map_location="cpu", weights_only=True)


def usable_steps(folder: str | os.PathLike[str], *, stage: int, config_hash: str) -> list[int]:
    """The steps whose file of this stage is whole and of this configuration, ascending."""
    return [
        step
        for step in saved_steps(folder, stage)
        if _is_whole(step_folder(folder, step), step, stage, config_hash)
    ]


def saved_steps(folder: str | os.PathLike[str], stage: int) -> list[int]:
    """The steps for which this stage has a manifest, ascending, whole or not."""
    manifests = Path(folder).glob(f"step-*/stage-{stage}.json")
    names = (m.parent.name.removeprefix("step-") for m in manifests)
    return sorted(int(name) for name in names if name.isdigit())


def newest_common(steps_of_stages: Iterable[Iterable[int]]) -> int:
    """The newest step that every stage has; 0 if there is none."""
    sets = [set(steps) for steps in steps_of_stages]
    return max(set.intersection(*sets), default=0)


def prune(folder: str | os.PathLike[str], *, stage: int, keep: int) -> None:
    """Remove this stage's files of all but the newest ``keep`` steps."""
    for step in saved_steps(folder, stage)[:-keep]:
        place = step_folder(folder, step)
        # Manifest first: a crash in between leaves a step that nobody will trust.
        (place / f"stage-{stage}.json").unlink(missing_ok=True)
        (place / f"stage-{stage}.pt").unlink(missing_ok=True)
        for half_written in place.glob(f".stage-{stage}.*.tmp"):
            half_written.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another stage still has files in it
            place.rmdir()


def foreign_manifest(folder: str | os.PathLike[str], config_hash: str) -> Path | None:
    """A manifest of another configuration in ``folder``, if there is one."""
    for path in sorted(Path(folder).glob("step-*/stage-*.json")):
        manifest = _read_manifest(path)
        if manifest is not None and manifest.get("config") != config_hash:
            return path
    return None


def _is_whole(place: Path, step: int, stage: int, config_hash: str) -> bool:
    manifest = _read_manifest(place / f"stage-{stage}.json")
    expected = {"format": FORMAT, "step": step, "stage": stage, "config": config_hash}
    if manifest is None or any(manifest.get(key) != value for key, value in expected.items()):
        return False
    try:
        payload = (place / f"stage-{stage}.pt").read_bytes()
    except OSError:
        return False
    return hashlib.sha256(payload).hexdigest() == manifest.get("sha256")


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _cloned(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _cloned(inner) for key, inner in value.items()}
    return value


def _write(path: Path, payload: bytes | memoryview) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
