"""The example notebooks run from the first cell to the last, and every cell that shows something shows it."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are made here, and not kept"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in outputs for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert list(tmp_path.iterdir()) == []


def test_there_are_three_and_they_say_what_they_need() -> None:
    for name in ("gpt2_step", "procedures", "does_it_fit"):
        first = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"][0]
        assert "pip install 'learncost[figures" in "".join(first["source"])
