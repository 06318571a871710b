"""What analysis.collectives says of each collective, of modules and of executables."""

import pytest
import tvm
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
    assert only.tensors == ("narrow",)
    (gather,) = dx.analysis.collectives(lowered(Gathered, {"x": ("x", None), "table": (None, "x")}))
    assert (gather.kind, gather.axes, gather.tensors) == ("all_gather", ("x",), ("table",))
    assert gather.operators == ("relax.matmul",)
    assert (gather.unit, gather.bytes_per_unit) == ("", None)


def test_a_mesh_with_devices_in_another_order_names_its_axes():
    mesh = dx.Mesh((2, 4), ("x", "y"), device_ids=[0, 2, 4, 6, 1, 3, 5, 7])
    (only,) = dx.analysis.collectives(lowered(Symbolic, PLAN, mesh))
    assert only.axes == ("y",)


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


def test_runtime_calls_are_no_collectives_any_more():
    runtime_calls = dx.transform.LowerCCL()(lowered(Symbolic, PLAN))
    with pytest.raises(ValueError, match="the module has runtime calls instead of collectives"):
        dx.analysis.collectives(runtime_calls)
    with pytest.raises(ValueError, match="does not list its collectives"):
        dx.analysis.collectives(dx.build(runtime_calls))


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"expected an executable from dx\.build, got int"):
        dx.analysis.collectives(3)
