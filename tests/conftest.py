"""Shared fixtures. What a test needs and the machine lacks is a skip with a reason,
and a failure where BADPUT_REQUIRE names it (CI installs everything and says so)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

# Under nohup SIGHUP is ignored, and so it would be in all children: tests send it to some.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent


def missing(what: str, reason: str) -> NoReturn:
    """Skip because ``what`` is absent, or fail where BADPUT_REQUIRE lists it."""
    if what in os.environ.get("BADPUT_REQUIRE", "").split(","):
        pytest.fail(f"{what} is required here but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_logs() -> Path:
    """Real logs of other people's runs, which are not part of the project."""
    folder = ROOT.parent / "shared" / "logs"
    if not folder.is_dir():
        pytest.skip(
            f"no folder of foreign logs at {folder.parent.name}/{folder.name} beside the checkout"
        )
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a system chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    missing("chromium", "no chromium on PATH; on Debian: apt-get install chromium chromium-driver")


@pytest.fixture(scope="session")
def gcc() -> str:
    """Path of a C compiler."""
    if path := shutil.which("gcc"):
        return path
    missing("gcc", "no gcc on PATH; on Debian: apt-get install gcc libc6-dev")


@pytest.fixture
def needs() -> Callable[..., None]:
    """Says which packages a test needs."""

    def check(*packages: str) -> None:
        for package in packages:
            if importlib.util.find_spec(package) is None:
                missing(package, f"{package} is not installed; the group adapters has it")

    return check


@pytest.fixture(scope="session")
def absent() -> Callable[[str, str], NoReturn]:
    """Skips, or fails where BADPUT_REQUIRE says so, for something that is found in a test."""
    return missing


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT
