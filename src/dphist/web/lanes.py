"""Questions to worker processes: one at a time in a lane, of each tab only the newest of a kind, tabs in turn."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final

# A question that nobody waits for any more may end by itself within this time; then its worker is ended.
_PATIENCE: Final = 1.5
_LONGEST: Final = 120.0
_LIMIT: Final = 1 << 26
_MOST_WAITING: Final = 24
_MOST_TABS: Final = 64
SUPERSEDED: Final[dict[str, Any]] = {"superseded": True}
DIED: Final[dict[str, Any]] = {
    "error": "the process that computes this died, most likely for want of memory: change a value to try again",
    "field": None,
}
CROWDED: Final[dict[str, Any]] = {
    "error": "too many tabs ask at once: close some, and change a value to try again",
    "field": None,
}


@dataclass(eq=False)
class Question:
    """What a tab asks. It is no longer wanted once the tab has asked anew, or has gone."""

    kind: str
    data: object
    tab: str
    wanted: bool = True
    began: float | None = None
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Lane:
    """One worker process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._ended: list[asyncio.subprocess.Process] = []
        self._waiting: list[Question] = []
        self._running: Question | None = None
        # When each tab last had its turn, the longest ago first. One that is forgotten comes first, as a new one.
        self._turns: dict[str, int] = {}
        self._count = 0
        self._open = True

    async def ask(self, question: Question) -> dict[str, Any]:
        """The answer; `SUPERSEDED` where the question was dropped before it was found."""
        for other in (*self._waiting, self._running):
            if other is not None and (other.tab, other.kind) == (question.tab, question.kind):
                self.drop(other)
        if not self._open:
            return SUPERSEDED
        if len(self._waiting) >= _MOST_WAITING:
            return CROWDED
        self._waiting.append(question)
        self._next()
        try:
            await question.turn.wait()
            return await self._answered(question) if question.wanted else SUPERSEDED
        finally:
            if question in self._waiting:
                self._waiting.remove(question)
            if self._running is question:
                self._running = None
            self._next()

    def drop(self, question: Question) -> None:
        """Nobody waits for it any more: it gives up its place, or ends soon."""
        question.wanted = False
        if question in self._waiting:
            self._waiting.remove(question)
            question.turn.set()
        elif self._running is question:
            spent = 0.0 if question.began is None else time.monotonic() - question.began
            asyncio.get_running_loop().call_later(max(0.0, _PATIENCE - spent), self._end_if_running, question)

    def _next(self) -> None:
        """The question of the tab whose last turn is longest ago; of one tab, the oldest."""
        if self._running is not None or not self._waiting:
            return
        question = min(self._waiting, key=lambda one: self._turns.get(one.tab, 0))
        self._waiting.remove(question)
        self._running = question
        self._count += 1
        self._turns.pop(question.tab, None)
        self._turns[question.tab] = self._count
        if len(self._turns) > _MOST_TABS:
            del self._turns[next(iter(self._turns))]
        question.turn.set()

    async def _answered(self, question: Question) -> dict[str, Any]:
        question.began = time.monotonic()
        try:
            line = await asyncio.wait_for(self._line(question), _LONGEST)
        except BaseException as error:
            # An answer that nobody reads must not be taken for that of the next question.
            self.end()
            if isinstance(error, TimeoutError):
                return {"error": f"no certificate was found within {_LONGEST:g} seconds", "field": None}
            raise
        if not line:
            # Either it was ended here, or it died of the question: then the question is not put to another.
            self.end()
            return DIED if question.wanted else SUPERSEDED
        found: dict[str, Any] = json.loads(line)
        return found

    async def _line(self, question: Question) -> bytes:
        """The worker's answer; nothing where the worker ended."""
        process = await self._started()
        if not self._open:
            return b""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"kind": question.kind, "data": question.data}).encode() + b"\n")
            await process.stdin.drain()
            return await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            return b""

    async def _started(self) -> asyncio.subprocess.Process:
        known = self._process
        if (
            known is not None
            and known.returncode is None
            and known.stdout is not None
            and not known.stdout.at_eof()
        ):
            return known
        self.end()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dphist.web.worker", limit=_LIMIT, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return self._process

    def _end_if_running(self, question: Question) -> None:
        if self._running is question:
            self.end()

    def end(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        self._ended = [*(one for one in self._ended if one.returncode is None), process]

    def give_up(self) -> None:
        """The server ends: every question is answered now, with `SUPERSEDED`."""
        self._open = False
        for question in self._waiting:
            question.wanted = False
            question.turn.set()
        if self._running is not None:
            self._running.wanted = False
        self.end()

    async def close(self) -> None:
        """End the process and wait until all are gone."""
        self.give_up()
        for process in self._ended:
            await process.communicate()
