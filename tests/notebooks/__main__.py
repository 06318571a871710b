"""Takes out of the notebooks what running them has left: ``python -m tests.notebooks``."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"


def stripped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy without outputs, counts, and metadata but the kernel's name and the cells' tags."""
    result = copy.deepcopy(notebook)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    result.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    for number, cell in enumerate(result.cells):
        cell.id = f"cell-{number:02d}"
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    return result


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(stripped(nbformat.read(path, as_version=4)), path)
