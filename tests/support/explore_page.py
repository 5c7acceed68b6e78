"""The page of `dphist explore` for tests: its server in a thread, or the command and its page in a browser."""

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
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from typer.testing import CliRunner

from dphist.cli import commands
from dphist.explore.app import listen, make_app, server_config
from dphist.explore.fields import FIELDS
from processes import wait_until

# The initial values of the page.
START = {field.name: next(iter(field.choices), "") if field.choices else field.start for field in FIELDS}


@contextmanager
def serving(token: str) -> Iterator[httpx.Client]:
    """A client that sends the page's origin to a server in a thread."""
    listener = listen(0)
    port = listener.getsockname()[1]
    home = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(server_config(make_app(token=token, port=port)))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        with httpx.Client(base_url=home, timeout=120.0, trust_env=False, headers={"Origin": home}) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()


@dataclass
class Opened:
    """A running command and the arguments with which it started the browser."""

    address: str
    process: subprocess.Popen[str]
    record: Path

    @property
    def home(self) -> str:
        return self.address.rsplit("/", 2)[0]

    @property
    def token(self) -> str:
        return self.address.rsplit("/", 2)[1]

    def browser_arguments(self) -> list[str]:
        wait_until(self.record.exists, "the browser", 60)
        return self.record.read_text().splitlines()

    def stop(self, number: int) -> tuple[str, str]:
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)


@contextmanager
def explore(folder: Path) -> Iterator[Opened]:
    """The command in a process, with a browser that only records its arguments."""
    record, script = folder / "arguments", folder / "browser"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{record}.part"\nmv "{record}.part" "{record}"\n')
    script.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "dphist", "explore"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "BROWSER": str(script)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{40,}/", process.stdout.readline())
        assert found is not None
        yield Opened(found[0], process, record)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def settled(page: Any) -> None:
    """Wait until the answer to the newest change is shown."""
    page.wait_for_selector("#results:not(.stale)", timeout=120_000)
    page.wait_for_selector("#more:not([open]), #more[open]:not(.stale)", timeout=120_000)


def unfold(page: Any) -> None:
    page.click("#options > summary")
    page.click("#more > summary")
    settled(page)


def change(page: Any, **fields: str) -> None:
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    settled(page)


def shown(page: Any, name: str) -> Any:
    return json.loads(page.get_attribute(f"#{name}", "data-value"))


def assert_agrees(page: Any) -> dict[str, Any]:
    """Check that the page shows what its command prints, and return that."""
    words = page.text_content("#command").split()
    assert words[:2] == ["dphist", "plan"]
    run = CliRunner().invoke(commands(), [*words[1:], "--json"])
    assert run.exit_code == 0
    expected: dict[str, Any] = json.loads(run.stdout)
    for name in ("threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"):
        assert shown(page, name) == expected[name], name
    assert page.get_attribute("#mechanism_chosen", "data-value") == expected["mechanism"]
    return expected
