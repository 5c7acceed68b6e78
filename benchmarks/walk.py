"""How much code one command runs: the files and functions of dphist that it calls.

    python benchmarks/walk.py          # the numbers
    python benchmarks/walk.py --list   # and the files, with the functions called in each

A file counts if at least one of its functions was called. Code that runs at import does not count: module-level
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
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = str(ROOT / "src" / "dphist") + os.sep
COMMANDS = {
    "release": "release log.csv --user user --item item --epsilon 1 --delta 1e-6 --max-items-per-user 5 "
    "--output out.csv",
    "plan": "plan --epsilon 1 --delta 1e-6 --max-items-per-user 20",
}


def traced(words: list[str]) -> set[tuple[str, str]]:
    """Run `dphist WORDS` in this process and return the (file, function) pairs that were called."""
    sys.path.insert(0, str(ROOT / "src"))
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG001
        if event == "call" and frame.f_code not in seen and not in_import(frame):
            seen.add(frame.f_code)

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
    return {
        (code.co_filename.removeprefix(SOURCE), code.co_qualname)
        for code in seen
        if code.co_filename.startswith(SOURCE) and is_function(code)
    }


def in_import(frame: FrameType | None) -> bool:
    """Whether a call comes from module-level code that an import runs."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def is_function(code: CodeType) -> bool:
    """Whether code is the body of a named function, not of a module, a class, a lambda or a comprehension."""
    fast_locals = bool(code.co_flags & 0x2)  # only functions have CO_NEWLOCALS and CO_OPTIMIZED
    return bool(code.co_flags & 0x1) and fast_locals and not code.co_name.startswith("<")


def walk(command: str) -> dict[str, list[str]]:
    """The functions that a command calls, by file, traced in a separate process."""
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        rows = [f"{user},item {number}\n" for user in range(400) for number in range(1 + user % 3)]
        Path(folder, "log.csv").write_text("user,item\n" + "".join(rows))
        found = Path(folder, "found.json")
        subprocess.run(
            [sys.executable, __file__, "--trace", str(found), *command.split()],
            cwd=folder, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        files: dict[str, list[str]] = defaultdict(list)
        for file, function in json.loads(found.read_text()):
            files[file].append(function)
        return files


def main() -> None:
    if sys.argv[1:2] == ["--trace"]:
        Path(sys.argv[2]).write_text(json.dumps(sorted(traced(sys.argv[3:]))))
        return
    parser = argparse.ArgumentParser(description="The files and functions of dphist that one command calls.")
    parser.add_argument("--list", action="store_true", help="also the files, and the functions called in each")
    given = parser.parse_args()
    for name, command in COMMANDS.items():
        files = walk(command)
        functions = sum(map(len, files.values()))
        packages = len({file.split(os.sep)[0] for file in files if os.sep in file})
        print(f"{name}: {len(files)} files, {functions} functions, {packages} packages  (dphist {command})")
        if given.list:
            for file, names in sorted(files.items()):
                print(f"  {file} ({len(names)}): {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
