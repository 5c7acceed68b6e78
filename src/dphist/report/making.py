"""`make_report`: verify a release, and say in one page what it is, what it promises and what it does not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, get_args

from dphist.display import printable
from dphist.errors import DphistError, InputError, InvalidParameter, NotVerified
from dphist.outputs.seal import certificate_text
from dphist.releasing.result import Release
from dphist.releasing.verify import SEEDED, Examination, Verification, read_and_verify
from dphist.report.charts import charts_of
from dphist.report.drawing import FigureFormat, figure_files
from dphist.report.facts import Facts, Origin, facts_of
from dphist.signatures import Trust

ReportFormat = Literal["html", "markdown", "text"]
FORMATS: Final[tuple[ReportFormat, ...]] = get_args(ReportFormat)
_ENDINGS: Final[dict[str, ReportFormat]] = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".txt": "text",
}  # fmt: skip


def make_report(
    release: Release | str | os.PathLike[str],
    format: ReportFormat = "html",
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> str:
    """A report of a release as one text: a page of HTML that needs no network, Markdown, or plain text.

    `release` is what `dphist.release` gave back, or where it was written to (then `table`, `certificate` and
    `public_key` are as for `verify`). It is verified first: raises `NotVerified` if anything is wrong with it. A
    release from a seed, for tests, gets a report that says so at its top.
    """
    facts = report_facts(release, table=table, certificate=certificate, public_key=public_key)
    return render(facts, checked_format(format))


def checked_format(name: str) -> ReportFormat:
    """The format of this name."""
    for known in FORMATS:
        if name == known:
            return known
    raise InvalidParameter(f"the format of a report must be one of {', '.join(FORMATS)}, not {name!r}")


def format_of(path: Path, otherwise: str = "") -> ReportFormat:
    """The format that a file's name tells; where it tells none, `otherwise` says what else can be done."""
    found = _ENDINGS.get(path.suffix.lower())
    if found is None:
        raise InvalidParameter(
            f"the report must end in {', '.join(_ENDINGS)}, not {printable(path.name)!r}{otherwise}"
        )
    return found


def render(facts: Facts, format: ReportFormat, figures: dict[str, str] | None = None) -> str:
    """The report in one format; Markdown names `figures`, from the name of a chart to its file."""
    with _understood():
        if format == "markdown":
            from dphist.report.markdown import markdown

            return markdown(facts, figures or {})
        if format == "html":
            from dphist.report.html import html

            return html(facts)
        from dphist.report.text import text

        return text(facts)


def drawn_figures(facts: Facts, folder: Path, kind: FigureFormat) -> dict[str, tuple[Path, bytes]]:
    """The file and the content of each chart, by its name; nothing is written yet."""
    with _understood():
        return figure_files(charts_of(facts), folder, kind)


@contextmanager
def _understood() -> Iterator[None]:
    """Of a release from a seed not all is looked at, and its certificate may say anything: that is its fault."""
    try:
        yield
    except DphistError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise InputError(f"the certificate cannot be understood ({type(error).__name__})") from None


def report_facts(
    release: Release | str | os.PathLike[str],
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> Facts:
    """Everything that a report says, of a release that is verified before."""
    trust = Trust.of(public_key, None)
    if isinstance(release, Release):
        if public_key is not None:
            raise InvalidParameter("public_key is for a release that was written: give its address")
        document, rows = json.loads(json.dumps(release.document())), release.to_arrow()
        examined = Examination([])
        examined.attempt(document, rows)
        verified = examined.verification("FILE")
        origin = Origin(None, missing=_in_memory(release), written=release.written is not None)
    else:
        verified, found = read_and_verify(release, table=table, certificate=certificate, trust=trust)
        document, rows = found.document, found.table
        origin = Origin(None)
        if document is not None:
            origin = _origin(document, verified.address, table, certificate, public_key)
    refuse_what_is_not_verified(verified)
    with _understood():
        return facts_of(document, rows, verified, origin)


def _in_memory(release: Release) -> str:
    """Why a release in memory has no certificate to take along."""
    if release.written is None:
        return (
            "This report is of a release in memory, which has no certificate yet: a certificate belongs to the "
            "file that it is written with. release.write(...) writes both; a report of that file has it."
        )
    return (
        "This report is of a release in memory. It was written as well: the certificate is "
        f"{release.written.certificate}, and belongs to {release.written.address}; a report of that has it."
    )


def _origin(
    document: dict[str, Any],
    address: str,
    table: str | None,
    certificate: str | os.PathLike[str] | None,
    public_key: str | os.PathLike[str] | None,
) -> Origin:
    """Where the certificate of a written release is."""
    files = (("--certificate", certificate), ("--public-key", public_key))
    given = [("--table", table), *((flag, None if path is None else Path(path).name) for flag, path in files)]
    # What the command has beside the address.
    options = [word for flag, value in given if value is not None for word in (flag, value)]
    output = document.get("output")
    kind = output.get("kind") if isinstance(output, dict) else None
    if certificate is not None:
        place = Path(certificate).name
    elif kind in ("duckdb", "sqlite", "postgresql"):
        place = f"table {table or 'release'}_certificate"
    elif kind == "folder":
        place = f"{Path(address).name}/_certificate.json"
    else:
        place = f"{Path(address).name}.certificate.json"
    return Origin(certificate_text(document), place, options)


def refuse_what_is_not_verified(verified: Verification) -> None:
    """Raise `NotVerified` for any fault but a seed."""
    problems = [problem for problem in verified.problems if problem != SEEDED]
    if problems:
        said = f"{verified.address} is not verified, and no report is made of it: {'; '.join(problems)}"
        raise NotVerified(printable(said))
