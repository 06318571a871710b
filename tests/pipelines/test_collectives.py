"""Tests of `analysis.collectives` on modules and on executables."""

import dataclasses

import pytest
import tvm
from tests.lower.stage_programs import Overlapping
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 4), ("x", "y"))
PLAN = {"x": ("x", None, None), "up": (None, "y"), "down": ("y", None)}


@I.ir_module
class Symbolic:
    @R.function
    def main(
        x: R.Tensor((8, "n", 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, "n", 16), "float32"):
        n = T.int64()
        with R.dataflow():
            wide = R.nn.relu(R.matmul(x, up))
            narrow = R.matmul(wide, down)
            result = R.add(narrow, x)
            R.output(result)
        return result


@I.ir_module
class Gathered:
    @R.function
    def main(x: R.Tensor((64, 16), "float32"), table: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (64, 16), "float32"
    ):
        with R.dataflow():
            y = R.matmul(x, table)
            R.output(y)
        return y


def lowered(mod, plan, mesh=MESH):
    return dx.lower(dx.annotate(mod, mesh, plan))


def test_symbolic_sizes_are_bytes_per_unit():
    (only,) = dx.analysis.collectives(lowered(Symbolic, PLAN))
    # A ring of 4 sends 2 * 3/4 of its (4, n, 16) floats.
    assert (only.bytes_per_unit, only.unit) == (4 * 16 * 4 * 1.5, "n")
    assert only.bytes_per_device is None


def test_an_entry_says_axis_tensor_and_operator():
    (only,) = dx.analysis.collectives(lowered(Symbolic, PLAN))
    assert (only.kind, only.axes, only.operators) == ("all_reduce", ("y",), ("relax.matmul",))
    assert only.tensors == ("narrow_1",)  # what `narrow` is the sum of
    (gather,) = dx.analysis.collectives(lowered(Gathered, {"x": ("x", None), "table": (None, "x")}))
    assert (gather.kind, gather.axes, gather.tensors) == ("all_gather", ("x",), ("table",))
    assert gather.operators == ("relax.matmul",)
    assert (gather.unit, gather.bytes_per_unit) == ("", None)


def test_a_mesh_with_devices_in_another_order_names_its_axes():
    mesh = dx.Mesh((2, 4), ("x", "y"), device_ids=[0, 2, 4, 6, 1, 3, 5, 7])
    (only,) = dx.analysis.collectives(lowered(Symbolic, PLAN, mesh))
    assert only.axes == ("y",)


def test_moves_name_the_axes_along_which_devices_differ():
    """All rows turn around: everybody sends all of its shard, which is a half or a quarter."""
    found = {}
    for name in ("x", "y"):
        builder = relax.BlockBuilder()
        var = relax.Var("v", relax.TensorType((64, 128), "float32"))
        with builder.function("main", [var]):
            builder.emit_func_output(builder.emit(relax.op.flip(var, axis=0)))
        mod = lowered(builder.get(), {"v": (name, None)})
        (found[name],) = dx.analysis.collectives(mod)
    assert [(each.kind, each.group_size, each.axes) for each in found.values()] == [
        ("segment_exchange", 8, ("x",)),
        ("segment_exchange", 8, ("y",)),
    ]
    assert [each.bytes_per_device for each in found.values()] == [16 * 1024, 8 * 1024]


def swapped(mesh, dims, other, other_dims):
    """A matrix that lies one way and then another."""
    builder = relax.BlockBuilder()
    var = relax.Var("v", relax.TensorType((16, 16), "float32"))
    with builder.function("main", [var]):
        value = relax.op.exp(dx.constrain(var, mesh, dims))
        value = builder.emit(dx.constrain(builder.emit(value), other, other_dims))
        builder.emit_func_output(builder.emit(relax.op.exp(value)))
    return dx.lower(builder.get())


@pytest.mark.parametrize(
    ("before", "after", "kind", "axes", "size"),
    [
        (("x", None), (None, ("x", "y")), "exchange", ("x",), 64),
        ((None, "y"), (None, ("x", "y")), "permute", ("x", "y"), 128),
    ],
)
def test_redistributions_name_their_axes(before, after, kind, axes, size):
    (only,) = dx.analysis.collectives(swapped(MESH, before, MESH, after))
    assert (only.kind, only.group_size, only.axes) == (kind, 8, axes)
    assert only.bytes_per_device == size


def test_transfers_between_meshes_have_no_axes():
    other = dx.Mesh((4,), ("x",), device_ids=[8, 9, 10, 11])
    send, recv = dx.analysis.collectives(swapped(MESH, ("x", "y"), other, (None, "x")))
    assert [(each.kind, each.group_size, each.axes) for each in (send, recv)] == [
        ("send", 12, ()),
        ("recv", 12, ()),
    ]
    assert (send.bytes_per_device, recv.bytes_per_device) == (128, 0)


def test_an_executable_lists_the_collectives_of_its_program(tmp_path):
    mod = dx.annotate(Symbolic, MESH, PLAN)
    executable = dx.build(mod)
    (of_module,) = dx.analysis.collectives(dx.lower(mod))
    found = dx.analysis.collectives(executable)
    assert {(each.axes, each.unit) for each in found} == {(("y",), "n")}
    # On a CPU the all-reduce is a reduce-scatter and an all-gather.
    assert sum(each.bytes_per_unit for each in found) == of_module.bytes_per_unit
    executable.export_library(tmp_path / "program.so")
    loaded = tvm.runtime.load_module(str(tmp_path / "program.so"))
    assert dx.analysis.collectives(loaded) == found
    assert dx.analysis.collectives(tmp_path / "program.so") == found


@pytest.mark.parametrize(
    "before",
    [
        lowered(Symbolic, PLAN),
        lowered(Gathered, {"x": ("x", None), "table": (None, "x")}),
        lowered(Gathered, {"x": ("x", "y"), "table": ("x", "y")}),
        dx.lower(Overlapping),
    ],
    ids=["symbolic", "gathered", "exchanged", "stages"],
)
def test_runtime_calls_say_what_the_operators_did(before):
    moved = {"permute": "transfer", "exchange": "transfer"}
    expected = [
        dataclasses.replace(each, kind=moved.get(each.kind, each.kind))
        for each in dx.analysis.collectives(before)
    ]
    after = dx.transform.LowerCCL()(before)
    assert dx.analysis.collectives(after) == expected
    assert dx.analysis.collectives(dx.build(after)) == expected


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"expected an executable from dx\.build, got int"):
        dx.analysis.collectives(3)
