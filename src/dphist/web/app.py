"""The web application: the page, its files, and an answer for each kind of question."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from dphist.web.answers import answer
from dphist.web.guard import Guard, Keys
from dphist.web.lanes import CROWDED, DIED, Lane, Question
from dphist.web.uploads import MOST_BYTES

FILES: Final = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "fields.js": "text/javascript",
    "shown.js": "text/javascript",
    "charts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_FIRST: Final = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
# JSON writes a character of a CSV in up to two bytes where it is plain text.
_MOST_BODY: Final = 2 * MOST_BYTES
# A tab names itself at random: its own newer question, and no other tab's, takes the place of an older one.
_TAB: Final = re.compile(r"[A-Za-z0-9-]{1,40}", re.ASCII)


class Lanes:
    """Where the slow questions go."""

    def __init__(self) -> None:
        self.certify, self.simulate = Lane(), Lane()

    def of(self, kind: str) -> Lane:
        """A simulation does not wait for certificates."""
        return self.simulate if kind == "simulate" else self.certify

    def give_up(self) -> None:
        """Nobody is to wait for an answer any more."""
        self.certify.give_up()
        self.simulate.give_up()


def make_app(*, keys: Keys, port: int, takes_code: Callable[[str], bool] = lambda _: False) -> Starlette:
    """The application for these keys and this port; a code may open it as well."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.lanes = lanes = Lanes()
        warm = asyncio.create_task(_warm(lanes))
        yield
        warm.cancel()
        with suppress(asyncio.CancelledError):
            await warm
        await lanes.certify.close()
        await lanes.simulate.close()

    routes = [
        Route("/", _page),
        Route("/static/{name}", _static),
        Route("/api/quick", _quick, methods=["POST"]),
        Route("/api/{kind:str}", _slow, methods=["POST"]),
    ]
    return Starlette(
        routes=[Mount(keys.place, routes=routes)],
        middleware=[Middleware(Guard, keys=keys, port=port, takes_code=takes_code)],
        exception_handlers={404: _no_such, 405: _no_such, 500: _fault},
        lifespan=lifespan,
    )


async def _warm(lanes: Lanes) -> None:
    """Load the library here and in the worker: what is first asked for should not wait for it."""
    await run_in_threadpool(answer, "quick", _FIRST)
    await lanes.certify.ask(Question("quick", _FIRST, tab="warm"))


async def _page(_: Request) -> Response:
    return _file("index.html")


async def _static(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    if name not in FILES:
        return PlainTextResponse("There is no such page.\n", status_code=404)
    content = (files("dphist.web") / "page" / name).read_bytes()
    return Response(content, media_type=FILES[name])


async def _quick(request: Request) -> Response:
    data = await _data(request)
    return data if isinstance(data, Response) else _answered(await run_in_threadpool(answer, "quick", data))


async def _slow(request: Request) -> Response:
    kind = request.path_params["kind"]
    if kind not in ("plan", "compare", "figure", "simulate"):
        return _error(404, "There is no such question.")
    tab = request.headers.get("x-dphist-tab", "")
    if not _TAB.fullmatch(tab):
        return _error(400, "The request must name its tab, in at most 40 letters, digits and hyphens.")
    data = await _data(request)
    if isinstance(data, Response):
        return data
    lane, question = request.app.state.lanes.of(kind), Question(kind, data, tab)
    watch = asyncio.create_task(_drop_when_left(request, lane, question))
    try:
        return _answered(await lane.ask(question))
    finally:
        watch.cancel()


async def _drop_when_left(request: Request, lane: Lane, question: Question) -> None:
    """A tab that was closed, or has new values, must not hold up the others."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    lane.drop(question)


async def _data(request: Request) -> Any:
    """The JSON of a request, or the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _error(415, "The request must be JSON.")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY:
                return _error(413, f"The request is larger than {_MOST_BODY // 1024**2} MB.")
    except ClientDisconnect:
        return _error(400, "The request ended before its end.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return _error(400, "The request is not JSON.")


def _answered(found: dict[str, Any]) -> Response:
    if "fault" in found:
        return _error(500, "This could not be computed: a fault of the page, not of what you entered.")
    if found is DIED or found is CROWDED:
        return JSONResponse(found, status_code=503)
    return JSONResponse(found, status_code=422 if "error" in found else 200)


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence, "field": None}, status_code=status)


async def _no_such(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _error(status, "There is no such page." if status == 404 else "This address is asked in another way.")


async def _fault(_: Request, __: Exception) -> Response:
    return _error(500, "This could not be computed: a fault of the page, not of what you entered.")
