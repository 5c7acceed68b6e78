"""Who may use the page: someone with its address, from a tab of that very address.

Everything is served below a random token, http://127.0.0.1:PORT/TOKEN/. Without the token there is one sentence
and nothing else. A request for another host name is refused (DNS rebinding), and so is one that another site
sends (CSRF). There are no cookies: browsers would send them to every other service of this computer.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_UPLOAD: Final = 5 * 1024 * 1024
# JSON needs up to two bytes for a character of plain text.
_LARGEST_BODY: Final = 2 * LARGEST_UPLOAD
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Lets through requests with the token, for this host, from the page itself; adds headers to every answer."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app = app
        self.prefix = f"/{token}/".encode()
        names = ("127.0.0.1", "localhost")
        # Clients leave out the port that is http's own.
        self.hosts = (*(f"{name}:{port}" for name in names), *(names if port == 80 else ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return error_response(421, "This page is served at its own address on this computer only.")
        path = scope["path"].encode("utf-8", "replace")
        if not secrets.compare_digest(path[: len(self.prefix)], self.prefix):
            return error_response(403, "Open the full address that `dphist explore` printed.")
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{hosts[0].lower()}":
            return error_response(403, "Requests must come from the page itself.")
        return None


def error_response(status: int, sentence: str, field: str | None = None) -> Response:
    """An error in the form that the page reads."""
    return JSONResponse({"error": sentence, "field": field}, status_code=status)


async def read_json(request: Request) -> dict[str, Any]:
    """The object in the body of a request, within the limit of size."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The request must be JSON.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_BODY:
                raise HTTPException(413, f"The request is larger than {_LARGEST_BODY // 1024**2} MB.")
        data = json.loads(body)
    except ClientDisconnect:
        raise HTTPException(400, "The request is incomplete.") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not JSON.") from None
    if not isinstance(data, dict):
        raise HTTPException(400, "The request must be a JSON object.")
    return data
