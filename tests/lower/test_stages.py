"""Programs on several meshes: one function per SPMD group of devices, with sends and receives."""

import tvm
from tests.lower.stage_programs import Disjoint, Overlapping, SymbolicStages, lowered
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from distir_ext.signature.signature_attr import read_signature


def programs(mod, function="main"):
    signature = read_signature(mod)
    return {each["name"]: each for each in signature["functions"][function]["programs"]}


def test_disjoint_meshes_give_a_stage_each():
    @I.ir_module
    class Expected:
        @R.function(pure=False)
        def main_stage0(x: R.Tensor((4, 16), "float32"), w0: R.Tensor((16, 16), "float32")):
            R.func_attr({"num_input": 1, "distir.explicit_reductions": True})
            a = R.matmul(x, w0)
            _ = R.ccl.send(a, plan="plan")
            return R.tuple()

        @R.function(pure=False)
        def main_stage1(w1: R.Tensor((16, 16), "float32")):
            R.func_attr({"num_input": 0, "distir.explicit_reductions": True})
            a = R.ccl.recv(plan="plan", ty_args=R.Tensor((4, 16), "float32"))
            b = R.matmul(a, w1)
            return b

    result = lowered(Disjoint)
    for name in ("main_stage0", "main_stage1"):
        found, expected = without_plans(result[name]), Expected[name]
        tvm.ir.assert_structural_equal(found, expected)
    assert programs(result)["main_stage0"]["device_ids"] == [0, 1]
    assert programs(result)["main_stage0"]["params"] == [0, 1]
    assert programs(result)["main_stage1"]["device_ids"] == [2, 3]
    assert programs(result)["main_stage1"]["params"] == [2]
    assert programs(result)["main_stage1"]["results"] == [0]


def without_plans(function):
    """The function parsed again with every transfer plan replaced by "plan"."""
    lines = []
    for line in function.script().splitlines():
        if "plan=" in line:
            begin = line.index('plan="') + len('plan="')
            end = begin
            while line[end] != '"' or line[end - 1] == "\\":
                end += 1
            line = line[:begin] + "plan" + line[end:]
        lines.append(line)
    return tvm.script.from_source("\n".join(lines))


def test_overlapping_meshes_give_a_class_of_devices_that_does_both():
    result = lowered(Overlapping)
    found = programs(result)
    assert {name: each["device_ids"] for name, each in found.items()} == {
        "main_stage0": [0, 1],
        "main_stage1": [2, 3],
    }
    assert found["main_stage0"]["params"] == [0]
    assert found["main_stage1"]["params"] == [0, 1]
    assert found["main_stage0"]["results"] == [0]
    assert found["main_stage1"]["results"] == [0, 1]
    assert "R.ccl.send(" in result["main_stage0"].script()
    assert "R.ccl.transfer(" in result["main_stage1"].script()


def test_sizes_that_a_stage_cannot_see_are_a_parameter():
    result = lowered(SymbolicStages)
    found = programs(result)
    assert found["main_stage0"]["sizes"] == found["main_stage1"]["sizes"] == ["n"]
    last = result["main_stage1"].params[-1]
    assert isinstance(last.ty, relax.ShapeType)
    shape = result["main_stage1"].ret_ty.shape
    tvm.ir.assert_structural_equal(shape[0], (last.ty.values[0] + 1) // 2)
