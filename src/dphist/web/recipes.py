"""The commands and the Python code that make the plan of a request, and a release with it."""

from __future__ import annotations

import shlex
from typing import Any, Final

from dphist.web.fields import PlanRequest

# What only the reader knows, under names that can be searched and replaced.
_EVENTS: Final = "events.parquet"
_COLUMNS: Final = {"user": "user_id", "item": "item"}
_OUTPUT: Final = {"output": "released.parquet"}
_NOT_RELEASED: Final = (
    "A release of events draws from the lattice: choose discrete noise, and its command is here."
)


def recipes(request: PlanRequest) -> dict[str, Any]:
    """All of them by name; None, with a sentence why, where a release cannot have this plan."""
    possible = request.noise != "continuous"
    return {
        "command": command(request),
        "python": python_code(request),
        "release_command": release_command(request) if possible else None,
        "release_python": release_code(request) if possible else None,
        "no_release": None if possible else _NOT_RELEASED,
    }


def command(request: PlanRequest) -> str:
    """The command line of the plan."""
    return shlex.join(["dphist", "plan", *_flags(request.keywords())])


def python_code(request: PlanRequest) -> str:
    """The same in Python."""
    return f"import dphist\n\nplan = dphist.plan({_arguments(request.keywords())})\nprint(plan)"


def release_command(request: PlanRequest) -> str:
    """The command line that releases events with this very plan."""
    return shlex.join(["dphist", "release", _EVENTS, *_flags({**_COLUMNS, **request.keywords(), **_OUTPUT})])


def release_code(request: PlanRequest) -> str:
    """The same in Python."""
    arguments = _arguments({**_COLUMNS, **request.keywords(), **_OUTPUT})
    return f"import dphist\n\nreleased = dphist.release({_EVENTS!r}, {arguments})\nprint(released)"


def _flags(keywords: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in keywords.items():
        words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else repr(value)]
    return words


def _arguments(keywords: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())
