"""The gate: token, cookie, host name, for HTTP and websocket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from badput_app.gate import Gate


async def inside(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    """The app behind the gate."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


@dataclass
class Visitor:
    """A client that sends one request at a time and keeps its cookie."""

    token: str | None = "sesame"
    host: str = "127.0.0.1:8501"
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, path: str, kind: str = "http") -> tuple[int, str]:
        """Status and body of a request, or 101 and 403 for a websocket."""
        path, _, query = path.partition("?")
        headers = [(b"host", self.host.encode()), (b"cookie", self.cookie.encode())]
        scope = {
            "type": kind,
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
            "method": "GET",
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": f"{kind}.connect" if kind == "websocket" else "http.request"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        asyncio.run(Gate(inside, token=self.token, port=8501)(scope, receive, send))
        if kind == "websocket":
            return (101 if sent[0]["type"] == "websocket.accept" else 403), ""
        self.headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        if "set-cookie" in self.headers:
            self.cookie = self.headers["set-cookie"].partition(";")[0]
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:]).decode()


def test_without_the_token_there_is_nothing_to_see() -> None:
    for path in (
        "/",
        "/overview?run=x",
        "/_stcore/health",
        "/?token=wrong",
        "/?token=",
        "/?token=é",
    ):
        status, text = Visitor().request(path)
        assert status == 403
        assert "inside" not in text


def test_the_token_is_exchanged_for_a_strict_cookie_and_leaves_the_address() -> None:
    visitor = Visitor()
    status, text = visitor.request("/overview?run=a%20b&token=sesame")
    assert status == 200
    cookie = visitor.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "sesame" not in cookie + text
    assert "url=/overview?run=a+b" in text
    assert visitor.headers["referrer-policy"] == "no-referrer"
    assert visitor.request("/overview?run=a") == (200, "inside")


def test_a_path_of_two_slashes_does_not_lead_to_another_host() -> None:
    _, text = Visitor().request("//evil.example/?token=sesame")
    assert "url=/evil.example" in text
    assert "url=//" not in text


def test_markup_in_the_address_is_not_markup_in_the_answer() -> None:
    _, text = Visitor().request('/"><script>?x="><script>&token=sesame')
    assert "<script>" not in text


def test_the_websocket_wants_the_cookie_too() -> None:
    visitor = Visitor()
    assert visitor.request("/_stcore/stream", "websocket")[0] == 403
    assert visitor.request("/_stcore/stream?token=sesame", "websocket")[0] == 403
    visitor.request("/?token=sesame")
    assert visitor.request("/_stcore/stream", "websocket")[0] == 101


def test_a_cookie_that_was_not_given_here_is_worth_nothing() -> None:
    for cookie in (f"badput-8501={'0' * 64}", "badput-8501=", "a b=;;=", "\xff=\xff"):
        assert Visitor(cookie=cookie).request("/")[0] == 403


def test_a_foreign_host_name_is_refused_even_without_a_token() -> None:
    for host in ("127.0.0.1:8501", "localhost:1", "LOCALHOST", "[::1]:8501"):
        assert Visitor(token=None, host=host).request("/")[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil:8501", ""):
        assert Visitor(token=None, host=host).request("/")[0] == 403
        assert Visitor(token=None, host=host).request("/x", "websocket")[0] == 403
