"""The server of the page: which requests it accepts, and that a slow one does not block others."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from importlib.resources import files
from typing import Any

import pytest

import dphist
from dphist.errors import InvalidParameter, MissingExtra

pytest.importorskip("starlette", reason="no starlette: pip install -e '.[dev]'")
pytest.importorskip("uvicorn", reason="no uvicorn: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")
pytest.importorskip("vl_convert", reason="no vl_convert: pip install -e '.[dev]'")

import httpx

from dphist.explore.answers import ANSWERS
from dphist.explore.app import listen, make_app, serve
from explore_page import START, serving
from processes import wait_until

TOKEN = "A-token-of-the-tests"
# Stands for the port, so that tests have the same names in every process.
PORT = "PORT"
NONSENSE: list[Any] = ["NaN", "1e999", "-1", "💥", "\ud800", "9" * 5000, [], {}, 7, True]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(TOKEN) as found:
        yield found


def post(client: httpx.Client, kind: str, data: object, **headers: str) -> httpx.Response:
    own = {"Content-Type": "application/json", **headers}
    return client.post(f"/{TOKEN}/api/{kind}", content=json.dumps(data).encode(), headers=own)


def with_port(client: httpx.Client, text: str) -> str:
    return text.replace(PORT, str(client.base_url.port))


@pytest.mark.parametrize("token", ["", "x/", TOKEN[:-1] + "/", TOKEN + "x/", TOKEN.upper() + "/", "%ED%A0%80/"])
def test_nothing_is_served_without_the_token(client: httpx.Client, token: str) -> None:
    for path in ("", "static/page.js", "api/plain", "favicon.ico", f"?token={TOKEN}", f"%2e%2e/{TOKEN}/"):
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            response = client.request(method, f"/{token}{path}", headers={"Cookie": f"token={TOKEN}"})
            assert response.status_code == 403, (method, path)
            assert len(response.content) < 120
            assert method == "HEAD" or b"Open the full address" in response.content
            assert not {"set-cookie", "access-control-allow-origin"} & set(response.headers)


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "localhost", f"0.0.0.0:{PORT}",
     "", f"127.0.0.1:{PORT}.evil.example", f"127.0.0.1.evil.example:{PORT}", f"127.0.0.1:{PORT}, evil.example"],
)  # fmt: skip
def test_other_hosts_are_refused_even_with_the_token(client: httpx.Client, host: str) -> None:
    host = with_port(client, host)
    for path in (f"/{TOKEN}/", f"/{TOKEN}/static/page.js"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code in (400, 421)  # 400 where it is not a host at all
        assert len(response.content) < 120
    assert post(client, "plain", START, Host=host).status_code in (400, 421)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT}/", None]
)
def test_other_origins_are_refused_even_with_the_token(client: httpx.Client, origin: str | None) -> None:
    request = client.build_request("POST", f"/{TOKEN}/api/plain", json=START)
    if origin is None:
        del request.headers["Origin"]
    else:
        request.headers["Origin"] = with_port(client, origin)
    response = client.send(request)
    assert response.status_code == 403
    assert response.json()["error"] == "Requests must come from the page itself."


def test_security_headers(client: httpx.Client) -> None:
    page = client.get(f"/{TOKEN}/")
    assert TOKEN not in page.text
    for response in (page, client.get(f"/{TOKEN}/static/page.js"), post(client, "plain", START), client.get("/")):
        assert response.headers["cache-control"] == "no-store"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in response.headers


def test_addresses_methods_and_sizes(client: httpx.Client) -> None:
    for path in ("nowhere", "static/app.py", "static/..%2fapp.py", "static/../app.py", "static/", "api"):
        assert client.get(f"/{TOKEN}/{path}").status_code == 404, path
    assert post(client, "nothing", START).status_code == 404
    assert client.get(f"/{TOKEN}/api/plain").status_code == 405
    assert client.post(f"/{TOKEN}/").status_code == 405
    assert post(client, "plain", START, **{"Content-Type": "text/plain"}).status_code == 415
    as_json = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'"x"', b"[]", b"null"):
        response = client.post(f"/{TOKEN}/api/plain", content=body, headers=as_json)
        assert response.status_code == 400
        assert response.json()["error"]
    big = client.post(f"/{TOKEN}/api/trial", content=b" " * (11 * 1024**2), headers=as_json)
    assert (big.status_code, big.json()["error"]) == (413, "The request is larger than 10 MB.")


def test_nonsense_is_a_client_error(client: httpx.Client) -> None:
    for name in ("epsilon", "delta", "max_items_per_user"):
        for value in NONSENSE:
            response = post(client, "plain", {**START, name: value})
            assert response.status_code == 422
            assert response.json()["field"] == name
    for csv in ("item,count\na,900\nb\ud800,900\n", "\0", ["1"], {"a": 1}):
        response = post(client, "plain", {**START, "csv": csv})
        assert (response.status_code, response.json()["field"]) == (422, "csv")


def test_all_kinds_are_answered(client: httpx.Client) -> None:
    answers = {kind: post(client, kind, START) for kind in ANSWERS}
    assert {response.status_code for response in answers.values()} == {200}
    expected = dphist.plan(epsilon=1, delta=1e-6).to_dict()
    assert answers["plain"].json()["plan"] == json.loads(json.dumps(expected))


def test_a_slow_request_blocks_nothing_else(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is served meanwhile, and a waiting request whose tab has gone is not computed."""
    release, computed = threading.Event(), []

    def slow(data: dict[str, str]) -> dict[str, str]:
        computed.append(data["name"])
        assert release.wait(60)
        return data

    monkeypatch.setitem(ANSWERS, "plain", slow)
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(post, client, "plain", {"name": "first"})
        wait_until(lambda: computed, "the first request", 60)
        assert client.get(f"/{TOKEN}/").status_code == client.get(f"/{TOKEN}/static/page.js").status_code == 200
        tab = httpx.Client(base_url=client.base_url, headers=client.headers, trust_env=False)
        with tab, pytest.raises(httpx.ReadTimeout):
            tab.post(f"/{TOKEN}/api/plain", json={"name": "given up"}, timeout=0.5)
        release.set()
        assert first.result().json() == {"name": "first"}
        assert post(client, "plain", {"name": "last"}).json() == {"name": "last"}
    assert computed == ["first", "last"]


def test_a_bug_is_reported_and_the_next_request_answered(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> dict[str, Any]:
        raise KeyError("a fault")

    with monkeypatch.context() as patched:
        patched.setitem(ANSWERS, "plain", fail)
        response = post(client, "plain", START)
    assert (response.status_code, response.json()["field"]) == (500, None)
    assert "a fault" not in response.text
    assert "content-security-policy" in response.headers
    error = capfd.readouterr().err
    assert "KeyError: 'a fault'" in error
    assert TOKEN not in error
    assert post(client, "plain", START).status_code == 200


def test_cookies_of_other_services_do_not_block_the_page(client: httpx.Client) -> None:
    """As many as a browser keeps for one host."""
    many = "; ".join(f"n{place}={'x' * 4090}" for place in range(180))
    assert client.get(f"/{TOKEN}/", headers={"Cookie": many}).status_code == 200


def test_half_open_connections_do_not_block_the_page(client: httpx.Client) -> None:
    """Anyone on this computer can open connections without the token; the oldest are closed."""
    place = ("127.0.0.1", client.base_url.port or 0)
    begun = (b"", b"GET /", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    with ExitStack() as opened, httpx.Client(base_url=client.base_url, trust_env=False) as other:
        for number in range(300):
            connection = opened.enter_context(socket.create_connection(place, timeout=60))
            connection.sendall(begun[number % len(begun)])
        # A new connection, and one that was open before all others.
        assert [each.get(f"/{TOKEN}/").status_code for each in (other, client)] == [200, 200]


def test_requests_in_progress_are_not_closed_for_new_connections(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Event()

    def slow(data: dict[str, str]) -> dict[str, str]:
        begun.set()
        assert release.wait(60)
        return data

    monkeypatch.setitem(ANSWERS, "plain", slow)
    with ThreadPoolExecutor(1) as beside, ExitStack() as opened:
        answer = beside.submit(post, client, "plain", {"name": "first"})
        assert begun.wait(60)
        for _ in range(150):
            opened.enter_context(socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60))
        with httpx.Client(base_url=client.base_url, trust_env=False) as other:
            assert other.get(f"/{TOKEN}/").status_code == 200
        release.set()
        assert answer.result().json() == {"name": "first"}


def test_the_default_port_may_be_omitted() -> None:
    async def status(port: int, host: str) -> int:
        app = make_app(token=TOKEN, port=port)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as found:
            return (await found.get(f"/{TOKEN}/", headers={"Host": host})).status_code

    for host in ("127.0.0.1", "localhost", "127.0.0.1:80"):
        assert asyncio.run(status(80, host)) == 200
        assert asyncio.run(status(8080, host)) == 421
    assert asyncio.run(status(80, "evil.example")) == 421


def test_the_server_needs_its_extras_and_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameter, match="between 0 and 65535"):
        serve(port=70_000, browser=False)
    with listen(0) as taken, pytest.raises(InvalidParameter, match="Address already in use"):
        serve(port=taken.getsockname()[1], browser=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dphist.explore.app")
    with pytest.raises(MissingExtra, match=r"pip install starlette uvicorn vl-convert-python$"):
        import_module("dphist.explore.app")


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for path in (files("dphist.explore") / "page").iterdir():
        own = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not any(word in own for word in ("http://", "https://", "//cdn", "innerHTML", '"/static', '"/api'))
