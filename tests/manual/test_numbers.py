"""Programs with manual regions compute what they compute on one device."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.manual.programs import arrays, close, ran, written
from tests.targets import QUICK
from tvm import relax, tirx, topi
from tvm.relax.frontend import nn

import distir_ext as dx
from distir_ext import regions

op = relax.op
MESHES = {
    "2x2": dx.Mesh(dp=2, tp=2),
    "4": dx.Mesh(tp=4),
    "3x2": dx.Mesh(dp=3, tp=2),
    "2x3": dx.Mesh(dp=2, tp=3),
    "2x2x2": dx.Mesh(dp=2, tp=2, ep=2),
}
on_meshes = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)


def annotated(mod, mesh, plan):
    """The axes that the mesh has of a plan."""
    kept = {
        name: tuple(axis if axis in mesh.axis_names else None for axis in dims)
        for name, dims in plan.items()
    }
    return dx.annotate(mod, mesh, kept, func="main")


def feed_forward(x, up, down, reduce=True):
    hidden = op.nn.relu(op.matmul(x, up))
    product = op.matmul(hidden, down)
    return dx.collectives.psum(product, "tp") if reduce else product


def megatron(mesh, rows=12, axes=("tp",), reduce=True):
    region = dx.manual(
        lambda *args: feed_forward(*args, reduce=reduce),
        mesh,
        [None, (None, "tp"), ("tp", None)],
        None,
        axes=axes,
    )
    return written(
        lambda x, up, down: op.add(region(x, up, down), x),
        x=(rows, 12),
        up=(12, 24),
        down=(24, 12),
    )


@pytest.mark.parametrize("dims", [("dp", None), (None, "dp"), (("dp", "tp"), None), (None, "tp")])
@pytest.mark.parametrize("rows", [12, 7])
@on_meshes
def test_a_feed_forward_block_by_hand(mesh, rows, dims, session_of):
    if any(isinstance(entry, tuple) and "dp" not in mesh.axis_names for entry in dims):
        pytest.skip("a mesh without dp")
    mod = annotated(megatron(mesh, rows), mesh, {"x": dims})
    x, up, down = arrays((rows, 12), (12, 24), (24, 12))
    close(ran(session_of, mod, mesh, x, up, down), np.maximum(x @ up, 0) @ down + x)


def test_without_the_reduction_the_numbers_are_others(session_of):
    mesh = MESHES["2x2"]
    x, up, down = arrays((12, 12), (12, 24), (24, 12))
    found = ran(session_of, megatron(mesh, reduce=False), mesh, x, up, down)
    assert np.abs(found - (np.maximum(x @ up, 0) @ down + x)).max() > 0.1


@on_meshes
def test_a_product_whose_columns_go_round_a_ring(mesh, session_of):
    size = mesh.shape[mesh.axis_names.index("tp")]
    ring = [(source, (source + 1) % size) for source in range(size)]

    def product(x, w):  # x: some columns; w: the same rows
        total = None
        part = op.matmul(x, w)
        for _ in range(size):
            total = part if total is None else op.add(total, part)
            part = dx.collectives.ppermute(part, "tp", ring)
        return total

    region = dx.manual(product, mesh, [(None, "tp"), ("tp", None)], None, axes=["tp"])
    mod = annotated(written(region, x=(6, 24), w=(24, 12)), mesh, {"x": ("dp", None)})
    x, w = arrays((6, 24), (24, 12))
    close(ran(session_of, mod, mesh, x, w), x @ w)


def test_who_receives_nothing_has_zeros(session_of):
    mesh = MESHES["2x3"]
    region = dx.manual(
        lambda x: dx.collectives.ppermute(x, "tp", [(0, 1), (1, 2)]),
        mesh,
        [("tp", None)],
        ("tp", None),
        axes="tp",
    )
    (x,) = arrays((6, 4))
    found = ran(
        session_of, annotated(written(region, x=(6, 4)), mesh, {"x": (None, "dp")}), mesh, x
    )
    close(found, np.concatenate([np.zeros((2, 4), "float32"), x[:4]]))


@on_meshes
def test_layer_norm_of_shards_with_summed_statistics(mesh, session_of):
    def norm(x):
        width = relax.const(12.0)
        mean = op.divide(dx.collectives.psum(op.sum(x, -1, keepdims=True), "tp"), width)
        centred = op.subtract(x, mean)
        square = dx.collectives.psum(op.sum(op.multiply(centred, centred), -1, True), "tp")
        return op.multiply(centred, op.rsqrt(op.add(op.divide(square, width), relax.const(1e-5))))

    region = dx.manual(norm, mesh, [(None, "tp")], (None, "tp"), axes=["tp"])
    mod = annotated(written(region, x=(6, 12)), mesh, {"x": ("dp", None)})
    (x,) = arrays((6, 12))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(ran(session_of, mod, mesh, x), expected)


@on_meshes
def test_positions_and_heads_change_sides(mesh, session_of):
    """As DeepSpeed's Ulysses: attention of some heads over all positions."""

    def attention(q, k, v):  # (batch, some positions, heads, width)
        q, k, v = (dx.collectives.all_to_all(each, "tp", 2, 1) for each in (q, k, v))
        q, k, v = (op.permute_dims(each, [0, 2, 1, 3]) for each in (q, k, v))
        weights = op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])))
        out = op.permute_dims(op.matmul(weights, v), [0, 2, 1, 3])
        return dx.collectives.all_to_all(out, "tp", 1, 2)

    cut = (None, "tp", None, None)
    region = dx.manual(attention, mesh, [cut] * 3, cut, axes=["tp"])
    shape = (6, 12, 12, 4)
    mod = annotated(
        written(region, q=shape, k=shape, v=shape), mesh, {"q": ("dp", None, None, None)}
    )
    q, k, v = arrays(shape, shape, shape)
    scores = np.einsum("bqhw,bkhw->bhqk", q, k)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    close(ran(session_of, mod, mesh, q, k, v), np.einsum("bhqk,bkhw->bqhw", scores, v))


@pytest.mark.parametrize("axis", ["tp", ("tp", "dp"), ("dp", "tp")])
def test_each_collective_along_axes_in_any_order(axis, session_of):
    mesh = MESHES["2x3"]
    names = (axis,) if isinstance(axis, str) else axis
    size = np.prod([dict(zip(mesh.axis_names, mesh.shape, strict=True))[name] for name in names])

    def several(x):
        index = op.astype(dx.collectives.axis_index(axis), "float32")
        return (
            dx.collectives.all_gather(x, axis, 0),
            dx.collectives.psum_scatter(x, axis, -1),
            dx.collectives.pmax(x, axis),
            dx.collectives.pmin(x, axis),
            dx.collectives.pmean(x, axis),
            op.add(op.multiply(x, relax.const(0.0)), index),
        )

    cut = (axis, None)
    out = [None, (None, axis), None, None, None, cut]
    region = dx.manual(several, mesh, [cut], out)
    (x,) = arrays((12, 18))
    parts = x.reshape(size, 12 // size, 18)
    found = ran(session_of, written(region, x=(12, 18)), mesh, x)
    indices = np.broadcast_to(np.arange(size)[:, None, None], parts.shape).reshape(x.shape)
    expected = (x, parts.sum(0), parts.max(0), parts.min(0), parts.mean(0), indices)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@on_meshes
def test_a_value_that_is_not_an_argument_is_the_same_on_all_devices(mesh, session_of):
    def of(x, w):
        region = dx.manual(
            lambda part: op.matmul(part, op.add(w, relax.const(1.0))),
            mesh,
            [("tp", None)],
            ("tp", None),
            axes=["tp"],
        )
        return region(x)

    mod = annotated(written(of, x=(12, 8), w=(8, 6)), mesh, {"w": ("dp", "tp")})
    x, w = arrays((12, 8), (8, 6))
    close(ran(session_of, mod, mesh, x, w), x @ (w + 1))


@pytest.mark.parametrize("plan", [{}, {"x": ("dp", "ep")}, {"x": (None, ("tp", "ep"))}])
def test_regions_nest(plan, session_of):
    mesh = MESHES["2x2x2"]

    def inner(x):  # one part along ep of one part along tp
        index = op.astype(dx.collectives.axis_index(("tp", "ep")), "float32")
        total = dx.collectives.psum(dx.collectives.psum(x, "ep"), "tp")
        return op.add(op.add(x, index), total)

    def outer(x):
        nested = dx.manual(inner, mesh, [(None, "ep")], (None, "ep"), axes=["ep"])
        return op.add(nested(op.add(x, x)), x)

    region = dx.manual(outer, mesh, [("tp", None)], ("tp", None), axes=["tp"])
    (x,) = arrays((8, 8))
    blocks = (2 * x).reshape(2, 4, 2, 4)
    total = blocks.sum((0, 2))
    index = np.arange(4).reshape(2, 1, 2, 1)
    expected = (blocks + index + total[None, :, None]).reshape(8, 8) + x
    found = ran(session_of, annotated(written(region, x=(8, 8)), mesh, plan), mesh, x)
    close(found, expected)


def test_a_region_may_be_left_before_another_value_enters_the_one_around_it(session_of):
    """An optimisation may move a region forward: the outermost region need not come first."""
    mesh = MESHES["2x2x2"]
    inner, innermost = dx.Mesh(tp=2, ep=2), dx.Mesh(ep=2)

    def of(x):
        numbers = op.arange(8, dtype="float32")
        every, names = ("dp", "tp", "ep"), (("dp", "tp", "ep"),)
        number = op.reshape(regions.enter_manual(numbers, mesh, names, every), (1, 1))
        number = regions.leave_manual(number, innermost, None, ["ep"])
        part = regions.enter_manual(x, mesh, ("dp", None), ["dp"])
        part = regions.enter_manual(part, inner, (None, "tp"), ["tp"])
        whole = regions.leave_manual(op.multiply(part, number), inner, (None, "tp"), ["tp"])
        return regions.leave_manual(whole, mesh, ("dp", None), ["dp"])

    (x,) = arrays((4, 6))
    factors = np.kron([[0, 2], [4, 6]], np.ones((2, 3)))  # of the first devices along ep
    close(ran(session_of, written(of, x=(4, 6)), mesh, x), x * factors)


def test_tensors_of_nn(session_of):
    mesh = MESHES["2x2"]

    class Block(nn.Module):
        def __init__(self):
            self.up = nn.Parameter((12, 24))
            self.down = nn.Parameter((24, 12))

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            def block(x, up, down):
                hidden = nn.op.matmul(nn.op.relu(nn.op.matmul(x, up)), down)
                return dx.collectives.psum(hidden, "tp")

            dims = [None, (None, "tp"), ("tp", None)]
            return dx.manual(block, mesh, dims, None, axes=["tp"])(x, self.up, self.down)

    mod, _ = Block().export_tvm({"forward": {"x": nn.spec.Tensor(("rows", 12), "float32")}})
    mod = dx.annotate(mod, mesh, {"x": ("dp", None)}, func="forward")
    x, up, down = arrays((6, 12), (12, 24), (24, 12))
    model = session_of(mesh.shape).load(
        dx.build(mod, target=QUICK), params={"up": up, "down": down}
    )
    close(model["forward"](x).numpy(), np.maximum(x @ up, 0) @ down)


@pytest.mark.parametrize("dims", [("dp", None), (None, "dp"), (("tp", "dp"), None)])
@pytest.mark.parametrize("cut", [("tp", None), (None, "tp")])
def test_symbolic_sizes(cut, dims, session_of):
    mesh = MESHES["2x2"]
    rows = tirx.Var("rows", "int64")
    region = dx.manual(
        lambda x: op.add(op.exp(x), dx.collectives.pmax(x, "tp")), mesh, [cut], cut, axes="tp"
    )
    mod = written(lambda x: op.add(region(x), x), x=(rows, 8))
    tvm.ir.assert_structural_equal(mod["main"].ret_ty, mod["main"].params[0].ty)
    (x,) = arrays((8, 8))
    parts = np.split(x, 2, axis=0 if cut[0] else 1)
    expected = np.exp(x) + np.concatenate([np.maximum(*parts)] * 2, axis=0 if cut[0] else 1) + x
    close(ran(session_of, dx.annotate(mod, mesh, {"x": dims}, func="main"), mesh, x), expected)


@on_meshes
def test_values_move_along_automatic_axes_within_their_device(mesh, session_of):
    """Slices, flips and other shardings inside: nothing may come from another part along tp."""

    def moved(x):
        x = dx.constrain(x, mesh, (("dp",) if "dp" in mesh.axis_names else None, None))
        flipped = op.flip(x, 0)
        sliced = op.strided_slice(flipped, [0], [1], [5])
        wanted = (None, "dp" if "dp" in mesh.axis_names else None)
        return dx.constrain(op.concat([sliced, x], axis=0), mesh, wanted)

    region = dx.manual(moved, mesh, [(None, "tp")], (None, "tp"), axes=["tp"])
    (x,) = arrays((6, 12))
    expected = np.concatenate([x[::-1][1:5], x])
    close(ran(session_of, written(region, x=(6, 12)), mesh, x), expected)


@pytest.mark.parametrize("target", [(None, "dp"), (("ep", "dp"), None), ("ep", "dp")])
def test_redistributions_inside_take_nothing_from_other_parts(target, session_of):
    """A planner that took values for equal along tp could fetch, or slice and gather, along it."""
    mesh = MESHES["2x2x2"]

    def moved(x):
        x = dx.constrain(op.exp(x), mesh, (("dp", "ep"), None))
        return op.add(dx.constrain(x, mesh, target), dx.collectives.psum(x, "tp"))

    region = dx.manual(moved, mesh, [("tp", None)], ("tp", None), axes=["tp"])
    (x,) = arrays((16, 8))
    total = np.exp(x).reshape(2, 8, 8).sum(0)
    close(ran(session_of, written(region, x=(16, 8)), mesh, x), np.exp(x) + np.tile(total, (2, 1)))


def test_reductions_over_automatic_axes_inside(session_of):
    mesh = MESHES["2x2"]

    def norm(x, w):  # the product is partial over dp, and different along tp
        product = op.matmul(x, w)
        return op.nn.relu(op.add(product, dx.collectives.psum(product, "tp")))

    region = dx.manual(norm, mesh, [None, (None, "tp")], (None, "tp"), axes=["tp"])
    mod = written(region, x=(8, 16), w=(16, 12))
    mod = dx.annotate(mod, mesh, {"x": (None, "dp"), "w": ("dp", None)}, func="main")
    x, w = arrays((8, 16), (16, 12))
    product = (x @ w).reshape(8, 2, 6)
    expected = np.maximum(product + product.sum(1, keepdims=True), 0).reshape(8, 12)
    close(ran(session_of, mod, mesh, x, w), expected)


def test_axes_of_size_one(session_of):
    mesh = dx.Mesh(dp=2, tp=1)
    mod = dx.annotate(megatron(mesh), mesh, {"x": ("dp", None)}, func="main")
    x, up, down = arrays((12, 12), (12, 24), (24, 12))
    close(ran(session_of, mod, mesh, x, up, down), np.maximum(x @ up, 0) @ down + x)


@pytest.mark.parametrize("cut", [("tp", None), (None, "tp"), (None, ("tp", "dp"))])
def test_a_region_on_another_view_of_the_mesh(cut, session_of):
    """The mesh that is stated first is one axis; those of the region are parts of it."""
    mesh, whole = dx.Mesh(dp=2, tp=2), dx.Mesh(all=4)
    axes = ["tp"] if cut != (None, ("tp", "dp")) else ["dp", "tp"]
    region = dx.manual(
        lambda x: op.add(op.exp(x), dx.collectives.psum(x, "tp")), mesh, [cut], cut, axes=axes
    )

    def of(x):
        first = dx.constrain(op.negative(x), whole, ("all", None))
        return dx.constrain(region(first), mesh, (("tp", "dp"), None))

    (x,) = arrays((8, 8))
    expected = np.exp(-x)
    if cut[0]:
        expected = expected - np.tile(x.reshape(2, 4, 8).sum(0), (2, 1))
    else:
        parts = x.reshape((8, 2, 4) if cut == (None, "tp") else (8, 2, 2, 2))
        # Along ("tp", "dp") the parts of tp are the major ones, summed for each part of dp.
        total = np.broadcast_to(parts.sum(1, keepdims=True), parts.shape)
        expected = expected - total.reshape(8, 8)
    close(ran(session_of, written(of, x=(8, 8)), mesh, x), expected)


def test_a_kernel_in_a_region(session_of):
    mesh = MESHES["2x2"]

    def square(x):
        return topi.multiply(x, x)

    def squared(x):
        kernel_call = relax.BlockBuilder.current().call_te(square, x)
        return dx.collectives.psum(kernel_call, "tp")

    region = dx.manual(squared, mesh, [(None, "tp")], None, axes=["tp"])
    mod = annotated(written(region, x=(6, 12)), mesh, {"x": ("dp", None)})
    (x,) = arrays((6, 12))
    close(ran(session_of, mod, mesh, x), (x * x).reshape(6, 2, 6).sum(1))


COLLECTIVES = {
    "psum": lambda x: dx.collectives.psum(x, "tp"),
    "pmax": lambda x: dx.collectives.pmax(x, "tp"),
    "all_gather": lambda x: dx.collectives.all_gather(x, "tp", 1),
    "psum_scatter": lambda x: dx.collectives.psum_scatter(x, "tp", 0),
    "all_to_all": lambda x: dx.collectives.all_to_all(x, "tp", 0, 1),
    "ppermute": lambda x: dx.collectives.ppermute(x, "tp", [(1, 0)]),
}
OUTCOMES = {  # of the parts of two devices
    "psum": lambda a, b: [a + b] * 2,
    "pmax": lambda a, b: [np.maximum(a, b)] * 2,
    "all_gather": lambda a, b: [np.concatenate([a, b], 1)] * 2,
    "psum_scatter": lambda a, b: np.split(a + b, 2),
    "all_to_all": lambda a, b: [
        np.concatenate(parts, 1) for parts in zip(np.split(a, 2), np.split(b, 2), strict=True)
    ],
    "ppermute": lambda a, b: [b, np.zeros_like(a)],
}


@pytest.mark.parametrize("inside", [("dp", None), (None, "dp"), (None, None)])
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("mesh", [MESHES["2x2"], MESHES["3x2"]], ids=["2x2", "3x2"])
def test_a_collective_of_what_is_sharded_along_an_automatic_axis(mesh, name, inside, session_of):
    def apart(x):
        sharded = dx.constrain(op.exp(x), mesh, inside)
        return op.negative(COLLECTIVES[name](sharded))

    region = dx.manual(apart, mesh, [("tp", None)], ("tp", None), axes=["tp"])
    (x,) = arrays((24, 6))
    expected = -np.concatenate(OUTCOMES[name](*np.split(np.exp(x), 2)))
    close(ran(session_of, written(region, x=(24, 6)), mesh, x), expected)
