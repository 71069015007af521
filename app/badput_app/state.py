"""What the app was started with, and which runs that gives.

The launcher hands its settings over in environment variables: the pages run in the
same process, and tests set the same variables.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from badput.parts import FACTS
from badput.schema import TABLES
from badput_ledger.annotations import FILE
from badput_ledger.runs import find_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

PATHS, PRICE, EXAMPLE = "BADPUT_APP_PATHS", "BADPUT_APP_PRICE", "BADPUT_APP_PRICE_EXAMPLE"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the app was started."""

    paths: tuple[Path, ...]
    price: float | None
    """Price of one GPU-hour (or rank-hour) given at the start; None: ask the run."""
    price_is_example: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One run that was found: its key in the URL, its folder, name and source."""

    key: str
    path: Path
    name: str
    source: str
    start_ns: int | None = None


def newest_first(runs: list[Run]) -> list[Run]:
    """By the start of the run; one that does not say it, by the age of its newest file."""
    return sorted(runs, key=lambda r: r.start_ns or stamp(r.path)[1], reverse=True)


def to_env(settings: Settings) -> dict[str, str]:
    """The environment variables that carry ``settings``."""
    return {
        PATHS: json.dumps([str(p) for p in settings.paths]),
        PRICE: "" if settings.price is None else repr(settings.price),
        EXAMPLE: "1" if settings.price_is_example else "",
    }


def settings(env: Mapping[str, str] | None = None) -> Settings:
    """The settings in ``env``; without any, the current folder and no price."""
    env = os.environ if env is None else env
    price = env.get(PRICE) or ""
    return Settings(
        paths=tuple(Path(p) for p in json.loads(env.get(PATHS) or "[]")) or (Path.cwd(),),
        price=float(price) if price else None,
        price_is_example=bool(env.get(EXAMPLE)),
    )


def list_runs(paths: tuple[Path, ...]) -> list[Run]:
    """The runs below ``paths``, each under a key that fits a URL and is unique.

    A key only ever looks a run up in this list: it is never used as a path.
    """
    out: list[Run] = []
    seen: set[str] = set()
    for root in paths:
        found = [(ref.path, ref.name, ref.source, ref.start_ns) for ref in find_runs(root)]
        known = {path for path, *_ in found}
        found += [(p, p.name, "unknown", None) for p in _forbidden(root) if p not in known]
        for path, name, source, start in found:
            key = base = _key(root, path)
            number = 2
            while key in seen:
                key = f"{base}~{number}"
                number += 1
            seen.add(key)
            out.append(Run(key, path, name, source, start))
    return out


def _forbidden(root: Path) -> list[Path]:
    """Folders right below ``root`` that we may not read: each gets a row that says so,
    since a run that is silently missing looks like a run that never was."""
    try:
        below = sorted(Path(e.path) for e in os.scandir(root) if e.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [p for p in below if not _readable(p) or not _readable(p / FACTS)]


def _readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK) or not os.access(folder, os.F_OK)


def _key(root: Path, path: Path) -> str:
    try:
        relative = path.relative_to(root).as_posix()
    except ValueError:
        relative = path.name
    return path.resolve().name if relative in ("", ".") else relative


def stamp(path: Path) -> tuple[int, int]:
    """Number of parts of a run, with the bytes of what people said about it, and the time of the
    newest in ns: changes when the run grows or somebody annotates it.

    A folder that cannot be read counts as empty; reading the run then says why.
    """
    parts, newest = 0, 0
    for table in TABLES:
        try:
            with os.scandir(path / FACTS / table) as entries:
                for entry in entries:
                    parts += 1
                    newest = max(newest, entry.stat().st_mtime_ns)
        except OSError:
            continue
    try:
        said = (path / FILE).stat()
        parts, newest = parts + said.st_size, max(newest, said.st_mtime_ns)
    except OSError:
        pass  # nobody said anything
    return parts, newest
