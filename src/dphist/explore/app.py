"""The server of the page, and which requests it accepts.

Everything is served below a random token, http://127.0.0.1:PORT/TOKEN/; other requests get a short error. Requests
for another host name (DNS rebinding) and from other sites (CSRF) are refused. There are no cookies, because
browsers would send them to all other services on this computer.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import Callable
from concurrent.futures import Future
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar, cast

from jinja2 import Environment

from dphist.errors import DphistError, InvalidParameter, MissingExtra, install_command
from dphist.explore import fields
from dphist.explore.answers import ANSWERS, NUMBERS
from dphist.report.charts import require_plotting

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtra(f"the page needs Starlette and uvicorn: {install_command('web')}") from None


if TYPE_CHECKING:
    from dphist.aliases import JsonObject

Answer = TypeVar("Answer")
# JSON takes up to two bytes for a character of plain text.
_LARGEST_BODY: Final = 2 * fields.LARGEST_UPLOAD
_MOST_CONNECTIONS: Final = 100
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


def serve(*, port: int = 0, browser: bool = True) -> None:
    """Serve the page until interrupted; port 0 takes any free port."""
    require_plotting()
    listener, token = listen(port), secrets.token_urlsafe(32)
    port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{token}/"
    sys.stdout.write(f"The page is at {address}\nAnyone on this computer with this address can use it. ")
    sys.stdout.write("Press Ctrl-C to stop.\n")
    sys.stdout.flush()
    if browser:
        # A text browser would block the server.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        uvicorn.Server(server_config(make_app(token=token, port=port))).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
    sys.stdout.write("\nStopped.\n")


def listen(port: int) -> socket.socket:
    """A listening socket on the loopback address."""
    if not 0 <= port <= 65535:
        raise InvalidParameter(f"the port must be between 0 and 65535, not {port}")
    # asyncio sets TCP_NODELAY only if the protocol is given.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidParameter(f"cannot use port {port}: {error.strerror}") from None
    return listener


def server_config(app: Starlette) -> uvicorn.Config:
    """The settings of uvicorn, without an access log, because addresses contain the token."""
    return uvicorn.Config(
        app, log_level="critical", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=1,
        limit_concurrency=_MOST_CONNECTIONS,
        # Other services on 127.0.0.1 can set cookies that the browser sends here: up to 180 of 4 KB.
        http=Connection, h11_max_incomplete_event_size=1 << 20,
    )  # fmt: skip


class Connection(H11Protocol):
    """A connection that makes room for itself: anyone can open connections and send nothing, without the token.

    If there are too many, the one that has waited longest for a request is closed. Without the token a request is
    refused at once, so only requests of the page can keep connections open.
    """

    _numbers = count()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wait()
        others = cast(set[Connection], self.connections)
        while len(others) >= _MOST_CONNECTIONS - 1:
            idle = [other for other in others if other.cycle is None or other.cycle.response_complete]
            if not idle:
                break  # uvicorn answers 503
            oldest = min(idle, key=lambda other: other.waiting_since)
            oldest.transport.close()
            others.discard(oldest)
        super().connection_made(transport)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self.waiting_since = next(self._numbers)


def make_app(*, token: str, port: int) -> Starlette:
    template = (files("dphist.explore") / "page" / "index.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    html = page.render(fields=fields, numbers=NUMBERS)
    # One computation at a time: the precision of ball arithmetic is global.
    computing = asyncio.Lock()

    async def index(_: Request) -> Response:
        return HTMLResponse(html)

    async def answer(request: Request) -> Response:
        find = ANSWERS.get(request.path_params["kind"])
        if find is None:
            raise HTTPException(404)
        data = await read_json(request)
        async with computing:
            if await request.is_disconnected():
                return Response(status_code=204)  # the page has sent newer values
            try:
                return JSONResponse(await run_in_daemon_thread(lambda: find(data)))
            except DphistError as error:
                field = error.field if isinstance(error, fields.WrongField) else None
                return error_response(422, str(error), field)
            except Exception as error:
                traceback.print_exception(error)
                return error_response(500, "This is a bug in dphist; the terminal shows the details.")

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(error.status_code, error.detail)

    routes = [
        Route("/", index),
        Route("/api/{kind}", answer, methods=["POST"]),
        Mount("/static", StaticFiles(packages=[("dphist.explore", "page")])),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(Guard, token=token, port=port)],
        exception_handlers={HTTPException: refuse},
    )


async def run_in_daemon_thread(compute: Callable[[], Answer]) -> Answer:
    """Run a computation without blocking other requests or the end of the process."""
    future: Future[Answer] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(compute())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)


class Guard:
    """Accepts only requests with the token, for this host, from the page itself; adds headers to responses."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app = app
        self.prefix = f"/{token}/".encode()
        names = ("127.0.0.1", "localhost")
        # Clients omit the default port.
        self.hosts = (*(f"{name}:{port}" for name in names), *(names if port == 80 else ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            return error_response(421, "This page is served only at its own address on this computer.")
        path = scope["path"].encode("utf-8", "replace")
        if not secrets.compare_digest(path[: len(self.prefix)], self.prefix):
            return error_response(403, "Open the full address that `dphist explore` printed.")
        if scope["method"] not in ("GET", "HEAD") and headers.get("origin") != f"http://{hosts[0].lower()}":
            return error_response(403, "Requests must come from the page itself.")
        return None


def error_response(status: int, sentence: str, field: str | None = None) -> Response:
    return JSONResponse({"error": sentence, "field": field}, status_code=status)


async def read_json(request: Request) -> JsonObject:
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
