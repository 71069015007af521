"""``badput serve`` and ``badput demo``: check what was given, then serve.

A mistake of the user is one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from badput_app import server, strings
from badput_app.state import Settings
from badput_ledger.price import GREATEST_PRICE

# Asked for here and not where it is used: a light install must hear at once what is missing.
import streamlit  # noqa: F401  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE_PRICE = 2.5
"""What the demo charges for a rank-hour. An example, and marked as one on every page."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` explains the options.\n")


def serve_main(argv: Sequence[str]) -> int:
    """``badput serve PATH...``: open the app on folders of runs. Returns the exit code."""
    parser = _parser("badput serve", strings.SERVE_HELP)
    parser.add_argument("paths", nargs="+", metavar="PATH", help=strings.PATH_HELP)
    args = parser.parse_intermixed_args(argv)
    try:
        paths = tuple(check_path(p) for p in args.paths)
    except ValueError as error:
        parser.exit(2, f"badput serve: {error}\n")
    return _serve("badput serve", args, Settings(paths, args.price, price_is_example=False))


def demo_main(argv: Sequence[str]) -> int:
    """``badput demo``: open the app on the sample runs of a checkout. Returns the exit code."""
    parser = _parser("badput demo", strings.DEMO_HELP.format(price=EXAMPLE_PRICE))
    args = parser.parse_intermixed_args(argv)
    folder = find_samples()
    if folder is None:
        parser.exit(2, f"badput demo: {strings.NO_SAMPLES}\n")
    example = args.price is None
    price = EXAMPLE_PRICE if example else args.price
    return _serve("badput demo", args, Settings((folder,), price, price_is_example=example))


def _parser(prog: str, description: str) -> _Parser:
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--port", type=_port, metavar="P", help=strings.PORT_HELP)
    parser.add_argument("--price", type=_price, metavar="X", help=strings.PRICE_OPTION_HELP)
    parser.add_argument("--no-browser", action="store_true", help=strings.NO_BROWSER_HELP)
    parser.add_argument("--no-token", action="store_true", help=strings.NO_TOKEN_HELP)
    return parser


def _serve(prog: str, args: argparse.Namespace, settings: Settings) -> int:
    browser = not args.no_browser and server.has_display()
    try:
        server.serve(settings, port=args.port, browser=browser, token=not args.no_token)
    except server.PortError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # The usual way to end it.
        print(file=sys.stderr)
    return 0


def check_path(text: str) -> Path:
    """The absolute folder ``text``; raises ValueError with a sentence if it is none."""
    path = Path(text).expanduser()
    if not path.exists():
        raise ValueError(strings.NO_FOLDER.format(path=text))
    if not path.is_dir():
        raise ValueError(strings.NOT_A_FOLDER.format(path=text))
    if not os.access(path, os.R_OK | os.X_OK):
        raise ValueError(strings.NO_PERMISSION.format(path=text))
    return path.resolve()


def find_samples() -> Path | None:
    """sample_logs/ of the checkout: from the current folder upwards, else the package's own."""
    here = Path.cwd()
    package = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, package):
        marker, samples = folder / "pyproject.toml", folder / "sample_logs"
        if samples.is_dir() and marker.is_file() and 'name = "badput"' in _text(marker):
            return samples
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(strings.BAD_PORT.format(text=text))
    return port


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 < price <= GREATEST_PRICE:  # neither is nan
        raise argparse.ArgumentTypeError(strings.BAD_PRICE.format(text=text))
    return price
