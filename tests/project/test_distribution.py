"""The wheel and the sdist: what is in them, and what they do in an environment that has nothing else.

Packages come from the configured package index; pip's cache keeps that fast.
"""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import dphist
from dphist.errors import install_command
from installed import BUDGET, release_with_spark, run, walk

pytest.importorskip("build", reason="no build: pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small pure package that dphist needs can be downloaded, or the test is skipped."""
    folder = tmp_path_factory.mktemp("network")
    words = [*PIP, "download", "--quiet", "--retries", "1", "--no-deps", "--dest", str(folder), "rfc8785"]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no package index: `pip download rfc8785` failed")


@pytest.fixture(scope="module")
def built(network: None, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "build", "--outdir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def environment(folder: Path, *packages: str) -> Path:
    """The folder of programs of a new environment with these packages and what they need."""
    run(folder, sys.executable, "-m", "venv", "--without-pip", "environment")
    binaries = folder / "environment" / ("Scripts" if sys.platform == "win32" else "bin")
    run(folder, *PIP, "--python", binaries / "python", "install", "--quiet", "--no-compile", *packages)
    run(folder, *PIP, "--python", binaries / "python", "check")
    return binaries


@pytest.fixture(scope="module")
def core(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("core"), str(built.wheel))


def test_the_wheel_has_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry_points,) = [archive.read(name) for name in archive.namelist() if name.endswith("entry_points.txt")]
        (metadata,) = [archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    source = ROOT / "src"
    assert names == {
        str(path.relative_to(source))
        for path in (source / "dphist").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"dphist/py.typed", "dphist/report/templates/report.html", "dphist/explore/page/index.html"} <= names
    assert entry_points.decode().split("\n\n")[0].strip() == "[console_scripts]\ndphist = dphist.__main__:main"
    facts = email.message_from_bytes(metadata)
    assert facts["Version"] == PROJECT["version"] == dphist.__version__
    assert built.wheel.name == f"dphist-{dphist.__version__}-py3-none-any.whl"
    assert facts["License-Expression"] == "Apache-2.0"


def test_the_sdist_has_the_files_of_the_project_and_no_others(built: Built) -> None:
    """A log or a ledger that lies in the checkout must not be published with it."""
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.decode().splitlines() if (ROOT / name).is_file()}
    assert names - tracked == {"PKG-INFO"}
    folders = ("src/", "tests/", "docs/", "examples/", "benchmarks/", "tools/")
    assert {name for name in tracked if name.startswith(folders)} <= names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".parquet", ".ledger", ".sqlite", ".duckdb", ".key"))]


def test_from_an_empty_environment_to_a_verified_release_and_a_report(core: Path, tmp_path: Path) -> None:
    walk(core, tmp_path)


def test_what_needs_an_extra_names_its_packages(core: Path, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,query\n1,weather\n2,weather\n", encoding="utf-8")
    for extra, words in {
        "plot": "compare --epsilon 1 --delta 1e-5 --max-nonzero 100 --plot figure.png",
        "web": "explore",
        "spark": f"release log.csv {' '.join(BUDGET)} -o out.csv --engine spark",
        "postgres": f"release postgresql://nobody@localhost/x --table t {' '.join(BUDGET)} -o out.csv",
    }.items():
        said = run(tmp_path, core / "dphist", *words.split(), code=2)
        assert said.startswith("Error: ")
        assert said.endswith(f": {install_command(extra)}\n")
        assert said.count("\n") == 1
    # What has no command.
    code = """
import json, sys
import dphist, dphist.accounting, dphist.opendp

plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
released = dphist.release("log.csv", user="user", item="query", epsilon=1, delta=1e-6, max_items_per_user=1)
told = {}
for name, call in {
    "accounting": lambda: dphist.accounting.to_pld(plan),
    "opendp": dphist.opendp.input_domain,
    "pandas": released.to_pandas,
    "polars": released.to_polars,
    "plot": dphist.chart(plan).svg,
}.items():
    try:
        call()
    except dphist.MissingExtra as error:
        told[name] = str(error)
print(json.dumps(told))
"""
    told = json.loads(run(tmp_path, core / "python", "-c", code))
    commands = {name: install_command(name) for name in ("accounting", "opendp", "plot")}
    commands |= {name: f"pip install {name}" for name in ("pandas", "polars")}
    assert {name: sentence.rpartition(": ")[2] for name, sentence in told.items()} == commands


# What shows that an extra is installed, and used: a line of Python in the folder of the walk.
USES = {
    "accounting": "plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1); "
    "import dphist.accounting; assert dphist.accounting.to_pld(plan).get_delta_for_epsilon(1) <= 1e-6",
    "fast": "from dphist.sampling.sampler import compiled_kernel; assert compiled_kernel() is not None",
    "frames": "import pandas, polars; frame = pandas.read_csv('log.csv'); "
    "found = dphist.release(frame, user='user', item='query', epsilon=1, delta=1e-6); "
    "assert len(found.to_pandas()) == len(found.to_polars()) == 2",
    "opendp": "import opendp.prelude as dp; dp.enable_features('contrib', 'honest-but-curious'); "
    "import dphist.opendp; dphist.opendp.input_domain()",
    "plot": "assert '<svg' in dphist.make_report('queries.csv')",
    "postgres": "from dphist.errors import postgres_driver; postgres_driver()",
    "spark": "from dphist.spark.session import NEEDED",
    "web": "import dphist.explore.app",
}


@pytest.mark.slow
@pytest.mark.parametrize("extra", USES)
def test_each_extra_in_an_environment_of_its_own(built: Built, extra: str, tmp_path: Path) -> None:
    binaries = environment(tmp_path, f"{built.wheel}[{extra}]")
    walk(binaries, tmp_path, charts=extra in ("plot", "web"))
    run(tmp_path, binaries / "python", "-c", f"import dphist; {USES[extra]}")
    if extra == "spark":
        release_with_spark(binaries, tmp_path)


def test_every_extra_for_users_is_tried() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"dev", "site", "java"}
    assert extras == set(USES)


def test_the_version_is_the_same_everywhere() -> None:
    version = dphist.__version__
    assert PROJECT["version"] == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) \(([\d-]+)\)$", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == version
    assert f"date-released: {newest[2]}" in citation
    assert f"dphist-{version}-py3-none-any.whl" in (ROOT / "README.md").read_text(encoding="utf-8")
