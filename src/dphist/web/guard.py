"""Who may see the page: the one who has the token, from a page of this very address."""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_TOKEN: Final = (
    "This page belongs to the person who started it. "
    "Open the address that `dphist explore` printed, with its token."
)
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Let through what comes with the token, to the right host, from the page itself."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app, self.token, self.port = app, token, port
        self.hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by itself where something is wrong; security headers go with every answer."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        response = self._refusal(scope)
        await (self.app if response is None else response)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return _refused(scope, 421, "This page answers to its own address on this computer only.")
        query = QueryParams(scope["query_string"])
        if scope["path"] == "/" and scope["method"] == "GET" and "token" in query:
            return self._welcomed(scope, query["token"])
        if not self._has_token(headers):
            return _refused(scope, 403, NO_TOKEN)
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin != f"http://{hosts[0].lower()}":
                return _refused(scope, 403, "Requests must come from the page itself.")
        return None

    def _welcomed(self, scope: Scope, given: str) -> Response:
        """The token of the address becomes a cookie, so that it stays in no history and no link."""
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return _refused(scope, 403, NO_TOKEN)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        return response

    @property
    def cookie(self) -> str:
        """Its name. Cookies do not know ports: two pages on one computer must not take each other's."""
        return f"dphist-{self.port}"

    def _has_token(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        given = "" if morsel is None else morsel.value
        return secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def _refused(scope: Scope, status: int, sentence: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": sentence, "field": None}, status_code=status)
    return PlainTextResponse(sentence + "\n", status_code=status)
