"""Programs on several meshes give the results of one device."""

import numpy as np
import pytest
import tvm
from tests.lower.stage_programs import Disjoint, Overlapping, SymbolicStages, lowered
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.signature.signature_attr import read_signature


def programs(mod, function="main"):
    signature = read_signature(mod)
    return {each["name"]: each for each in signature["functions"][function]["programs"]}


def run(mod, num_workers, *inputs, params=None):
    with dx.Session(num_workers) as session:
        return session.load(dx.build(mod), params=params)["main"](*inputs)


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


def test_overlapping_meshes_run():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in [(8, 16), (16, 16)])
    c, b = run(Overlapping, 4, x, w)
    expected = np.maximum(x, 0) @ w
    np.testing.assert_allclose(b.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(c.numpy(), expected + x, rtol=1e-4, atol=1e-4)


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
        if condition:  # noqa: SIM108
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
