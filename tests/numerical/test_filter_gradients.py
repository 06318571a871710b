"""Gradients of filters: convolutions with windows of nearly all of an image, sharded in space."""

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

LINE = dx.Mesh(x=4)
SQUARE = dx.Mesh(x=2, y=2)
OBLONG = dx.Mesh(x=3, y=2)
CUBE = dx.Mesh(x=2, y=2, z=2)
ROWS = (None, None, "x", None)


def module(build, image, gradient, dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(image, dtype))
    g = relax.Var("g", relax.TensorType(gradient, dtype))
    with builder.function("main", [x, g]):
        with builder.dataflow():
            result = builder.emit_output(build(x, g))
        builder.emit_func_output(result)
    return builder.finalize()


def conv2d(**options):
    return lambda x, g: R.nn.conv2d(x, g, **options)


# The convolution, its operands, how both are sharded, and the bytes that a device sends: rows
# beyond its own ones, and the filter, which is reduced.
IMAGE, FILTER = (8, 2, 32, 16), 8 * 8 * 9 * 4
ROW = 8 * 2 * 16 * 4
CASES = [
    (conv2d(padding=1), IMAGE, IMAGE, LINE, ROWS, 2 * ROW + 2 * FILTER * 3 // 4),
    (
        conv2d(padding=1, dilation=2),
        IMAGE,
        (8, 2, 16, 8),
        LINE,
        ROWS,
        2 * ROW + 2 * 8 * 8 * 16 * 4 * 3 // 4,
    ),
    (conv2d(padding=2, strides=2), IMAGE, IMAGE, LINE, ROWS, 4 * ROW + 2 * FILTER * 3 // 4),
    (conv2d(padding=1), IMAGE, IMAGE, SQUARE, (None, None, "x", "y"), 3 * ROW + 2 * FILTER),
    (
        conv2d(padding=1, groups=2),
        (6, 8, 36, 6),
        (8, 4, 36, 6),
        OBLONG,
        (None, "y", "x", None),
        2 * 6 * 4 * 6 * 4 + 2 * 6 * 8 * 9 * 4,
    ),
    (
        conv2d(padding=1, data_layout="NHWC", kernel_layout="OHWI"),
        (4, 32, 6, 2),
        (8, 32, 6, 2),
        CUBE,
        (None, ("z", "x"), None, "y"),
        2 * 4 * 6 * 4 + 2 * 4 * 8 * 9 * 4,
    ),
    (
        lambda x, g: R.nn.conv1d(x, g, padding=3),
        (4, 2, 33),
        (3, 2, 32),
        LINE,
        (None, None, "x"),
        8 * 8 * 4 + 2 * 3 * 4 * 8 * 4 * 3 // 4,
    ),
    (
        lambda x, g: R.nn.conv3d(x, g, padding=1),
        (2, 2, 8, 4, 4),
        (2, 2, 8, 4, 4),
        LINE,
        (None, None, "x", None, None),
        2 * 2 * 2 * 16 * 4 + 2 * 4 * 27 * 4,
    ),
]


def test_filters_are_reduced_and_images_stay():
    rng = np.random.default_rng(0)
    for index, (build, image, gradient, mesh, dims, most) in enumerate(CASES):
        for dtype, tolerance in (("float32", 2e-5), ("float16", 2e-2))[: 1 + (index == 0)]:
            mod = module(build, image, gradient, dtype)
            annotated = dx.annotate(mod, mesh, {"x": dims, "g": dims})
            found = dx.analysis.collectives(dx.lower(annotated))
            sent = sum(each.bytes_per_device * each.count for each in found)
            assert sent <= most, (index, sent, found)
            values = [rng.standard_normal(shape).astype(dtype) for shape in (image, gradient)]
            machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
            wanted = machine["main"](*map(tvm.runtime.tensor, values)).numpy()
            with dx.Session(mesh, ccl="cpu") as session:
                result = session.load(dx.build(annotated, target=QUICK))(*values).numpy()
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(result / scale, wanted / scale, atol=tolerance)


def test_kernels_that_shards_do_not_divide_are_not_padded():
    """Zeros behind a kernel would make NaN of an infinity that no window looks at."""
    image = np.ones((1, 1, 35), "float32")
    image[0, 0, -1] = np.inf
    kernel = np.ones((1, 1, 33), "float32")
    mod = module(lambda x, g: R.nn.conv1d(x, g), image.shape, kernel.shape, "float32")
    dims = (None, None, "x")
    with dx.Session(LINE, ccl="cpu") as session:
        built = dx.build(dx.annotate(mod, LINE, {"x": dims, "g": dims}), target=QUICK)
        result = session.load(built)(image, kernel).numpy()
    np.testing.assert_array_equal(result, [[[33, 33, np.inf]]])
