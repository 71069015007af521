"""The HTML report in a real browser: no network, no errors, both looks, hostile text as text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from badput_app.report_html import render
from badput_ledger.books import open_books

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'> {{7*7}} \u202e \x00\n"
)


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._raw else data


def page_of(run: Path) -> str:
    with open_books(run, price=2.5) as books:
        return render(books.report(), books.timeline())


@pytest.fixture
def run(killed_run: Path) -> Path:
    return killed_run / "tiny"


@pytest.fixture
def hostile_run(run: Path, tmp_path: Path) -> Path:
    from badput import parts

    row = {"process_id": 11, "time_ns": 1, "name": HOSTILE, "source": HOSTILE}
    config = {"notes": [HOSTILE], "currency": "<b>"}
    parts.write_rows(run, "runs", "hostile", [row | {"config": json.dumps(config)}])
    event = {"process_id": 12, "seq": 9000, "rank": 1, "time_ns": 1_790_000_034_500_000_000}
    event |= {"kind": "failure", "attrs": json.dumps({"what": HOSTILE, "signature": HOSTILE})}
    parts.write_rows(run, "events", "hostile", [event])
    return run


def test_one_file_that_asks_for_nothing(run: Path) -> None:
    page = Page(page_of(run))
    loads = [
        v for _, attrs in page.tags for k, v in attrs.items() if k in ("src", "href", "action")
    ]
    assert loads == []
    assert [t for t, _ in page.tags].count("script") == 3
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    script = policy.split("script-src")[1].split(";")[0]
    assert script.count("'sha256-") == 2
    assert "unsafe" not in script
    assert page_of(run).count("plotly.js v") == 1


def test_the_page_holds_what_the_report_says(run: Path) -> None:
    with open_books(run, price=2.5) as books:
        report = books.report()
    text = " ".join(Page(page_of(run)).text.split())
    for said in ("headline", "why", "next"):
        assert report["verdict"][said] in text
    for leaf, row in report["leaves"].items():
        assert row["gpu_seconds"] == 0 or leaf in text
    for note in report["quality"]:
        assert note["what"] in text


def test_hostile_text_makes_no_tag(hostile_run: Path, run: Path) -> None:
    page = Page(page_of(hostile_run))
    assert "window.pwned = 1" in page.text
    assert {t for t, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "b", "section",
        "dl", "div", "dt", "dd", "small", "table", "thead", "tbody", "tr", "th", "td", "script",
    }  # fmt: skip
    assert all(not k.startswith("on") for _, attrs in page.tags for k in attrs)
    assert "\u202e" not in page_of(hostile_run)
    assert "\x00" not in page_of(hostile_run)


def test_without_plotly_it_says_what_to_install(run: Path) -> None:
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from badput_ledger.cli import report_main\n"
        "sys.exit(report_main([sys.argv[1], '--format', 'html', '-o', sys.argv[2]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run), str(run / "r.html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'badput[app]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (run / "r.html").exists()


@pytest.fixture
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=chromium, args=ARGS)
        try:
            yield opened
        finally:
            opened.close()


def opened(browser: Any, file: Path, look: str, width: int = 1280) -> tuple[Any, list[str]]:
    """The page with the network off, and everything that went wrong on it."""
    context = browser.new_context(
        offline=True, color_scheme=look, viewport={"width": width, "height": 900}
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:"))
            else wrong.append(r.url))  # fmt: skip
    page.goto(file.as_uri())
    page.wait_for_selector(f"html[data-drawn={look}]")
    page.locator("#timeline .bars path").first.wait_for()
    return page, wrong


@pytest.mark.browser
@pytest.mark.parametrize("look", ["light", "dark"])
def test_it_opens_with_the_network_off_in_both_looks(
    browser: Any, run: Path, tmp_path: Path, look: str
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(run), encoding="utf-8")
    page, wrong = opened(browser, file, look)
    for name in ("waterfall", "dollars", "timeline"):
        assert page.locator(f"#{name} .bars path").count() >= 3, name
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(int(n) for n in re.findall(r"\d+", back)[:3]) > 382
    assert light == (look == "light")
    color = page.evaluate("getComputedStyle(document.querySelector('#waterfall .ytick text')).fill")
    assert (sum(int(n) for n in re.findall(r"\d+", color)[:3]) < 382) == light
    # nothing is wider than the window
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    other = "dark" if look == "light" else "light"
    page.emulate_media(color_scheme=other)
    page.wait_for_selector(f"html[data-drawn={other}]")
    assert wrong == []


@pytest.mark.browser
def test_hostile_text_runs_nowhere(browser: Any, hostile_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(hostile_run), encoding="utf-8")
    page, wrong = opened(browser, file, "light", width=390)
    page.locator("#timeline .scatterlayer path").first.hover(force=True)
    assert page.evaluate("window.pwned === undefined")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert wrong == []


@pytest.mark.browser
def test_the_policy_keeps_the_browser_from_running_and_fetching(
    browser: Any, run: Path, tmp_path: Path
) -> None:
    """The guard behind the escaping: a script and a picture that got in all the same."""
    bad = "<script>window.pwned = 1</script><img src='http://127.0.0.1:9/x.png'></main>"
    file = tmp_path / "report.html"
    file.write_text(page_of(run).replace("</main>", bad), encoding="utf-8")
    page, wrong = opened(browser, file, "light")
    assert page.evaluate("window.pwned === undefined")
    assert any("Content Security Policy" in w for w in wrong)
