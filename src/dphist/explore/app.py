"""The application and its server: the page, its files, and an answer to each kind of request."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import Callable
from concurrent.futures import Future
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from dphist.errors import DphistError, InvalidParameter, MissingExtra
from dphist.explore import fields
from dphist.explore.answers import ANSWERS
from dphist.explore.guard import Guard, error_response, read_json
from dphist.report.charts import require_plotting

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ImportError:
    raise MissingExtra("the page needs Starlette and uvicorn: pip install 'dphist[web]'") from None


def serve(*, port: int = 0, browser: bool = True) -> None:
    """Serve the page until it is interrupted. A port of 0 is any that is free."""
    require_plotting()
    listener, token = listen(port), secrets.token_urlsafe(32)
    port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{token}/"
    sys.stdout.write(f"The page is at {address}\nAnyone on this computer with this address can use it. ")
    sys.stdout.write("Press Ctrl-C to stop.\n")
    sys.stdout.flush()
    if browser:
        # A browser in a terminal would block the server.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        uvicorn.Server(server_config(make_app(token=token, port=port))).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
    sys.stdout.write("\nStopped.\n")


def listen(port: int) -> socket.socket:
    """A socket on the loopback address that already takes connections."""
    if not 0 <= port <= 65535:
        raise InvalidParameter(f"the port must be between 0 and 65535, not {port}")
    # asyncio sends small answers without delay only where the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidParameter(f"port {port} cannot be used: {error.strerror}") from None
    return listener


def server_config(app: Starlette) -> uvicorn.Config:
    """The settings of uvicorn: no access log, because addresses contain the token."""
    return uvicorn.Config(
        app, log_level="critical", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=1,
        limit_concurrency=100,
        # Every other service on 127.0.0.1 can set cookies that the browser sends here: up to 180 of 4 KB.
        http="h11", h11_max_incomplete_event_size=1 << 20,
    )  # fmt: skip


def make_app(*, token: str, port: int) -> Starlette:
    """The application below this token, for requests to this port."""
    template = (files("dphist.explore") / "page" / "index.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    html = page.render(
        size=fields.SIZE, items_per_user=fields.ITEMS_PER_USER, publish=fields.PUBLISH, privacy=fields.PRIVACY,
        budget=fields.BUDGET, options=fields.OPTIONS, example=fields.EXAMPLE,
    )  # fmt: skip
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
                return Response(status_code=204)  # the page has newer values
            try:
                return JSONResponse(await run_in_daemon_thread(lambda: find(data)))
            except DphistError as error:
                return error_response(422, str(error), fields.field_of(error))
            except Exception as error:
                traceback.print_exception(error)
                return error_response(500, "This could not be computed: a bug in dphist, see the terminal.")

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


async def run_in_daemon_thread(compute: Callable[[], Any]) -> Any:
    """The result of a computation that does not block other requests, nor the end of the process."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(compute())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
