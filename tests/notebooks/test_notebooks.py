"""The notebooks of examples/notebooks run from a clean kernel, and lie there without outputs."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient import NotebookClient
from tests.notebooks.__main__ import FOLDER, stripped

NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

# What the text of outputs has to say, and how many figures of matplotlib there are.
EXPECTED = {
    "mutator_step_by_step": (
        [
            r"(equal to NumPy:\s+True\s[\s\S]*){2}",
            r"up1 +weight .*on device 1",
            r"send .*65\.5 kB",
            r"all_reduce",
            r"one after the other: 28 us",
        ],
        1,
    ),
    "plan_for_llama": (
        [
            r"723 weights",
            r"needs 35\.\d of 80 GB",
            r"dp=8, tp=1 +Megatron .* no ",
            r"best: dp=2, tp=4, Megatron",
            r"all_reduce: 1\d% of the time",
        ],
        3,
    ),
    "a_plan_nobody_wrote": (
        [
            r"no limit: 67\.\d+ ms, 15\.\d GB",
            r"no plan within 3 GB is faster by more than [01]\.\d%",
            r"best mesh: Mesh\(\(\d(, \d)*\)",
            r"equal to NumPy: True",
        ],
        0,
    ),
    "why_this_gather": (
        [
            r"(equal to NumPy:\s+True\s[\s\S]*){2}",
            r"narrow +relax\.multiply .*reduce_scatter, exchange",
            r"\{'gate': \('dp', None\)",
            r"implicit redistributions: 0",
            r"nobody asked for 1 redistribution",
        ],
        0,
    ),
    "custom_kernel": (
        [
            r"(equal to NumPy:\s+True\s[\s\S]*){2}",
            r"W\[3\]\[1 2\] S\[3\]\[1\] .* 1: 8 sum, 2: 4 sum",
            r"W: T\.Buffer\(\(16, 32\), \"uint32\"\)",
            r"packed +weight +uint32\[64, 32\] +\(None, 'tp'\) +64 x 8",
            r"all_gather",
            r"kernel `flip` by its rule \"n -> n\" cannot run on shards",
        ],
        0,
    ),
    "pipeline_and_bubble": (
        [
            r"equal to NumPy:\s+True",
            r"bubble 75%",
            r"\n +8 +27\.\d% +27\.3%",
            r"2 per device: .*bubble 15\.\d%\n +by the formula 15\.8%",
            r"device 3 \|\.{12}0000",
        ],
        3,
    ),
}


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def executed(name, folder):
    notebook = read(name)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    return notebook


def text_of(notebook):
    """All that is printed and shown, as text."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.get("name") != "stderr", output.text
            found.append(output.text if output.output_type == "stream" else shown(output))
    return "\n".join(found)


def shown(output):
    return output.data.get("text/plain", "")


def test_every_notebook_has_an_expectation():
    assert set(EXPECTED) == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name):
    """``python -m tests.notebooks`` takes them out."""
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook == stripped(notebook)


def test_outputs_counts_and_metadata_are_taken_out():
    new = nbformat.v4
    output = new.new_output("stream", text="1")
    notebook = new.new_notebook(
        cells=[
            new.new_code_cell("1", outputs=[output], execution_count=3, metadata={"tags": ["a"]}),
            new.new_markdown_cell("2", metadata={"collapsed": True}),
        ],
        metadata={"language_info": {"name": "python", "version": "3.12.1"}, "widgets": {}},
    )
    found = stripped(notebook)
    nbformat.validate(found)
    assert notebook != found
    assert [cell.source for cell in found.cells] == ["1", "2"]
    assert found.cells[0].outputs == []
    assert found.cells[0].execution_count is None
    assert [cell.metadata for cell in found.cells] == [{"tags": ["a"]}, {}]
    assert set(found.metadata) == {"kernelspec", "language_info"}
    assert set(found.metadata.language_info) == {"name"}


@pytest.mark.large
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # no settings of the user
    notebook = executed(name, tmp_path)
    text = text_of(notebook)
    patterns, figures = EXPECTED[name]
    for pattern in patterns:
        assert re.search(pattern, text), f"{pattern}\n\n{text}"
    assert "False" not in text
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    assert sum("image/png" in each.get("data", {}) for each in outputs) == figures
