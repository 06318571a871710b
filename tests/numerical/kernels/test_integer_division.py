"""Integers are divided by 0 and -1 as in NumPy; a processor's division ends the process."""

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.relax.utils import gen_call_tir_inputs

from distir_ext.compile.integer_division import guard_divisions

from .test_values import SIGNED, UNSIGNED, check


def truncated(x, y):
    floor = np.floor_divide(x, y)
    return floor + ((np.fmod(x, y) != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


OPERATORS = {
    "divide": truncated,
    "floor_divide": np.floor_divide,
    "mod": np.fmod,
    "floor_mod": np.mod,
}


def pairs(dtype, repeats=1):
    info = np.iinfo(dtype)
    ends = [
        info.min,
        info.min + 1,
        0,
        1,
        2,
        info.max - 1,
        info.max,
        info.max if info.min == 0 else -1,
    ]
    grid = np.meshgrid(np.array(ends, dtype), np.array(ends, dtype))
    return [np.ascontiguousarray(np.tile(each, (repeats, repeats))) for each in grid]


def of_users(division, x, y):
    """A kernel that a user has written, which asks for zeros itself and divides all the same."""

    def make(x, y):
        def element(*i):
            bound = tirx.Var("bound", y.dtype)
            found = division(x(*i), bound)
            chosen = tirx.Select(bound == tirx.const(0, y.dtype), found, division(x(*i), bound))
            return tirx.Let(bound, y(*i), chosen)

        return te.compute(x.shape, element, name="compute")

    kernel, operands, types = gen_call_tir_inputs(make, x, y)
    kernel = relax.BlockBuilder.current().add_func(kernel, "kernel")
    return relax.call_tir(kernel, operands, types)


@pytest.mark.large
def test_integers_are_divided_by_all_numbers():
    cases = []
    for dtype in (*SIGNED, *UNSIGNED):
        for name, numpy in OPERATORS.items():
            apply = getattr(R, name)
            x, y = pairs(dtype)
            cases.append((f"{name} {dtype}", apply, numpy, [x, y]))
            for number in (0, -1) if np.iinfo(dtype).min else (0,):
                constant = relax.const(number, dtype)
                cases.append(
                    (
                        f"{name} {dtype} by {number}",
                        lambda x, apply=apply, constant=constant: apply(x, constant),
                        lambda x, numpy=numpy, number=number: numpy(x, x.dtype.type(number)),
                        [x],
                    )
                )
    for name, numpy in OPERATORS.items():
        apply = getattr(R, name)
        cases += [
            # Kernels of so many elements are scheduled; the selection is fused with the division.
            (
                f"{name} of many",
                lambda x, y, apply=apply: R.where(
                    R.equal(y, relax.const(0, "int32")), apply(x, y), R.negative(apply(x, y))
                ),
                lambda x, y, numpy=numpy: np.where(y == 0, numpy(x, y), -numpy(x, y)),
                pairs("int32", 12),
            ),
            (
                f"{name} of positions",
                lambda x, apply=apply: R.add(
                    x, apply(R.arange(0, 8, dtype="int32"), R.arange(0, 8, dtype="int32"))
                ),
                lambda x, numpy=numpy: x + numpy(*[np.arange(8, dtype="int32")] * 2),
                [np.ones((8, 8), "int32")],
            ),
            (
                f"{name} of numbers",
                lambda x, apply=apply: R.add(
                    x, apply(relax.const(-(2**31), "int32"), relax.const(0, "int32"))
                ),
                lambda x: x,
                [np.ones((8, 8), "int32")],
            ),
        ]
    nodes = (tirx.Div, tirx.FloorDiv, tirx.Mod, tirx.FloorMod)
    for dtype in ("int8", "int32", "int64", "uint32"):
        for node, numpy in zip(nodes, OPERATORS.values(), strict=True):
            cases.append(
                (
                    f"{node.__name__} {dtype}",
                    lambda x, y, node=node: of_users(node, x, y),
                    numpy,
                    pairs(dtype),
                )
            )
    check(cases)


def kernel_of(make, *shapes):
    tensors = [te.placeholder(shape, "int64", name=f"x{i}") for i, shape in enumerate(shapes)]
    return te.create_prim_func([*tensors, make(*tensors)])


def test_indices_and_constant_divisors_are_left_alone():
    rows, columns = (tirx.Var(name, "int64") for name in ("rows", "columns"))
    moved = kernel_of(
        lambda x: te.compute((columns, rows), lambda i, j: x(*_place(i, j, rows, columns))),
        (rows, columns),
    )
    halved = kernel_of(lambda x: te.compute((rows,), lambda i: x(i) // 2 + i % rows), (rows,))
    for kernel in (moved, halved):
        assert guard_divisions(kernel).same_as(kernel)


def _place(i, j, rows, columns):
    flat = i * rows + j
    return tirx.floordiv(flat, columns), tirx.floormod(flat, columns)
