"""Symbolic dimensions, sharded or not: one build serves every size, whether it divides or not."""

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


# Sizes that have to divide, by the plan, and what cannot be padded along them.
DIVIDING = {
    18: "relax.reshape",  # of shards of windows and of the batch, merged
}
SIZES = [(4, 4), (1, 3), (3, 7), (5, 1), (2, 2), (9, 4), (7, 5)]


def compared(mod, plan, mesh, session, sizes, dividing=None):
    """Compares what a program gives sharded with what it gives on one device."""
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    main = session.load(dx.build(dx.annotate(mod, mesh, plan), QUICK))["main"]
    for batch, length in sizes:
        inputs = arrays_of(mod, n=batch, b=batch, s=length, t=2 * length + 1)
        if dividing is not None and batch % 2:
            with pytest.raises(ValueError, match=f"cannot be padded along {dividing}"):
                main(*inputs)
            continue
        wanted = to_arrays(machine["main"](*(tvm.runtime.tensor(x) for x in inputs)))
        got = to_arrays(main(*inputs))
        assert len(got) == len(wanted)
        for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
            close(left, right, TOLERANCE, exact=False, what=f"result {index}, batch {batch}")


@pytest.mark.parametrize("number", range(len(PLANS)), ids=[f"{m.__name__}-{p}" for m, p in PLANS])
def test_one_build_serves_many_sizes(number, session_of):
    mod, plan = PLANS[number]
    compared(mod, plan, MESH, session_of(MESH.shape), SIZES, DIVIDING.get(number))


@pytest.mark.parametrize("shape", [(3,), (3, 2)], ids=str)
def test_on_other_meshes(shape, session_of):
    mesh = dx.Mesh(shape, ("dp", "tp")[: len(shape)])
    second = mesh.axis_names[-1]
    for mod, plan in (
        (Mlp, {"x": ("dp", None)}),
        (Reshaped, {"x": ("dp", None, None)}),
        (Reduced, {"x": (mesh.axis_names, None)}),
        (Attention, {"q": ("dp", None, None), "[kv]": (None, second, None)}),
    ):
        compared(mod, plan, mesh, session_of(shape), [(1, 2), (4, 7), (8, 1)])


@I.ir_module
class Decoder:
    """A step of a decoder: keys and values of before, a mask by the true lengths, a norm."""

    @R.function
    def main(
        x: R.Tensor(("b", "s", 8), "float32"),
        keys: R.Tensor(("b", "t", 8), "float32"),
        values: R.Tensor(("b", "t", 8), "float32"),
        w: R.Tensor((8, 24), "float32"),
        scale: R.Tensor((8,), "float32"),
    ):
        b = T.int64()
        s = T.int64()
        t = T.int64()
        with R.dataflow():
            h = R.nn.rms_norm(x, scale, axes=[-1])
            parts = R.split(R.reshape(R.matmul(R.reshape(h, (b * s, 8)), w), (b, s, 24)), 3, 2)
            k = R.concat([keys, parts[1]], axis=1)
            v = R.concat([values, parts[2]], axis=1)
            scores = R.matmul(parts[0], R.permute_dims(k, [0, 2, 1]))
            rows = R.reshape(R.add(R.arange(0, s, dtype="int64"), R.const(0, "int64")), (s, 1))
            columns = R.subtract(
                R.arange(0, t + s, dtype="int64"), R.full((1,), R.const(0, "int64"), "int64")
            )
            mask = R.less_equal(
                R.expand_dims(columns, 0), R.add(rows, R.arange(t, t + 1, dtype="int64"))
            )
            scores = R.where(mask, scores, R.const(-1e9, "float32"))
            mixed = R.matmul(R.nn.softmax(scores), v)
            y = R.add(x, mixed)
            pooled = R.mean(y, axis=[1])
            best = R.argmax(y, axis=1)
            R.output(y, k, v, pooled, best)
        return (y, k, v, pooled, best)


@pytest.mark.parametrize(
    "plan",
    [
        {"x|keys|values": ("dp", None, None)},
        {"x": ("dp", "tp", None), "keys|values": ("dp", None, None)},
        {"x": (None, ("dp", "tp"), None)},
        {"x": ("dp", None, None), "keys|values": ("dp", "tp", None)},
    ],
    ids=str,
)
def test_a_decoder_with_what_it_has_cached(plan, session_of):
    compared(Decoder, plan, MESH, session_of(MESH.shape), [(1, 1), (3, 5), (4, 2), (5, 3)])


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
        (lambda x: relax.op.broadcast_to(relax.op.sum(x, 0, True), (M * 2 + 1, 4)), "threads"),
    ],
    ids=["joined", "joined by processes", "made, never even"],
)
def test_a_length_that_a_program_computes_need_not_divide(value, workers):
    mod = placed_later((M, 4), value)
    plain = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((M, 4), "float32"))
    with plain.function("main", [x]):
        plain.emit_func_output(plain.emit(value(x)))
    machine = relax.VirtualMachine(tvm.compile(plain.get(), QUICK), tvm.cpu())
    array = np.arange(20, dtype="float32").reshape(5, 4)
    with dx.Session(2, workers=workers) as session:
        main = session.load(dx.build(mod, QUICK))["main"]
        for rows in (5, 4, 1):
            wanted = machine["main"](tvm.runtime.tensor(array[:rows])).numpy()
            np.testing.assert_array_equal(main(array[:rows]).numpy(), wanted)


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
    ("first", "second"),
    [
        ("R, R", "S[0], R"),
        ("R, R", "S[0], S[0]"),
        ("S[1], R", "S[0], R"),
        ("S[0], R", "S[0], S[0]"),
        ("S[0], S[0]", "S[1], S[0]"),
    ],
)
def test_an_inner_dimension_need_not_divide(first, second, session_of):
    main = session_of((4,)).load(dx.build(inner(first, second), QUICK))["main"]
    for rows in (1, 5, 6, 7, 8):
        x = np.random.default_rng(0).standard_normal((rows, 8)).astype("float32")
        np.testing.assert_array_equal(main(x).numpy(), np.maximum(x, 0))


def test_a_size_in_shards_of_two_numbers(session_of):
    """n rows of x in 2, and of y in 3."""
    mesh = dx.Mesh((2, 3), ("a", "b"))
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x, y = (relax.Var(name, relax.TensorType((n, 6), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        total = builder.emit(relax.op.add(x, y))
        builder.emit_func_output(relax.Tuple([x, y, total]))
    mod = dx.annotate(builder.get(), mesh, {"x": ("a", None), "y": ("b", None)})
    main = session_of(mesh.shape).load(dx.build(mod, QUICK))["main"]
    for rows in (1, 4, 6, 7):
        arrays = [np.random.default_rng(i).random((rows, 6), "float32") for i in range(2)]
        for got, wanted in zip(main(*arrays), [*arrays, sum(arrays)], strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)
