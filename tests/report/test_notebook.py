"""The tutorial runs from top to bottom in a kernel of this Python."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient

import dphist

nbformat: Any = importlib.import_module("nbformat")
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
# A cell takes 12 seconds on an idle machine.
SECONDS = 900


def executed(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook with its outputs, from a kernel that imports the package under test."""
    pytest.importorskip("ipykernel")
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    source = str(Path(dphist.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    # No settings or history of the person who runs the tests.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))

    # Sockets in a folder with a short name: another process could take a port before the kernel does.
    with tempfile.TemporaryDirectory() as sockets:

        class OwnKernel(AsyncKernelManager):
            @property
            def kernel_spec(self) -> KernelSpec:
                command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
                return KernelSpec(argv=command, display_name="own", language="python")

            @default("transport")
            def _by_files(self) -> str:
                return "ipc"

            @default("ip")
            def _in_the_folder(self) -> str:
                return f"{sockets}/kernel"

        client = NotebookClient(
            notebook, timeout=SECONDS, startup_timeout=SECONDS, kernel_manager_class=OwnKernel,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        client.execute()
    return notebook


def outputs(notebook: Any, kind: str) -> list[str]:
    return [
        str(output["data"][kind])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if kind in output.get("data", {})
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = executed(nbformat.read(TUTORIAL, as_version=4), tmp_path, monkeypatch)
    shown = " ".join(outputs(notebook, "text/html"))
    for text in (
        "<caption>Plan",
        "NOT PRIVATE: a simulation",
        "items released",
        "is verified",
        "Session with a total",
    ):
        assert text in shown
    assert "remaining: about 3 more releases" in shown
    assert len(outputs(notebook, "image/svg+xml")) == 2
    assert not [o for cell in notebook.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]


def test_the_tutorial_is_stored_without_outputs() -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
