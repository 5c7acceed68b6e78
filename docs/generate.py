"""Generate docs/theory/formulas.md, the schema of certificates and the tables about other tools: `make docs`."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import peer_tables

from dphist.certificate.schema import Certificate

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "theory" / "formulas.md"
SCHEMA = ROOT / "docs" / "certificate.schema.json"
ANALYSIS = (ROOT / "src" / "dphist" / "proof", ROOT / "src" / "dphist" / "paper")
TESTS = ROOT / "tests"

# Every labelled statement of the paper, in its order.
PAPER_LABELS = (
    "lem:standard-gaussian-mechanism",
    "lem:related-add-the-delta",
    "lem:related-GSHM",
    "lem:restated-Leb24-for-approx",
    "claim:upperbounddeltainf",
    "thm:algorithm-privacy-add-the-deltas",
    "lem:computing-threshold-add-the-delta",
    "thm:privacy-tighter-analysis",
    "lem:difference-for-j-sparse",
    "lem:top-k-sens-structure",
    "cor:top-k-privacy",
    "lem:zCDP-implies-approx-DP",
    "lem:discrete-gaussian-mechanism",
    "lem:discrete-cor-privacy",
    "lem:discrete-upperbounddeltainf",
    "theorem:discrete-cor-GSHM",
)
NOT_IN_ANALYSIS = {
    "lem:top-k-sens-structure": "the top-k step before noise is added; see [Top-k](top-k.md)",
    "cor:top-k-privacy": "the same step; sound only for plans with m = k, see [Limits](../limits.md)",
}


# Oracles whose names differ from their functions.
ORACLES = {
    "delta_of_all_cases": "delta_family",
    "certify_family": "delta_family",
    "certify_discrete_laplace": "infinite_event_laplace, delta_discrete_laplace_single",
    "certify_known_domain": "delta_discrete_case",
    "certify_lattice": "delta_discrete_case",
    "certify_rounds": "delta",
    "cover_vector": "vector_divergence, renyi_of_order_two",
    "delta_of_case": "delta_case",
    "delta_of_gaussian_cost": "gaussian_part",
    "delta_of_squared_move": "gaussian_delta",
    "event_of_rounds": "event",
    "gaussian_case": "delta_family, squared_sensitivity",
    "gaussian_cost_of_rounds": "squared_mu, event",
    "infinite_case": "infinite_event",
    "infinite_event_discrete_laplace": "infinite_event_laplace",
    "largest_sensitivity_per_sigma": "delta_gaussian",
    "largest_squared_move": "largest_squared",
    "largest_squared_sensitivity": "squared_sensitivity",
    "offset_bound_upper": "offset_bound",
    "squared_move_of_pure": "pure_squared",
    "squared_sensitivity_top_k": "gaussian_sensitivity_squared",
    "sum_bound": "offset_bound",
    "tau_gshm_add_the_deltas": "delta_gshm_add_the_deltas",
    "tau_laplace": "infinite_event_laplace",
}


@dataclass(frozen=True)
class Formula:
    module: str
    name: str
    summary: str
    guarantee: str
    source: str
    tests: tuple[str, ...]

    @property
    def oracles(self) -> tuple[str, ...]:
        """The independent functions it is checked against, as module.function."""
        names = ORACLES.get(self.name, self.name).split(", ")
        return tuple(f"{module}.{name}" for name in names for module in _oracle_modules(name))


def _oracle_modules(name: str) -> list[str]:
    return [
        path.stem
        for path in sorted((TESTS / "oracles").glob("*.py"))
        if re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def _field(docstring: str, name: str) -> str:
    match = re.search(rf"^{name}: (.*?)(?=^\w[\w ]*: |\Z)", docstring, re.MULTILINE | re.DOTALL)
    return " ".join(match.group(1).split()) if match else ""


@cache
def formulas() -> list[Formula]:
    """All public functions of the analysis whose docstring names a source."""
    tests = sorted(TESTS.rglob("test_*.py"))
    words = {path.name: set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in tests}
    found = []
    for path in [path for folder in ANALYSIS for path in sorted(folder.glob("*.py"))]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                docstring = ast.get_docstring(node) or ""
                if source := _field(docstring, "Source"):
                    found.append(
                        Formula(
                            f"{path.parent.name}/{path.name}",
                            node.name,
                            docstring.splitlines()[0],
                            _field(docstring, "Guarantee"),
                            source,
                            tuple(file for file, used in words.items() if node.name in used),
                        )
                    )
    return found


def formulas_page() -> str:
    every = formulas()
    lines = [
        "# Formulas",
        "",
        "Every labelled statement of the paper, the function that implements it and the oracle that checks it.",
        "Generated from the docstrings by `make docs`; a test keeps the page current. The oracles, in",
        "`tests/oracles/`, are derived from the paper and the definitions alone.",
        "",
        "## By label in the paper",
        "",
        "| label | function | oracle |",
        "|---|---|---|",
    ]
    for label in PAPER_LABELS:
        here = [f for f in every if f"`{label}`" in f.source]
        names = ", ".join(f"`{f.name}`" for f in here) or NOT_IN_ANALYSIS[label]
        checks = ", ".join(sorted({f"`{oracle}`" for f in here for oracle in f.oracles}))
        lines.append(f"| `{label}` | {names} | {checks} |")
    lines += ["", "## By function", ""]
    for formula in every:
        lines += [
            f"### `{formula.name}`",
            "",
            f"{formula.summary} (`{formula.module}`)",
            "",
            f"- Guarantee: {formula.guarantee}",
            f"- Source: {formula.source}",
            f"- Oracle: {', '.join(f'`{oracle}`' for oracle in formula.oracles)}",
            f"- Tested in: {', '.join(f'`{test}`' for test in formula.tests)}",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def certificate_schema() -> str:
    """The text of docs/certificate.schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Certificate)}
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    for page, text in ((PAGE, formulas_page()), (SCHEMA, certificate_schema())):
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"Wrote {page.relative_to(ROOT)}\n")
    for path in peer_tables.write():
        sys.stdout.write(f"Wrote {path.relative_to(ROOT)}\n")
