"""One real browser: what a user sees and clicks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.browser

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# On a deep link the frontend asks below the page's own path first for where the server is.
# The 404 is how it learns that it is not there.
PROBES = re.compile(r"/overview/_stcore/(health|host-config)$")


@pytest.fixture
def address(killed_run: Path) -> Iterator[str]:
    """The app on a folder with one run, on a free port, as a user starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "badput.cli", "serve", str(killed_run), "--no-browser"]
    command += ["--port", str(port), "--price", "2"]
    process = subprocess.Popen(
        command,
        cwd="/",
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found.group(0)
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Watch:
    """Collects what must not happen: console errors and requests to another host."""

    def __init__(self, page: Any) -> None:
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type == "error" and not PROBES.search(message.location.get("url", "")):
            self.errors.append(message.text)

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.foreign.append(request.url)


def wait_for_text(page: Any, selector: str, pattern: str) -> None:
    """Wait until an element shows ``pattern``; the page redraws in pieces."""
    deadline = time.monotonic() + 60
    while not re.search(pattern, page.locator(selector).first.text_content(timeout=60_000) or ""):
        assert time.monotonic() < deadline, f"{selector} never showed {pattern}"
        page.wait_for_timeout(100)


def test_from_the_list_to_the_verdict_to_the_dollars_and_back_after_a_reload(
    chromium: str, address: str
) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=ARGS)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(60_000)
            watch = Watch(page)

            page.goto(address)
            link = page.get_by_role("link", name="tiny-killed")
            link.wait_for()
            assert "token" not in page.url
            link.click()

            page.locator("h3").first.wait_for()
            page.wait_for_url("**/overview?run=tiny")
            page.get_by_text("Next:").first.wait_for()
            chart = page.locator(".js-plotly-plot").first
            chart.locator(".bars path").first.wait_for()
            # Drawn inside the first screen, with every bar as a path of some size.
            assert chart.bounding_box()["y"] < 900
            assert chart.locator(".bars path").count() >= 3
            wait_for_text(page, ".js-plotly-plot .xtitle", "rank-")

            page.get_by_role("radio", name="Dollars").or_(
                page.get_by_role("button", name="Dollars")
            ).first.click()
            wait_for_text(page, ".js-plotly-plot .xtitle", "USD")
            page.wait_for_url("**unit=Dollars**")

            page.reload()
            wait_for_text(page, ".js-plotly-plot .xtitle", "USD")
            assert "run=tiny" in page.url

            assert watch.errors == []
            assert watch.foreign == []
        finally:
            browser.close()
