"""`badput serve` and `badput demo`: mistakes are one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from badput_app import launch, server, state

if TYPE_CHECKING:
    from collections.abc import Iterator


def sentence(run: pytest.CaptureFixture[str]) -> str:
    """What was written to stderr, which must be one line and no traceback."""
    text = run.readouterr().err
    assert "Traceback" not in text
    assert text.strip().count("\n") == 0
    return text


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        launch.serve_main(args)
    assert stop.value.code == 2
    return sentence(capsys)


def test_a_folder_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such/folder" in fails(capsys, "/no/such/folder")


def test_a_file_is_not_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text("x")
    assert "is a file" in fails(capsys, str(file))


def test_no_folder_at_all_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert "PATH" in fails(capsys)


@pytest.mark.parametrize("port", ["http", "70000", "-1", "80.5"])
def test_a_port_that_is_none_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, port: str
) -> None:
    assert port in fails(capsys, str(tmp_path), f"--port={port}")


@pytest.mark.parametrize("price", ["cheap", "nan", "inf", "-2", "0"])
def test_a_price_that_is_none_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, price: str
) -> None:
    assert price in fails(capsys, str(tmp_path), f"--price={price}")


def test_an_option_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "--prize" in fails(capsys, str(tmp_path), "--prize=2")


def test_a_port_in_use_is_one_sentence_and_the_default_moves_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert launch.serve_main([str(tmp_path), "--port", str(port), "--no-browser"]) == 2
        assert f"port {port} is taken" in sentence(capsys)
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        with server.bind(None) as free:
            assert free.getsockname()[0] == "127.0.0.1"
            assert free.getsockname()[1] != port


def test_without_a_display_no_browser_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(server, "serve", lambda *_a, browser, **_k: asked.append(browser))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert launch.serve_main([str(tmp_path)]) == 0
    monkeypatch.setenv("DISPLAY", ":0")
    assert launch.serve_main([str(tmp_path), "--no-browser"]) == 0
    assert launch.serve_main([str(tmp_path)]) == 0
    assert asked == [False, False, True]


def test_the_browser_is_opened_by_a_private_file_and_not_by_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    server._open_browser(tmp_path, "http://127.0.0.1:1/?token=sesame")
    assert opened == [(tmp_path / "open.html").as_uri()]
    assert (tmp_path / "open.html").stat().st_mode & 0o077 == 0
    assert "sesame" in (tmp_path / "open.html").read_text()


def test_the_demo_opens_the_samples_of_the_checkout_at_an_example_price(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    asked: list[state.Settings] = []
    monkeypatch.setattr(server, "serve", lambda settings, **_k: asked.append(settings))
    monkeypatch.chdir(tmp_path)
    assert launch.demo_main([]) == 0
    assert launch.demo_main(["--price", "3"]) == 0
    assert asked[0].paths == (root / "sample_logs",)
    assert asked[0].price_is_example
    assert (asked[1].price, asked[1].price_is_example) == (3.0, False)


def test_the_demo_without_a_checkout_says_where_the_samples_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "a" / "b" / "launch.py"))
    with pytest.raises(SystemExit) as stop:
        launch.demo_main([])
    assert stop.value.code == 2
    assert "sample_logs" in sentence(capsys)


def test_settings_survive_the_way_through_the_environment() -> None:
    given = state.Settings((Path("/a b"), Path("/c'd")), 2.5, price_is_example=True)
    assert state.settings(state.to_env(given)) == given
    bare = state.Settings((Path("/a"),), None, price_is_example=False)
    assert state.settings(state.to_env(bare)) == bare


@contextmanager
def serving(*args: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server as a user would start it: the process and the address that it printed."""
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, "-m", "badput.cli", "serve", *args]
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
        assert found, line + (process.stderr.read() if process.stderr else "")
        yield process, found.group(0)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def get(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_serve_prints_its_address_needs_the_token_and_ends_clean_on_ctrl_c(tmp_path: Path) -> None:
    with serving(str(tmp_path), "--port", "0", cwd=Path("/")) as (process, address):
        assert "?token=" in address
        base = address.partition("?")[0]
        assert get(base) == 403
        assert get(base + "_stcore/health") == 403
        assert get(address) == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "Traceback" not in err
        assert err.strip() == ""
    with socket.socket() as probe:
        port = int(base.rsplit(":", 1)[1].strip("/"))
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_serve_without_a_token_lets_everyone_on_this_machine_in(tmp_path: Path) -> None:
    with serving(str(tmp_path), "--port", "0", "--no-token", cwd=tmp_path) as (_, address):
        assert "token" not in address
        assert get(address + "_stcore/health") == 200
