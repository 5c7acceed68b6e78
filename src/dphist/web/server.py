"""The server of the page: on this computer alone, for whoever has the token."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from dphist.errors import InvalidParameter, MissingExtra
from dphist.web.invitation import Invitation

if TYPE_CHECKING:
    import uvicorn

_ABOUT: Final = "It is for you alone, on this computer. Ctrl-C ends it.\n"
_BROWSER: Final = "If your browser does not open, or finds no file, open that address in it.\n"


def serve(*, port: int = 0, browser: bool = True) -> None:
    """Serve the page until it is interrupted. A port of 0 is any that is free."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise MissingExtra("the page needs starlette and uvicorn: pip install 'dphist[web]'") from None
    from dphist.web.app import make_app
    from dphist.web.guard import Keys

    listener = listener_on(port)
    port = listener.getsockname()[1]
    keys, invitation, home = Keys(), Invitation(), f"http://127.0.0.1:{port}"

    def announce() -> None:
        sys.stdout.write(f"The page is at {home}/?token={keys.token}\n{_ABOUT}{_BROWSER if browser else ''}")
        sys.stdout.flush()
        if browser:
            _open(invitation, home)

    # No access log: the address in it would have the token.
    config = uvicorn.Config(
        make_app(keys=keys, port=port, takes_code=invitation.takes), log_level="error", access_log=False,
        server_header=False, lifespan="on", timeout_graceful_shutdown=2, ws="none",
    )  # fmt: skip
    try:
        _server(config, announce).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        invitation.withdraw()
        listener.close()
    sys.stdout.write("\nThe page has ended.\n")


def _open(invitation: Invitation, home: str) -> None:
    """Show a file that leads to the page: the page's address would show its token to whoever lists processes."""
    try:
        address = invitation.written(home)
    except OSError as error:
        sys.stderr.write(f"No browser was opened: {error}\n")
        return
    # A browser in a terminal would hold up the server that it asks.
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _server(config: uvicorn.Config, announce: Callable[[], None]) -> uvicorn.Server:
    """A server that says when it is ready: from then on it answers, and an interrupt ends it in order."""
    import uvicorn

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """A terminal that closes ends it in order, too, unless that is to be ignored (nohup)."""
            with super().capture_signals(), ExitStack() as handlers:
                hangup = getattr(signal, "SIGHUP", None)
                in_main = threading.current_thread() is threading.main_thread()
                if hangup is not None and in_main and signal.getsignal(hangup) != signal.SIG_IGN:
                    handlers.callback(signal.signal, hangup, signal.signal(hangup, self.handle_exit))
                yield

    return Announced(config)


def listener_on(port: int) -> socket.socket:
    """A socket on the loopback address, of which nobody outside this computer knows."""
    if not 0 <= port <= 65535:
        raise InvalidParameter(f"the port must be between 0 and 65535, not {port}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # An answer goes in two parts; without this the second waits 40 ms for the first to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise InvalidParameter(f"port {port} cannot be used: {error.strerror}") from None
    return listener
