"""Slices, joins and splits with fewer elements than shards: numbers, and bytes sent."""

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

LINE = dx.Mesh(x=4)
SQUARE = dx.Mesh(x=2, y=2)
OBLONG = dx.Mesh(x=3, y=2)
ROWS, COLUMNS = 4096, 256


def cut(x, begin, end, stride=1):
    return R.strided_slice(x, [0], [begin], [end], [stride])


def rolled(x, by, size):
    by %= size
    return R.concat([cut(x, size - by, size), cut(x, 0, size - by)], 0)


def shifted(x, size, parameter=None):
    """One row of zeros in front of all but the last row; a slice has the type of a parameter."""
    ty = (x if parameter is None else parameter).ty
    zeros = R.zeros(relax.ShapeExpr([1, ty.shape.values[1]]), ty.dtype)
    return R.concat([zeros, cut(x, 0, size - 1)], 0)


def reflected(x, size):
    return R.concat([cut(x, 2, 0, -1), x, cut(x, size - 2, size - 4, -1)], 0)


def module(build, dtype, **shapes):
    builder = relax.BlockBuilder()
    parameters = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in shapes.items()]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*parameters)))
        builder.emit_func_output(result)
    return builder.finalize()


LAST, X = ROWS - 1, {"x": (ROWS, COLUMNS)}
ROW = COLUMNS * 4
# What is computed, of which shapes, and the bytes that a device sends on four. A short slice is
# reduced: each device sends it one and a half times.
SENT = [
    (lambda x: cut(x, LAST, ROWS), X, 1.5 * ROW),
    (lambda x: cut(x, -1, -3, -1), X, 3 * ROW),
    (lambda x: cut(x, ROWS - 4, ROWS), X, 3 * ROW),
    (lambda x: R.squeeze(cut(x, 0, 1), [0]), {"x": (64, 64)}, 384),
    (lambda x: R.split(x, [1], 0)[1], X, 2.5 * ROW),
    *[(lambda x, by=by: rolled(x, by, ROWS), X, abs(by) * ROW) for by in (1, -1, 4, -3)],
    (lambda x: x + rolled(x, 1, ROWS), X, ROW),
    (lambda x: shifted(x, ROWS), X, ROW),
    (lambda c, x: R.concat([c, x], 0), {"c": (1, COLUMNS), "x": (LAST, COLUMNS)}, ROW),
    (lambda x: R.concat([shifted(x, 6), x], 1), {"x": (6, 512)}, 512 * 4),
    # As many blocks as shards, each with the one before it.
    (lambda x: R.concat([shifted(x, 4), x], 1), {"x": (4, 512)}, 512 * 4),
    (lambda x: reflected(x, ROWS), X, ROW),
    # Pads and slices are one move, whatever lies between.
    (lambda x: cut(R.nn.pad(x, [3, 5, 0, 0]), 2, 2 + ROWS), X, ROW),
    (lambda x: R.nn.pad(cut(cut(x, 3, ROWS), 0, ROWS - 8), [4, 4, 0, 0]), X, ROW),
    (lambda x: R.flip(cut(R.flip(R.nn.pad(x, [0, 2, 0, 0]), 0), 0, ROWS), 0), X, 2 * ROW),
    (lambda x: R.concat([cut(x, 0, 7), R.ones(relax.ShapeExpr([1, 4]), "float32")], 0),
     {"x": (8, 4)}, 0),
]  # fmt: skip


def test_only_what_crosses_is_sent():
    for index, (build, shapes, right) in enumerate(SENT):
        mod = dx.annotate(module(build, "float32", **shapes), LINE, {"x": ("x", None)})
        found = dx.analysis.collectives(dx.lower(mod))
        sent = sum(each.bytes_per_device * each.count for each in found)
        assert sent <= right, (index, found)


def programs(size):
    yield lambda x: cut(x, size - 1, size), lambda x: x[-1:]
    yield lambda x: R.flip(cut(x, 1, 1 + size // 2), 0), lambda x: x[1 : 1 + size // 2][::-1]
    yield (
        lambda x: R.concat([cut(x, 0, 4), shifted(cut(x, 0, 4), 4, x)], 1),
        lambda x: np.concatenate([x[:4], np.pad(x[:3], ((1, 0), (0, 0)))], 1),
    )
    yield lambda x: cut(x, size - 1, 0, -4), lambda x: x[:0:-4]
    yield lambda x: rolled(x, 2, size), lambda x: np.roll(x, 2, 0)
    yield lambda x: reflected(x, size), lambda x: np.pad(x, ((2, 3), (0, 0)), "reflect")[:-1]
    yield lambda x: shifted(x, size), lambda x: np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    yield (
        lambda x: R.concat([cut(x, size - 1, size), R.flip(cut(x, 0, size - 1), 0)], 0),
        lambda x: np.concatenate([x[-1:], x[:-1][::-1]]),
    )
    yield lambda x: R.split(x, [1, 3], 0)[1], lambda x: x[1:3]
    yield (
        lambda x: cut(R.nn.pad(x, [3, 5, 0, 0]), 2, 2 + size),
        lambda x: np.pad(x, ((3, 5), (0, 0)))[2 : 2 + size],
    )
    yield (
        lambda x: R.nn.pad(R.flip(cut(x, 3, size), 0), [4, 1, 0, 0]),
        lambda x: np.pad(x[3:][::-1], ((4, 1), (0, 0))),
    )
    yield (
        lambda x: cut(R.nn.pad(x, [4, 1, 0, 0], "reflect"), 1, size),
        lambda x: np.pad(x, ((4, 1), (0, 0)), "reflect")[1:size],
    )
    yield (
        lambda x: R.nn.pad(cut(R.nn.pad(x, [3, 5, 0, 0], pad_value=1.0), 1, size), [1, 0, 0, 0]),
        lambda x: np.pad(np.pad(x, ((3, 5), (0, 0)), constant_values=1)[1:size], ((1, 0), (0, 0))),
    )


@pytest.mark.parametrize(
    ("mesh", "dims", "dtype"),
    [
        (LINE, ("x", None), "float32"),
        (SQUARE, ("y", "x"), "int8"),
        (OBLONG, (("x", "y"), None), "bool"),
    ],
)
def test_short_pieces_are_those_of_the_whole(mesh, dims, dtype):
    size = 13
    x = np.random.default_rng(0).integers(0, 9, (size, 6)).astype(dtype)
    if dtype == "float32":
        x[0, 0], x[-1, 1] = np.nan, np.inf
    with dx.Session(mesh, ccl="cpu") as session:
        for index, (build, wanted) in enumerate(programs(size)):
            mod = dx.annotate(module(build, dtype, x=x.shape), mesh, {"x": dims})
            found = session.load(dx.build(mod, target=QUICK))(x).numpy()
            np.testing.assert_array_equal(found, wanted(x), err_msg=str(index))


def test_what_lies_between_may_be_used_by_others():
    """A padded tensor that is returned, of which slices of slices are parts."""
    x = np.arange(52, dtype="float32").reshape(13, 4)
    builder = relax.BlockBuilder()
    parameter = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [parameter]):
        with builder.dataflow():
            padded = builder.emit(R.nn.pad(parameter, [3, 5, 0, 0]))
            front = builder.emit(cut(padded, 1, 17))
            parts = [builder.emit(cut(front, 2, 12)), builder.emit(cut(front, 5, 15))]
            found = builder.emit_output(relax.Tuple([padded, *parts]))
        builder.emit_func_output(found)
    wanted = np.pad(x, ((3, 5), (0, 0)))
    mod = dx.annotate(builder.finalize(), LINE, {"x": ("x", None)})
    with dx.Session(LINE, ccl="cpu") as session:
        results = session.load(dx.build(mod, target=QUICK))(x)
        for result, right in zip(results, (wanted, wanted[3:13], wanted[6:16]), strict=True):
            np.testing.assert_array_equal(result.numpy(), right)


S = tvm.tirx.Var("S", "int64")
TOKENS = {
    "last": (lambda x: R.strided_slice(x, [1], [S - 1], [S]), lambda x: x[:, -1:]),
    "from the end": (lambda x: R.strided_slice(x, [1], [-1], [S]), lambda x: x[:, -1:]),
    "last two": (
        lambda x: R.strided_slice(x, [1], [S - 2], [S], assume_inbound=True),
        lambda x: x[:, -2:],
    ),
    "last two, or one": (lambda x: R.strided_slice(x, [1], [S - 2], [S]), lambda x: x[:, -2:]),
    "two from the end": (lambda x: R.strided_slice(x, [1], [-2], [S]), lambda x: x[:, -2:]),
    "all but the last of three": (
        lambda x: R.strided_slice(x, [1], [-3], [-1]),
        lambda x: x[:, -3:-1],
    ),
    "second and third": (lambda x: R.strided_slice(x, [1], [1], [3]), lambda x: x[:, 1:3]),
    "of a least size": (
        lambda x: R.strided_slice(
            x,
            [1],
            [tvm.tirx.max(S - 2, 0)],
            [tvm.tirx.max(S - 2, 0) + tvm.tirx.min(S, 2)],
            assume_inbound=True,
        ),
        lambda x: x[:, -2:],
    ),
    "first": (lambda x: R.strided_slice(x, [1], [0], [1]), lambda x: x[:, :1]),
    "taken": (
        lambda x: R.take(x, relax.const([-1, 0], "int64"), 1, "wrap"),
        lambda x: x[:, [-1, 0]],
    ),
    "one": (lambda x: R.take(x, relax.const(-1, "int64"), 1, "wrap"), lambda x: x[:, -1]),
    "clipped": (lambda x: R.take(x, relax.const(99, "int64"), 1, "clip"), lambda x: x[:, -1]),
    "outside": (
        lambda x: R.take(x, relax.const([0, 99], "int64"), 1, "nan"),
        lambda x: np.stack([x[:, 0], np.full_like(x[:, 0], np.nan)], 1),
    ),
}


OF_ANY_SIZE = {"last two, or one", "two from the end", "of a least size", "first"}


def test_tokens_of_sequences_of_open_length_are_reduced():
    """The last token of h (batch, S, width), sharded along S, is an all-reduce of it."""
    for dtype, mesh, axes in (("float32", LINE, "x"), ("int8", OBLONG, ("y", "x"))):
        for name, (build, wanted) in TOKENS.items():
            if dtype == "int8" and name == "outside":
                continue
            # Of tensors that are small a gather takes less time.
            plan, wide = {"h": (None, axes, None)}, module(build, dtype, h=(2, S, 2**18))
            found = dx.analysis.collectives(dx.lower(dx.annotate(wide, mesh, plan)))
            assert {each.kind for each in found} == {"all_reduce"}, (name, found)
            mod = dx.annotate(module(build, dtype, h=(2, S, 6)), mesh, plan)
            built = dx.build(mod, target=QUICK)
            with dx.Session(mesh, ccl="cpu") as session:
                loaded = session.load(built)
                sizes = (12, 5) if dtype == "int8" else (8, 7, 2)
                for size in (*sizes, 1) if name in OF_ANY_SIZE else sizes:
                    h = np.random.default_rng(0).integers(-9, 9, (2, size, 6)).astype(dtype)
                    np.testing.assert_array_equal(loaded(h).numpy(), wanted(h), err_msg=name)
