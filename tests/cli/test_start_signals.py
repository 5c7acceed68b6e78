"""Signals while the command starts: it ends as after any signal, without a traceback.

Importing takes most of the time of a short command. An exception that is raised within an import may be lost, or
become another one: Python turns it into a RuntimeError where a class is created, numpy into an ImportError, and
DuckDB's module aborts the process. Schedulers would read exit code 1 as a closed booking.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import signal_at_call
from release_commands import BOOKED, FLAGS, bookings, command, log_in, names
from scheduling import crossed

RUN = ["release", "events.parquet", *FLAGS, *BOOKED, "--id", "weekly-46", "--output", "out.csv"]
NUMBERS = [signal.SIGTERM, signal.SIGINT]
DEFAULT: list[Any] = [signal.SIG_DFL, signal.default_int_handler]


def run(folder: Path, number: int, file: str, function: str, after: str, *words: str) -> Any:
    script = [sys.executable, signal_at_call.__file__, str(int(number)), file, function, after]
    done = subprocess.run([*script, *words], cwd=folder, capture_output=True, text=True, timeout=300)
    first, _, rest = done.stderr.partition("\n")
    assert first == f"signal at {function}", done.stderr
    return done.returncode, done.stdout, rest


@pytest.mark.parametrize(
    ("file", "number"), crossed(["dphist/cli/base.py", "typer/__init__.py", "dphist/cli/releasing.py"], NUMBERS)
)
def test_a_signal_before_the_command_begins(tmp_path: Path, file: str, number: signal.Signals) -> None:
    assert run(tmp_path, number, file, "<module>", "dphist", *RUN) == (-number, "", "")


@pytest.mark.parametrize(
    ("place", "number"),
    crossed(
        [
            # A class with a cached property is created, numpy's C module is loaded, DuckDB's creates its enums.
            ("functools.py", "__set_name__", "dphist.releasing.run"),
            ("numpy/_core/multiarray.py", "<module>", "dphist.releasing.run"),
            ("enum.py", "_create_", "dphist.counting.databases"),
        ],
        NUMBERS,
    ),
)
def test_a_signal_while_a_release_imports(
    tmp_path: Path, place: tuple[str, str, str], number: signal.Signals
) -> None:
    log_in(tmp_path)
    before = names(tmp_path)
    code, out, err = run(tmp_path, number, *place, *RUN)
    assert (code, out, err) == (128 + number, "", "Interrupted: nothing was written.\n")
    assert names(tmp_path) == before
    assert bookings(tmp_path) == ()
    assert command(tmp_path, *RUN).code == 0


@pytest.mark.parametrize("number", NUMBERS)
def test_an_import_is_completed_before_the_signal_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Also of a module that imports another one, and if the caller itself is being imported."""
    monkeypatch.syspath_prepend(tmp_path)
    kill = f"import os\nos.kill(os.getpid(), {int(number)})\n"
    (tmp_path / "imported_inner.py").write_text(f"{kill}done = True\n")
    (tmp_path / "imported_outer.py").write_text("import imported_inner\ndone = True\n")
    (tmp_path / "imported_caller.py").write_text(
        "from dphist.publishing import interruptible\n"
        "ended = None\n"
        "try:\n"
        "    with interruptible():\n"
        "        import imported_outer\n"
        "        ended = 'too late'\n"
        "except BaseException as error:\n"
        "    ended = type(error)\n"
        "try:\n"
        "    with interruptible():\n"
        f"        import os; os.kill(os.getpid(), {int(number)}); os.getpid()\n"
        "        again = 'too late'\n"
        "except BaseException as error:\n"
        "    again = type(error)\n"
    )
    # Spark replaces the handler of interrupts in the process that starts it.
    found = {each: signal.signal(each, handler) for each, handler in zip(NUMBERS, DEFAULT, strict=True)}
    before = {each: signal.getsignal(each) for each in NUMBERS}
    for name in ("imported_caller", "imported_outer", "imported_inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        caller = import_module("imported_caller")
        assert {each: signal.getsignal(each) for each in NUMBERS} == before
    finally:
        for each, handler in found.items():
            signal.signal(each, handler)
    stop = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    assert (caller.ended, caller.again) == (stop, stop)
    assert sys.modules["imported_outer"].done
    assert sys.modules["imported_inner"].done
    assert sys.gettrace() is None
