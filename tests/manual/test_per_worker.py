"""Programs of one worker, with collectives of R.ccl, against NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relax
from tvm.relax.frontend import nn
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


def ran(mod, mesh, *arguments, params=None):
    with dx.Session(mesh) as session:
        return session.load(dx.build(mod), params=params)["main"](*arguments)


def values(*shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [(2 * rng.standard_normal(shape)).astype(dtype) for shape in shapes]


@I.ir_module
class Block:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        up: R.Tensor((8, 3), "float32"),
        down: R.Tensor((3, 8), "float32"),
    ) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            y = R.ccl.allreduce(R.matmul(R.nn.relu(R.matmul(x, up)), down), "sum")
            R.output(y)
        return y


PLAN = {"up": (None, "tp"), "down": ("tp", None)}


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 2, 2)])
def test_a_block_whose_workers_add_up(shape):
    """Along the last axis; along all others workers have the same."""
    mesh = dx.Mesh(shape, [*"abc"[: len(shape) - 1], "tp"])
    mod = dx.per_worker(Block, mesh, PLAN)
    (collective,) = dx.analysis.collectives(dx.lower(mod))
    assert (collective.kind, collective.axes) == ("all_reduce", ("tp",))
    x, up, down = values((4, 8), (8, 3 * shape[-1]), (3 * shape[-1], 8))
    np.testing.assert_allclose(
        ran(mod, mesh, x, up, down).numpy(), np.maximum(x @ up, 0) @ down, rtol=1e-4, atol=1e-4
    )


def program(op, shape, dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op(x)))
    return builder.finalize()


def test_every_collective_of_ccl():
    """On workers of which each has other rows, in groups and among all."""
    mesh = dx.Mesh(dp=3, tp=2)
    every = (("dp", "tp"), None)
    reductions = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    for dtype in ("float32", "int32"):
        (x,) = values((24, 6), dtype=dtype)
        of_worker = x.reshape(3, 2, 4, 6)
        for name, reduced in reductions.items():
            if (name, dtype) == ("avg", "int32"):
                continue
            for in_group in (True, False):
                mod = program(
                    lambda v, n=name, g=in_group: relax.op.ccl.allreduce(v, n, g), (4, 6), dtype
                )
                mod = dx.per_worker(mod, mesh, {"x": every, "return": every})
                sums = reduced(of_worker, axis=(1,) if in_group else (0, 1), keepdims=True)
                expected = np.broadcast_to(sums, of_worker.shape).reshape(24, 6)
                got = ran(mod, mesh, x).numpy()
                np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=f"{name} {dtype}")
        cases = [
            (lambda v: relax.op.ccl.allgather(v, 2), "dp", of_worker.reshape(3, 8, 6)),
            (lambda v: relax.op.ccl.allgather(v, 6, False), None, x),
            (relax.op.ccl.broadcast_from_worker0, None, x[:4]),
            (lambda v: relax.op.ccl.scatter_from_worker0(v, 6, 1), (None, ("dp", "tp")), x[:4]),
        ]
        for op, dims, expected in cases:
            dims = (dims, None) if dims == "dp" else dims
            mod = program(op, (4, 6), dtype)
            mod = dx.per_worker(mod, mesh, {"x": every, "return": dims})
            got = ran(mod, mesh, x).numpy()
            np.testing.assert_array_equal(got, expected.reshape(got.shape))


def test_tuples_symbols_and_private_functions():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def summed(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            y = R.ccl.allreduce(x, "sum")
            return y

        @R.function
        def main(
            x: R.Tensor(("n", 8), "float32"),
            weights: R.Tuple(R.Tensor((8, 4), "float32"), R.Tensor((4,), "float32")),
        ) -> R.Tuple(R.Tensor(("n", 4), "float32"), R.Tensor(("n", 4), "float32")):
            cls = Module
            w: R.Tensor((8, 4), "float32") = weights[0]
            b: R.Tensor((4,), "float32") = weights[1]
            y = R.matmul(x, w)
            total = cls.summed(y)
            biased = R.add(total, b)
            return (biased, y)

    mesh = dx.Mesh(dp=2, tp=2)
    plan = {"x": ("dp", "tp"), "weights.0": ("tp", None), r"return\.0": ("dp", None)}
    plan[r"return\.1"] = (("dp", "tp"), None)
    mod = dx.per_worker(Module, mesh, plan)
    for rows in (6, 2):
        x, w, b = values((rows, 16), (16, 4), (4,))
        whole, parts = ran(mod, mesh, x, (w, b))
        np.testing.assert_allclose(whole.numpy(), x @ w + b, rtol=1e-4, atol=1e-4)
        of_worker = np.einsum("dnti,tio->dtno", x.reshape(2, -1, 2, 8), w.reshape(2, 8, 4))
        np.testing.assert_allclose(parts.numpy(), of_worker.reshape(-1, 4), rtol=1e-4, atol=1e-4)


class GatedBlock(nn.Module):
    """A feed-forward block of one worker, as models of MLC-LLM have it."""

    def __init__(self, hidden, inner, shards):
        self.shards = shards
        self.gate_up = nn.Linear(hidden, 2 * inner // shards, bias=False)
        self.down = nn.Linear(inner // shards, hidden, bias=False)

    def forward(self, x):
        gate, up = nn.op.split(self.gate_up(x), 2, axis=-1)
        y = self.down(nn.op.silu(gate) * up)
        return (nn.op.ccl_allreduce(y, "sum") if self.shards > 1 else y) + x


@pytest.mark.parametrize("mode", ["plain", "packed"])
def test_a_module_of_nn(mode):
    """Its weights are loaded as those of all workers, of which each has its block."""
    shards, hidden, inner = 3, 16, 24
    spec = {"x": nn.spec.Tensor(["n", hidden], "float32")}
    spec["$"] = {"param_mode": mode, "effect_mode": "none"}
    mod, _ = GatedBlock(hidden, inner, shards).export_tvm(spec={"forward": spec})
    plan = {"gate_up.weight": ("tp", None), "down.weight": (None, "tp")}
    if mode == "packed":
        plan = dict(zip(("packed_params.0", "packed_params.1"), plan.values(), strict=True))
    mesh = dx.Mesh(tp=shards)
    mod = dx.per_worker(mod, mesh, plan, func="forward")
    x, gate, up, down = values((5, hidden), (inner, hidden), (inner, hidden), (hidden, inner))
    blocks = [np.split(each, shards) for each in (gate, up)]
    fused = np.concatenate([part for pair in zip(*blocks, strict=True) for part in pair])
    gated = x @ gate.T
    expected = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T + x
    weights = {"packed_params": (fused, down)} if mode == "packed" else {}
    weights = weights or {"gate_up.weight": fused, "down.weight": down}
    with dx.Session(mesh) as session:
        model = session.load(dx.build(mod), params=weights)
        np.testing.assert_allclose(model["forward"](x).numpy(), expected, rtol=1e-4, atol=1e-3)


def test_build_takes_programs_of_workers_with_the_same_arguments():
    mod = program(relax.op.ccl.allreduce, (4,), "float32")
    with dx.Session(3) as session:
        model = session.load(dx.build(mod, devices=3, per_worker=True))
        np.testing.assert_array_equal(model(np.arange(4, dtype="float32")).numpy(), [0, 3, 6, 9])
    with pytest.raises(ValueError, match="needs devices=, the number of workers"):
        dx.build(mod, per_worker=True)


def test_what_is_refused():
    mesh = dx.Mesh(tp=3)
    gather = program(lambda x: relax.op.ccl.allgather(x, 2), (4,), "float32")

    @I.ir_module
    class Calls:
        @R.function
        def summed(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.ccl.allreduce(x, "sum")
            return y

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = Calls.summed(x)
            return y

    for mod, arguments, words in [
        (gather, {}, "R.ccl.allgather counts 2 workers, and along 'tp' there are 3"),
        (Calls, {}, "function main calls summed, which has R.ccl.allreduce"),
        (Block, {"plan": {"up": ("dp", None)}}, "the mesh has no axis 'dp'"),
        (Block, {"plan": {"up": ("tp",)}}, "parameter up has 2 dimensions"),
        (Block, {"plan": {"y": ("tp", None)}}, "'y' names a variable of function main"),
        (Block, {"plan": {"z": None}}, "pattern 'z' matches no parameter"),
        (Block, {"group": "dp"}, "a group of workers: the mesh has no axis 'dp'"),
        (Block, {"func": "prefill"}, "no Relax function named 'prefill'"),
        (dx.annotate(Block, mesh, {"x": None}), {}, "is written for whole tensors"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            dx.per_worker(mod, mesh, **arguments)
