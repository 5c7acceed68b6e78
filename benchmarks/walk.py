"""How much code one command runs: the files and functions of dphist that it calls, and the steps between files.

    python benchmarks/walk.py          # the numbers
    python benchmarks/walk.py --list   # and the files, with the functions called in each

A file counts if at least one of its functions was called. A step is a function that a function of another file
calls: a reader has to change files there. Code that runs at import does not count: module-level
code, class bodies, and the functions they call. Lambdas and comprehensions belong to their function. A function
counts once. All threads are traced. Each command runs in a fresh process on a small CSV file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = str(ROOT / "src" / "dphist") + os.sep
COMMANDS = {
    "default": "release log.csv --user user --item item --epsilon 1 --delta 1e-6 --output out.csv",
    "release": "release log.csv --user user --item item --epsilon 1 --delta 1e-6 --max-items-per-user 5 "
    "--output out.csv",
    "verify": "verify known.csv",
    "plan": "plan --epsilon 1 --delta 1e-6 --max-items-per-user 20",
}
KNOWN = COMMANDS["release"].replace("out.csv", "known.csv")


def traced(words: list[str]) -> tuple[list[tuple[str, str]], int]:
    """Run `dphist WORDS` in this process; the (file, function) pairs that were called, and the steps."""
    sys.path.insert(0, str(ROOT / "src"))
    seen: set[CodeType] = set()
    steps: set[tuple[CodeType, CodeType]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001
        code = frame.f_code
        if event != "call" or not is_own(code) or in_import(frame):
            return
        seen.add(code)
        caller = frame.f_back
        while caller is not None and not is_own(caller.f_code):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            steps.add((caller.f_code, code))

    # Before tracing starts, so that the import itself is not counted.
    module, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["dphist"].split(":")
    main = getattr(import_module(module), name)
    sys.argv = ["dphist", *words]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [(code.co_filename.removeprefix(SOURCE), code.co_qualname) for code in seen], len(steps)


def in_import(frame: FrameType | None) -> bool:
    """Whether a call comes from module-level code that an import runs."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def is_own(code: CodeType) -> bool:
    """Whether code is a named function of dphist, not a module, a class, a lambda or a comprehension."""
    fast_locals = bool(code.co_flags & 0x2)  # only functions have CO_NEWLOCALS and CO_OPTIMIZED
    is_function = bool(code.co_flags & 0x1) and fast_locals and not code.co_name.startswith("<")
    return is_function and code.co_filename.startswith(SOURCE)


def walk(command: str) -> tuple[dict[str, list[str]], int]:
    """The functions that a command calls, by file, and the steps, traced in a separate process."""
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        rows = [f"{user},item {number}\n" for user in range(400) for number in range(1 + user % 3)]
        Path(folder, "log.csv").write_text("user,item\n" + "".join(rows))
        found = Path(folder, "found.json")
        if command == COMMANDS["verify"]:
            run = [sys.executable, "-m", "dphist", *KNOWN.split()]
            environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
            subprocess.run(run, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
        subprocess.run(
            [sys.executable, __file__, "--trace", str(found), *command.split()],
            cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        files: dict[str, list[str]] = defaultdict(list)
        functions, steps = json.loads(found.read_text())
        for file, function in functions:
            files[file].append(function)
        return files, steps


def main() -> None:
    if sys.argv[1:2] == ["--trace"]:
        Path(sys.argv[2]).write_text(json.dumps(traced(sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description="The files and functions of dphist that one command calls.")
    parser.add_argument("--list", action="store_true", help="also the files, and the functions called in each")
    given = parser.parse_args()
    for name, command in COMMANDS.items():
        files, steps = walk(command)
        functions = sum(map(len, files.values()))
        packages = len({file.split(os.sep)[0] for file in files if os.sep in file})
        print(f"{name}: {len(files)} files, {functions} functions, {steps} steps, {packages} packages")
        print(f"    dphist {command}")
        if given.list:
            for file, names in sorted(files.items()):
                print(f"  {file} ({len(names)}): {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
