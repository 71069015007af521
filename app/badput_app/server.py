"""The server process: one socket on 127.0.0.1, streamlit behind the gate.

It runs in the process that was started, with no child, so that ending the command ends
everything.
"""

from __future__ import annotations

import errno
import html
import os
import secrets
import shutil
import socket
import sys
import tempfile
import webbrowser
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from badput_app import state, strings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOST, DEFAULT_PORT, TRIES = "127.0.0.1", 8501, 50
SCRIPT = Path(__file__).with_name("streamlit_app.py")


class PortError(Exception):
    """The port cannot be had; the text is a sentence for the user."""


def bind(port: int | None) -> socket.socket:
    """A listening socket on 127.0.0.1.

    ``port`` None: the default, or the next free one after it. Raises PortError if the port
    asked for is taken or not allowed.
    """
    wanted = [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + TRIES)
    for number in wanted:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, number))
            sock.listen(128)
        except OSError as error:
            sock.close()
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            raise PortError(_port_sentence(number, error)) from error
        return sock
    raise PortError(strings.NO_PORT.format(first=DEFAULT_PORT, last=DEFAULT_PORT + TRIES - 1))


def _port_sentence(port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return strings.PORT_BUSY.format(port=port)
    return strings.PORT_REFUSED.format(port=port, error=error.strerror)


def serve(settings: state.Settings, *, port: int | None, browser: bool, token: bool) -> None:
    """Serve the app until it is interrupted. Raises PortError."""
    sock = bind(port)
    try:
        _serve_on(
            sock, settings, browser=browser, token=secrets.token_urlsafe(24) if token else None
        )
    finally:
        sock.close()


def _serve_on(
    sock: socket.socket, settings: state.Settings, *, browser: bool, token: str | None
) -> None:
    number = sock.getsockname()[1]
    os.environ.update(state.to_env(settings))
    os.environ["STREAMLIT_SERVER_PORT"] = str(number)
    os.environ["STREAMLIT_BROWSER_SERVER_PORT"] = str(number)
    # What config.toml says, said where an environment or home configuration cannot undo it.
    os.environ["STREAMLIT_SERVER_ADDRESS"] = HOST
    os.environ["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] = "false"
    import streamlit as st
    import uvicorn
    from starlette.middleware import Middleware

    from badput_app.gate import Gate

    address = f"http://{HOST}:{number}/" + (f"?token={token}" if token else "")

    @asynccontextmanager
    async def announce(_app: Any) -> AsyncIterator[None]:
        print(strings.SERVING.format(address=address), flush=True)
        folder = tempfile.mkdtemp(prefix="badput-") if browser else None
        if folder:
            Thread(target=_open_browser, args=(Path(folder), address), daemon=True).start()
        try:
            yield None
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    app = st.App(SCRIPT, lifespan=announce, middleware=[Middleware(Gate, token=token, port=number)])
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[sock])


def has_display() -> bool:
    """Can a browser show anything here?"""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(folder: Path, address: str) -> None:
    """Open the address through a file of ours: a command line is readable by other users."""
    page = folder / "open.html"
    page.touch(mode=0o600)
    url = html.escape(address)
    page.write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">'
        f'<a href="{url}">badput</a>',
        encoding="utf-8",
    )
    webbrowser.open(page.as_uri())
