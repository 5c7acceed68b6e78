"""Write the generated files of docs/: `make docs`. A test keeps them current."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from generator import api, certificates, commands, formulas, peers

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final[dict[str, Callable[[], str]]] = {
    "certificate.schema.json": certificates.schema_text,
    "reference/certificate.md": certificates.schema_page,
    "theory/formulas.md": formulas.formulas_page,
    "reference/cli.md": commands.commands_page,
    **api.pages(),
}

if __name__ == "__main__":
    for name, text in PAGES.items():
        page = ROOT / "docs" / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"Wrote docs/{name}\n")
    for path in peers.write():
        sys.stdout.write(f"Wrote {path.relative_to(ROOT)}\n")
