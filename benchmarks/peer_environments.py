"""One virtual environment per tool, from the pinned packages of benchmarks/peer_jobs/NAME.txt."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from measure import measured
from peer_results import Installation

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-peers"
JOBS = ROOT / "benchmarks" / "peer_jobs"
IMPORTS = {
    "dphist": "dphist",
    "dphist-spark": "dphist, pyspark.sql",
    "opendp": "opendp.prelude, polars",
    "pipelinedp": "pipeline_dp, pandas",
    "pydp": "pydp, polars",
    "tumult": "tmlt.analytics, pyspark.sql",
    "smartnoise": "snsql, pandas",
    "qrlew": "pyqrlew, duckdb",
    "diffprivlib": "diffprivlib, pandas",
}
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_COUNT = """
import importlib.metadata, json, pathlib, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
tools = ("pip", "setuptools", "pkg_resources", "wheel", "_distutils_hack")
files = [f for f in site.rglob("*") if f.is_file() and f.relative_to(site).parts[0].split("-")[0] not in tools]
found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
print(json.dumps([sum(f.stat().st_size for f in files) / 1e6, {n: v for n, v in found.items() if n not in tools}]))
"""


def install(name: str) -> str:
    """Make the environment if it is missing or its packages have changed; the reason if that is impossible."""
    requirements = JOBS / f"{name}.txt"
    text = requirements.read_text(encoding="utf-8")
    folder, version = FOLDER / name, python_version(name)
    stamp, wanted = folder / "packages", fingerprint(name, text)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return ""
    base = find_python(version)
    if base is None:
        return f"needs Python {version}, which is not installed"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python_of(name)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    for command in ([base, "-m", "venv", str(folder)], [*pip, "-r", str(requirements)]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return "pip cannot install it here"
    stamp.write_text(wanted, encoding="utf-8")
    return ""


def python_of(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def python_version(name: str) -> str:
    """The Python that the pinned packages are for."""
    return str(re.findall(r"^# Python (\S+)", (JOBS / f"{name}.txt").read_text(), re.MULTILINE)[0])


def fingerprint(name: str, requirements: str) -> str:
    """Changes with the packages, and for dphist with its source."""
    digest = hashlib.sha256(requirements.encode())
    if name.startswith("dphist"):
        sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt", *sorted((ROOT / "src").rglob("*.*"))]
        for source in sources:
            if source.is_file() and "__pycache__" not in source.parts:
                digest.update(source.read_bytes())
    return digest.hexdigest()


def find_python(version: str) -> str | None:
    """A Python of this version: this one, one on the path, or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if (
            candidate is not None
            and _says(candidate, "import sys; print('%d.%d' % sys.version_info[:2])") == version
        ):
            return candidate
    return None


def _says(python: str, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def describe(name: str, failure: str) -> Installation:
    """Size and packages of an environment, without pip, and the time of its import."""
    version = python_version(name)
    if failure:
        return Installation(name, version, failure=failure)
    megabytes, packages = json.loads(_says(str(python_of(name)), _COUNT))
    own = packages.get(re.findall(r"^# Package (\S+)", (JOBS / f"{name}.txt").read_text(), re.MULTILINE)[0], "")
    seconds = import_cpu(python_of(name), IMPORTS[name])
    return Installation(name, version, own, len(packages), round(megabytes, 1), seconds)


def import_cpu(python: Path, modules: str) -> float:
    """CPU seconds of importing modules beyond those of an empty interpreter: medians of 5, after a first."""

    def seconds(code: str) -> float:
        measured([str(python), "-c", code])
        return median(measured([str(python), "-c", code]).used.cpu for _ in range(5))

    return round(seconds(f"import {modules}") - seconds("pass"), 3)
