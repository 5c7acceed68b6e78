"""The page's server: who is let in, what is refused, and that its numbers are the library's."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.errors import InvalidParameter, MissingExtra
from dphist.web.answers import answer
from dphist.web.server import serve

pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")

import httpx
import uvicorn

from dphist.web.app import make_app
from dphist.web.server import listener_on

TOKEN = "a-token-of-the-tests"
# Names of tests are the same in every process: a port is put in where this stands.
PORT = "PORT"
FIELDS = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
LAW = {"items": "1000", "users": "100000", "exponent": "1", "mean_items": "5"}
KINDS = ("quick", "plan", "compare", "figure", "simulate")
NONSENSE: list[Any] = [
    "", " ", "NaN", "nan", "inf", "-inf", "Infinity", "1e999", "-1e999", "-1", "-0.5", "0", "one", "1,5", "1_000",
    "0x10", "1e", "--1", "٣", "½", "１", "💥", "\u0000", "1; drop table", "<script>alert(1)</script>", "9" * 39,
    "9" * 5000, True, None, [], {}, [1], {"a": 1}, float("nan"), float("inf"), -5, 10**400,
]  # fmt: skip
NUMBERS = ("epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "gamma", "seed", *LAW)
WORDS = ("mechanism", "noise", "minimize", "spread")


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a real server, which runs in a thread."""
    listener = listener_on(0)
    port = listener.getsockname()[1]
    config = uvicorn.Config(make_app(token=TOKEN, port=port), log_level="critical", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60.0, follow_redirects=True, trust_env=False
        ) as found:
            yield found
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@pytest.fixture
def inside(client: httpx.Client) -> Iterator[httpx.Client]:
    """A client that came with the token."""
    client.cookies.clear()
    assert client.get(f"/?token={TOKEN}").status_code == 200
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
    content = json.dumps(data).encode()
    headers = {"Content-Type": "application/json", **options.pop("headers", {})}
    return client.post(f"/api/{kind}", content=content, headers=headers, **options)


# ---- who is let in


PATHS = [
    "/",
    "/static/page.js",
    "/static/page.css",
    "/api/plan",
    "/favicon.ico",
    "/nowhere",
    "//",
    "/static/../app.py",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "cookie",
    ["", TOKEN[:-1], TOKEN + "x", "ä", f"{TOKEN}; dphist-{PORT}=x"],
    ids=repr,
)
def test_nothing_is_served_without_the_token(client: httpx.Client, path: str, cookie: str) -> None:
    client.cookies.clear()
    sent = placed(client, f"dphist-{PORT}={cookie}").encode("latin-1", "replace")
    headers = {"Cookie": sent, "Origin": home(client).encode()}
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        response = client.request(method, f"{home(client)}{path}", headers=headers)  # type: ignore[arg-type]
        assert response.status_code == 403, method
        assert len(response.content) < 250
        assert method == "HEAD" or b"belongs to the person who started it" in response.content
        assert "set-cookie" not in response.headers
        assert "access-control-allow-origin" not in response.headers


def test_a_wrong_token_in_the_address_is_refused(client: httpx.Client) -> None:
    client.cookies.clear()
    for wrong in ("", "x", TOKEN + "x", TOKEN[:-1], "%F0%9F%92%A5", "%00", TOKEN.upper()):
        response = client.get(f"/?token={wrong}", follow_redirects=False)
        assert response.status_code == 403
        assert "set-cookie" not in response.headers
    # The cookie of another page, on another port, opens nothing here.
    assert client.get("/", headers={"Cookie": f"dphist-1={TOKEN}"}).status_code == 403


def test_the_token_becomes_a_cookie_that_scripts_do_not_see(client: httpx.Client) -> None:
    client.cookies.clear()
    response = client.get(f"/?token={TOKEN}", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in client.get(f"/?token={TOKEN}").text


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "localhost", f"0.0.0.0:{PORT}",
     "", f"127.0.0.1:{PORT}.evil.example", f"127.0.0.1.evil.example:{PORT}", f"127.0.0.1:{PORT}, evil.example"],
)  # fmt: skip
def test_other_hosts_are_refused_even_with_the_token(inside: httpx.Client, host: str) -> None:
    host = placed(inside, host)
    for path in ("/", f"/?token={TOKEN}", "/static/page.js"):
        response = inside.get(path, headers={"Host": host}, follow_redirects=False)
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
    for response in (inside.get("/"), inside.get("/static/page.js"), post(inside, "quick", FIELDS)):
        assert response.status_code == 200
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


def test_addresses_methods_and_sizes(inside: httpx.Client) -> None:
    for path in ("/nowhere", "/static/app.py", "/static/..%2fapp.py", "/static/", "/api"):
        assert inside.get(path).status_code == 404
    assert post(inside, "nothing", FIELDS).status_code == 404
    assert inside.get("/api/plan").status_code == 405
    assert inside.post("/").status_code == 405
    assert post(inside, "plan", FIELDS, headers={"Content-Type": "text/plain"}).status_code == 415
    wrong = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'"x"', b"[]", b"null"):
        response = inside.post("/api/quick", content=body, headers=wrong)
        assert 400 <= response.status_code < 500
        assert response.json()["error"]
    big = inside.post("/api/simulate", content=b" " * (11 * 1024**2), headers=wrong)
    assert (big.status_code, big.json()["error"]) == (413, "The request is larger than 10 MB.")


# ---- nonsense


@pytest.mark.parametrize("name", [*NUMBERS, *WORDS])
def test_nonsense_in_every_field_is_one_sentence(name: str) -> None:
    whole = {**FIELDS, "max_nonzero": "", **LAW}
    if name == "gamma":
        whole["max_nonzero"] = "100"
    for value in NONSENSE:
        if name in WORDS and value in ("", " ", None):
            continue  # nothing chosen is the default
        if name in ("max_nonzero", "max_items_per_user", "top", "gamma", "seed") and value in ("", " ", None):
            continue  # nothing given is no bound
        kind = "simulate" if name in (*LAW, "seed", "spread") else "quick"
        found = answer(kind, {**whole, name: value})
        if name == "exponent" and value == "0":
            continue  # all items alike
        assert set(found) == {"error", "field"}, (name, value)
        assert found["field"] == name, (name, value, found)
        assert len(found["error"]) < 200
        assert "\n" not in found["error"]


def test_nonsense_through_the_server_is_never_a_fault(inside: httpx.Client) -> None:
    for name in ("epsilon", "delta", "max_items_per_user"):
        wrong: list[Any] = ["NaN", "1e999", "-1", "💥", "9" * 5000, [], {}]
        for value in wrong:
            for kind in ("quick", "plan"):
                response = post(inside, kind, {**FIELDS, **LAW, name: value})
                assert response.status_code == 422
                assert response.json()["field"] == name


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"epsilon": "1", "delta": "1e-6"}, "max_nonzero", "give a bound"),
        ({**FIELDS, "top": "5", "max_nonzero": "5"}, "top", "leave one of the two empty"),
        ({**FIELDS, "top": "5", "noise": "continuous"}, "top", "discrete"),
        ({**FIELDS, "gamma": "3"}, "gamma", "needs a bound"),
        ({**FIELDS, "max_nonzero": "9"}, "max_items_per_user", "must not exceed"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "3", "mechanism": "laplace"}, "mechanism", "no gamma"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "1e-9"}, "gamma", "between 0.01"),
        ({**FIELDS, "epsilon": "801"}, "epsilon", "800"),
        ({**FIELDS, "delta": "1"}, "delta", "1"),
        ({**FIELDS, "max_nonzero": "1.5"}, "max_nonzero", "whole number"),
        ({**FIELDS, "max_nonzero": str(10**12 + 1)}, "max_nonzero", "1000000000000"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, str], field: str, part: str) -> None:
    for kind in ("quick", "plan"):
        found = answer(kind, fields)
        assert found["field"] == field
        assert part in found["error"]


def test_odd_but_right_numbers_are_answered() -> None:
    for fields in (
        {"epsilon": ".5", "delta": "1E-6", "max_items_per_user": "1e3"},
        {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 20},
        {"epsilon": "800", "delta": "1e-300", "max_items_per_user": "1"},
        {"epsilon": "1e-3", "delta": "0.9", "max_nonzero": "1"},
        {"epsilon": " 2 ", "delta": "1e-9", "max_nonzero": str(10**12)},
        {"epsilon": "1e-6", "delta": "1e-12", "top": str(10**12)},
    ):
        found = answer("quick", fields)
        assert "error" not in found, found
        json.dumps(found, allow_nan=False)


def test_all_kinds_are_answered_by_the_server(inside: httpx.Client) -> None:
    answers = {kind: post(inside, kind, {**FIELDS, **LAW}) for kind in KINDS}
    assert {kind: response.status_code for kind, response in answers.items()} == dict.fromkeys(KINDS, 200)
    expected = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20).to_dict()
    assert answers["plan"].json()["plan"] == json.loads(json.dumps(expected))
    assert {one["name"] for one in answers["figure"].json()["series"]} == {"gshm-add-the-deltas", "gshm-exact"}


# ---- the command


def test_the_server_needs_its_extra_and_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameter, match="between 0 and 65535"):
        serve(port=70_000, browser=False)
    with listener_on(0) as taken:
        taken.listen()
        with pytest.raises(InvalidParameter, match="cannot be used: Address already in use"):
            serve(port=taken.getsockname()[1], browser=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dphist\[web\]'"):
        serve(port=0, browser=False)


def test_the_page_is_in_the_package_and_needs_nothing_from_elsewhere() -> None:
    page = files("dphist.web") / "page"
    for name in ("index.html", "page.css", "page.js", "charts.js", "icon.svg"):
        text = (page / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "//cdn" not in text
        assert "innerHTML" not in text


def test_the_wheel_would_hold_the_page() -> None:
    root = Path(__file__).parent.parent
    assert 'packages = ["src/dphist"]' in (root / "pyproject.toml").read_text()
    assert not any("page" in line for line in (root / ".gitignore").read_text().splitlines())
