"""All values of floats of 8 and 16 bits: conversions both ways, and operators, as ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import nn

import distir_ext as dx

from .test_values import numpy_dtype, run

EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
SIXTEEN_BITS = ("float16", "bfloat16")
TARGETS = (*EIGHT_BITS, *SIXTEEN_BITS, "float32", "float64", "int8", "int32", "int64", "uint8")

UNARY = ("sign", "abs", "negative", "floor", "round", "square", "isnan", "isinf", "isfinite")
PAIRS = (
    *("equal", "not_equal", "less", "greater_equal", "maximum", "minimum"),
    *("add", "subtract", "multiply", "divide"),
)


def all_values(dtype):
    """Each pattern of bits once, in rows of 8."""
    kind = numpy_dtype(dtype)
    bits = f"uint{8 * kind.itemsize}"
    return np.arange(1 << (8 * kind.itemsize), dtype=bits).view(kind).reshape(-1, 8)


def around():
    """All numbers of small types and those half way between, next to both, and far away."""
    values = [all_values(dtype).astype("float32").ravel() for dtype in EIGHT_BITS]
    with np.errstate(all="ignore"):
        halves = [(np.sort(each)[1:] + np.sort(each)[:-1]) / 2 for each in values]
        drawn = np.random.default_rng(0).integers(0, 1 << 32, 4000, dtype="uint32")
        found = np.concatenate([*values, *halves, drawn.view("float32"), [np.float32(464)]])
        near = [np.nextafter(found, np.float32(end)) for end in (np.inf, -np.inf)]
    payload = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], "uint32").view("float32")
    found = np.concatenate([found, *near, payload])
    return found[: len(found) // 8 * 8].reshape(-1, 8)


def converted(x, target):
    if target.startswith(("int", "uint")) and x.dtype.kind not in "iu":
        info = np.iinfo(target)
        wide = x.astype("float64")
        flat = [
            0 if np.isnan(each) else int(min(max(each, float(info.min)), float(info.max)))
            for each in wide.ravel()
        ]
        return np.array([min(each, info.max) for each in flat], target).reshape(x.shape)
    return x.astype(numpy_dtype(target))


def in_float32(function):
    """Computed of float32, and rounded once."""

    def apply(*arrays):
        found = np.asarray(function(*(each.astype("float32") for each in arrays)))
        return found if found.dtype.kind == "b" else found.astype(arrays[0].dtype)

    return apply


def casts(source, data):
    for target in TARGETS:
        if target != source:
            yield (
                f"{source} to {target}",
                lambda x, target=target: R.astype(x, target),
                lambda x, target=target: converted(x, target),
                [data],
            )


def of_dtype(dtype):
    data = all_values(dtype)
    yield from casts(dtype, data)
    for name in UNARY:
        reference = getattr(np, "rint" if name == "round" else name)
        yield f"{name} {dtype}", getattr(R, name), in_float32(reference), [data]
    yield f"relu {dtype}", nn.relu, in_float32(lambda x: np.maximum(x, 0)), [data]
    if dtype in SIXTEEN_BITS:
        return
    shuffled = np.random.default_rng(1).permutation(data.ravel()).reshape(-1, 8)
    pairs = [np.repeat(data.ravel(), 256).reshape(-1, 8), np.tile(data.ravel(), 256).reshape(-1, 8)]
    for name in PAIRS:
        yield f"{name} {dtype}", getattr(R, name), in_float32(getattr(np, name)), pairs
    for name in ("max", "min"):
        yield (
            f"{name} {dtype}",
            lambda x, name=name: getattr(R, name)(x, 1),
            in_float32(lambda x, name=name: getattr(np, name)(x, 1)),
            [shuffled],
        )
        yield (
            f"arg{name} {dtype}",
            lambda x, name=name: getattr(R, f"arg{name}")(x, 1),
            lambda x, name=name: getattr(np, f"arg{name}")(x.astype("float32"), 1),
            [shuffled],
        )
    yield (
        f"sort {dtype}",
        lambda x: R.sort(x, 1),
        in_float32(lambda x: np.sort(x, 1)),
        [shuffled],
    )
    yield (
        f"median {dtype}",
        lambda x: R.median(x, [1])[0],
        in_float32(lambda x: np.where(np.isnan(x).any(1), np.nan, np.sort(x, 1)[:, 3])),
        [shuffled],
    )


def same(found, wanted):
    """Bit by bit, but for the payload of NaN, and the sign of a zero that a sum has."""
    wanted = np.asarray(wanted).astype(found.dtype)
    return ((found == wanted) | ((found != found) & (wanted != wanted))).all()


@pytest.mark.parametrize("dtype", [*EIGHT_BITS, *SIXTEEN_BITS])
def test_all_values(dtype):
    cases = list(of_dtype(dtype))
    wrong = []
    with np.errstate(all="ignore"):
        for name, found in run(cases, ("alone", "rows")).items():
            ((numpy, arrays),) = [(case[2], case[3]) for case in cases if case[0] == name]
            wanted = numpy(*arrays)
            wrong += [f"{name} {place}" for place, got in found.items() if not same(got[0], wanted)]
    assert not wrong


def test_numbers_are_rounded_once_to_small_floats():
    data = around()
    with np.errstate(all="ignore"):
        wide = data.astype("float64")
    cases = [
        *casts("float32", data),
        *casts("float64", wide),
    ]
    cases = [case for case in cases if numpy_dtype(case[0].split()[-1]).itemsize < 4]
    cases = [case for case in cases if "int" not in case[0]]
    with np.errstate(all="ignore"):
        for name, found in run(cases, ("alone", "rows")).items():
            source, _, target = name.split()
            wanted = data.astype(source).astype(numpy_dtype(target))
            signs = np.signbit(found["alone"][0]) == np.signbit(wanted)
            assert same(found["alone"][0], wanted), name
            assert (signs | np.isnan(wanted.astype("float32"))).all(), name


def test_operators_are_computed_where_they_are_read():
    """Kernels of so many elements are scheduled, and hold what is read in variables."""
    data = np.random.default_rng(0).uniform(-3, 3, (64, 96)).astype(ml_dtypes.bfloat16)
    three = relax.const(3, "bfloat16")
    cases = [
        ("exp", lambda x: R.exp(R.astype(x, "float32")), lambda x: np.exp(x.astype("float32"))),
        (
            "floor_mod",
            lambda x: R.floor_mod(R.add(x, x), three),
            lambda x: ((x + x).astype("float32") % 3).astype(x.dtype),
        ),
        *(
            (
                dtype,
                lambda x, dtype=dtype: R.astype(R.abs(R.astype(x, "float32")), dtype),
                lambda x, dtype=dtype: abs(x.astype("float32")).astype(dtype),
            )
            for dtype in EIGHT_BITS
        ),
        *(
            (
                f"{dtype} and back",
                lambda x, dtype=dtype: R.astype(R.astype(x, dtype), "float32"),
                lambda x, dtype=dtype: x.astype("float32").astype(dtype).astype("float32"),
            )
            for dtype in EIGHT_BITS
        ),
    ]
    # Kernels of few elements are not scheduled, and keep what is computed between in buffers.
    for given in (data, data[:2, :5]):
        found = run([(*case, [given]) for case in cases], ("alone", "rows"))
        for name, _, numpy in cases:
            for got in found[name].values():
                ours, theirs = (np.asarray(each, "float32") for each in (got[0], numpy(given)))
                np.testing.assert_allclose(ours, theirs, 1e-5, err_msg=name)


def test_partial_sums_are_sent_in_the_dtype_of_the_result():
    """Each is rounded to it; a result of float32 is as exact as on one device, for more bytes."""
    x = np.random.default_rng(0).standard_normal((16, 512)).astype(ml_dtypes.bfloat16)
    exact = x.astype("float64") @ x.astype("float64").T
    found = {}
    for dtype in ("bfloat16", "float32"):
        builder = relax.BlockBuilder()
        variable = relax.Var("x", relax.TensorType(x.shape, "bfloat16"))
        with builder.function("main", [variable]):
            with builder.dataflow():
                turned = builder.emit(R.permute_dims(variable))
                product = builder.emit(R.matmul(variable, turned, out_dtype=dtype))
                result = builder.emit_output(R.astype(product, "bfloat16"))
            builder.emit_func_output(result)
        for devices in (1, 2, 4):
            mod = dx.annotate(builder.get(), dx.Mesh(k=devices), {"x": (None, "k")})
            exe = dx.build(mod, target=QUICK)
            with dx.Session(devices) as session:
                ours = session.load(exe)["main"](x).numpy().astype("float64")
                sent = sum(session.statistics().by_axis().values())
            found[dtype, devices] = np.linalg.norm(ours - exact) / np.linalg.norm(exact), sent
    (one, _), *_ = found.values()
    for devices in (2, 4):
        (narrow, half), (wide, whole) = found["bfloat16", devices], found["float32", devices]
        assert wide <= one * 1.01
        assert narrow <= one * 2
        assert 0 < half == whole / 2
