"""Shared settings: examples are drawn the same way on every machine, and no test is timed."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from scheduling import Together, examples, group_of

# One thread a test process: two of them run side by side, and numpy's own threads would fight them.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

hypothesis.settings.register_profile("dphist", deadline=None, derandomize=True, max_examples=examples(60))
hypothesis.settings.load_profile("dphist")
# Hypothesis would also draw constants of the modules that are loaded, and which are depends on the tests before.
with suppress(ImportError):
    from hypothesis.internal.conjecture.providers import HypothesisProvider
    from hypothesis.internal.constants_ast import Constants

    HypothesisProvider._local_constants = Constants()  # type: ignore[assignment]

# A shell starts background jobs with interrupts ignored, and their children inherit it: tests send real ones.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """DuckDB's bindings list objects that are alive when a test process ends, above the summary of the tests."""
    if hasattr(config, "workerinput"):
        atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno()))  # type: ignore[union-attr]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the engines in order of their kinds, so that each kind of Spark is started once."""
    items.sort(key=place)
    for item in items:
        mark = item.get_closest_marker("together")
        if mark is not None and group_of(item.nodeid) != mark.args[0]:
            raise pytest.UsageError(f"{item.nodeid} is not told by its name to be of {mark.args[0]}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Both test processes would start what a group shares."""
    return Together(config, log)


def place(item: pytest.Item) -> int:
    """Local Spark after all else, and a cluster last."""
    given = getattr(item, "callspec", None)
    kind = getattr(given.params.get("engine"), "kind", "") if given else ""
    return 2 if "cluster" in getattr(item, "fixturenames", ()) else ["", "local", "", "cluster"].index(kind)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The Spark cluster of the tests of failures and leaks: a master and two workers, started once."""
    from spark_cluster import running_cluster

    with running_cluster(tmp_path_factory.mktemp("spark") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of a file: while it is open, no other test could run an event loop."""
    from browser import opened_browser

    with opened_browser() as found:
        yield found


@pytest.fixture
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode releases in this process: starting a child, as `read_release` does, takes most of the time."""
    import pyarrow as pa

    from dphist.certificate import decoder, reading

    def decode(job: dict[str, Any], limit: int, file: Any) -> Any:
        read = decoder.read_parquet if job["kind"] == "parquet" else decoder.read_arrow
        return pa.Table.from_batches(list(read(file, job["rows"])))

    monkeypatch.setattr(reading, "_decode", decode)


def pytest_sessionfinish() -> None:
    """The Spark that tests share ends with them."""
    shared = sys.modules.get("spark_shared")
    if shared is not None:
        with suppress(Exception):  # if Java is gone, tests have failed of it
            shared.close_shared()


@pytest.fixture
def released(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a small release under a name, in the format of its ending."""
    import dphist
    from release_data import events

    def release(name: str) -> Path:
        dphist.release(
            events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6,
            max_items_per_user=2, output=tmp_path / name,
        )  # fmt: skip
        return tmp_path / name

    return release


@pytest.fixture
def quick_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three points of a report's curve are as good as all for most tests."""
    from dphist.report import facts

    monkeypatch.setattr(facts, "_POINTS", 3)
    monkeypatch.setattr(facts, "_POINTS_SHARED", 3)


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released counts are not rounded, for tests of the law of their noise."""
    from dphist.releasing import aggregates, noise

    for module in (aggregates, noise):
        monkeypatch.setattr(module, "count_decimals", lambda _, whole=False: 0 if whole else None)


@pytest.fixture
def plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a request is made once, for tests of many releases of the same request."""
    from dphist.planning import planner

    make_plan, made = planner.plan, dict[str, Any]()

    def remembered(**options: Any) -> Any:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_plan(**options)
        return made[key]

    monkeypatch.setattr(planner, "plan", remembered)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """When a process of pytest-xdist ends, DuckDB's bindings would print 100 lines above the summary."""
    if hasattr(config, "workerinput"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
