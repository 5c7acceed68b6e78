"""Connections to the page's server: strangers cannot crowd it out, nor shut it with cookies, nor make it talk."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")

import httpx

from dphist.web import connections
from dphist.web.app import make_app
from dphist.web.guard import Keys
from processes import wait_until
from web_server import serving

KEYS = Keys()
PLACE = f"{KEYS.place}/"
COOKIE = f"dphist={KEYS.session}"
# What a stranger sends, and leaves at that; the last is a body that nobody reads, for it was refused.
UNFINISHED = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x",
    b"POST /s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(KEYS) as found:
        yield found


@contextmanager
def strangers(port: int, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        found = []
        for place in range(number):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            one.sendall(UNFINISHED[place % len(UNFINISHED)])
            found.append(one)
        yield found


def closed(one: socket.socket) -> bool:
    """Whether the server has closed it; an answer that came before is read."""
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent away for being slow: what ends a connection is what the test is about."""
    monkeypatch.setattr(connections, "HEADER", 600.0)


@pytest.mark.usefixtures("patient")
def test_strangers_cannot_crowd_the_page_out(client: httpx.Client) -> None:
    port = client.base_url.port
    assert port is not None
    own = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def asked() -> int:
        own.request("GET", PLACE, headers={"Cookie": COOKIE})
        answer = own.getresponse()
        answer.read()
        return answer.status

    assert asked() == 200
    mine = own.sock
    with strangers(port, connections.MOST + 50) as crowd:
        wait_until(lambda: sum(map(closed, crowd)) >= 50, "the end of those that are too many", 60)
        # The last ones are there still, but they keep out nobody who has the cookie, on whatever connection.
        assert not closed(crowd[-2])
        assert asked() == 200
        assert own.sock is mine
        assert client.get(PLACE, headers={"Cookie": COOKIE}).status_code == 200
    own.close()


def test_no_connection_waits_for_ever(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER", 0.3)
    assert client.base_url.port is not None
    with strangers(client.base_url.port, len(UNFINISHED)) as crowd:

        def all_closed() -> bool:
            for one in crowd[1:]:
                # A byte now and then does not make it last longer.
                with suppress(OSError):
                    one.send(b"x")
            return sum(map(closed, crowd)) == len(crowd)

        wait_until(all_closed, "the end of what was never asked", 60)


def test_cookies_of_other_services_do_not_shut_the_page(client: httpx.Client) -> None:
    """As many as a browser keeps for one host. Beyond that a sentence says what to do."""
    client.cookies.clear()
    many = "; ".join(f"n{place}={'x' * 4090}" for place in range(180))
    assert client.get(PLACE, headers={"Cookie": f"{many}; {COOKIE}"}).status_code == 200
    assert client.get(f"/?token={KEYS.token}", headers={"Cookie": many}).status_code == 200
    client.cookies.clear()
    refused = client.get(PLACE, headers={"Cookie": "; ".join([many, many, COOKIE])})
    assert refused.status_code == 400
    assert "cookies" in refused.text
    assert f"http://localhost:{client.base_url.port}/?token=..." in refused.text
    assert client.get(f"http://localhost:{client.base_url.port}/?token={KEYS.token}").status_code == 200
    client.cookies.clear()


@pytest.mark.usefixtures("patient")
def test_strangers_cannot_make_the_server_talk(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    assert client.base_url.port is not None
    with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60) as one:
        one.sendall(b"POST /s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 421")
        one.sendall(b"no chunk\r\n")
        wait_until(lambda: closed(one), "the end of what is no HTTP", 60)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    async def out_of_files() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(connections.quiet_when_crowded)
        loop.call_exception_handler({"message": "socket.accept() out of system resource"})
        loop.call_exception_handler({"message": "something else"})

    asyncio.run(out_of_files())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == ["something else"]


def test_the_port_of_http_is_left_out() -> None:
    async def status(port: int, host: str) -> int:
        app = make_app(keys=KEYS, port=port)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as found:
            return (await found.get(f"/?token={KEYS.token}", headers={"Host": host})).status_code

    for host in ("127.0.0.1", "localhost", "127.0.0.1:80"):
        assert asyncio.run(status(80, host)) == 200
        assert asyncio.run(status(8080, host)) == 421
    assert asyncio.run(status(80, "evil.example")) == 421
