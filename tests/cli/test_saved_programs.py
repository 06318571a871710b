"""Folders of ``dx.save`` in place of files."""

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import SHARDED

import distir_ext as dx
from distir_ext.interop._program_files import read_program

COMMANDS = {
    "partition": SHARDED,
    "report": [*SHARDED, "--json"],
    "explain": ["hidden", *SHARDED],
    "simulate": [*SHARDED, "--json"],
    "diff": [*SHARDED, "--with-shard", "up=-,-"],
    "visualize": ["up", *SHARDED],
    "sweep": ["--devices", "4", "--axes", "dp,tp", "--shard", "x=dp,-", "--json"],
}


@pytest.fixture
def saved(model):
    weights = {"up": np.zeros((64, 256), "float32"), "down": np.zeros((256, 64), "float32")}
    dx.save("saved", read_program(model), weights)
    return "saved"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_a_program(command, model, saved, printed):
    said = [printed(command, program, *COMMANDS[command]) for program in (model, saved)]
    assert said[0].replace(model, saved) == said[1]


def test_meshes_and_annotations_are_in_it(model, file, data):
    mod = dx.annotate(read_program(model), dx.Mesh(dp=2, tp=2), {"up": (None, "tp")})
    dx.save("annotated", mod)
    found = data("report", "annotated")
    assert {each["name"]: each["sharding"] for each in found["tensors"]}["up"] == "(None, 'tp')"


def test_errors(saved, refused):
    assert "has one program, so it is named without ':MLP'" in refused("report", f"{saved}:MLP")
    (Path(saved) / "module.json").write_text("{}")
    assert "saved/module.json is damaged: it has 2 bytes" in refused("report", saved, *SHARDED)
