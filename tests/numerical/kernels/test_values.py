"""Values of all dtypes, NaN and infinities: what NumPy, JAX and torch compute, on any shards."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from tests.targets import QUICK
from tvm import relax, tirx, topi
from tvm.relax import op as R
from tvm.relax.op import nn
from tvm.relax.op.distributed import annotate_sharding
from tvm.relax.utils import gen_call_tir_inputs

import distir_ext as dx

from ..placement import device_mesh, to_placement

MESH = (2,)
PLACEMENTS = {"alone": None, "rows": (0,), "columns": (1,)}

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *SIGNED, *UNSIGNED, "bool")

Case = tuple[str, Callable, Callable, list[np.ndarray]]


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def drawn(dtype, shape=(4, 6), seed=0):
    """Integers of both ends of the type, floats of both signs, many equal ones."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" not in dtype:
        return (rng.integers(-8, 9, shape) / 4).astype(numpy_dtype(dtype))
    info = np.iinfo(dtype)
    ends = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 5], dtype)
    return rng.choice(ends, shape)


def special(dtype, shape=(4, 6), seed=0):
    values = [np.nan, np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5]
    data = np.random.default_rng(seed).choice(values, shape).astype(numpy_dtype(dtype))
    data[1], data[2] = -np.inf, np.abs(np.nan_to_num(data[2], nan=1, posinf=2))
    return data


def run(cases: list[Case], placements) -> dict[str, dict[str, list[np.ndarray]]]:
    """Results by case and placement, of one module on two workers."""
    builder = relax.BlockBuilder()
    names = {}
    for number, (name, apply, _, arrays) in enumerate(cases):
        for place in placements:
            params = [
                relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype)))
                for i, x in enumerate(arrays)
            ]
            names[name, place] = function = f"case{number}_{place}"
            with builder.function(function, params):
                with builder.dataflow():
                    placed = params
                    if PLACEMENTS[place] is not None:
                        placed = [
                            builder.emit(
                                annotate_sharding(
                                    x, device_mesh(MESH), to_placement(PLACEMENTS[place])
                                )
                            )
                            for x in params
                        ]
                    result = builder.emit_output(builder.normalize(apply(*placed)))
                builder.emit_func_output(result)
    mod = builder.get()
    mod.update_global_info("mesh", [device_mesh(MESH)])
    with dx.Session(2) as session:
        model = session.load(dx.build(mod, QUICK))
        results = {}
        for name, _, _, arrays in cases:
            for place in placements:
                got = model[names[name, place]](*arrays)
                fields = got if isinstance(got, list | tuple) else [got]
                results.setdefault(name, {})[place] = [field.numpy() for field in fields]
    return results


def wide(array):
    return array.astype("float64") if array.dtype.kind not in "iub" else array


def check(cases: list[Case], placements=("alone", "rows"), tolerance=0.0):
    """Compares with the function of NumPy on float64."""
    results = run(cases, placements)
    failures = []
    for name, _, numpy, arrays in cases:
        with np.errstate(all="ignore"):
            wanted = numpy(*map(wide, arrays))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for place, got in results[name].items():
            for left, right in zip(got, wanted, strict=True):
                if left.dtype.kind not in "iub":
                    with np.errstate(over="ignore"):
                        right = np.asarray(right).astype(left.dtype)
                try:
                    np.testing.assert_allclose(wide(left), wide(np.asarray(right)), tolerance)
                except AssertionError as error:
                    failures.append(f"{name} {place}: {str(error).strip()[:300]}")
    assert not failures, f"{len(failures)} failed:\n" + "\n".join(failures[:10])


def order(x, descending):
    """Positions of a stable sort."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, -1, kind="stable")


def sorts(data, dtype):
    for down in (False, True):
        yield (
            f"sort {dtype} {down}",
            lambda x, down=down: R.sort(x, -1, down),
            lambda x, down=down: np.sort(x, -1)[:, ::-1] if down else np.sort(x, -1),
            [data],
        )
        yield (
            f"topk {dtype} {down}",
            lambda x, down=down: R.topk(x, 3, -1, "values", down),
            lambda x, down=down: (np.sort(x, -1)[:, ::-1] if down else np.sort(x, -1))[:, :3],
            [data],
        )


def test_order_of_all_dtypes():
    cases = []
    for dtype in DTYPES:
        data = drawn(dtype)
        cases += sorts(data, dtype)
        cases.append(
            (
                f"argsort {dtype}",
                lambda x: R.argsort(x, -1, True, "int32"),
                lambda x: order(x, True),
                [data],
            )
        )
        for name in ("argmax", "argmin"):
            cases.append(
                (
                    f"{name} {dtype}",
                    lambda x, name=name: getattr(R, name)(x, 1),
                    lambda x, name=name: getattr(np, name)(x, 1),
                    [data],
                )
            )
        if dtype != "bool":
            cases.append(
                (
                    f"median {dtype}",
                    lambda x: R.median(x, [1], True)[0],
                    lambda x: np.sort(x, 1)[:, 2:3],
                    [data],
                )
            )
    for dtype in ("int8", "int64", "uint64"):
        lowest = np.full((4, 6), np.iinfo(dtype).min, dtype)
        cases.append(
            (
                f"argmax {dtype} lowest",
                lambda x: R.argmax(x, 1),
                lambda x: np.argmax(x, 1),
                [lowest],
            )
        )
    check(cases)


def test_dtypes_for_which_tvm_has_no_kernel():
    cases = []
    for name in ("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh"):
        reference = getattr(np, {"a": "arc"}.get(name[0], name[0]) + name[1:])
        data = np.linspace(-0.9, 0.9, 24).reshape(4, 6).astype("float16")
        data = data + np.float16(2) if name == "acosh" else data
        cases.append((name, getattr(R, name), reference, [data]))
    pairs = [drawn("bfloat16"), drawn("bfloat16", seed=1)]
    positive = [np.abs(pairs[0]) + ml_dtypes.bfloat16(0.5), pairs[1]]
    nonzero = [pairs[0], np.where(pairs[1] == 0, ml_dtypes.bfloat16(3), pairs[1])]
    cases += [
        ("atan2", R.atan2, np.arctan2, [each.astype("float16") for each in pairs]),
        ("log_add_exp", R.log_add_exp, np.logaddexp, pairs),
        ("power", R.power, np.power, positive),
        ("mod", R.mod, np.fmod, nonzero),
        ("floor_mod", R.floor_mod, np.mod, nonzero),
        ("floor_divide", R.floor_divide, np.floor_divide, nonzero),
    ]
    for name in ("isnan", "isinf", "isfinite"):
        cases.append((name, getattr(R, name), getattr(np, name), [special("bfloat16")]))
    flags = [drawn("bool"), drawn("bool", seed=1)]
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        cases.append((f"{name} bool", getattr(R, name), getattr(np, name), flags))
    for name in ("add", "multiply", "maximum", "minimum"):
        cases.append((f"{name} bool", getattr(R, name), getattr(np, name), flags))
    for name in ("max", "min"):
        cases.append(
            (
                f"{name} bool",
                lambda x, name=name: getattr(R, name)(x, 1),
                lambda x, name=name: getattr(np, name)(x, 1),
                flags[:1],
            )
        )
    for dtype in UNSIGNED:
        cases.append((f"negative {dtype}", R.negative, np.negative, [drawn(dtype)]))
        cases.append((f"sign {dtype}", R.sign, np.sign, [drawn(dtype)]))
    for dtype in ("float32", "int32", "uint8"):
        cases.append((f"logical_not {dtype}", R.logical_not, np.logical_not, [drawn(dtype)]))
    for dtype in (*SIGNED, *UNSIGNED):
        cases.append(
            (
                f"power {dtype}",
                lambda x, dtype=dtype: R.power(x, relax.const(5, dtype)),
                lambda x: np.power(x, x.dtype.type(5)),
                [drawn(dtype)],
            )
        )
    for dtype, axes in (("float64", [1]), ("bfloat16", [0, 1])):
        data = drawn(dtype)
        scales = [drawn(dtype, tuple(data.shape[axis] for axis in axes), seed) for seed in (1, 2)]
        cases.append(
            (
                f"layer_norm {dtype}",
                lambda x, g, b, axes=axes: nn.layer_norm(x, g, b, axes),
                lambda x, g, b, axes=tuple(axes): (
                    (x - x.mean(axes, keepdims=True))
                    / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
                    * g
                    + b
                ),
                [data, *scales],
            )
        )
    check(cases, tolerance=2e-2)


def test_means_logic_and_bounds_of_integers():
    """A sum has more bits than its type; numbers other than zero are true; 0 is the least bound."""
    cases = []
    for dtype in (*SIGNED[:3], *UNSIGNED[:3]):
        info = np.iinfo(dtype)
        data = np.random.default_rng(5).integers(info.max // 2, info.max, (4, 6)).astype(dtype)
        for axis in (0, 1, None):
            cases.append(
                (
                    f"mean {dtype} {axis}",
                    lambda x, axis=axis: R.mean(x, axis),
                    lambda x, axis=axis: np.trunc(x.astype("int64").mean(axis)).astype(x.dtype),
                    [data],
                )
            )
        cases.append(
            (
                f"avg_pool1d {dtype}",
                lambda x: R.nn.avg_pool1d(R.expand_dims(x, 1), 2, 2),
                lambda x: x.astype("int64").reshape(4, 1, 3, 2).sum(-1) // 2,
                [data],
            )
        )
        pair = [drawn(dtype), drawn(dtype, seed=1)]
        for name in ("logical_and", "logical_or", "logical_xor"):
            cases.append((f"{name} {dtype}", getattr(R, name), getattr(np, name), pair))
    cases.append(("clip", lambda x: R.clip(x, -1, 5), lambda x: np.minimum(x, 5), [drawn("uint8")]))
    check(cases)


def test_what_has_no_kernel_is_named():
    for operator, dtype, operands in (
        (R.log_add_exp, "int8", 2),
        (R.atan2, "uint16", 2),
        (R.variance, "int32", 1),
        (R.bitwise_and, "float32", 2),
        (R.square, "bool", 1),
        (R.subtract, "bool", 2),
        (R.matmul, "bool", 2),
        (R.collapse_sum_like, "bool", 2),
    ):
        data = np.ones((4, 4), dtype)
        with pytest.raises(TypeError, match=rf"{operator.__name__} of {dtype} .*; cast its"):
            run([("refused", operator, None, [data] * operands)], ("rows",))


def test_floats_divide_rounded_down():
    x = np.array([[1.0, -1.0, 7.5, 3.0, -2.5, np.inf], [0.3, 6.0, -6.0, 1e30, 0.0, 5.0]], "float32")
    y = np.array([[0.1, 0.1, -2.0, np.inf, np.inf, 2.0], [0.1, 0.6, 0.6, 0.7, 0.7, 0.0]], "float32")

    def exactly(function):
        return lambda x, y: function(x.astype("float32"), y.astype("float32"))

    check(
        [
            ("floor_divide", R.floor_divide, exactly(np.floor_divide), [x, y]),
            ("floor_mod", R.floor_mod, exactly(np.mod), [x, y]),
        ]
    )


def test_floats_of_any_bits_divide_exactly():
    """Remainders are NumPy's also where a quotient has hundreds of bits, zeros have their sign."""
    cases, quotients = [], []
    for dtype in ("float16", "float32", "float64"):
        bits = dtype.replace("float", "uint")
        most = np.iinfo(bits).max
        x, y = (
            np.random.default_rng(seed).integers(0, most, (64, 96), bits, endpoint=True).view(dtype)
            for seed in (0, 1)
        )
        whole, divisor = drawn(dtype, (64, 96), 2), drawn(dtype, (64, 96), 3)
        for name, pair in (("any", [x, y]), ("small", [whole, divisor])):
            cases.append((f"floor_mod {dtype} {name}", R.floor_mod, None, pair))
            quotients.append((f"floor_divide {dtype} {name}", R.floor_divide, None, pair))
    results = run([*cases, *quotients], ("alone", "rows"))
    with np.errstate(all="ignore"):
        for name, _, _, pair in cases:
            for (got,) in results[name].values():
                np.testing.assert_array_equal(got, np.mod(*pair), name)
                np.testing.assert_array_equal(
                    np.signbit(got[got == 0]), np.signbit(pair[1])[got == 0]
                )
        for name, _, _, pair in quotients:
            wanted = np.floor_divide(*pair)
            # NumPy rounds a quotient that has no bits for all of it twice.
            bound = 4 * np.finfo(wanted.dtype).eps * np.abs(wanted)
            is_whole = bound < 1
            for (got,) in results[name].values():
                np.testing.assert_array_equal(got[is_whole], wanted[is_whole], name)
                np.testing.assert_allclose(got, wanted, 4 * np.finfo(wanted.dtype).eps)


def softmax(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def windows(x):
    padded = np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf)
    return np.stack([padded[:, i : i + 6] for i in range(3)]).max(0)


# Operator, NumPy's; the numbers are those of rows of 6.
OF_NAN: list[tuple[str, Callable, Callable]] = [
    ("max", lambda x: R.max(x, 1), lambda x: x.max(1)),
    ("max of all", R.max, lambda x: x.max()),
    ("min", lambda x: R.min(x, 0), lambda x: x.min(0)),
    ("argmax", lambda x: R.argmax(x, 1), lambda x: x.argmax(1)),
    ("argmin", lambda x: R.argmin(x, 1), lambda x: x.argmin(1)),
    ("argmax of all", R.argmax, lambda x: x.argmax()),
    ("relu", nn.relu, lambda x: np.maximum(x, 0)),
    ("clip", lambda x: R.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    ("sign", R.sign, np.sign),
    ("itself", lambda x: R.not_equal(x, x), lambda x: x != x),
    ("equals itself", lambda x: R.equal(R.exp(x), R.exp(x)), lambda x: np.exp(x) == np.exp(x)),
    ("isnan", R.isnan, np.isnan),
    ("isfinite", R.isfinite, np.isfinite),
    ("softmax", lambda x: nn.softmax(x, 1), softmax),
    ("log_softmax", lambda x: nn.log_softmax(x, 1), log_softmax),
    ("sort", lambda x: R.sort(x, 1), lambda x: np.sort(x, 1)),
    ("topk", lambda x: R.topk(x, 2, 1, "values"), lambda x: np.sort(x, 1)[:, ::-1][:, :2]),
    ("median", lambda x: R.median(x, [1])[0], lambda x: np.where(np.isnan(x).any(1), np.nan, 0)),
    (
        "windows",
        lambda x: R.squeeze(nn.max_pool1d(R.expand_dims(x, 0), 3, 1, 1), [0]),
        windows,
    ),
    ("sum", lambda x: R.sum(x, 1), lambda x: x.sum(1)),
    ("zero times", lambda x: R.multiply(x, R.zeros_like(x)), lambda x: x * 0),
]


def numbers(dtype):
    """Of a number and a tensor."""

    def const(value):
        return relax.const(value, dtype)

    return [
        ("maximum", lambda x: R.maximum(x, const(1)), lambda x: np.maximum(x, 1)),
        ("minimum", lambda x: R.minimum(const(1), x), lambda x: np.minimum(1, x)),
        ("above all", lambda x: R.maximum(x, const(np.inf)), lambda x: np.maximum(x, np.inf)),
        ("times 0", lambda x: R.multiply(x, const(0)), lambda x: x * 0),
        ("0 divided", lambda x: R.divide(const(0), x), lambda x: 0 / x),
        ("less itself", lambda x: R.subtract(x, x), lambda x: x - x),
        ("times a number", lambda x: R.multiply(x, tirx.FloatImm(dtype, 0)), lambda x: x * 0),
        ("plus 0", lambda x: R.divide(const(1), R.add(x, const(0))), lambda x: 1 / (x + 0)),
        ("0 rounded down", lambda x: R.floor_divide(const(0), x), lambda x: 0 // x),
        (
            "filled",
            lambda x: R.multiply(x, R.full(x.ty.shape, const(0), dtype)),
            lambda x: x * 0,
        ),
        ("leaky", lambda x: nn.leakyrelu(x, 0.0), lambda x: np.where(x > 0, x, x * 0)),
        ("not equal", lambda x: R.not_equal(x, const(0)), lambda x: x != 0),
        (
            "cases",
            lambda x: R.where(
                R.less(x, const(0)), const(1), R.where(R.greater_equal(x, const(0)), x, const(3))
            ),
            lambda x: np.where(x < 0, 1, np.where(x >= 0, x, 3)),
        ),
        (
            "not less",
            lambda x: R.logical_not(R.less(x, const(0))),
            lambda x: ~(x < 0),
        ),
        (
            "ordered",
            lambda x: R.logical_or(R.less_equal(x, const(0)), R.greater(x, const(0))),
            lambda x: (x <= 0) | (x > 0),
        ),
    ]


@pytest.mark.large
def test_nan_goes_through():
    cases = []
    for dtype in FLOATS:
        for name, apply, numpy in [*OF_NAN, *numbers(dtype)]:
            data = special(dtype)
            if name == "median":
                data = np.where(data == data, numpy_dtype(dtype).type(0), data)
            cases.append((f"{name} {dtype}", apply, numpy, [data]))
        pair = [special(dtype), special(dtype, seed=1)]
        for name in ("maximum", "minimum", "equal", "not_equal", "less", "greater_equal"):
            cases.append((f"{name} of two {dtype}", getattr(R, name), getattr(np, name), pair))
    check(cases, ("alone", "rows", "columns"), tolerance=1e-2)


def test_nan_goes_through_kernels_with_schedules():
    """Kernels of so many elements are scheduled, and operators are computed where they are read."""
    cases = []
    for name, apply, numpy in [*OF_NAN, *numbers("float32")]:
        if name in ("windows", "median"):
            continue
        data = special("float32", (64, 96))
        cases.append((name, apply, numpy, [data]))
    check(cases, ("alone", "columns"), tolerance=1e-2)


def of_kernel(expression):
    """An operand of a kernel that a user has written, elementwise."""

    def make(x):
        kernel, _, types = gen_call_tir_inputs(topi.negative, x)
        kernel = tvm_ffi.structural_map(
            kernel, (tirx.Mul, lambda node: expression(node.a).astype(x.ty.dtype))
        )
        kernel = relax.BlockBuilder.current().add_func(kernel, "kernel")
        return relax.call_tir(kernel, [x], types)

    return make


def test_kernels_of_users_keep_nan():
    """Nodes, which are folded where kernels are lowered; Python's operators fold at once."""
    cases = []
    for dtype in FLOATS:
        large = tirx.FloatImm(dtype, 2048.0)
        # What is computed of bfloat16 is rounded where it is stored.
        kind = np.float32 if dtype == "bfloat16" else np.dtype(dtype).type
        zero, one, no = tirx.FloatImm(dtype, 0), tirx.FloatImm(dtype, 1), tirx.const(False, "bool")

        def bound(x, dtype=dtype, zero=zero):
            variable = tirx.Var("zero", dtype)
            return tirx.Let(variable, zero, tirx.Mul(x, variable))

        expressions = [
            ("times 0", lambda x, zero=zero: tirx.Mul(x, zero), lambda x: x * 0),
            ("0 divided", lambda x, zero=zero: tirx.Div(zero, x), lambda x: 0 / x),
            (
                "plus 0",
                lambda x, zero=zero, one=one: tirx.Div(one, tirx.Add(x, zero)),
                lambda x: 1 / (x + 0),
            ),
            # TVM does not compile variables of bfloat16.
            *([("bound", bound, lambda x: x * 0)] if dtype != "bfloat16" else []),
            (
                "chosen",
                lambda x, zero=zero, no=no: tirx.Mul(x, tirx.Select(no, x, zero)),
                lambda x: x * 0,
            ),
            ("difference", lambda x: tirx.Sub(x, x), lambda x: x - x),
            (
                "sum and difference",
                lambda x, large=large: tirx.Sub(tirx.Add(x, large), large),
                lambda x, kind=kind: x.astype(kind) + kind(2048) - kind(2048),
            ),
            ("quotient", lambda x: tirx.Div(x, x), lambda x: x / x),
            ("itself", lambda x: tirx.EQ(x, x), lambda x: x == x),
            ("not itself", lambda x: tirx.NE(x, x), lambda x: x != x),
            (
                "not less",
                lambda x, zero=zero: tirx.Not(tirx.LT(x, zero)),
                lambda x: ~(x < 0),
            ),
            (
                "extremes",
                lambda x, one=one: tirx.Min(tirx.Max(tirx.Max(x, one), x), x),
                lambda x: np.minimum(np.maximum(x, 1), x),
            ),
        ]
        for name, expression, numpy in expressions:
            cases.append((f"{name} {dtype}", of_kernel(expression), numpy, [special(dtype)]))
    check(cases, tolerance=1e-2)


def test_conversions_to_integers():
    """NaN is 0, all else is the nearest integer of the type towards zero."""
    values = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 300.7, -300.7, 1.5, -1.5]
    cases = []
    for source in FLOATS:
        with np.errstate(over="ignore"):
            data = np.array([values, values[::-1]]).astype(numpy_dtype(source))
        for target in (*SIGNED, *UNSIGNED):
            info = np.iinfo(target)

            def converted(x, info=info):
                flat = [
                    0 if np.isnan(each) else min(max(each, float(info.min)), float(info.max))
                    for each in x.ravel()
                ]
                whole = [min(max(int(each), info.min), info.max) for each in flat]
                return np.array(whole, info.dtype).reshape(x.shape)

            cases.append(
                (
                    f"{source} to {target}",
                    lambda x, target=target: R.astype(x, target),
                    converted,
                    [data],
                )
            )
    check(cases)


def test_numbers_as_operands_and_symbolic_shapes():
    n = tirx.Var("n", "int64")
    two = tirx.FloatImm("float32", 2.0)
    cases = [
        (lambda x: R.median(x, [0]), lambda x: np.median(x, 0)),
        (lambda x: R.floor_divide(x, two), lambda x: x // np.float32(2)),
        (lambda x: R.floor_mod(x, two), lambda x: x % np.float32(2)),
    ]
    given = np.random.default_rng(0).standard_normal((5, 4)).astype("float32") * 8
    with dx.Session(2) as session:
        for apply, wanted in cases:
            x = relax.Var("x", relax.TensorType((n, 4), "float32"))
            builder = relax.BlockBuilder()
            with builder.function("main", [x]):
                result = builder.emit(apply(x))
                if isinstance(result.ty, relax.TupleType):
                    result = builder.emit(relax.TupleGetItem(result, 0))
                builder.emit_func_output(result)
            mod = dx.annotate(builder.get(), dx.Mesh(a=2), {"x": (None, "a")})
            found = session.load(dx.build(mod, QUICK))["main"](given).numpy()
            np.testing.assert_allclose(found, wanted(given), rtol=1e-6)
