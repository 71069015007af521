"""The wheel: what is in it, and that a light install is light and friendly."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from badput import __version__
from badput.schema import TABLES


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built with the build backend that the tests have."""
    root = Path(__file__).resolve().parents[2]
    out = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "-o",
        str(out),
        str(root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh venv with the wheel and nothing of the extras."""
    root = Path(__file__).resolve().parents[2]
    venv = tmp_path_factory.mktemp("light") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    done = subprocess.run(
        [*pip, "-c", str(root / "constraints.txt"), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "No matching distribution" in done.stderr:
        pytest.skip("no package index within reach to install the wheel's dependencies from")
    assert done.returncode == 0, done.stderr
    return python


def run(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the light venv's python far from the checkout."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BADPUT_DIR")}
    return subprocess.run(
        [str(python), *args], capture_output=True, text=True, cwd="/", env=env, check=False
    )


def test_the_wheel_holds_the_four_packages_and_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names if ".dist-info" not in n}
    assert tops == {"badput", "badput_ledger", "badput_app", "badput_trainer"}
    assert "badput/py.typed" in names
    assert "badput_app/.streamlit/config.toml" in names
    assert any(n.startswith("badput_app/app_pages/") for n in names)
    assert any(n.startswith("badput_ledger/sql/") and n.endswith(".sql") for n in names)
    assert not [n for n in names if "__pycache__" in n or n.startswith("tests/")]


def test_a_light_install_brings_only_the_probes_needs(light: Path) -> None:
    done = run(light, "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze")
    have = {line.split("==")[0].lower() for line in done.stdout.split()}
    assert have <= {"badput", "pyarrow", "psutil", "nvidia-ml-py", "pip", "setuptools", "wheel"}


def test_import_badput_in_a_light_install_loads_nothing_heavy(light: Path) -> None:
    code = (
        "import sys, badput; print(badput.__version__);"
        "heavy = {'pyarrow', 'psutil', 'pynvml', 'numpy', 'torch', 'duckdb'} & set(sys.modules);"
        "sys.exit(bool(heavy))"
    )
    done = run(light, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == __version__


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("serve", "app"),
        ("demo", "app"),
        ("report", "ledger"),
        ("train", "trainer"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    light: Path, command: str, extra: str
) -> None:
    done = run(light, "-m", "badput.cli", command, ".")
    assert done.returncode == 2
    assert f"pip install 'badput[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_light_command_works_without_extras(light: Path) -> None:
    assert run(light, "-m", "badput.cli", "--help").returncode == 0
    assert run(light, "-m", "badput.cli", "collect", "--help").returncode == 0
    assert run(light, "-m", "badput.cli", "status", "--help").returncode == 0


def test_reading_logs_needs_the_ledger_and_says_so(light: Path) -> None:
    done = run(light, "-m", "badput.cli", "import", "train.log")
    assert done.returncode == 2
    assert "pip install 'badput[ledger]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_bad_usage() -> None:
    done = run(Path(sys.executable), "-m", "badput.cli", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_output_that_cannot_be_written_is_one_sentence() -> None:
    command = [sys.executable, "-m", "badput.cli", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "badput: cannot write the output: No space left on device\n"


def test_a_reader_that_goes_away_is_no_failure() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "badput.cli", "--help"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_schema_document_lists_every_table_and_column() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "schema.md").read_text()
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for table in TABLES.values():
        assert table.name in sections
        for column in table.columns:
            null = "yes" if column.nullable else "no"
            cells = (column.name, column.type, column.unit, null, column.meaning)
            assert f"| {' | '.join(cells)} |" in sections[table.name], f"{table.name}.{column.name}"
