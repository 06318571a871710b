"""Programs of TVM's own PropagateSharding: both passes run, and their results are compared.

Where nothing is left to choose, both give the same module. Where upstream leaves a value
replicated, this pass may shard it; it never leaves replicated what upstream shards.
"""

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

from .checks import propagated


def upstream(mod):
    return relax.distributed.transform.PropagateSharding()(mod)


@I.ir_module
class Perceptron:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.Tensor((64, 32), "float32"),
        up: R.Tensor((32, 128), "float32"),
        down: R.Tensor((128, 32), "float32"),
    ) -> R.Tensor((64, 32), "float32"):
        a = R.matmul(x, up)
        b = R.nn.gelu(a)
        c = R.dist.annotate_sharding(b, "mesh[0]", "S[1]")
        d = R.matmul(c, down)
        return d


@I.ir_module
class PerceptronOnTwoAxes:
    I.module_global_infos(meshes((2, 2)))

    @R.function
    def main(
        x: R.Tensor((64, 32), "float32"),
        up: R.Tensor((32, 128), "float32"),
        down: R.Tensor((128, 32), "float32"),
    ) -> R.Tensor((64, 32), "float32"):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
        up0 = R.dist.annotate_sharding(up, "mesh[0]", "R, S[1]")
        a = R.matmul(x0, up0)
        b = R.nn.relu(a)
        d = R.matmul(b, down)
        e = R.add(d, x0)
        return e


@I.ir_module
class SymbolicBatch:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.Tensor(("n", 32), "float32"),
        up: R.Tensor((32, "k"), "float32"),
        down: R.Tensor(("k", 32), "float32"),
    ) -> R.Tensor(("n", 32), "float32"):
        n = T.int64()
        a = R.matmul(x, up)
        b = R.nn.gelu(a)
        c = R.dist.annotate_sharding(b, "mesh[0]", "S[1]")
        d = R.matmul(c, down)
        return d


@I.ir_module
class Pipeline:
    I.module_global_infos(
        {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((2,), I.Range(4, 6))]}
    )

    @R.function
    def main(
        x: R.Tensor((64, 32), "float32"),
        w0: R.Tensor((32, 128), "float32"),
        w1: R.Tensor((128, 32), "float32"),
        w2: R.Tensor((32, 128), "float32"),
        w3: R.Tensor((128, 32), "float32"),
    ) -> R.Tensor((64, 32), "float32"):
        a = R.matmul(x, w0)
        b = R.dist.annotate_sharding(a, "mesh[0]", "S[1]")
        c = R.matmul(b, w1)
        d = R.dist.annotate_sharding(c, "mesh[1]", "R")
        e = R.matmul(d, w2)
        f = R.dist.annotate_sharding(e, "mesh[1]", "S[1]")
        g = R.matmul(f, w3)
        return g


@I.ir_module
class ScalarConstants:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((64, 32), "float32"), w: R.Tensor((32, 32), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.matmul(x0, w)
        b = R.multiply(a, R.const(0.5, "float32"))
        c = R.add(b, R.const(1.0, "float32"))
        return c


@I.ir_module
class Attention:
    """Heads over one axis: reshape, permute, softmax."""

    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.Tensor((1, 16, 32), "float32"),
        wq: R.Tensor((32, 32), "float32"),
        wk: R.Tensor((32, 32), "float32"),
        wv: R.Tensor((32, 32), "float32"),
        wo: R.Tensor((32, 32), "float32"),
    ):
        wq0 = R.dist.annotate_sharding(wq, "mesh[0]", "S[1]")
        wk0 = R.dist.annotate_sharding(wk, "mesh[0]", "S[1]")
        wv0 = R.dist.annotate_sharding(wv, "mesh[0]", "S[1]")
        q = R.matmul(x, wq0)
        q0 = R.reshape(q, (1, 16, 4, 8))
        q1 = R.permute_dims(q0, [0, 2, 1, 3])
        k = R.matmul(x, wk0)
        k0 = R.reshape(k, (1, 16, 4, 8))
        k1 = R.permute_dims(k0, [0, 2, 3, 1])
        v = R.matmul(x, wv0)
        v0 = R.reshape(v, (1, 16, 4, 8))
        v1 = R.permute_dims(v0, [0, 2, 1, 3])
        s = R.matmul(q1, k1)
        s0 = R.divide(s, R.const(2.828427, "float32"))
        p = R.nn.softmax(s0, axis=-1)
        o = R.matmul(p, v1)
        o0 = R.permute_dims(o, [0, 2, 1, 3])
        o1 = R.reshape(o0, (1, 16, 32))
        y = R.matmul(o1, wo)
        z = R.add(x, y)
        return z


@I.ir_module
class Normalized:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.Tensor((8, 16, 32), "float32"),
        gamma: R.Tensor((32,), "float32"),
        up: R.Tensor((32, 64), "float32"),
    ):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.nn.rms_norm(x0, gamma, axes=[-1], epsilon=1e-5)
        b = R.matmul(a, up)
        c = R.nn.silu(b)
        d = R.sum(c, axis=[-1], keepdims=True)
        return d


SAME = [Perceptron, SymbolicBatch, Pipeline, ScalarConstants, Attention]


@pytest.mark.parametrize("mod", SAME, ids=lambda mod: mod.__name__)
def test_same_as_upstream(mod):
    tvm.ir.assert_structural_equal(propagated(mod), upstream(mod))


def test_tuple_arguments_as_upstream_shards_them():
    # A tuple parameter of upstream's own test is one of DTensors that calls take apart.
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.Tensor((64, 32), "float32"),
            weights: R.Tuple(R.Tensor((32, 128), "float32"), R.Tensor((128, 32), "float32")),
        ):
            up = weights[0]
            a = R.matmul(x, up)
            b = R.nn.gelu(a)
            c = R.dist.annotate_sharding(b, "mesh[0]", "S[1]")
            down = weights[1]
            d = R.matmul(c, down)
            return d

    tvm.ir.assert_structural_equal(propagated(Before), upstream(Before))


def shard_counts(mod):
    """Shards of every variable by name, for the variables that upstream and we both bind."""
    counts = {}

    def note(var):
        if isinstance(var.ty, relax.distributed.DTensorType):
            specs = zip(var.ty.placement.dim_specs, var.ty.device_mesh.shape, strict=True)
            shards = 1
            for spec, size in specs:
                shards *= size if spec.kind == 0 else 1
            counts.setdefault(var.name, shards)

    for param in mod["main"].params:
        note(param)
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            note(binding.var)
    return counts


@pytest.mark.parametrize(
    "mod",
    [*SAME, PerceptronOnTwoAxes, Normalized],
    ids=lambda mod: mod.__name__,
)
def test_at_least_as_sharded_as_upstream(mod):
    theirs = shard_counts(upstream(mod))
    ours = shard_counts(propagated(mod))
    assert set(ours) & set(theirs)
    for name in set(ours) & set(theirs):
        assert ours[name] >= theirs[name], name


def test_upstream_stops_at_calls_that_this_pass_specialises():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def act(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.act(x0)
            return y

    with pytest.raises(Exception, match="type mismatch"):
        upstream(Before)
    assert shard_counts(propagated(Before)) == {"x": 2, "y": 2}


def test_swapping_the_pass_keeps_a_pipeline_of_passes_working():
    swapped = tvm.transform.Sequential(
        [dx.transform.PropagateSharding(), dx.transform.LegalizeRedistribute()]
    )(Perceptron)
    assert "R.dist.all_reduce" in swapped.script()
