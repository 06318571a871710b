"""Exports of lowered modules to JAX: collectives, uneven shards, unsupported operators."""

import re

import numpy as np
import pytest
import tvm
from tests.optimize.experts import Experts
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

to_stablehlo = dx.interop.jax.to_stablehlo


@I.ir_module
class TwoLayers:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            hidden = R.nn.relu(R.matmul(x, up))
            y = R.matmul(hidden, down)
            R.output(y)
        return y


PLAN = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}


def annotated(mod=TwoLayers, plan=PLAN, **axes):
    return dx.annotate(mod, dx.Mesh(**(axes or {"dp": 2, "tp": 4})), plan)


@pytest.mark.parametrize("until", ["annotated", "propagated", "legalized", "lowered"])
def test_collectives_are_those_of_the_module(until):
    mod = annotated()
    mod = mod if until == "annotated" else dx.lower(mod, until=until)
    text = to_stablehlo(mod)
    assert re.findall(r'"?stablehlo\.(all_\w+|reduce_scatter|collective_\w+)', text) == [
        "all_reduce"
    ]
    assert 'sdy.mesh @mesh = <["dp"=2, "tp"=4]>' in text
    assert '#sdy.sharding<@mesh, [{"dp"}, {}]>' in text
    assert "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>" in text


def test_devices_of_groups_are_positions_in_the_mesh():
    mesh = dx.Mesh((2, 4), ("dp", "tp"), device_ids=[7, 6, 5, 4, 3, 2, 1, 0])
    text = to_stablehlo(dx.annotate(TwoLayers, mesh, PLAN))
    assert "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>" in text


def test_shards_that_do_not_divide_are_padded_in_the_program():
    x = relax.Var("x", relax.TensorType((10, 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.sum(x, 0)))
    exported = dx.interop.jax.to_exported(dx.annotate(bb.get(), dx.Mesh(a=4), {"x": ("a", None)}))
    assert [str(each.shape) for each in exported.in_avals] == ["(10, 6)"]
    assert "stablehlo.pad" in exported.mlir_module()
    assert "tensor<3x6xf32>" in exported.mlir_module()


def test_experts_are_gathered():
    """JAX has no collectives of computed sizes, so tokens are not dispatched."""
    tokens = dict.fromkeys(("x", "ids", "scores"), ("ep", None))
    plan = {**tokens, "up": ("ep", None, None)}
    mod = dx.annotate(Experts(products=1).module(), dx.Mesh(ep=4), plan)
    assert "stablehlo.all_gather" in dx.interop.jax.to_exported(mod).mlir_module()
    with pytest.raises(ValueError, match=r"R\.ccl\.dispatch_tokens \(in main\)"):
        to_stablehlo(dx.lower(mod))


def test_what_has_no_counterpart_is_listed():
    x = relax.Var("x", relax.TensorType((8, 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        called = bb.emit(relax.op.call_dps_packed("mine", (x,), out_ty=x.ty))
        bb.emit_func_output(bb.emit(relax.op.nn.prelu(called, relax.const([0.1]), 0)))
    with pytest.raises(ValueError, match=r"^2 operators of the module cannot be exported") as error:
        to_stablehlo(dx.annotate(bb.get(), dx.Mesh(a=2), {"x": (None, None)}))
    assert "R.call_dps_packed (in main)" in str(error.value)
    assert "R.nn.prelu (in main); did you mean 'nn.relu'" in str(error.value)


def test_other_modules_are_refused():
    with pytest.raises(ValueError, match="no sharding annotations"):
        to_stablehlo(TwoLayers)
    with pytest.raises(TypeError, match=r"expected a tvm.IRModule"):
        to_stablehlo("module {}")
    with pytest.raises(ValueError, match="no Relax function named 'mian'"):
        to_stablehlo(annotated(), "mian")
    with pytest.raises(ValueError, match="calls the runtime already"):
        to_stablehlo(dx.lower(annotated(), until="runtime"))


def test_a_program_on_several_meshes_is_refused():
    first, second = dx.Mesh((2,), ("a",), [0, 1]), dx.Mesh((2,), ("b",), [2, 3])
    mod = dx.annotate(TwoLayers, first, {"x": None, "up": None, "down": (second, None)})
    with pytest.raises(ValueError, match=r"main runs as \d programs, on several meshes"):
        to_stablehlo(mod)


def test_symbolic_shapes_are_refused():
    rows = tvm.tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.tanh(x)))
    mod = dx.annotate(bb.get(), dx.Mesh(a=2), {"x": ("a", None)})
    with pytest.raises(ValueError, match=r"parameter x of main has the shape .* not static"):
        to_stablehlo(mod)


def test_one_device_runs_it():
    exported = dx.interop.jax.to_exported(annotated(dp=1, tp=1))
    rng = np.random.default_rng(0)
    x, up, down = (rng.standard_normal(s).astype("float32") for s in ((8, 16), (16, 32), (32, 16)))
    found = jax.jit(exported.call)(x, up, down)
    np.testing.assert_allclose(found, np.maximum(x @ up, 0) @ down, rtol=1e-5, atol=1e-4)
