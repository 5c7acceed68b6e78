"""dphist on every supported Python, with the oldest and the newest versions of its dependencies.

    python tools/versions.py                      # build the wheel, try every combination, print the table
    python tools/versions.py --write              # and put the table into docs/install.md
    python tools/versions.py --python 3.13 --versions oldest

Each combination is a new environment with the wheel and its extras. It runs the walk from a CSV file to a report,
a release on Spark, and the tests in TESTS, against the installed wheel. The oldest versions are those that
pyproject.toml allows and that have a wheel for this Python. Interpreters are those on PATH and those of pyenv; the
table says which are missing. uv reads UV_DEFAULT_INDEX, not the configuration of pip.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "install.md"
MARKS = ("<!-- versions: begin -->\n", "<!-- versions: end -->\n")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("accounting", "fast", "frames", "java", "opendp", "plot", "postgres", "spark", "web")
# Certified plans, commands and seeded releases compared with recorded numbers; old certificates; formats; options.
TESTS = (
    "tests/golden",
    "tests/certificate/test_certificates.py",
    "tests/cli/test_command_line.py",
    "tests/outputs/test_output_roundtrip.py",
)
# Recorded with a new SciPy: older ones find other last digits of the paper's bounds and of curves.
NOT_WITH_THE_OLDEST = (
    "tests/golden/test_golden.py::test_quick_cases_are_as_before[plans]",
    "tests/golden/test_golden.py::test_quick_cases_are_as_before[commands]",
)
NEEDED_BY_TESTS = ("pytest", "pytest-xdist", "hypothesis", "httpx", "jsonschema", "xlsxwriter")
# The packages that the table names.
SHOWN = (
    "numpy",
    "scipy",
    "pyarrow",
    "python-flint",
    "cryptography",
    "typer",
    "pandas",
    "polars",
    "numba",
    "pyspark",
)

sys.path.insert(0, str(ROOT / "tests" / "support"))

from installed import clean_environment, release_with_spark, walk  # noqa: E402


class Failed(Exception):
    """A step that failed, with what it printed."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=clean_environment(), text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Failed(done.stdout)
    return done.stdout


def requirements() -> list[str]:
    """What the wheel and its extras need: only what is named is installed in its oldest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(name for extra in EXTRAS for name in optional[extra] if "dphist" not in name),
    ]


def interpreter(python: str) -> str | None:
    """The path of a Python on this machine."""
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python"))
    if own:
        return str(own[-1])
    return shutil.which(f"python{python}")


def try_one(
    uv: str, python: str, versions: str, wheel: Path, folder: Path, tests: Sequence[str]
) -> tuple[str, str]:
    """The versions that were installed, and the result."""
    environment = folder / f"{python}-{versions}"
    binaries = environment / "bin"
    path = interpreter(python)
    if path is None:
        return "", "not on this machine"
    shown = ""
    try:
        run(uv, "venv", "--quiet", "--no-project", "--no-python-downloads", "--python", path, environment)
        # PySpark has no wheel; everything else must have one for this Python.
        wheels = ("--only-binary", ":all:", "--no-binary", "pyspark")
        install = (uv, "pip", "install", "--quiet", *wheels, "--python", binaries / "python")
        extras = f"{wheel}[{','.join(EXTRAS)}]"
        if versions == "oldest":
            run(*install, "--resolution", "lowest-direct", extras, *requirements())
        else:
            run(*install, extras)
        listed = run(uv, "pip", "freeze", "--python", binaries / "python")
        found = dict(re.findall(r"^([\w-]+)==(\S+)$", listed, re.MULTILINE))
        shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
        run(uv, "pip", "check", "--python", binaries / "python")
        run(*install, *NEEDED_BY_TESTS)
        work = folder / f"walk-{python}-{versions}"
        work.mkdir()
        walk(binaries, work, charts=True)
        release_with_spark(binaries, work)
        # Old packages warn of what is new in Python, and new ones of what is old in others.
        pytest = (
            binaries / "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "filterwarnings=default",
        )
        left_out = NOT_WITH_THE_OLDEST if versions == "oldest" else ()
        said = run(*pytest, "-n", "2", "--dist", "loadscope", *(f"--deselect={name}" for name in left_out), *tests)
        summary = re.findall(r"^\d+ passed.*$", said, re.MULTILINE)[-1]
        return shown, re.sub(r" in [\d.]+s.*|, \d+ warnings?", "", summary)
    except (Failed, AssertionError) as error:
        print(error, file=sys.stderr)
        return shown, "fails"
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ("Python", "versions", "with", "tests")
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try dphist with every supported version.")
    parser.add_argument("--python", action="append", choices=PYTHONS)
    parser.add_argument("--versions", action="append", choices=("oldest", "newest"))
    parser.add_argument("--tests", action="append", help="in place of the selection")
    parser.add_argument("--write", action="store_true", help="put the table into docs/install.md")
    options = parser.parse_args()
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        parser.error("this needs uv: pip install uv")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv, "build", "--quiet", "--no-python-downloads", "--python", sys.executable, "--out-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        rows = []
        for python in options.python or PYTHONS:
            for versions in options.versions or ("oldest", "newest"):
                row = (python, versions, *try_one(uv, python, versions, wheel, folder, options.tests or TESTS))
                print(" | ".join(row), flush=True)
                rows.append(row)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(MARKS[0])
        PAGE.write_text(before + MARKS[0] + table(rows) + MARKS[1] + rest.split(MARKS[1])[1], encoding="utf-8")
    return 1 if any(row[3] == "fails" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
