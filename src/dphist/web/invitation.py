"""How a browser is sent to the page with no secret in its command line, which other users can see."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_SECONDS: Final = 60.0
_FILE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>dphist: explore plans</title>
<p><a href="{address}">To the page</a></p>
"""


class Invitation:
    """A file that its owner alone can read, and that sends a browser on with a code that works once, and not long.

    Whoever sees the address of the file cannot open it; whoever finds the code later cannot use it.
    """

    def __init__(self, *, seconds: float = _SECONDS) -> None:
        self._code = secrets.token_urlsafe(32)
        self._seconds = seconds
        self._ends: float | None = None
        self._folder: Path | None = None

    def written(self, home: str) -> str:
        """Write the file for the page at this address, and tell the file's own."""
        self._folder = Path(tempfile.mkdtemp(prefix="dphist-explore-"))  # for its owner alone
        path = self._folder / "open.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(_FILE.format(address=f"{home}/?code={self._code}"))
        self._ends = time.monotonic() + self._seconds
        return path.as_uri()

    def takes(self, given: str) -> bool:
        """Whether this is the code, for the first time and in time. Then the file has done its work and goes."""
        right = secrets.compare_digest(given.encode("utf-8", "replace"), self._code.encode())
        if not right or self._ends is None or time.monotonic() > self._ends:
            return False
        self.withdraw()
        return True

    def withdraw(self) -> None:
        """Remove the file; the code opens nothing from now on."""
        self._ends = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
