"""Operators that work along a dimension which the shards do not divide: what they send, and what
they compute where data is equal to what stands in the padding."""

import numpy as np
import pytest
from tests.padding.programs import FOUR, TALL
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

from .checks import arrays, assert_same_numbers

SIX = dx.Mesh((6,), ("a",))
CUBE = dx.Mesh((2, 2, 2), ("a", "b", "c"))


def module(build, **params):
    """A function ``main`` of tensors; ``build`` gets its builder's `emit` and the parameters."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(*stated)) for name, stated in params.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            values = build(*variables)
            values = values if isinstance(values, list) else [values]
            found = [builder.emit(value) for value in values]
            results = []
            for value in found:
                is_tuple = isinstance(value.ty, relax.TupleType)
                fields = range(len(value.ty.fields)) if is_tuple else ()
                results += [builder.emit(value[i]) for i in fields] if is_tuple else [value]
            outputs = [builder.emit_output(each) for each in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()


def sent(mod, mesh, plan):
    """Bytes that a device sends."""
    lowered = dx.lower(dx.annotate(mod, mesh, plan))
    return sum(each.bytes_per_device * each.count for each in dx.analysis.collectives(lowered))


F, I64 = "float32", "int64"
IN_ROWS = {"x": ("a", None)}
STAYS = {"x": ("a", None), "return": ("a", None)}


def along(n):
    """Program, plan and bytes over four devices, of an extent n of some 32,000."""
    logits, table = {"x": ((2, n), F)}, {"x": ((n, 64), F)}
    vocabulary = {"x": (None, "a")}
    indices, rows, ones = ((7,), I64), ((6, 64), F), ((6,), I64)
    looked_up = 2 * 7 * 64 * 4 * 3 // 4

    def loss(x, t):
        return R.nn.nll_loss(R.nn.log_softmax(x, 1), t)

    yield "argmax", module(lambda x: R.argmax(x, 1), **logits), vocabulary, 36
    yield "argmin", module(lambda x: R.argmin(x, 1), **logits), vocabulary, 36
    topk = module(lambda x: R.topk(x, 5, 1, "both", True, I64), **logits)
    yield "topk", topk, vocabulary, 360
    yield "loss of classes", module(loss, **logits, t=((2,), I64)), vocabulary, 30
    per_row = {**IN_ROWS, "t": ("a",)}
    yield "loss of rows", module(R.nn.nll_loss, **table, t=((n,), I64)), per_row, 12
    for mode in ("fast", "clip", "wrap", "nan"):
        take = module(lambda x, i, mode=mode: R.take(x, i, 0, mode), **table, i=indices)
        yield f"take {mode}", take, IN_ROWS, looked_up
    scatter_nd = module(R.scatter_nd, **table, i=((6, 1), I64), u=rows)
    yield "scatter_nd", scatter_nd, STAYS, 0
    for mode in ("update", "add", "max"):
        write = module(
            lambda x, i, u, mode=mode: R.scatter_elements(x, i, u, 0, mode),
            **table,
            i=((6, 64), I64),
            u=rows,
        )
        yield f"scatter_elements {mode}", write, STAYS, 0
    slices = module(lambda x, u: R.slice_scatter(x, u, 5, 6, 1, 0), **table, u=((1, 64), F))
    yield "slice_scatter", slices, STAYS, 0
    put = module(lambda x, i, j, u: R.index_put(x, (i, j), u), **table, i=ones, j=ones, u=((6,), F))
    yield "index_put", put, STAYS, 0
    gradient = module(lambda u, x, i: R.grad.take_backward(u, x, i, 0), u=rows, **table, i=ones)
    yield "take_backward", gradient, STAYS, 0
    accumulate = module(
        lambda x, i, u: R.scatter_elements(x, i, u, 0, "add"),
        x=((7, 64), F),
        i=((n, 64), I64),
        u=((n, 64), F),
    )
    yield "accumulated", accumulate, {"i": ("a", None), "u": ("a", None)}, looked_up


def test_extents_that_do_not_divide_send_what_others_do():
    found = {
        (n, name): sent(mod, FOUR, plan)
        for n in (32000, 32001, 32002)
        for name, mod, plan, _ in along(n)
    }
    wanted = {(n, name): count for n in (32000, 32001, 32002) for name, *_, count in along(n)}
    assert found == wanted


def test_even_dimensions_beside_uneven_ones_send_nothing():
    for n in (4096, 4099):
        x = {"x": ((n, 64), F)}
        images = {"x": ((n, 2, 4, 4), F)}
        programs = [
            module(lambda x: R.sort(x, 1), **x),
            module(lambda x: R.argsort(x, 1), **x),
            module(lambda x: R.topk(x, 5, 1, "both", True, I64), **x),
            module(lambda x: R.median(x, 1), **x),
            module(lambda x, t: R.nn.nll_loss(x, t, reduction="none"), **x, t=((n,), I64)),
        ]
        assert [sent(mod, FOUR, IN_ROWS) for mod in programs] == [0] * 5
        resized = module(lambda x: R.image.resize2d(x, (8, 8), layout="NCHW"), **images)
        assert sent(resized, FOUR, {"x": ("a", None, None, None)}) == 0


def test_redistributions_from_uneven_shards_are_those_of_even_ones():
    """Of what is padded, to the next multiple of the shards."""

    def moved(mod, plan, mesh=FOUR):
        lowered = dx.lower(dx.annotate(mod, mesh, plan))
        found = dx.analysis.collectives(lowered)
        return sorted({each.kind for each in found}), sent(mod, mesh, plan)

    turned = {"x": ("a", None), "return": (None, "a")}
    for rows, padded in ((4096, 4096), (4099, 4100)):
        squared = module(lambda x: R.multiply(x, x), x=((rows, 1024), F))
        assert moved(squared, turned) == (["all_to_all"], padded * 1024 * 4 * 3 // 16)
        more = {"x": ("a", None), "return": (("a", "b"), None)}
        kinds, count = moved(squared, more, dx.Mesh((2, 2), ("a", "b")))
        assert set(kinds) <= {"segment_exchange"}
        assert count <= 4 * 1024 * 4
    partial = {"x": (None, "a"), "y": ("a", None), "return": ("a", None)}
    for rows, padded in ((1024, 1024), (1023, 1024)):
        product = module(R.matmul, x=((rows, 512), F), y=((512, 256), F))
        assert moved(product, partial) == (["reduce_scatter"], padded * 256 * 4 * 3 // 4)
    for rows, padded in ((65536, 65536), (65537, 65540)):
        ordered = module(lambda x: R.sort(x, 0), x=((rows, 1024), F))
        assert moved(ordered, STAYS) == (["all_to_all"], 2 * padded * 1024 * 4 * 3 // 16)


# Extents that no mesh divides; of most, the last shards are nothing but padding.
RUNS = {
    "four": (FOUR, ("a", None), (9, 5), F),
    "six": (SIX, (None, "a"), (5, 13), "float16"),
    "tall": (TALL, ("a", "b"), (7, 5), "int8"),
    "cube": (CUBE, (("c", "a"), "b"), (9, 5), I64),
}


def values(kind, dtype, shape):
    """Data with ties, all of it as a mask writes, or with NaN."""
    rng = np.random.default_rng(0)
    if kind == "nan":
        data = rng.standard_normal(shape).astype(dtype)
        data[rng.random(shape) < 0.2] = np.nan
        return data
    if kind == "ties":
        return rng.integers(0, 3, shape).astype(dtype)
    is_integer = np.dtype(dtype).kind == "i"
    ends = (np.iinfo(dtype).min, np.iinfo(dtype).max) if is_integer else (-np.inf, np.inf)
    return np.full(shape, ends[kind == "highest"], dtype)


def everything(shape, dtype):
    """All operators of the kind, and the arguments behind the first."""
    rows, columns = shape
    is_float = dtype.startswith("float")
    rng = np.random.default_rng(1)
    inputs = {
        "i": np.array([-1, 0, columns, rows - 1, rows, 40]),
        "p": np.array([rows - 1, 0, 2, 1]),
        "u": rng.integers(1, 4, (4, columns)).astype(dtype),
        "r": rng.integers(1, 4, 4).astype(dtype),
        "s": rng.integers(1, 4, (len(range(2, rows, 3)), columns)).astype(dtype),
    }

    def build(x, i, p, u, r, s):
        found = []
        for axis, size in enumerate(shape):
            found += [R.argmax(x, axis), R.argmin(x, axis, True)]
            found += [R.topk(x, size - 1, axis, "both", big, I64) for big in (True, False)]
            modes = ("clip", "wrap", "nan") if is_float else ("clip", "wrap")
            found += [R.take(x, i, axis, mode) for mode in modes]
        from_end = R.subtract(p, relax.const(rows, I64))
        at = R.expand_dims(p, 1)
        found += [R.scatter_nd(x, at, u, mode) for mode in ("update", "max")]
        where = R.broadcast_to(R.expand_dims(from_end, 1), (4, columns))
        modes = ("update", "add", "mul", "min", "max")
        found += [R.scatter_elements(x, where, u, 0, mode) for mode in modes]
        found += [R.index_put(x, (from_end, R.zeros_like(p)), r, add) for add in (False, True)]
        found += [R.slice_scatter(x, s, 2, rows, 3, 0)]
        found += [R.grad.take_backward(u, x, p, 0)] if is_float else []
        return found

    stated = {name: (data.shape, data.dtype.name) for name, data in inputs.items()}
    return module(build, x=(shape, dtype), **stated), list(inputs.values())


@pytest.mark.large
@pytest.mark.parametrize("name", RUNS)
def test_numbers_where_data_is_as_padding(name, session_of):
    """The first of equal elements is found, and nothing of the padding gets into a result."""
    mesh, placed, shape, dtype = RUNS[name]
    program, others = everything(shape, dtype)
    lowered = dx.lower(dx.annotate(program, mesh, {"x": placed}))
    model = session_of(mesh.shape).load(dx.build(lowered, QUICK))
    one = dx.Mesh((1,), ("a",))
    alone = session_of(one.shape).load(dx.build(dx.annotate(program, one, IN_ROWS), QUICK))
    for kind in ("ties", "lowest", "highest", *(["nan"] if dtype.startswith("float") else [])):
        inputs = [values(kind, dtype, shape), *others]
        wanted = arrays(alone["main"](*inputs))
        for index, (left, right) in enumerate(
            zip(arrays(model["main"](*inputs)), wanted, strict=True)
        ):
            np.testing.assert_array_equal(left, right, f"{kind}: result {index}")


def test_what_is_accumulated_in_shards_that_do_not_divide(session_of):
    """Updates of which the last shard is padding: every one counts once."""
    rng = np.random.default_rng(0)
    modes = ("add", "mul", "min", "max")

    def build(x, y, i, j, u, v):
        found = [R.scatter_elements(x, i, u, 0, mode) for mode in modes]
        found += [R.scatter_nd(x, R.expand_dims(j, 1), u, mode) for mode in modes]
        return [*found, R.index_put(y, (j,), v, True), R.grad.take_backward(u, x, j, 0)]

    inputs = [
        rng.integers(1, 4, (3, 2)).astype(F),
        rng.integers(1, 4, 3).astype(F),
        rng.integers(0, 3, (13, 2)),
        rng.integers(0, 3, 13),
        rng.integers(1, 3, (13, 2)).astype(F),
        rng.integers(1, 3, 13).astype(F),
    ]
    stated = {
        name: (data.shape, data.dtype.name) for name, data in zip("xyijuv", inputs, strict=True)
    }
    program = module(build, **stated)
    for mesh, axes in ((FOUR, "a"), (TALL, ("b", "a"))):
        plan = {"i": (axes, None), "j": (axes,), "u": (axes, None), "v": (axes,)}
        assert {
            each.kind
            for each in dx.analysis.collectives(dx.lower(dx.annotate(program, mesh, plan)))
        } == {"all_reduce"}
        assert_same_numbers(program, mesh, plan, inputs, session_of(mesh.shape))


def test_images_of_rows_that_do_not_divide_are_resized_where_they_are():
    """Neighbours' pixels are exchanged, as of rows that divide."""

    def resized(rows, scale=2):
        x = {"x": ((1, 2, rows, 6), F)}
        return module(lambda x: R.image.resize2d(x, (scale * rows, 12), layout="NCHW"), **x)

    plan = {"x": (None, None, "a", None)}
    even, uneven = (sent(resized(rows), FOUR, plan) for rows in (64, 67))
    assert 0 < uneven <= 1.1 * even + 4 * 2 * 6 * 4
    rng = np.random.default_rng(0)
    for mesh, axes, rows in ((FOUR, "a", 13), (CUBE, ("a", "c"), 9), (SIX, "a", 15)):
        mod, data = resized(rows, 3), rng.standard_normal((1, 2, rows, 6)).astype(F)
        with dx.Session(mesh, ccl="cpu") as session:
            assert_same_numbers(mod, mesh, {"x": (None, None, axes, None)}, [data], session)
