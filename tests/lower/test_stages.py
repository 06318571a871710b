"""Programs on several meshes: one function per class of devices, with sends and receives."""

# TVMScript has statements only.
# ruff: noqa: SIM108

import numpy as np
import pytest
import tvm
from tests.bare import bare
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext._signature_attr import read_signature
from distir_ext.testing import verify


def lowered(mod):
    result = mod
    for stage, transform in [
        ("propagated", dx.transform.PropagateSharding()),
        ("legalized", dx.transform.LegalizeRedistribute()),
        ("lowered", dx.transform.LowerDistIR()),
    ]:
        result = transform(result)
        verify(result, stage)
        assert relax.analysis.check_well_formed(result)
    return result


def programs(mod, function="main"):
    signature = read_signature(mod)
    return {each["name"]: each for each in signature["functions"][function]["programs"]}


def run(mod, num_workers, *inputs, params=None):
    with dx.Session(num_workers) as session:
        return session.load(dx.build(mod), params=params)["main"](*inputs)


@I.ir_module
class Disjoint:
    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w0: R.Tensor((16, 16), "float32"),
        w1: R.Tensor((16, 16), "float32"),
    ):
        R.func_attr({"num_input": 1})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.matmul(x0, w0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.matmul(a1, w1)
        return b


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

    result = bare(lowered(Disjoint))
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


def test_disjoint_meshes_run():
    rng = np.random.default_rng(0)
    x, w0, w1 = (rng.standard_normal(shape, "float32") for shape in [(8, 16), (16, 16), (16, 16)])
    y = run(Disjoint, 4, x, params={"w0": w0, "w1": w1})
    np.testing.assert_allclose(y.numpy(), x @ w0 @ w1, rtol=1e-4, atol=1e-4)


@I.ir_module
class PartialAtTheCut:
    """A product over a sharded dimension that goes to another mesh."""

    I.module_global_infos(meshes((2,), (3,)))

    @R.function
    def main(x: R.Tensor((6, 4), "float32"), w: R.Tensor((4, 6), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
        w0 = R.dist.annotate_sharding(w, "mesh[0]", "S[0]")
        a = R.matmul(x0, w0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.nn.relu(a1)
        return b


def test_partial_values_are_reduced_before_they_move():
    text = lowered(PartialAtTheCut)["main_stage0"].script()
    assert text.index("R.ccl.all_reduce(") < text.index("R.ccl.send(")
    assert "R.dist." not in text
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 4), "float32"), rng.standard_normal((4, 6), "float32")
    y = run(PartialAtTheCut, 5, x, w)
    np.testing.assert_allclose(y.numpy(), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)


@I.ir_module
class Overlapping:
    """Mesh 0 has four devices, mesh 1 two of them; there and back again."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2,), I.Range(2, 4))]}
    )

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
        a = R.nn.relu(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        b = R.matmul(a1, w1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R, S[0]")
        c = R.add(b0, x0)
        return (c, b)


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


def test_overlapping_meshes_run():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in [(8, 16), (16, 16)])
    c, b = run(Overlapping, 4, x, w)
    expected = np.maximum(x, 0) @ w
    np.testing.assert_allclose(b.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(c.numpy(), expected + x, rtol=1e-4, atol=1e-4)


@I.ir_module
class SymbolicStages:
    """No parameter of the second stage has the batch size."""

    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w0: R.Tensor((16, 16), "float32"),
        w1: R.Tensor((16, 16), "float32"),
    ):
        R.func_attr({"num_input": 1})
        n = T.int64()
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.matmul(x0, w0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.matmul(a1, w1)
        c = R.reshape(b, R.shape([n, 4, 4]))
        return c


def test_sizes_that_a_stage_cannot_see_are_a_parameter():
    result = lowered(SymbolicStages)
    found = programs(result)
    assert found["main_stage0"]["sizes"] == []
    assert found["main_stage1"]["sizes"] == ["n"]
    last = result["main_stage1"].params[-1]
    assert isinstance(last.ty, relax.ShapeType)
    shape = result["main_stage1"].ret_ty.shape
    tvm.ir.assert_structural_equal(shape[0], last.ty.values[0] // 2)


@pytest.mark.parametrize("n", [2, 8, 10])
def test_sizes_that_a_stage_cannot_see_run(n):
    rng = np.random.default_rng(0)
    x, w0, w1 = (rng.standard_normal(shape, "float32") for shape in [(n, 16), (16, 16), (16, 16)])
    y = run(SymbolicStages, 4, x, params={"w0": w0, "w1": w1})
    np.testing.assert_allclose(y.numpy(), (x @ w0 @ w1).reshape(n, 4, 4), rtol=1e-4, atol=1e-4)


@I.ir_module
class TupleAcross:
    I.module_global_infos(meshes((2,), (2,)))

    @R.function(private=True)
    def both(
        t: R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((8, 4), "float32")),
    ) -> R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((8, 4), "float32")):
        a = t[0]
        b = t[1]
        c = R.exp(a)
        d = R.negative(b)
        return (d, c)

    @R.function
    def main(
        t: R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((8, 4), "float32")),
        s: R.Shape([8, 4]),
    ):
        cls = TupleAcross
        x = t[0]
        y = t[1]
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y1 = R.dist.annotate_sharding(y, "mesh[1]", "S[1]")
        pair = cls.both((x0, y1))
        second = pair[1]
        moved = R.dist.annotate_sharding(second, "mesh[1]", "S[0]")
        first = pair[0]
        return ((first, moved), second)


def test_tuples_across_stages():
    result = lowered(TupleAcross)
    assert isinstance(result["main_stage0"].params[0].ty, tvm.ir.TupleType)
    assert len(result["main_stage0"].params[0].ty.fields) == 1
    x, y = np.random.default_rng(0).standard_normal((2, 8, 4), "float32")
    (first, moved), second = run(TupleAcross, 4, (x, y), (8, 4))
    np.testing.assert_allclose(first.numpy(), -y)
    np.testing.assert_allclose(moved.numpy(), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(second.numpy(), np.exp(x), rtol=1e-6)


@I.ir_module
class BranchOnOneMesh:
    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(
        flag: R.Tensor((1,), "bool"),
        x: R.Tensor((8, 4), "float32"),
        y: R.Tensor((8, 4), "float32"),
    ):
        flag0 = R.dist.annotate_sharding(flag, "mesh[0]", "R")
        condition = R.squeeze(flag0)
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        z = R.negative(x0)
        y1 = R.dist.annotate_sharding(y, "mesh[1]", "S[0]")
        if condition:
            w = R.exp(y1)
        else:
            w = R.add(y1, y1)
        return (w, z)


@pytest.mark.parametrize("flag", [False, True])
def test_branch_of_one_stage_with_a_condition_of_another(flag):
    result = lowered(BranchOnOneMesh)
    assert "if " not in result["main_stage0"].script()
    x, y = np.random.default_rng(0).standard_normal((2, 8, 4), "float32")
    w, z = run(BranchOnOneMesh, 4, np.array([flag]), x, y)
    np.testing.assert_allclose(w.numpy(), np.exp(y) if flag else y + y, rtol=1e-6)
    np.testing.assert_allclose(z.numpy(), -x)


def test_three_stages_of_unequal_size():
    @I.ir_module
    class Three:
        I.module_global_infos(
            {
                "mesh": [
                    R.device_mesh((2, 2), I.Range(0, 4)),
                    R.device_mesh((1,), [4]),
                    R.device_mesh((3,), I.Range(5, 8)),
                ]
            }
        )

        @R.function
        def main(x: R.Tensor((12, 12), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1], S[0]")
            a = R.exp(x0)
            a1 = R.dist.annotate_sharding(a, "mesh[1]", "R")
            b = R.negative(a1)
            b2 = R.dist.annotate_sharding(b, "mesh[2]", "S[0]")
            c = R.sum(b2, axis=[0])
            return c

    found = programs(lowered(Three))
    assert [found[f"main_stage{i}"]["device_ids"] for i in range(3)] == [
        [0, 1, 2, 3],
        [4],
        [5, 6, 7],
    ]
    x = np.random.default_rng(0).standard_normal((12, 12), "float32")
    np.testing.assert_allclose(run(Three, 8, x).numpy(), -np.exp(x).sum(0), rtol=1e-5)
