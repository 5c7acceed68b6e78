"""The command and the Python code that make the plan of a request."""

from __future__ import annotations

import shlex

from dphist.web.fields import PlanRequest


def command(request: PlanRequest) -> str:
    """The command line of the plan."""
    words = ["dphist", "plan"]
    for name, value in request.keywords().items():
        words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else repr(value)]
    return shlex.join(words)


def python_code(request: PlanRequest) -> str:
    """The same in Python."""
    keywords = ", ".join(f"{name}={value!r}" for name, value in request.keywords().items())
    return f"import dphist\n\nplan = dphist.plan({keywords})\nprint(plan)"
