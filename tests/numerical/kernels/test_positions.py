"""Kernels of lookups and writes by position: negative positions, and those outside."""

import functools

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

from distir_ext.compile.kernel_values import tir_pipeline

from ..partitioned import legalized

SIZE = 200  # more than int8 can count
POSITIONS = np.array([-1, -SIZE, 3, SIZE, 10**6, -SIZE - 1, 3], "int64")
SMALL = np.array([-1, -128, 3, 127, 0, -100, 3], "int8")


def rows(index, columns=3):
    return R.broadcast_to(R.expand_dims(index, 1), [7, columns])


LOOKUPS = {
    "take": lambda x, i: R.take(x, i, 0, mode="fast"),
    "take from the end": lambda x, i: R.take(x, i, -2, mode="fast"),
    "index_tensor": lambda x, i: R.index_tensor(x, [i]),
    "gather_elements": lambda x, i: R.gather_elements(x, rows(i), 0),
    "gather_nd": lambda x, i: R.gather_nd(x, R.astype(R.expand_dims(i, 1), "int64")),
}
WRITES = {
    "scatter_elements": lambda x, i, y, mode: R.scatter_elements(x, rows(i), y, 0, mode),
    "scatter_nd": lambda x, i, y, mode: R.scatter_nd(x, R.expand_dims(i, 1), y, mode),
}
MODES = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "update": lambda old, new: new,
}


def computed(apply, *arrays, sizes=None):
    shapes = [sizes if sizes and n == 0 else a.shape for n, a in enumerate(arrays)]
    params = [
        relax.Var(f"x{n}", relax.TensorType(shape, str(array.dtype)))
        for n, (shape, array) in enumerate(zip(shapes, arrays, strict=True))
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(apply(*params)))
    compiled = tvm.compile(legalized(builder.get()), QUICK, tir_pipeline=tir_pipeline(for_cpu=True))
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def from_begin(index, size=SIZE):
    index = index.astype("int64")
    return np.where(index < 0, index + size, index)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def test_lookups_count_from_the_end_and_take_the_nearest():
    x = numbers(SIZE, 3)
    for name, apply in LOOKUPS.items():
        for index in (SMALL, POSITIONS, POSITIONS.astype("int32")):
            right = x[np.clip(from_begin(index), 0, SIZE - 1)]
            np.testing.assert_array_equal(computed(apply, x, index), right, name)


def test_lookups_of_symbolic_sizes():
    x, n = numbers(9, 3), tvm.tirx.Var("n", "int64")
    index = np.array([-1, -9, 9, 100, -10, 3, 0], "int64")
    for name, apply in LOOKUPS.items():
        right = x[np.clip(from_begin(index, 9), 0, 8)]
        np.testing.assert_array_equal(computed(apply, x, index, sizes=(n, 3)), right, name)


def test_lookups_by_several_positions_at_once():
    x, index = numbers(SIZE, 3), np.array([0, -1, 3, -4, 2, -3, 1], "int64")
    found = computed(lambda x, i, j: R.index_tensor(x, [i, j]), x, POSITIONS, index)
    places = np.clip(from_begin(POSITIONS), 0, SIZE - 1), np.clip(from_begin(index, 3), 0, 2)
    np.testing.assert_array_equal(found, x[places])


def test_writes_count_from_the_end_and_leave_out_what_is_outside():
    x, y = numbers(SIZE, 3), numbers(7, 3)
    for mode, combine in MODES.items():
        for index in (SMALL, POSITIONS, POSITIONS.astype("int32")):
            right = x.copy()
            for place, row in zip(from_begin(index), y, strict=True):
                if 0 <= place < SIZE:
                    right[place] = combine(right[place], row)
            for name, apply in WRITES.items():
                found = computed(functools.partial(apply, mode=mode), x, index, y)
                np.testing.assert_allclose(found, right, 1e-6, err_msg=f"{name} {mode}")


def test_gradients_of_lookups_leave_out_what_is_outside():
    x, y = numbers(SIZE, 3), numbers(7, 3)
    right = np.zeros_like(x)
    for place, row in zip(from_begin(POSITIONS), y, strict=True):
        if 0 <= place < SIZE:
            right[place] += row
    found = computed(lambda y, x, i: R.grad.take_backward(y, x, i, 0), y, x, POSITIONS)
    np.testing.assert_allclose(found, right, 1e-6)


def test_writes_by_several_positions_at_once():
    x, y = numbers(SIZE, 3), numbers(7)
    index = np.array([0, 3, -1, 1, 0, 0, 2], "int64")
    for accumulate in (True, False):
        right = x.copy()
        for i, j, value in zip(from_begin(POSITIONS), from_begin(index, 3), y, strict=True):
            if 0 <= i < SIZE and 0 <= j < 3:
                right[i, j] = right[i, j] + value if accumulate else value
        found = computed(
            lambda x, i, j, y, a=accumulate: R.index_put(x, [i, j], y, a), x, POSITIONS, index, y
        )
        np.testing.assert_allclose(found, right, 1e-6)


def test_slices_with_symbolic_bounds_are_written():
    n, k = (tvm.tirx.Var(name, "int64") for name in "nk")
    x = relax.Var("x", relax.TensorType((n, 3), "float32"))
    y = relax.Var("y", relax.TensorType((k, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        written = builder.emit(R.slice_scatter(x, y, 1, k * 2 + 1, 2, 0))
        builder.emit_func_output(written)
    compiled = tvm.compile(legalized(builder.get()), QUICK, tir_pipeline=tir_pipeline(for_cpu=True))
    arrays = numbers(9, 3), numbers(4, 3)
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    right = arrays[0].copy()
    right[1:9:2] = arrays[1]
    np.testing.assert_array_equal(found, right)
