"""The names of files: which formats their endings mean, and how certificates are called."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Final

# .db may be a DuckDB or an SQLite file.
FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".duckdb": "duckdb",
    ".ddb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "db",
}  # fmt: skip
DATABASES: Final = ("duckdb", "sqlite", "postgresql")
CERTIFICATE: Final = ".certificate.json"
# In a folder of Parquet files.
FOLDER_CERTIFICATE: Final = "_certificate.json"
_WRITTEN: Final = ("parquet", "csv", "tsv", "jsonl", "arrow", "duckdb", "sqlite")
# The endings of outputs.
ENDINGS: Final = {
    **{ending: kind for ending, kind in FORMATS.items() if kind in _WRITTEN},
    ".db": "sqlite",
    **{f"{ending}.gz": f"{FORMATS[ending]}.gz" for ending in (".csv", ".tsv", ".jsonl", ".ndjson")},
}
KINDS: Final = tuple(dict.fromkeys(ENDINGS.values()))


def suffix_kind(address: str) -> str | None:
    """The kind of output for the ending of a name; None if it is unknown."""
    endings = Path(address.lower()).suffixes
    return ENDINGS.get("".join(endings[-2:] if endings[-1:] == [".gz"] else endings[-1:]))


def whole_digest(files: dict[str, str]) -> str:
    """SHA-256 of the names and digests of all files of a folder."""
    return sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
