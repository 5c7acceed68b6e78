"""The command `dphist explore` and its page as tests see them, and another service of the same computer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import httpx
from typer.testing import CliRunner

from dphist.cli.app import app
from processes import wait_until
from web_server import place_in

_RECORDER = """\
#!/bin/sh
printf '%s\\n' "$@" > "{record}.part"
mv "{record}.part" "{record}"
"""


@dataclass
class Opened:
    """A running command, and what it did to open the page."""

    address: str
    process: subprocess.Popen[str]
    record: Path
    temporary: Path

    @property
    def home(self) -> str:
        return self.address.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.address.rpartition("=")[2]

    def arguments(self) -> list[str]:
        """What every user of the computer could have read in the list of processes."""
        wait_until(self.record.exists, "the browser", 60)
        return self.record.read_text().splitlines()

    def file_and_code(self) -> tuple[Path, str]:
        """The file that the browser is shown, and the code in it."""
        path = Path(url2pathname(self.arguments()[0].removeprefix("file://")))
        found = re.search(r"\?code=([\w-]+)", path.read_text())
        assert found is not None
        return path, found[1]

    def left_behind(self) -> list[Path]:
        return list(self.temporary.iterdir())

    def asks(self, fields: dict[str, str]) -> HTTPConnection:
        """A tab that waits for a plan: the server has the question when this returns."""
        with httpx.Client(base_url=self.home, trust_env=False, timeout=60.0) as client:
            place = place_in(client.get(f"/?token={self.token}").text)
            waiting, later = (HTTPConnection(self.home.removeprefix("http://"), timeout=60) for _ in range(2))
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
            headers = {
                "Content-Type": "application/json", "X-Dphist-Tab": "a-tab", "Origin": self.home, "Cookie": cookie,
            }  # fmt: skip
            waiting.request("POST", f"{place}api/plan", json.dumps(fields), headers)
            # What comes later on a connection that is as new is answered later.
            later.request("GET", place, headers={"Cookie": cookie})
            assert later.getresponse().status == 200
            later.close()
        return waiting

    def ended(self, number: int) -> tuple[str, str]:
        """What the command still said, after this signal."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)


def _hang_up_is_heard() -> None:
    """What runs under nohup ignores it, and so would all that it starts."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def explore(folder: Path) -> Iterator[Opened]:
    """The command, with the address that it prints."""
    record, temporary, script = folder / "arguments", folder / "temporary", folder / "browser"
    temporary.mkdir()
    script.write_text(_RECORDER.format(record=record))
    script.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "dphist", "explore"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "BROWSER": str(script), "TMPDIR": str(temporary)}, preexec_fn=_hang_up_is_heard,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
        assert found is not None
        yield Opened(found[0], process, record, temporary)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def settled(page: Any) -> None:
    """Until the certified plan of the newest change, its table, its figure and its simulation are shown."""
    page.wait_for_selector("#state.certified", timeout=60_000)
    # From a change on, these say that they are of other values. A plan may be certified before it is estimated.
    for note in ("#table-note", "#figure-note"):
        page.wait_for_selector(f"{note}:not(:has-text('Of other values'))", timeout=60_000)
    page.wait_for_selector("#outcome:not(.stale) p", timeout=60_000)


def changed(page: Any, **fields: str) -> None:
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    # It is no longer certified from the very change on.
    settled(page)


def shown(page: Any, name: str) -> float:
    return float(page.get_attribute(f"#{name}", "data-value"))


def planned(command: str) -> dict[str, Any]:
    """What the command says that the page shows."""
    words = command.split()
    assert words[:2] == ["dphist", "plan"]
    run = CliRunner().invoke(app, [*words[1:], "--json"])
    assert run.exit_code == 0
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def agrees(page: Any) -> dict[str, Any]:
    expected = planned(page.inner_text("#command"))
    for name in ("threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"):
        assert shown(page, name) == expected[name], name
    assert page.get_attribute("#chosen", "data-value") == expected["mechanism"]
    return expected


def drawing(page: Any, name: str) -> str:
    return str(page.inner_html(f"#{name} svg"))


class Neighbour:
    """Another service of this computer, which sets a cookie and keeps those it is sent."""

    def __init__(self) -> None:
        self.cookies: list[str | None] = []
        neighbour = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/favicon.ico":
                    neighbour.cookies.append(self.headers["Cookie"])
                self.send_response(200)
                self.send_header("Set-Cookie", "neighbour=1; Path=/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.port = self._server.server_port

    def __enter__(self) -> Neighbour:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
