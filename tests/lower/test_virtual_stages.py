"""Functions whose devices have several stages: programs by virtual stage, what they pass on."""

import numpy as np
import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext._signature_attr import read_signature
from distir_ext.testing import verify


def lowered(mod):
    result = dx.lower(mod)
    verify(result, "lowered")
    assert relax.analysis.check_well_formed(result)
    return result


def programs(mod, function="main"):
    signature = read_signature(mod)
    spec = signature["functions"][function]
    names = [param["name"] for param in spec["params"]]
    return [
        (each["name"], each["virtual_stage"], [names[i] for i in each["params"]], each["results"])
        for each in spec["programs"]
    ]


def run(mod, num_workers, *inputs, params=None):
    with dx.Session(num_workers) as session:
        return session.load(dx.build(mod), params=params)["main"](*inputs)


@I.ir_module
class There:
    """Back and forth, with a value that the first mesh uses again and a weight of both stages."""

    I.module_global_infos(meshes((2,), (1,)))

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
    ):
        R.func_attr({"num_input": 1, "distir.interleaved": [0, 2]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        h = R.matmul(x0, v)
        vt = R.permute_dims(v)
        h1 = R.dist.annotate_sharding(h, "mesh[1]", "R")
        g1 = R.tanh(h1)
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        k1 = R.matmul(g1, w1)
        g0 = R.dist.annotate_sharding(k1, "mesh[0]", "S[0]")
        s = R.add(g0, h)
        y = R.matmul(s, vt)
        return (y, h)


def expected_there(x, v, w):
    h = x @ v
    return (np.tanh(h) @ w + h) @ v.T, h


def test_a_device_has_a_program_per_virtual_stage_and_passes_on_what_it_needs():
    result = lowered(There)
    assert programs(result) == [
        ("main_stage0", 0, ["x", "v"], []),
        ("main_stage1", 0, ["w"], []),
        ("main_stage2", 1, ["v"], [0, 1]),
    ]
    first, second = result["main_stage0"], result["main_stage2"]
    # The hidden state, and nothing of what depends on weights only.
    assert [tuple(field.shape) for field in first.ret_ty.fields] == [(2, 8)]
    assert [param.name for param in second.params] == ["v", "h"]
    assert "R.permute_dims" in second.script()
    assert "R.permute_dims" not in first.script()
    assert "R.ccl.send(" in first.script()
    assert "R.ccl.recv(" in second.script()


def test_the_text_of_programs_parses_back():
    result = lowered(There)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)


def test_calls_run_the_virtual_stages():
    rng = np.random.default_rng(0)
    x, v, w = (rng.standard_normal(shape, "float32") / 2 for shape in [(4, 8), (8, 8), (8, 8)])
    for actual, expected in zip(
        run(There, 3, x, params={"v": v, "w": w}), expected_there(x, v, w), strict=True
    ):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-4, atol=1e-5)


@I.ir_module
class Sizes:
    """Symbolic sizes of a parameter, a match_cast and a shard, all used in the second stage."""

    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(x: R.Tensor(("n", 6), "float32"), y: R.Tensor(("m",), "float32")):
        R.func_attr({"distir.interleaved": [0, 2]})
        n, m = T.int64(), T.int64()
        k = T.int64()
        y0 = R.dist.annotate_sharding(y, "mesh[0]", "R")
        few = R.unique(y0)
        u = R.match_cast(few, R.Tensor((k,), "float32"))
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.exp(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.reshape(a1, R.shape([n, 2, 3]))
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "S[0]")
        c = R.reshape(b0, R.shape([n * 6]))
        d = R.broadcast_to(R.sum(u), R.shape([m, k]))
        return (c, d)


def test_symbolic_sizes_are_passed_on():
    result = lowered(Sizes)
    second = result["main_stage2"]
    shapes = [param for param in second.params if isinstance(param.ty, relax.ShapeType)]
    assert shapes
    x = np.arange(24, dtype="float32").reshape(4, 6) / 9
    y = np.array([3, 1, 3, 2, 1], "float32")
    c, d = run(Sizes, 4, x, y)
    np.testing.assert_allclose(c.numpy(), np.exp(x).ravel(), rtol=1e-5)
    np.testing.assert_allclose(d.numpy(), np.full((5, 3), 6.0))


@I.ir_module
class Branching:
    """A branch in the second virtual stage that uses values of the first."""

    I.module_global_infos(meshes((1,), (1,)))

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), flag: R.Tensor((), "bool")):
        R.func_attr({"distir.interleaved": [0, 1]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "R")
        flag0 = R.dist.annotate_sharding(flag, "mesh[0]", "R")
        a = R.exp(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "R")
        b = R.negative(a1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R")
        if flag0:
            l0 = R.add(b0, a)
            c = R.multiply(l0, x0)
        else:
            c = R.subtract(b0, a)
        return c


@pytest.mark.parametrize("flag", [False, True])
def test_branches_use_what_was_passed_on(flag):
    assert len(programs(lowered(Branching))) == 3
    x = np.random.default_rng(0).standard_normal((4, 4), "float32")
    expected = np.zeros_like(x) if flag else -2 * np.exp(x)
    np.testing.assert_allclose(run(Branching, 2, x, np.array(flag)).numpy(), expected, rtol=1e-6)


@I.ir_module
class Overlapping:
    """Mesh 1 is a part of mesh 0; devices 2 and 3 have both sides of each transfer."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2,), I.Range(2, 4))]}
    )

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        R.func_attr({"distir.interleaved": [0, 2]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
        a = R.nn.relu(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        b = R.matmul(a1, w1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R, S[0]")
        c = R.add(b0, x0)
        return (c, b)


def test_meshes_that_overlap():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, "float32") for shape in [(8, 16), (16, 16)])
    c, b = run(Overlapping, 4, x, w)
    expected = np.maximum(x, 0) @ w
    np.testing.assert_allclose(b.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(c.numpy(), expected + x, rtol=1e-4, atol=1e-4)


def with_attribute(mod, value):
    return tvm.IRModule(
        {"main": mod["main"].with_attr("distir.interleaved", value)}, global_infos=mod.global_infos
    )


def test_the_attribute_lists_every_mesh():
    with pytest.raises(ValueError, match=r"in `main`: .*has no mesh whose smallest device is 2"):
        lowered(with_attribute(There, [0]))
    with pytest.raises(ValueError, match="is a list with the smallest device id of each mesh"):
        lowered(with_attribute(There, "yes"))


def test_only_functions_that_nothing_calls_have_virtual_stages():
    @I.ir_module
    class Called:
        I.module_global_infos(meshes((1,), (1,)))

        @R.function(private=True)
        def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            R.func_attr({"distir.interleaved": [0, 1]})
            a = R.exp(x)
            return a

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            cls = Called
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "R")
            a = cls.inner(x0)
            return a

    with pytest.raises(ValueError, match="has interleaved stages and is called in the module"):
        lowered(Called)
