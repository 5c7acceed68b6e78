"""The server of the page: on this computer alone, for whoever has the token."""

from __future__ import annotations

import asyncio
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
    from starlette.applications import Starlette


_ABOUT: Final = "It is for you alone, on this computer. Ctrl-C ends it.\n"
_BROWSER: Final = "If your browser does not open, or finds no file, open that address in it.\n"
# Seconds for answers that are on their way when the server ends.
_LAST_WORDS: Final = 0.5
_QUEUE: Final = 1024


def serve(*, port: int = 0, browser: bool = True) -> None:
    """Serve the page until it is interrupted. A port of 0 is any that is free."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
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

    app = make_app(keys=keys, port=port, takes_code=invitation.takes)
    try:
        server_of(app, announce).run(sockets=[listener])
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


def server_of(app: Starlette, announce: Callable[[], None]) -> uvicorn.Server:
    """A server that says when it is ready: from then on it answers, and an interrupt ends it in order."""
    import uvicorn

    from dphist.web.connections import AT_ONCE, LARGEST_HEADER, Connection, quiet_when_crowded

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(quiet_when_crowded)
            await super().startup(sockets)
            for listener in sockets or ():
                # Only so many are accepted in one turn of the loop, but more may wait for the next.
                listener.listen(_QUEUE)
            announce()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Nobody who still waits, or still sends, holds it up."""
            app.state.lanes.give_up()
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._leave_all)
            await super().shutdown(sockets)

        def _leave_all(self) -> None:
            for one in list(self.server_state.connections):
                one.transport.abort()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """A terminal that closes ends it in order, too, unless that is to be ignored (nohup)."""
            with super().capture_signals(), ExitStack() as handlers:
                hangup = getattr(signal, "SIGHUP", None)
                in_main = threading.current_thread() is threading.main_thread()
                if hangup is not None and in_main and signal.getsignal(hangup) != signal.SIG_IGN:
                    handlers.callback(signal.signal, hangup, signal.signal(hangup, self.handle_exit))
                yield

    # No access log: the address in it would have the token. The protocol is ours, whichever others are installed.
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="on", ws="none", http=Connection,
        backlog=AT_ONCE, h11_max_incomplete_event_size=LARGEST_HEADER, timeout_graceful_shutdown=2,
    )  # fmt: skip
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
