"""Checkpoints: every stage saves its own, and a step counts only where all stages have it.

    FOLDER/step-00000050/stage-0.pt     weights, optimizer, steps done, data position
    FOLDER/step-00000050/stage-0.json   the manifest: size, sha256, configuration, run

Each file is written under a temporary name, flushed to disk and renamed; the manifest
comes last. A file that is missing, cut short or of another configuration makes its step
unusable for that stage, and the next older step that all stages have is taken instead.
There are no activations in a checkpoint: a stage of an asynchronous schedule keeps both
of its weight slots, and the warm-up passes run again at the older one.
Nothing here needs torch until a state is written or read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose checkpoint it is."""

    config_hash: str
    """Digest of what decides the weights (``TrainConfig.hash``)."""
    run: str = ""
    """Name of the run; empty if it is not known."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the digest covers, to say what differs. Plain values."""


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
    origin = Origin(config_hash)
    return write(folder, step=step, stage=stage, origin=origin, state=snapshot(state))


def write(
    folder: str | os.PathLike[str],
    *,
    step: int,
    stage: int,
    origin: Origin,
    state: dict[str, Any],
    halfway: Callable[[], None] | None = None,
) -> int:
    """As ``save``, of a state that nobody changes meanwhile (see ``snapshot``).

    ``halfway`` is called when half of the file is written. Raises OSError.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    target = step_folder(folder, step)
    target.mkdir(parents=True, exist_ok=True)
    name = f"stage-{stage}.pt"
    manifest = {
        "format": FORMAT,
        "step": step,
        "stage": stage,
        "config": origin.config_hash,
        "run": origin.run,
        "settings": origin.settings,
        "position": int(state.get("position", step)),
        "file": name,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    _write(target / name, payload, halfway)
    _write(target / f"stage-{stage}.json", json.dumps(manifest).encode())
    _sync_folder(target)
    _sync_folder(target.parent)
    return len(payload)


def snapshot(state: Any) -> Any:
    """A copy that later steps do not change: tensors on the CPU, each with its own storage.

    Views would drag the whole of their storage into the file.
    """
    import torch

    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: snapshot(inner) for key, inner in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(snapshot(inner) for inner in state)
    return state


def load(folder: str | os.PathLike[str], *, step: int, stage: int) -> dict[str, Any]:
    """The state of one stage. Only tensors and plain values are accepted from the file."""
    import torch

    path = step_folder(folder, step) / f"stage-{stage}.pt"
    return torch.load(path, map_location="cpu", weights_only=True)


def usable_steps(folder: str | os.PathLike[str], *, stage: int, config_hash: str) -> list[int]:
    """The steps whose file of this stage is whole and of this configuration, ascending."""
    return list(usable(folder, stage=stage, config_hash=config_hash))


def usable(folder: str | os.PathLike[str], *, stage: int, config_hash: str) -> dict[int, int]:
    """As ``usable_steps``, each with its data position: how many batches had been read."""
    found: dict[int, int] = {}
    for step in saved_steps(folder, stage):
        manifest = _whole_manifest(step_folder(folder, step), step, stage, config_hash)
        if manifest is not None:
            found[step] = int(manifest.get("position", step))
    return found


def saved_steps(folder: str | os.PathLike[str], stage: int) -> list[int]:
    """The steps for which this stage has a manifest, ascending, whole or not."""
    manifests = Path(folder).glob(f"step-*/stage-{stage}.json")
    names = (m.parent.name.removeprefix("step-") for m in manifests)
    return sorted(int(name) for name in names if name.isdigit())


def newest_common(steps_of_stages: Iterable[Iterable[int]]) -> int:
    """The newest step that every stage has; 0 if there is none."""
    sets = [set(steps) for steps in steps_of_stages]
    return max(set.intersection(*sets), default=0)


def agreed(usable_of_stages: Iterable[dict[int, int]]) -> tuple[int, int] | None:
    """The newest step that every stage has with the same data position, and that position.

    None if there is none. Positions differ where a rewind was interrupted.
    """
    sets = [set(found.items()) for found in usable_of_stages]
    return max(set.intersection(*sets), default=None)


def prune(folder: str | os.PathLike[str], *, stage: int, keep: int) -> None:
    """Remove this stage's files of all but the newest ``keep`` steps."""
    for step in saved_steps(folder, stage)[:-keep]:
        remove(folder, step=step, stage=stage)


def remove(folder: str | os.PathLike[str], *, step: int, stage: int) -> None:
    """Remove this stage's files of ``step``."""
    place = step_folder(folder, step)
    # Manifest first: a crash in between leaves a step that nobody will trust.
    (place / f"stage-{stage}.json").unlink(missing_ok=True)
    (place / f"stage-{stage}.pt").unlink(missing_ok=True)
    _remove_half_written(place, stage)
    with contextlib.suppress(OSError):  # another stage still has files in it
        place.rmdir()


def tidy(folder: str | os.PathLike[str], *, stage: int) -> None:
    """Remove what a killed process of this stage left half written."""
    for place in Path(folder).glob("step-*"):
        _remove_half_written(place, stage)


def foreign_manifest(folder: str | os.PathLike[str], config_hash: str) -> Path | None:
    """A manifest of another configuration in ``folder``, if there is one."""
    for path, manifest in _manifests(folder):
        if manifest.get("config") != config_hash:
            return path
    return None


def difference(manifest: Path, settings: dict[str, Any]) -> str | None:
    """The first setting in which ``manifest`` differs, as words; None if it does not say."""
    theirs = (_read_manifest(manifest) or {}).get("settings")
    if not isinstance(theirs, dict):
        return None
    for name, mine in settings.items():
        if name in theirs and theirs[name] != mine:
            return f"{name} is {theirs[name]} there and {mine} here"
    return None


def foreign_run(folder: str | os.PathLike[str], run: str) -> str | None:
    """The name of another run than ``run`` that saved into ``folder``, if there is one."""
    names = (str(manifest.get("run") or run) for _, manifest in _manifests(folder))
    return next((name for name in names if name != run), None)


def _manifests(folder: str | os.PathLike[str]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(Path(folder).glob("step-*/stage-*.json")):
        manifest = _read_manifest(path)
        if manifest is not None:
            yield path, manifest


def _whole_manifest(place: Path, step: int, stage: int, config_hash: str) -> dict[str, Any] | None:
    """The manifest, if it fits and the file beside it is what it says."""
    manifest = _read_manifest(place / f"stage-{stage}.json")
    expected = {"format": FORMAT, "step": step, "stage": stage, "config": config_hash}
    if manifest is None or any(manifest.get(key) != value for key, value in expected.items()):
        return None
    try:
        payload = (place / f"stage-{stage}.pt").read_bytes()
    except OSError:
        return None
    whole = hashlib.sha256(payload).hexdigest() == manifest.get("sha256")
    return manifest if whole else None


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _remove_half_written(place: Path, stage: int) -> None:
    for half_written in place.glob(f".stage-{stage}.*.tmp"):
        half_written.unlink(missing_ok=True)


def _write(
    path: Path, payload: bytes | memoryview, halfway: Callable[[], None] | None = None
) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    half = len(payload) // 2
    try:
        with temporary.open("wb") as handle:
            handle.write(payload[:half])
            handle.flush()
            if halfway is not None:
                halfway()
            handle.write(payload[half:])
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
