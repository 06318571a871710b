"""The runtime's convolution equals sums over the elements of the kernel, in float64."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi

# Relative to the largest value: sums of products in float32, and one rounding to 16 bits.
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}

LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def layouts(num, last):
    """Layouts of data and result, with channels last or not."""
    spatial = LETTERS[num]
    return f"N{spatial}C" if last else f"NC{spatial}"


def padded(data, before, after):
    """Data of channels-first layout with zeros around it; less of it for negative padding."""
    data = np.pad(data, [(0, 0)] * 2 + [(max(b, 0), max(a, 0)) for b, a in zip(before, after)])  # noqa: B905
    cut = [slice(max(-b, 0), data.shape[2 + d] - max(-after[d], 0)) for d, b in enumerate(before)]
    return data[(slice(None), slice(None), *cut)]


def expected(data, weight, strides, before, after, dilation, groups):
    """A convolution of channels-first data (n, g c, ..) and weight (g o, c, ..)."""
    num = data.ndim - 2
    data = padded(data, before, after)
    kernel = weight.shape[2:]
    sizes = [
        (data.shape[2 + d] - (kernel[d] - 1) * dilation[d] - 1) // strides[d] + 1
        for d in range(num)
    ]
    data = data.reshape(data.shape[0], groups, -1, *data.shape[2:])
    weight = weight.reshape(groups, -1, *weight.shape[1:])
    out = 0
    for at in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(i * d, i * d + (size - 1) * s + 1, s)
            for i, d, s, size in zip(at, dilation, strides, sizes, strict=True)
        )
        out = out + np.einsum(
            "ngc...,goc->ngo...", data[(slice(None),) * 3 + window], weight[(..., *at)]
        )
    return out.reshape(out.shape[0], -1, *out.shape[3:])


def expected_transposed(data, weight, strides, before, after, dilation, more, groups):
    """The transposed one of data (n, g c, ..) and weight (g c, o, ..)."""
    num = data.ndim - 2
    kernel = weight.shape[2:]
    spans = [(data.shape[2 + d] - 1) * strides[d] + 1 for d in range(num)]
    whole = [span + (kernel[d] - 1) * dilation[d] + more[d] for d, span in enumerate(spans)]
    out = np.zeros((data.shape[0], groups, weight.shape[1], *whole), "float64")
    data = data.reshape(data.shape[0], groups, -1, *data.shape[2:])
    weight = weight.reshape(groups, -1, *weight.shape[1:])
    for at in itertools.product(*map(range, kernel)):
        window = tuple(
            slice(i * d, i * d + span, s)
            for i, d, s, span in zip(at, dilation, strides, spans, strict=True)
        )
        out[(slice(None),) * 3 + window] += np.einsum(
            "ngc...,gco->ngo...", data, weight[(..., *at)]
        )
    out = out.reshape(out.shape[0], -1, *whole)
    return padded(out, [-each for each in before], [-each for each in after])


def to_layout(array, letters, layout):
    return np.ascontiguousarray(array.transpose([letters.index(each) for each in layout]))


def convolution(data, weight, text, shape, dtype):
    out = tvm.runtime.tensor(np.full(shape, 77, dtype))
    function = tvm_ffi.get_global_func("distir.runtime.convolution")
    function(tvm.runtime.tensor(data), tvm.runtime.tensor(weight), text, out)
    return out.numpy()


def random_case(generator, num, transposed, depthwise):
    groups = int(generator.choice([1, 1, 2, 3]))
    channels = [int(groups * generator.integers(1, 12)) for _ in range(2)]
    if depthwise:
        groups = int(generator.integers(1, 40))
        channels = [groups, groups * int(generator.integers(1, 3))]
    kernel = [int(each) for each in generator.integers(1, 5, num)]
    if generator.random() < 0.3:
        kernel = [1] * num
    strides, dilation = generator.integers(1, 4, num), generator.integers(1, 3, num)
    spans = (np.array(kernel) - 1) * dilation + 1
    size = generator.integers(1, 14, num)
    before, after = (
        np.minimum(generator.integers(0, 3, num), np.maximum((spans - 1) // 2, 0)) for _ in range(2)
    )
    size = np.maximum(size, spans - before - after)
    if generator.random() < 0.3:  # as 1 x 1 convolutions of most models are
        strides, before, after = np.ones(num, int), np.zeros(num, int), np.zeros(num, int)
        size = np.maximum(size, spans)
    more = generator.integers(0, strides) if transposed else np.zeros(num, int)
    of_weight = (
        (channels[0], channels[1] // groups)
        if transposed
        else (
            channels[1],
            channels[0] // groups,
        )
    )
    shape = (int(generator.integers(1, 4)), channels[0], *map(int, size))
    return shape, (*of_weight, *kernel), strides, before, after, dilation, more, groups


def check(generator, num, dtype, transposed, depthwise=False):
    found = random_case(generator, num, transposed, depthwise)
    shape, of_weight, strides, before, after, dilation, more, groups = found
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    if dtype in ("int8", "uint8"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
        data, weight = (
            generator.integers(low, high, each).astype(dtype) for each in (shape, of_weight)
        )
    else:
        data, weight = (
            generator.standard_normal(each).astype(numpy_dtype) for each in (shape, of_weight)
        )
    exact = (data.astype("float64"), weight.astype("float64"))
    if transposed:
        wanted = expected_transposed(*exact, strides, before, after, dilation, more, groups)
    else:
        wanted = expected(*exact, strides, before, after, dilation, groups)
    spatial = LETTERS[num]
    letters = ("IO" if transposed else "OI") + spatial
    of_data, of_out = (layouts(num, bool(generator.integers(2))) for _ in range(2))
    of_kernel = str(generator.choice([letters, letters[::-1], spatial + "IO", "O" + spatial + "I"]))
    text = (
        f"{of_data},{of_kernel}->{of_out} strides={','.join(map(str, strides))} "
        f"padding={','.join(map(str, [*before, *after]))} "
        f"dilation={','.join(map(str, dilation))} groups={groups}"
        f"{' transposed' if transposed else ''}"
    )
    named = "NC" + spatial
    wanted = to_layout(wanted, named, of_out)
    result = "int32" if dtype in ("int8", "uint8") else numpy_dtype
    got = convolution(
        to_layout(data, named, of_data),
        to_layout(weight, letters, of_kernel),
        text,
        wanted.shape,
        result,
    )
    problem = f"{text}: {data.shape}, {weight.shape}, {dtype}"
    if result == "int32":
        assert (got == wanted).all(), problem
    else:
        scale = np.abs(wanted).max(initial=1e-30)
        assert np.abs(got.astype("float64") - wanted).max() <= TOLERANCE[dtype] * scale, problem


@pytest.mark.parametrize("transposed", [False, True])
def test_random_convolutions(transposed, sample):
    generator = np.random.default_rng(3)
    integers = [] if transposed else ["int8", "uint8"]
    for _ in range(sample(10, 20, 300)):
        for num in (1, 2, 3):
            for dtype in ["float32", "float64", "float16", "bfloat16", *integers]:
                check(generator, num, dtype, transposed)
            check(generator, num, "float32", transposed, depthwise=True)
            check(generator, num, "float16", transposed, depthwise=True)


def test_what_is_no_convolution():
    data, weight = np.zeros((1, 2, 5), "float32"), np.zeros((4, 2, 3), "float32")
    good = "NCW,OIW->NCW strides=1 padding=0,0 dilation=1 groups=1"
    shape = (1, 4, 3)
    convolution(data, weight, good, shape, "float32")
    for text, of_out, dtype, problem in (
        ("NCW", shape, "float32", "it has no layouts"),
        (good.replace("NCW,", "NCHW,"), shape, "float32", "data .* has not 4 dimensions"),
        (good.replace("strides=1", "strides=0"), shape, "float32", "must be at least 1"),
        (good.replace("strides=1", "strides=a"), shape, "float32", '"strides=a" is no list'),
        (good.replace("strides=1", "strides=1,1"), shape, "float32", "not those of 1 spatial"),
        (good.replace("groups=1", "groups=3"), shape, "float32", "are not 3 groups"),
        (good.replace("groups", "group"), shape, "float32", 'there is no "group"'),
        (good, (1, 5, 3), "float32", "do not fit together"),
        (good, (1, 4, 4), "float32", "4 windows along W do not fit in 5 elements"),
        (good.replace("NCW,OIW", "NCD,OIW"), shape, "float32", "weight has no D"),
        (good, shape, "float64", "float32, float32 -> float64 is not supported"),
    ):
        with pytest.raises(ValueError, match=problem):
            convolution(data, weight, text, of_out, dtype)
