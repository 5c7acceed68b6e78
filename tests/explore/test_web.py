"""The page's server: who is let in, what is refused, and that its numbers are the library's."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dphist

pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")

import httpx

import web_server
from dphist.web import lanes
from dphist.web.guard import Keys
from processes import kill, wait_until
from web_server import computed, place_in, serving, workers

KEYS = Keys(token="a-token-of-the-tests")
PLACE = f"{KEYS.place}/"
COOKIE = f"dphist={KEYS.session}"
# Names of tests are the same in every process: a port is put in where this stands.
PORT = "PORT"
FIELDS = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
# A certificate for this takes minutes.
ENDLESS = {"epsilon": "1e-6", "delta": "1e-12", "top": "1000000"}
LAW = {"items": "1000", "users": "100000", "exponent": "1", "mean_items": "5"}
KINDS = ("quick", "plan", "compare", "figure", "simulate")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(KEYS) as found:
        yield found


@pytest.fixture
def inside(client: httpx.Client) -> Iterator[httpx.Client]:
    """A client that came with the token."""
    client.cookies.clear()
    assert place_in(client.get(f"/?token={KEYS.token}").text) == PLACE
    client.headers["Origin"] = home(client)
    yield client
    client.cookies.clear()
    client.headers.pop("Origin", None)


def placed(client: httpx.Client, text: str) -> str:
    """The text with the port of the server in it."""
    return text.replace(PORT, str(client.base_url.port))


def home(client: httpx.Client) -> str:
    return placed(client, f"http://127.0.0.1:{PORT}")


def post(client: httpx.Client, kind: str, data: object, **options: Any) -> httpx.Response:
    return web_server.post(client, PLACE, kind, data, **options)


# ---- who is let in


PATHS = ["", "static/page.js", "static/page.css", "api/plan", "favicon.ico", "nowhere", "/", "static/../app.py"]


def refused(client: httpx.Client, path: str, cookie: str) -> None:
    """One sentence, whatever is tried."""
    headers = {"Cookie": cookie.encode("utf-8"), "Origin": home(client).encode()}
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        response = client.request(method, f"{home(client)}{path}", headers=headers)  # type: ignore[arg-type]
        assert response.status_code == 403, method
        assert len(response.content) < 250
        assert method == "HEAD" or b"belongs to the person who started it" in response.content
        assert "set-cookie" not in response.headers
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_without_the_cookie_or_elsewhere(client: httpx.Client, path: str) -> None:
    client.cookies.clear()
    for cookie in (
        "",
        "dphist=",
        COOKIE[:-1],
        COOKIE + "x",
        f"dphist={KEYS.token}",
        f"dphist1={KEYS.session}",
        "dphist=ä",
    ):
        refused(client, PLACE + path, cookie)
    # The cookie alone opens nothing: neither at other places, nor at ones that resemble it.
    for place in ("/", KEYS.place[:-1] + "/", KEYS.place + "x/", "/s/"):
        refused(client, place + path, COOKIE)


def test_other_services_cannot_shut_the_page(client: httpx.Client) -> None:
    """They can set cookies of any name for this computer, and the browser sends those as well."""
    client.cookies.clear()
    for cookie in (f"{COOKIE}; dphist=x", f"dphist=x; {COOKIE}", f'a="; {COOKIE}', f"=; \x7f; {COOKIE};"):
        assert client.get(PLACE, headers={"Cookie": cookie}).status_code == 200, cookie


def test_a_wrong_token_in_the_address_is_refused(client: httpx.Client) -> None:
    client.cookies.clear()
    right = KEYS.token
    for wrong in (
        "",
        "x",
        right + "x",
        right[:-1],
        "%F0%9F%92%A5",
        "%00",
        "%ED%A0%80",
        right.upper(),
        KEYS.session,
    ):
        for name in ("token", "code"):
            response = client.get(f"/?{name}={wrong}")
            assert response.status_code == 403
            assert "Open the address that `dphist explore` printed" in response.text
            assert "set-cookie" not in response.headers
    assert client.get("/", headers={"Cookie": COOKIE}).status_code == 403


def test_the_token_becomes_a_cookie_for_a_secret_place(client: httpx.Client) -> None:
    """Which scripts do not see, and which says nothing of the token; the token works again and again."""
    client.cookies.clear()
    for _ in range(2):
        response = client.get(f"/?token={KEYS.token}")
        assert response.status_code == 200
        value, *attributes = response.headers["set-cookie"].split("; ")
        assert value == COOKIE
        assert {one.lower() for one in attributes} == {"httponly", f"path={PLACE}".lower(), "samesite=strict"}
        assert KEYS.token not in response.text + response.headers["set-cookie"]
    page = client.get(PLACE)
    assert page.status_code == 200
    assert not any(secret in page.text for secret in (KEYS.token, KEYS.session, KEYS.place))
    assert len({KEYS.token, KEYS.session, KEYS.place, Keys().session, Keys().token, Keys().place}) == 6
    assert KEYS.session not in repr(KEYS)


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "localhost", f"0.0.0.0:{PORT}",
     "", f"127.0.0.1:{PORT}.evil.example", f"127.0.0.1.evil.example:{PORT}", f"127.0.0.1:{PORT}, evil.example"],
)  # fmt: skip
def test_other_hosts_are_refused_even_with_the_token(inside: httpx.Client, host: str) -> None:
    host = placed(inside, host)
    for path in (PLACE, f"/?token={KEYS.token}", f"{PLACE}static/page.js"):
        response = inside.get(path, headers={"Host": host})
        assert response.status_code in (400, 421)  # 400 where it is no host at all
        assert "set-cookie" not in response.headers
        assert len(response.content) < 100
    assert post(inside, "plan", FIELDS, headers={"Host": host}).status_code in (400, 421)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT}/", None]
)
def test_other_origins_are_refused_even_with_the_token(inside: httpx.Client, origin: str | None) -> None:
    if origin is None:
        inside.headers.pop("Origin")
        response = post(inside, "quick", FIELDS)
    else:
        response = post(inside, "quick", FIELDS, headers={"Origin": placed(inside, origin)})
    assert response.status_code == 403
    assert response.json()["error"] == "Requests must come from the page itself."


def test_headers_keep_the_page_to_itself(inside: httpx.Client) -> None:
    door = inside.get(f"/?token={KEYS.token}")
    for response in (door, inside.get(PLACE), inside.get(f"{PLACE}static/page.js"), post(inside, "quick", FIELDS)):
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


def test_addresses_methods_and_sizes(inside: httpx.Client) -> None:
    for path in ("nowhere", "static/app.py", "static/..%2fapp.py", "static/", "api"):
        assert inside.get(PLACE + path).status_code == 404
    assert post(inside, "nothing", FIELDS).status_code == 404
    assert inside.get(f"{PLACE}api/plan").status_code == 405
    assert inside.post(PLACE).status_code == 405
    assert post(inside, "plan", FIELDS, headers={"Content-Type": "text/plain"}).status_code == 415
    for tab in ("", "x" * 41, "a tab", "ä", "a/b"):
        response = post(inside, "plan", FIELDS, headers={"X-Dphist-Tab": tab.encode("latin-1")})
        assert response.status_code == 400
        assert "name its tab" in response.json()["error"]
    wrong = {"Content-Type": "application/json", "X-Dphist-Tab": "a-tab"}
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'"x"', b"[]", b"null"):
        response = inside.post(f"{PLACE}api/quick", content=body, headers=wrong)
        assert 400 <= response.status_code < 500
        assert response.json()["error"]
    big = inside.post(f"{PLACE}api/simulate", content=b" " * (11 * 1024**2), headers=wrong)
    assert (big.status_code, big.json()["error"]) == (413, "The request is larger than 10 MB.")


# ---- nonsense


def test_nonsense_through_the_server_is_never_a_fault(inside: httpx.Client) -> None:
    for name in ("epsilon", "delta", "max_items_per_user"):
        wrong: list[Any] = ["NaN", "1e999", "-1", "💥", "\ud800", "9" * 5000, [], {}]
        for value in wrong:
            for kind in ("quick", "plan"):
                response = post(inside, kind, {**FIELDS, **LAW, name: value})
                assert response.status_code == 422
                assert response.json()["field"] == name
    half = post(inside, "simulate", {**FIELDS, "csv": "item,count\na,900\nb\ud800,900\n"})
    assert (half.status_code, half.json()["field"]) == (422, "csv")
    assert half.json()["error"].startswith("line 3 has half a character")


def test_all_kinds_are_answered_by_the_server(inside: httpx.Client) -> None:
    answers = {kind: post(inside, kind, {**FIELDS, **LAW}) for kind in KINDS}
    assert {kind: response.status_code for kind, response in answers.items()} == dict.fromkeys(KINDS, 200)
    expected = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20).to_dict()
    assert answers["plan"].json()["plan"] == json.loads(json.dumps(expected))
    assert {one["name"] for one in answers["figure"].json()["series"]} == {"gshm-add-the-deltas", "gshm-exact"}


def test_a_dead_worker_and_a_closed_tab_through_the_server(
    inside: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_PATIENCE", 0.2)
    assert post(inside, "plan", FIELDS).status_code == 200
    stopped = workers()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    # Who asks this goes at once, and the worker would never answer: another tab is answered all the same.
    with pytest.raises(httpx.ReadTimeout):
        post(inside, "plan", FIELDS, timeout=0.1)
    assert post(inside, "plan", FIELDS, headers={"X-Dphist-Tab": "another"}).status_code == 200
    # A worker that is killed while it computes what would take minutes.
    busy = workers()
    before = computed(busy)

    def break_it() -> None:
        wait_until(lambda: computed(busy) > before + 0.1, "a worker that computes")
        kill(busy)

    with ThreadPoolExecutor(1) as beside:
        broken = beside.submit(break_it)
        died = post(inside, "plan", ENDLESS, timeout=150)
        broken.result()
    assert (died.status_code, died.json()) == (503, lanes.DIED)
    assert post(inside, "plan", FIELDS).status_code == 200
    assert not set(stopped) & set(workers())
