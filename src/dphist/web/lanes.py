"""Questions to worker processes: one at a time in each lane, and only the newest of a kind."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

# A question that a newer one replaced may end by itself within this time; then its worker is ended.
_PATIENCE: Final = 1.5
_LONGEST: Final = 120.0
_LIMIT: Final = 1 << 26
SUPERSEDED: Final[dict[str, Any]] = {"superseded": True}


class Lane:
    """One worker process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._ended: list[asyncio.subprocess.Process] = []
        self._lock = asyncio.Lock()
        self._newest: dict[str, int] = {}
        self._running: tuple[str, int, float] | None = None

    async def ask(self, kind: str, data: object) -> dict[str, Any]:
        """The answer; `SUPERSEDED` where a newer question of this kind came before it was found."""
        turn = self._newest[kind] = self._newest.get(kind, 0) + 1
        self._end_what_is_stale()
        watch = asyncio.get_running_loop().call_later(_PATIENCE, self._end_what_is_stale)
        try:
            async with self._lock:
                if self._newest[kind] != turn:
                    return SUPERSEDED
                self._running = (kind, turn, time.monotonic())
                try:
                    return await asyncio.wait_for(self._asked(kind, data), _LONGEST)
                except BaseException as error:
                    # An answer that nobody reads must not be taken for that of the next question.
                    self.end()
                    if isinstance(error, TimeoutError):
                        return {"error": f"no certificate was found within {_LONGEST:g} seconds", "field": None}
                    raise
                finally:
                    self._running = None
        finally:
            watch.cancel()

    async def _asked(self, kind: str, data: object) -> dict[str, Any]:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"kind": kind, "data": data}).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            # It was ended for the sake of a newer question, or died: whoever still wants an answer asks again.
            if self._process is process:
                self._process = None
            return SUPERSEDED
        found: dict[str, Any] = json.loads(line)
        return found

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dphist.web.worker", limit=_LIMIT, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        return self._process

    def _end_what_is_stale(self) -> None:
        if self._running is None:
            return
        kind, turn, since = self._running
        if self._newest[kind] != turn and time.monotonic() - since > _PATIENCE:
            self.end()

    def end(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            self._ended = [*(one for one in self._ended if one.returncode is None), process]

    async def close(self) -> None:
        """End the process and wait until all are gone."""
        self.end()
        for process in self._ended:
            await process.communicate()
