"""Questions to the worker processes of the page: tabs do not push each other aside, and a death is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")

from dphist.web import lanes
from dphist.web.lanes import CROWDED, DIED, SUPERSEDED, Lane, Question
from web_server import workers

FIELDS = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
# A certificate for this takes minutes.
ENDLESS = {"epsilon": "1e-6", "delta": "1e-12", "top": "1000000"}


def asked(lane: Lane, kind: str, tab: str, **fields: str) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(lane.ask(Question(kind, {**FIELDS, **fields}, tab)))


def worker() -> int:
    """The one process of a lane."""
    (pid,) = workers()
    return pid


def with_lane(story: Callable[[Lane, int], Awaitable[None]]) -> None:
    """Tell the story to a lane whose worker has answered once, and stands still."""

    async def told() -> None:
        lane = Lane()
        try:
            assert "plan" in await asked(lane, "quick", "first")
            pid = worker()
            os.kill(pid, signal.SIGSTOP)
            await story(lane, pid)
        finally:
            await lane.close()

    asyncio.run(told())


def test_tabs_take_turns_and_only_their_own_questions_are_superseded() -> None:
    async def story(lane: Lane, pid: int) -> None:
        order: list[str] = []
        questions = {
            "a1": asked(lane, "plan", "a", epsilon="0.8"),
            "a2": asked(lane, "compare", "a"),
            "a3": asked(lane, "figure", "a"),
            "b old": asked(lane, "plan", "b", epsilon="0.9"),
            "b new": asked(lane, "plan", "b", epsilon="1.1"),
            "c": asked(lane, "plan", "c", epsilon="1.2"),
        }
        for name, task in questions.items():
            task.set_name(name)
            task.add_done_callback(lambda done: order.append(done.get_name()))
        await asyncio.sleep(0)
        assert await questions["b old"] is SUPERSEDED
        os.kill(pid, signal.SIGCONT)
        answers = {name: await task for name, task in questions.items()}
        assert [answers[name]["plan"]["epsilon"] for name in ("a1", "b new", "c")] == [0.8, 1.1, 1.2]
        assert answers["a2"]["full"]
        # Neither what is new in one tab nor how much one tab asks keeps the others from their turn.
        assert order == ["b old", "a1", "b new", "c", "a2", "a3"]
        assert worker() == pid

    with_lane(story)


def test_a_worker_that_dies_of_a_question_is_not_asked_it_again() -> None:
    """As the system ends a process that takes too much memory."""

    async def story(lane: Lane, pid: int) -> None:
        fatal, patient = asked(lane, "plan", "a"), asked(lane, "plan", "b", epsilon="0.5")
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        assert await fatal is DIED
        assert "want of memory" in DIED["error"]
        assert (await patient)["plan"]["epsilon"] == 0.5
        # One that dies between two questions takes none with it, once its death is known.
        other = lane._process
        assert other is not None
        assert other.pid == worker()
        os.kill(other.pid, signal.SIGKILL)
        await other.wait()
        assert "plan" in await asked(lane, "plan", "a")

    with_lane(story)


def test_what_nobody_waits_for_ends_soon_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_PATIENCE", 0.3)

    async def story(lane: Lane, pid: int) -> None:
        left = Question("plan", FIELDS, "closed")
        leaving = asyncio.create_task(lane.ask(left))
        waiting = [asked(lane, "plan", f"tab-{place}") for place in range(lanes._MOST_WAITING)]
        await asyncio.sleep(0.01)
        assert await asked(lane, "plan", "one too many") is CROWDED
        lane.drop(left)
        assert await leaving is SUPERSEDED  # its worker stands still, and is ended
        assert left.began is not None
        assert time.monotonic() - left.began > 0.25  # it had a while to end by itself
        assert all("plan" in found for found in await asyncio.gather(*waiting))
        assert worker() != pid

    with_lane(story)


def test_a_worker_does_not_outlive_a_server_that_was_killed() -> None:
    """Then the system closes the input of the worker, whatever that computes."""
    with subprocess.Popen(
        [sys.executable, "-m", "dphist.web.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"kind": "plan", "data": ENDLESS}).encode() + b"\n")
            process.stdin.close()
            assert process.wait(timeout=60) == 0  # what it computes takes far longer
        finally:
            process.kill()


def test_a_server_that_ends_leaves_nobody_waiting() -> None:
    async def story(lane: Lane, pid: int) -> None:
        questions = [asked(lane, "plan", tab) for tab in ("runs", "waits")]
        await asyncio.sleep(0.01)
        lane.give_up()
        assert [await one for one in questions] == [SUPERSEDED, SUPERSEDED]
        assert await asked(lane, "plan", "late") is SUPERSEDED
        assert pid not in workers()

    with_lane(story)
