"""Symbolic dimensions, sharded or not: one build serves every size that divides."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx

from .partitioned import close, to_arrays

TOLERANCE = {"float32": 2e-6}
MESH = dx.Mesh((2, 2), ("dp", "tp"))


@I.ir_module
class Mlp:
    """A private function with symbolic shapes, reached twice."""

    @R.function(private=True)
    def layer(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            R.output(y)
        return y

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ):
        cls = Mlp
        n = T.int64()
        with R.dataflow():
            h = cls.layer(x, w0)
            y = R.nn.softmax(R.add(cls.layer(h, w1), x))
            R.output(y)
        return y


@I.ir_module
class Reshaped:
    """The symbolic dimension in reshapes: merged, split, and in a tensor made from it."""

    @R.function
    def main(x: R.Tensor(("n", 4, 6), "float32"), w: R.Tensor((6, 4), "float32")):
        n = T.int64()
        with R.dataflow():
            rows = R.reshape(x, (n * 4, 6))
            y = R.matmul(rows, w)
            back = R.reshape(y, (n, 4, 4))
            heads = R.reshape(R.permute_dims(back, [0, 2, 1]), (n, 2, 8))
            shifted = R.add(heads, R.ones((n, 2, 8), "float32"))
            R.output(shifted)
        return shifted


@I.ir_module
class Reduced:
    """Sums over the symbolic dimension, two results, and a broadcast back to it."""

    @R.function
    def main(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            mean = R.mean(x, axis=[0], keepdims=True)
            centred = R.subtract(x, mean)
            wide = R.broadcast_to(mean, (n, 8))
            out = R.concat([centred, wide], axis=1)
            total = R.sum(R.square(centred))
            largest = R.max(x, axis=[0])
            R.output(out, total, largest)
        return (out, (total, largest))


@I.ir_module
class Attention:
    """Two symbolic dimensions; the second is contracted and normalised over."""

    @R.function
    def main(
        q: R.Tensor(("b", "s", 8), "float32"),
        k: R.Tensor(("b", "s", 8), "float32"),
        v: R.Tensor(("b", "s", 8), "float32"),
    ):
        b = T.int64()
        s = T.int64()
        with R.dataflow():
            scores = R.matmul(q, R.permute_dims(k, [0, 2, 1]))
            y = R.matmul(R.nn.softmax(scores), v)
            flat = R.reshape(y, (b, s * 8))
            R.output(flat)
        return flat


@I.ir_module
class Images:
    """Groups of channels on images of a symbolic batch."""

    @R.function
    def main(x: R.Tensor(("n", 8, 6, 6), "float32"), w: R.Tensor((8, 2, 3, 3), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.nn.conv2d(x, w, padding=1, groups=4)
            scale = R.full((8,), R.const(1.5, "float32"), "float32")
            y = R.nn.group_norm(y, scale, scale, num_groups=4, channel_axis=1, axes=[2, 3])
            y = R.nn.avg_pool2d(y, pool_size=(2, 2), strides=(2, 2))
            flat = R.nn.batch_flatten(y)
            R.output(flat)
        return flat


@I.ir_module
class Grouped:
    """Attention as one operator, then slices of which one takes all of a symbolic dimension."""

    @R.function
    def main(
        q: R.Tensor(("b", "t", 4, 8), "float32"),
        k: R.Tensor(("b", "s", 4, 8), "float32"),
        v: R.Tensor(("b", "s", 4, 8), "float32"),
    ):
        b = T.int64()
        with R.dataflow():
            y = R.nn.attention(q, k, v)
            part = R.strided_slice(y, axes=[0, 3], begin=[0, 2], end=[b, 6])
            wide = R.nn.pad(part, [0, 0, 0, 0, 0, 0, 1, 1])
            both = R.stack([wide, R.flip(wide, axis=3)], axis=2)
            total = R.einsum((both, both), "bsihd,bsihd->bsh")
            R.output(both, total)
        return (both, total)


@I.ir_module
class Positions:
    """Writes and lookups along known dimensions of what has a symbolic one."""

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        y: R.Tensor(("n", 3), "float32"),
        table: R.Tensor((8, 4), "float32"),
        images: R.Tensor(("n", 2, 4, 8), "float32"),
    ):
        n = T.int64()
        with R.dataflow():
            i = R.astype(R.clip(R.multiply(y, R.const(3, "float32")), 0, 7), "int64")
            added = R.scatter_elements(x, i, y, axis=1, reduction="add")
            rows = R.gather_nd(table, R.reshape(i, (n, 3, 1)))
            wide = R.tile(R.slice_scatter(x, y, 2, 5, 1, axis=1), (1, 2))
            large = R.image.resize2d(images, (8, 4), method="linear")
            pooled = R.nn.adaptive_avg_pool2d(large, (4, 1))
            R.output(added, rows, wide, pooled)
        return (added, rows, wide, pooled)


@I.ir_module
class Moved:
    """Movement along static dimensions, 8 and 9 wide, of tensors of a symbolic batch."""

    @R.function
    def main(x: R.Tensor(("n", 4, 9), "float32"), w: R.Tensor((4, 1, 4), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.nn.conv1d(R.nn.pad(x, [0, 0, 0, 0, 3, 0]), w, groups=4)
            part = R.strided_slice(R.flip(y, axis=2), axes=[2], begin=[2], end=[9])
            pooled = R.nn.avg_pool1d(part, 3, 2, 1)
            scaled = R.nn.softmax(part, axis=2)
            R.output(pooled, scaled)
        return (pooled, scaled)


@I.ir_module
class Rotary:
    """Halves of heads rotated, and what is cached before: a causal layer of a symbolic sequence."""

    @R.function
    def main(
        x: R.Tensor(("b", "s", 4, 6), "float32"),
        past: R.Tensor(("b", "t", 4, 6), "float32"),
        w: R.Tensor((24, 1, 3), "float32"),
    ):
        b = T.int64()
        s = T.int64()
        t = T.int64()
        with R.dataflow():
            halves = R.split(x, 2, axis=3)
            turned = R.concat([R.negative(halves[1]), halves[0]], axis=3)
            cache = R.concat([past, turned], axis=1)
            rows = R.permute_dims(R.reshape(cache, (b, t + s, 24)), [0, 2, 1])
            mixed = R.nn.conv1d(R.nn.pad(rows, [0, 0, 0, 0, 2, 0]), w, groups=24)
            R.output(cache, mixed)
        return (cache, mixed)


def arrays_of(mod, **sizes):
    rng = np.random.default_rng(0)

    def size(dim):
        return sizes[dim.name] if isinstance(dim, tvm.tirx.Var) else int(dim)

    return [
        rng.standard_normal([size(dim) for dim in param.ty.shape]).astype("float32")
        for param in mod["main"].params
    ]


PLANS = [
    (Mlp, {"x": ("dp", None)}),
    (Mlp, {"x": ("dp", None), "w0": (None, "tp"), "w1": ("tp", None)}),
    (Mlp, {"x": (("dp", "tp"), None)}),
    (Mlp, {"x": (None, "tp"), "w0": ("dp", None)}),
    (Reshaped, {"x": ("dp", None, None)}),
    (Reshaped, {"x": ("dp", "tp", None)}),
    (Reshaped, {"x": (("dp", "tp"), None, None), "w": (None, None)}),
    (Reshaped, {"w": (None, "tp")}),
    (Reduced, {"x": ("dp", None)}),
    (Reduced, {"x": ("dp", "tp")}),
    (Reduced, {"x": (("dp", "tp"), None)}),
    (Attention, {"[qkv]": ("dp", None, None)}),
    (Attention, {"q": ("dp", "tp", None)}),
    (Attention, {"[kv]": ("dp", "tp", None)}),
    (Attention, {"[qk]": ("dp", None, "tp")}),
    (Images, {"x": ("dp", None, None, None), "w": ("tp", None, None, None)}),
    (Images, {"x": ("dp", "tp", None, None)}),
    (Images, {"x": (None, ("dp", "tp"), None, None)}),
    (Moved, {"x": ("dp", None, "tp")}),
    (Moved, {"x": (None, None, ("dp", "tp"))}),
    (Rotary, {"x|past": ("dp", None, "tp", None)}),
    (Rotary, {"x|past": (None, "tp", None, None)}),
    (Rotary, {"x|past": ("dp", None, None, "tp")}),
    (Grouped, {"[qkv]": ("dp", None, "tp", None)}),
    (Grouped, {"q": ("dp", "tp", None, None)}),
    (Grouped, {"v": ("dp", None, None, "tp")}),
    (Positions, {"x": ("dp", "tp"), "images": ("dp", None, "tp", None)}),
    (Positions, {"x": (None, ("dp", "tp")), "images": (None, None, "dp", "tp")}),
    (Positions, {"table": ("tp", None), "[xy]": ("dp", None), "images": (None, None, None, "tp")}),
]


@pytest.mark.parametrize(
    ("mod", "plan"), PLANS, ids=[f"{mod.__name__}-{plan}" for mod, plan in PLANS]
)
def test_one_build_serves_many_sizes(mod, plan, session_of):
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    main = session_of(MESH.shape).load(dx.build(dx.annotate(mod, MESH, plan), QUICK))["main"]
    for batch, length in ((4, 4), (8, 12), (12, 8), (4, 8)):
        inputs = arrays_of(mod, n=batch, b=batch, s=length, t=2 * length)
        wanted = to_arrays(machine["main"](*(tvm.runtime.tensor(x) for x in inputs)))
        got = to_arrays(main(*inputs))
        assert len(got) == len(wanted)
        for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
            close(left, right, TOLERANCE, exact=False, what=f"result {index}, batch {batch}")


@pytest.mark.parametrize(
    ("mod", "plan", "batch", "message"),
    [
        (Mlp, {"x": ("dp", None)}, 7, r'dimension 0 of input "x".* n = 7, .* 2 parts'),
        (Mlp, {"x": (("dp", "tp"), None)}, 6, r'dimension 0 of input "x".* n = 6, .* 4 parts'),
        (
            Reshaped,
            {"x": ("dp", None, None)},
            5,
            r'dimension 0 of input "x".* n = 5, .* 2 parts',
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_one_error(mod, plan, batch, message, session_of):
    main = session_of(MESH.shape).load(dx.build(dx.annotate(mod, MESH, plan), QUICK))["main"]
    with pytest.raises(ValueError, match=message):
        main(*arrays_of(mod, n=batch))
    # The session goes on.
    assert to_arrays(main(*arrays_of(mod, n=4)))[0].shape[0] == 4


M = tvm.tirx.Var("m", "int64")


def placed_later(shape, value):
    """``value`` of x, computed whole, of which dimension 0 is then in two parts."""
    mesh = dx.Mesh((2,), ("dp",))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit(value(x))
            placed = relax.op.distributed.annotate_sharding(
                whole, mesh.device_mesh, mesh.placement("dp", None)
            )
            result = builder.emit_output(placed)
        builder.emit_func_output(result)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh])
    return mod


@pytest.mark.parametrize(
    ("value", "workers"),
    [
        (lambda x: relax.op.concat([x, x, relax.op.ones((M + 1, 4), "float32")]), "threads"),
        (lambda x: relax.op.concat([x, x, relax.op.ones((M + 1, 4), "float32")]), "processes"),
        (lambda x: relax.op.broadcast_to(relax.op.sum(x, 0, True), (M * 3 + 1, 4)), "threads"),
    ],
    ids=["joined", "joined by processes", "made"],
)
def test_a_length_that_does_not_divide_names_dimension_and_size(value, workers):
    exe = dx.build(placed_later((M, 4), value), QUICK)
    x = np.ones((5, 4), "float32")
    with dx.Session(2, workers=workers) as session:
        main = session.load(exe)["main"]
        assert main(x).shape == (16, 4)
        message = r"dimension 0 of x of shape \[13, 4\] does not divide into 2 parts"
        with pytest.raises(dx.session.WorkerError, match=message):
            main(x[:4])


@pytest.mark.parametrize(
    "value",
    [
        lambda x: relax.op.concat([x, x, relax.op.ones((1, 4), "float32")]),
        lambda x: relax.op.broadcast_to(relax.op.sum(x, 0, True), (M * 2 + 1, 4)),
    ],
    ids=["joined", "made"],
)
def test_a_length_that_never_divides_is_an_error_of_the_program(value):
    with pytest.raises(ValueError, match=r"dimension 0 of size m .* does not divide into 2"):
        dx.lower(placed_later((M, 4), value))


def inner(first, second):
    """``relu`` of x placed by ``first``, then placed by ``second``."""
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 8), "float32"))
    mesh = MESH.device_mesh

    def placed(value, text):
        placement = relax.distributed.Placement.from_text(text)
        return builder.emit(relax.op.distributed.annotate_sharding(value, mesh, placement))

    with builder.function("main", [x]):
        with builder.dataflow():
            value = placed(builder.emit(relax.op.nn.relu(placed(x, first))), second)
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    return mod


@pytest.mark.parametrize(
    ("first", "second", "works", "fails", "parts"),
    [
        ("R, R", "S[0], R", 6, 7, 2),
        ("R, R", "S[0], S[0]", 8, 6, 4),
        ("S[1], R", "S[0], R", 6, 5, 2),
        ("S[0], R", "S[0], S[0]", 8, 6, 2),
    ],
)
def test_an_inner_dimension_that_does_not_divide_is_an_error(first, second, works, fails, parts):
    exe = dx.build(inner(first, second), QUICK)
    with dx.Session(4) as session:
        main = session.load(exe)["main"]
        x = np.random.default_rng(0).standard_normal((works, 8)).astype("float32")
        np.testing.assert_array_equal(main(x).numpy(), np.maximum(x, 0))
        message = rf"dimension 0 of x of shape \[\d+, \d\] does not divide into {parts} parts"
        with pytest.raises(dx.session.WorkerError, match=message):
            main(np.zeros((fails, 8), "float32"))
