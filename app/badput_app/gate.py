"""Who may talk to the app: a middleware around all of it, HTTP and websocket.

127.0.0.1 is shared by everyone on a login node. As with Jupyter, the address that is
printed holds a random token; the first visit exchanges it for a cookie that scripts cannot
read and other sites cannot send. Host names other than this machine's are refused, so that
a foreign page cannot rebind its name to the app.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import HTMLResponse, PlainTextResponse

from badput_app import strings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
TOKEN = "token"  # noqa: S105 - the name of the parameter


class Gate:
    """ASGI middleware: lets in who has the token or the cookie that it was exchanged for.

    ``token`` None: only the host name is checked.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], *, token: str | None, port: int
    ) -> None:
        self._app = app
        self._token = token
        # Cookies do not tell ports apart: two servers on one machine need two names.
        self._cookie = f"badput-{port}"
        self._session = hashlib.sha256(f"badput session {token}".encode()).hexdigest()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on, answer the token, or refuse."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        if _host_name(headers.get("host", "")) not in HOSTS:
            await _refuse(scope, receive, send, strings.WRONG_HOST)
        elif self._token is None or self._has_cookie(headers.get("cookie", "")):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and self._has_token(scope):
            await self._welcome(scope)(scope, receive, send)
        else:
            await _refuse(scope, receive, send, strings.NO_TOKEN)

    def _has_cookie(self, header: str) -> bool:
        try:
            morsel = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(
            morsel.value.encode(), self._session.encode()
        )

    def _has_token(self, scope: dict[str, Any]) -> bool:
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        return hmac.compare_digest(query.get(TOKEN, "").encode(), (self._token or "").encode())

    def _welcome(self, scope: dict[str, Any]) -> HTMLResponse:
        """Set the cookie and go on to the same address without the token.

        A page with a refresh and not a redirect: after a click on a link of another site, a
        redirect would still count as that site's, and the strict cookie would stay behind.
        """
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        query = urlencode([(k, v) for k, v in pairs if k != TOKEN])
        # One leading slash: two would name another host.
        target = "/" + quote(scope["path"].lstrip("/")) + (f"?{query}" if query else "")
        response = HTMLResponse(
            '<!doctype html><meta charset="utf-8">'
            f'<meta http-equiv="refresh" content="0;url={html.escape(target)}">'
            "<title>badput</title>",
            headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"},
        )
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="strict")
        return response


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


async def _refuse(scope: dict[str, Any], receive: Any, send: Any, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": "badput"})
        return
    await PlainTextResponse(text, status_code=403)(scope, receive, send)
