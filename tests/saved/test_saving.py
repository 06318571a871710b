"""Programs in directories: what is read is what was saved."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import tvm
from tests.analysis.programs import function
from tvm.relax import op

import distir_ext as dx
from distir_ext.params.checkpoint import open_params
from distir_ext.params.stored_array import MappedFiles
from distir_ext.saved import module_text

PLAN = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}


def network():
    """Two products, and a constant that is no scalar."""
    scale = tvm.relax.const(np.arange(8, dtype="float32"))

    def write(emit, x, up, down):
        hidden = emit(op.nn.relu(emit(op.matmul(x, up))))
        return emit(op.multiply(emit(op.matmul(hidden, down)), scale))

    return function({"x": (4, 8), "up": (8, 16), "down": (16, 8)}, write, num_input=1)


def annotated():
    return dx.annotate(network(), dx.Mesh(dp=2, tp=2), PLAN)


def weights():
    rng = np.random.default_rng(0)
    return {
        "up": rng.standard_normal((8, 16), "float32"),
        "down": rng.standard_normal((16, 8), "float32"),
    }


def in_stages():
    mesh = dx.Mesh(pp=2, tp=2)
    plan = {"up": (None, "tp"), "down": ("tp", None)}
    return dx.transform.AssignStages(mesh, "pp")(dx.annotate(network(), mesh, plan))


PHASES = {
    "plain": network,
    "annotated": annotated,
    "stages": in_stages,
    "propagated": lambda: dx.transform.PropagateSharding()(annotated()),
    "lowered": lambda: dx.lower(in_stages()),
    "runtime calls": lambda: dx.transform.LowerCCL()(dx.lower(annotated())),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_module_is_what_it_was(phase, tmp_path):
    mod = PHASES[phase]()
    dx.save(tmp_path / "program", mod)
    found = dx.load(str(tmp_path / "program"))
    tvm.ir.assert_structural_equal(found.mod, mod)
    assert found.mod.script(show_meta=True) == mod.script(show_meta=True)
    assert dx.phase(found.mod) == dx.phase(mod)
    assert found.params is None
    assert [mesh.axis_names for mesh in dx.meshes(found.mod)] == [
        mesh.axis_names for mesh in dx.meshes(mod)
    ]


def test_a_program_runs_with_its_weights(tmp_path):
    given = weights()
    dx.save(tmp_path, annotated(), given)
    found = dx.load(tmp_path)
    x = np.random.default_rng(1).standard_normal((4, 8), "float32")
    with dx.Session(4) as session:
        result = session.load(dx.build(found.mod), params=found.params)["main"](x)
    expected = np.maximum(x @ given["up"], 0) @ given["down"] * np.arange(8, dtype="float32")
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)


ARRAYS = {
    "bfloat16": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
    "float8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "scalar": np.float32(3),
    "empty": np.zeros((0, 4), "int8"),
    "strided": np.arange(24, dtype="int64").reshape(4, 6)[::2, 1::2].T,
    "bool": np.array([True, False]),
    "tvm": tvm.runtime.tensor(np.arange(5, dtype="float16")),
    "list": [1.5, 2.5],
}


def test_weights_are_what_they_were(tmp_path):
    dx.save(tmp_path, network(), list(ARRAYS.items()))
    found = open_params(dx.load(tmp_path).params)
    assert found.keys() == ARRAYS.keys()
    files = MappedFiles()
    for name, value in ARRAYS.items():
        array = found[name]
        wanted = value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value)
        read = array.read(files, [0] * len(array.shape), array.shape)
        assert read.dtype == wanted.dtype
        np.testing.assert_array_equal(np.array(read), wanted)


def test_a_program_takes_the_place_of_one(tmp_path):
    folder = tmp_path / "program"
    dx.save(folder, network(), weights())
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (folder / "module.json").unlink()
    (folder / "module.json").symlink_to(kept)
    dx.save(folder, annotated())
    tvm.ir.assert_structural_equal(dx.load(folder).mod, annotated())
    assert dx.load(folder).params is None
    assert sorted(each.name for each in folder.iterdir()) == ["module.json", "program.json"]
    assert kept.read_text() == "kept"


def test_the_manifest_says_what_there_is(tmp_path):
    dx.save(tmp_path, network(), weights())
    stated = json.loads((tmp_path / "program.json").read_text())
    assert (stated["format"], stated["version"]) == ("distir_ext program", 1)
    assert stated["tvm"] == tvm.__version__
    for name in ("module", "weights"):
        assert stated[name]["bytes"] == (tmp_path / stated[name]["file"]).stat().st_size


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({3: np.zeros(2)}, TypeError, "the name of a weight is a text, not 3"),
        ([("w", 1.0), ("w", 2.0)], ValueError, "two weights are called 'w'"),
        ({"w": object()}, TypeError, "weight 'w' cannot be saved: it is a object, not an array"),
        ({"w": np.zeros(2, "complex64")}, ValueError, "weight 'w' has dtype complex64"),
    ],
)
def test_weights_that_are_none(tmp_path, params, error, message):
    dx.save(tmp_path, network())
    with pytest.raises(error, match=message):
        dx.save(tmp_path, annotated(), params)
    tvm.ir.assert_structural_equal(dx.load(tmp_path).mod, network())  # the one before is there


def test_other_files_stay(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="exists and has no program"):
        dx.save(tmp_path, network())
    with pytest.raises(ValueError, match=r"thesis.txt exists and has no program"):
        dx.save(tmp_path / "thesis.txt", network())
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_is_no_program(tmp_path, monkeypatch):
    with pytest.raises(TypeError, match="IRModule"):
        dx.save(tmp_path, "model.py")
    compiled = tvm.compile(network(), "llvm").mod
    with pytest.raises(ValueError, match=r"^the module cannot be saved: "):
        dx.save(tmp_path, network().with_attr("external_mods", [compiled]))
    monkeypatch.setattr(module_text, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"bytes, more than 1000: its constants are part of it"):
        dx.save(tmp_path, network())
    assert not list(tmp_path.iterdir())
