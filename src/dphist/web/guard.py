"""Who may see the page: the one who has the token, from a page of this very address.

The printed token, or the code of an `Invitation`, opens one address: "/". What is served lives at a secret place,
/s/<random>/, and asks for a cookie as well, which the browser sends to that place only. Cookies do not know ports:
one for all of 127.0.0.1 would go to every other service of this computer that the same browser visits, whoever
runs it. None of those knows the place, so none is ever sent the cookie; and the address alone, which somebody may
see on a screen, opens nothing. Token, code, place and cookie are random and say nothing of each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dphist.web.connections import LET_IN

NO_TOKEN: Final = (
    "This page belongs to the person who started it. "
    "Open the address that `dphist explore` printed, with its token."
)
USED: Final = (
    "This way in works once, within a minute. Open the address that `dphist explore` printed, with its token."
)
COOKIE: Final = "dphist"
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
# A page and not a redirection: the browser counts a redirection as the deed of the page it came from, which may be
# another site's or a file, and would hold the cookie back. This page goes on by itself.
_WELCOME: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={place}">
<title>dphist: explore plans</title>
<link rel="icon" href="{place}static/icon.svg" type="image/svg+xml">
<p><a href="{place}">To the page</a></p>
"""


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Keys:
    """What opens the page: the token that is printed; the place and the cookie that only the browser learns."""

    token: str = field(default_factory=_secret, repr=False)
    place: str = field(default_factory=lambda: f"/s/{_secret()}", repr=False)
    session: str = field(default_factory=_secret, repr=False)


class Guard:
    """Let through what comes with the cookie, to the right host and place, from the page itself."""

    def __init__(self, app: ASGIApp, *, keys: Keys, port: int, takes_code: Callable[[str], bool]) -> None:
        self.app, self.keys, self.takes_code = app, keys, takes_code
        names = ("127.0.0.1", "localhost")
        # Clients leave out the port that is http's own.
        self.hosts = (*(f"{name}:{port}" for name in names), *(names if port == 80 else ()))

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
        if scope["path"] == "/" and scope["method"] == "GET":
            return self._at_the_door(scope)
        if not (self._at_the_place(scope) and self._has_cookie(headers)):
            return _refused(scope, 403, NO_TOKEN)
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin != f"http://{hosts[0].lower()}":
                return _refused(scope, 403, "Requests must come from the page itself.")
        scope.setdefault("state", {})[LET_IN] = True
        return None

    def _at_the_door(self, scope: Scope) -> Response:
        """The token or the code becomes a cookie, and the way to the place."""
        query = QueryParams(scope["query_string"])
        if not _same(query.get("token", ""), self.keys.token) and not self.takes_code(query.get("code", "")):
            return _refused(scope, 403, USED if "code" in query else NO_TOKEN)
        place = f"{self.keys.place}/"
        response = HTMLResponse(_WELCOME.format(place=place))
        response.set_cookie(COOKIE, self.keys.session, httponly=True, samesite="strict", path=place)
        return response

    def _at_the_place(self, scope: Scope) -> bool:
        place = f"{self.keys.place}/"
        return _same(scope["path"][: len(place)], place)

    def _has_cookie(self, headers: Headers) -> bool:
        """Any of that name may be right: other services of this computer can add cookies, but must not shut it."""
        given = (part.strip() for line in headers.getlist("cookie") for part in line.split(";"))
        return any(_same(part, f"{COOKIE}={self.keys.session}") for part in given)


def _same(given: str, right: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _refused(scope: Scope, status: int, sentence: str) -> Response:
    if "/api/" in scope["path"]:
        return JSONResponse({"error": sentence, "field": None}, status_code=status)
    return PlainTextResponse(sentence + "\n", status_code=status)
