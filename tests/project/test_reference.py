"""The reference is complete: every public name and parameter has a description, and every function an example."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest
from generator import api
from generator.docstrings import read

NAMES = [name for page in api.PAGES.values() for name in page.names]
# They need a cluster, or are of no use alone.
WITHOUT_EXAMPLE = {"sketch.build_on_spark", "opendp.input_domain", "opendp.input_metric"}


def test_every_public_name_is_on_one_page() -> None:
    assert Counter(NAMES) == Counter(api.public_names())


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_described(name: str) -> None:
    entry = api.Entry(name)
    assert list(entry.gaps()) == []
    if not entry.is_class and name not in WITHOUT_EXAMPLE:
        assert entry.described.code, "there is no example"
        assert entry.described.output, "the example prints nothing"


def test_what_is_not_described_exists() -> None:
    for name, members in api.INTERNAL.items():
        for member in members:
            kind = api.value_of(name)
            assert hasattr(kind, member) or member in kind.__dataclass_fields__, f"{name}.{member}"


def test_a_missing_description_is_noticed() -> None:
    def half(one: int, other: int) -> int:
        """Do nothing.

        Args:
            one: A number.
        """
        return one + other

    described = read(inspect.getdoc(half))
    assert list(api._unexplained("half", inspect.signature(half), described)) == ["half(other)"]


def test_a_docstring_in_parts() -> None:
    text = """The sum.

More about it,
on two lines.

>>> print(1 +
...     2)
3

Args:
    one: A number
        that is whole.
    **others: More.

Raises:
    ValueError: It is not.
"""
    found = read(text)
    assert (found.summary, found.paragraphs) == ("The sum.", ("More about it, on two lines.",))
    assert (found.code, found.output) == ("print(1 +\n    2)", "3")
    assert found.sections == {
        "Args": {"one": "A number that is whole.", "**others": "More."},
        "Raises": {"ValueError": "It is not."},
    }
