"""A real server of the page in a thread of the tests, and a client that goes in as a browser does."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from dphist.web.app import make_app
from dphist.web.guard import Keys
from dphist.web.server import listener_on, server_of
from processes import tree


@contextmanager
def serving(keys: Keys) -> Iterator[httpx.Client]:
    """A client that has not been let in, and keeps no cookie of its own accord."""
    listener = listener_on(0)
    port = listener.getsockname()[1]
    ready = threading.Event()
    server = server_of(make_app(keys=keys, port=port), ready.set)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        # Until then nobody listens, and whoever came would be sent away.
        assert ready.wait(60)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as found:
            yield found
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def place_in(welcome: str) -> str:
    """Where the page of a welcome goes."""
    found = re.search(r'content="0; url=(/s/[^"/]{40,}/)"', welcome)
    assert found is not None, welcome
    return found[1]


def post(client: httpx.Client, place: str, kind: str, data: object, **options: Any) -> httpx.Response:
    content = json.dumps(data).encode()
    headers = {"Content-Type": "application/json", "X-Dphist-Tab": "a-tab", **options.pop("headers", {})}
    return client.post(f"{place}api/{kind}", content=content, headers=headers, **options)


def workers() -> list[int]:
    """The worker processes beneath this one."""
    return [pid for pid in tree(os.getpid())[1:] if b"dphist.web.worker" in _command_line(pid)]


def computed(pids: list[int]) -> float:
    """The seconds that these processes have computed; who waits for a question computes nothing."""
    spent = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
