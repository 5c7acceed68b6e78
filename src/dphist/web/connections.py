"""Connections to the page: few at once, and none that waits for ever. Whoever has no token cannot crowd it out.

Any user of this computer can open connections. What is served lives behind a cookie, so a stranger's request is
answered at once; all that a stranger can do is hold connections open, and of those the oldest makes room.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# With all that is accepted before the first of them is closed, well below the 256 files of the narrowest systems.
MOST: Final = 100
AT_ONCE: Final = 32
# Seconds for a whole header, from the start of the connection or from the last answer.
HEADER: Final = 5.0
# Browsers send up to 180 cookies of 4 KB, and every service of this computer can set them for all the others.
LARGEST_HEADER: Final = 1 << 20
LET_IN: Final = "dphist.let_in"
_NOT_UNDERSTOOD: Final = (
    "This request is too large or no HTTP. If your browser has very many cookies of 127.0.0.1, which any service "
    "of this computer can set, remove them, or open http://localhost:{port}/?token=... with the token that "
    "`dphist explore` printed: that name has cookies of its own.\n"
)
_CROWDED: Final = "socket.accept() out of system resource"


class Connection(H11Protocol):
    """One connection to the page."""

    _since: float = 0.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Where there are too many, the one goes that was idle for longest; strangers before those let in."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._wait_for_header()
        if len(self.connections) > MOST:
            others = [one for one in self.connections if isinstance(one, Connection) and one.idle]
            min(others, key=lambda one: (one.let_in, one._since)).leave()

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def let_in(self) -> bool:
        """Whether its last request had the cookie."""
        return self.scope is not None and LET_IN in self.scope["state"]

    def leave(self) -> None:
        """Close it, whatever there is to send or to read."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parts of a header, or of a body that was refused, do not make it last longer."""
        super().data_received(data)
        self._wait_for_header()

    def on_response_complete(self) -> None:
        """The next header has as much time."""
        super().on_response_complete()
        self._since = self.loop.time()
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing to wait for."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_header(self) -> None:
        if not self.idle:
            self._stop_waiting()
        elif self._waiting is None and not self.transport.is_closing():
            self._waiting = self.loop.call_later(HEADER, self.leave)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """A sentence that helps; where an answer was begun already there is no place for another."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(_NOT_UNDERSTOOD.format(port=self.server[1] if self.server else ""))
        else:
            self.leave()


def quiet_when_crowded(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A handler of the loop's errors: a system out of files says so many times a second, and goes on by itself."""
    if context.get("message") != _CROWDED:
        loop.default_exception_handler(context)
