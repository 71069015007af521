"""What the pages promise exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from badput.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_named_on_a_page_exist(page: Path) -> None:
    code = re.findall(r"```(?:sh|bash|console)?\n(.*?)```", page.read_text(), re.DOTALL)
    for block in code:
        for command in re.findall(r"^\$? ?badput ([a-z]+)", block, re.MULTILINE):
            assert command in COMMANDS, f"{page.name} names `badput {command}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_named_on_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
        assert target in targets, f"{page.name} names `make {target}`"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "badput.cli", command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert f"badput {command}" in done.stdout


def test_architecture_fits_its_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_no_module_outgrows_its_reader() -> None:
    packages = [ROOT / "probe", ROOT / "app", ROOT / "trainer_ref"]
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in packages
        for path in folder.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long
