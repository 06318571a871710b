"""Elementwise operators of one, two and three operands, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm
from tests import threefry
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import grad, nn
from tvm.relax.op.builtin import stop_lift_params

from distir_ext.native.random_bits import random_bits, random_normal

from ..case import Case, Operand, broadcast_letters

# Operator, how its data is drawn, NumPy's name for it.
FLOAT_UNARY: list[tuple[Any, str, Callable[..., Any] | None]] = [
    (R.acos, "unit", np.arccos),
    (R.acosh, "above one", np.arccosh),
    (R.asin, "unit", np.arcsin),
    (R.asinh, "normal", np.arcsinh),
    (R.atan, "normal", np.arctan),
    (R.atanh, "unit", np.arctanh),
    (R.ceil, "normal", np.ceil),
    (R.cos, "normal", np.cos),
    (R.cosh, "normal", np.cosh),
    (R.erf, "normal", None),
    (R.exp, "normal", np.exp),
    (R.floor, "normal", np.floor),
    (R.isfinite, "special", np.isfinite),
    (R.isinf, "special", np.isinf),
    (R.isnan, "special", np.isnan),
    (R.log, "positive", np.log),
    (R.round, "normal", np.round),
    (R.rsqrt, "positive", lambda x: 1 / np.sqrt(x)),
    (R.sigmoid, "normal", lambda x: 1 / (1 + np.exp(-x))),
    (R.sin, "normal", np.sin),
    (R.sinh, "normal", np.sinh),
    (R.sqrt, "positive", np.sqrt),
    (R.tan, "unit", np.tan),
    (R.tanh, "normal", np.tanh),
    (R.trunc, "normal", np.trunc),
    (nn.gelu, "normal", None),
    (nn.gelu_tanh, "normal", None),
    (nn.leakyrelu, "normal", lambda x: np.where(x > 0, x, x * np.float32(0.01))),
    (nn.selu, "normal", None),
    (nn.silu, "normal", lambda x: x / (1 + np.exp(-x))),
    (nn.softplus, "normal", lambda x: np.log1p(np.exp(x))),
]

# These take integers, too.
ANY_UNARY: list[tuple[Any, Callable[..., Any] | None]] = [
    (R.abs, np.abs),
    (R.negative, np.negative),
    (R.sign, np.sign),
    (R.square, np.square),
    (nn.relu, lambda x: np.maximum(x, 0)),
]

UNARY_SHAPES = [(24,), (8, 12), (5, 8), (12, 1, 6), (2, 3, 4, 6)]

BROADCASTS = [
    ((8, 12), (8, 12)),
    ((8, 12), (12,)),
    ((12, 1), (12, 8)),
    ((6, 1, 8), (4, 1)),
    ((3, 1, 5, 8), (4, 5, 1)),
    ((24,), ()),
    ((1, 8), (4, 1)),
]

FLOAT_BINARY: list[tuple[Any, str, Callable[..., Any] | None]] = [
    (R.atan2, "normal", np.arctan2),
    (R.divide, "nonzero", np.divide),
    (R.log_add_exp, "normal", np.logaddexp),
    (R.power, "positive", np.power),
]
ANY_BINARY: list[tuple[Any, str, Callable[..., Any] | None]] = [
    (R.add, "normal", np.add),
    (R.floor_divide, "nonzero", np.floor_divide),
    (R.floor_mod, "nonzero", np.mod),
    (R.maximum, "normal", np.maximum),
    (R.minimum, "normal", np.minimum),
    (R.mod, "nonzero", np.fmod),
    (R.multiply, "normal", np.multiply),
    (R.subtract, "normal", np.subtract),
]
COMPARISONS: list[tuple[Any, Callable[..., Any]]] = [
    (R.equal, np.equal),
    (R.greater, np.greater),
    (R.greater_equal, np.greater_equal),
    (R.less, np.less),
    (R.less_equal, np.less_equal),
    (R.not_equal, np.not_equal),
]
INTEGER_BINARY: list[tuple[Any, str, Callable[..., Any]]] = [
    (R.bitwise_and, "normal", np.bitwise_and),
    (R.bitwise_or, "normal", np.bitwise_or),
    (R.bitwise_xor, "normal", np.bitwise_xor),
    (R.left_shift, "shift", np.left_shift),
    (R.right_shift, "shift", np.right_shift),
]
LOGICAL: list[tuple[Any, Callable[..., Any]]] = [
    (R.logical_and, np.logical_and),
    (R.logical_or, np.logical_or),
    (R.logical_xor, np.logical_xor),
]

CASTS = [
    ("float32", "float16"),
    ("float32", "float64"),
    ("float32", "int32"),
    ("int32", "float32"),
    ("int64", "int32"),
    ("bool", "float32"),
    ("int32", "bool"),
    ("float16", "float32"),
]


def op_name(function: Any) -> str:
    """``relax.nn.relu`` for ``tvm.relax.op.nn.relu``."""
    prefix = "relax.nn." if ".nn" in function.__module__ else "relax."
    return prefix + function.__name__


def pointwise(
    function: Any,
    shapes: list[tuple[int, ...]],
    dtypes: list[str],
    values: list[str],
    numpy: Callable[..., Any] | None,
    exact: bool = False,
    name: str | None = None,
    label: str = "",
) -> Case:
    """A case of operands that broadcast together."""
    result = tuple(int(size) for size in np.broadcast_shapes(*shapes))
    letters = broadcast_letters(shapes, result)
    operands = tuple(map(Operand, shapes, letters, dtypes, values))
    result_letters = "abcdefgh"[: len(result)]
    return Case(
        name or op_name(function),
        label,
        operands,
        (result_letters,),
        function,
        sizes=dict(zip(result_letters, result, strict=True)),
        exact=exact,
        numpy=numpy,
    )


def unary() -> Iterator[Case]:
    for function, values, numpy in FLOAT_UNARY:
        for shape in UNARY_SHAPES:
            yield pointwise(function, [shape], ["float32"], [values], numpy)
        yield pointwise(function, [(8, 12)], ["float64"], [values], numpy)
    for function in (R.exp, R.sqrt, R.tanh, nn.silu):
        yield pointwise(function, [(8, 12)], ["float16"], ["positive"], None)
    for function, numpy in ANY_UNARY:
        for shape in UNARY_SHAPES:
            yield pointwise(function, [shape], ["float32"], ["normal"], numpy)
        for dtype in ("int32", "int64"):
            yield pointwise(function, [(8, 12)], [dtype], ["normal"], numpy, exact=True)
        for dtype in ("float16", "bfloat16"):
            yield pointwise(function, [(8, 12)], [dtype], ["normal"], None)
    for dtype in ("int32", "uint8"):
        yield pointwise(R.bitwise_not, [(8, 12)], [dtype], ["normal"], np.bitwise_not, exact=True)
    yield pointwise(R.logical_not, [(8, 12)], ["bool"], ["normal"], np.logical_not, exact=True)
    for shape in UNARY_SHAPES:
        yield pointwise(
            lambda x: R.clip(x, -0.5, 0.75),
            [shape],
            ["float32"],
            ["normal"],
            lambda x: np.clip(x, np.float32(-0.5), np.float32(0.75)),
            exact=True,
            name="relax.clip",
        )
        for function in (stop_lift_params, lambda x: x):
            name = "builtin.stop_lift_params" if function is stop_lift_params else "annotate"
            yield pointwise(
                function,
                [shape],
                ["float32"],
                ["normal"],
                lambda x: x,
                exact=True,
                name={"annotate": "relax.dist.annotate_sharding"}.get(name, f"relax.{name}"),
            )
    for source, target in CASTS:
        yield pointwise(
            lambda x, target=target: R.astype(x, target),
            [(8, 12)],
            [source],
            ["normal"],
            lambda x, target=target: x.astype(target),
            exact=True,
            name="relax.astype",
            label=f"to {target}",
        )


def passed_on() -> Iterator[Case]:
    for shape in UNARY_SHAPES:
        for name, function in (
            ("grad.no_grad", grad.no_grad),
            ("grad.start_checkpoint", grad.start_checkpoint),
            ("grad.end_checkpoint", grad.end_checkpoint),
            ("hint_on_device", lambda x: R.hint_on_device(x, tvm.cpu())),
            ("to_vdevice", lambda x: R.to_vdevice(x, relax.VDevice("llvm"))),
        ):
            yield pointwise(
                function,
                [shape],
                ["float32"],
                ["normal"],
                lambda x: x,
                exact=True,
                name=f"relax.{name}",
            )
        letters = "abcdefgh"[: len(shape)]
        # At inference it passes its input on, with a mask of ones.
        yield Case(
            "relax.nn.dropout",
            "",
            (Operand(shape, letters),),
            (letters, letters),
            nn.dropout,
            exact=True,
            numpy=lambda x: (x, np.ones_like(x)),
        )


def binary() -> Iterator[Case]:
    for function, values, numpy in FLOAT_BINARY + ANY_BINARY:
        for left, right in BROADCASTS:
            drawn = ["positive" if values == "positive" else "normal", values]
            yield pointwise(function, [left, right], ["float32"] * 2, drawn, numpy)
    for function, values, numpy in ANY_BINARY:
        for dtype in ("int32", "int64"):
            yield pointwise(
                function, [(8, 12), (8, 1)], [dtype] * 2, ["normal", values], numpy, exact=True
            )
        if function not in (R.floor_divide, R.floor_mod, R.mod):
            for dtype in ("float16", "bfloat16", "float64"):
                yield pointwise(function, [(8, 12), (12,)], [dtype] * 2, ["normal", values], None)
    for function, numpy in COMPARISONS:
        for left, right in BROADCASTS:
            for dtype in ("float32", "int32"):
                yield pointwise(
                    function, [left, right], [dtype] * 2, ["normal"] * 2, numpy, exact=True
                )
    for function, values, numpy in INTEGER_BINARY:
        for left, right in BROADCASTS:
            first = "positive" if values == "shift" else "normal"
            yield pointwise(
                function, [left, right], ["int32"] * 2, [first, values], numpy, exact=True
            )
    for function, numpy in LOGICAL:
        for left, right in BROADCASTS:
            yield pointwise(
                function, [left, right], ["bool"] * 2, ["normal"] * 2, numpy, exact=True
            )


def ternary() -> Iterator[Case]:
    for shapes in (
        [(8, 12), (8, 12), (8, 12)],
        [(8, 1), (12,), (8, 12)],
        [(6, 1, 1), (1, 4, 1), (8,)],
        [(), (8, 6), (6,)],
    ):
        for dtype in ("float32", "int32"):
            yield pointwise(
                R.where, shapes, ["bool", dtype, dtype], ["normal"] * 3, np.where, exact=True
            )
    for shape in ((24,), (8, 12), (2, 3, 8)):
        yield pointwise(
            R.ewise_fma, [shape] * 3, ["float32"] * 3, ["normal"] * 3, lambda x, y, z: x * y + z
        )


def random() -> Iterator[Case]:
    for dtype in ("uint32", "uint64", "int64"):
        for shapes in ([(), (8, 1), (12,)], [(), (6, 4, 1), (1, 1, 8)], [(), (), (24,)]):
            yield pointwise(
                lambda key, rows, columns, dtype=dtype: random_bits(key, rows, columns, dtype),
                shapes,
                ["int64" if dtype == "uint32" else dtype] * 3,
                ["normal"] * 3,
                lambda key, rows, columns, dtype=dtype: threefry.bits(key, rows + columns, dtype),
                exact=True,
                name="relax.dist.random_bits",
                label=dtype,
            )
    for shapes in ([(), (8, 1), (12,)], [(), (6, 4, 1), (1, 1, 8)]):
        yield pointwise(
            lambda *args: random_normal(*args, -2.0, 3.0),
            shapes,
            ["int64"] * 3,
            ["normal"] * 3,
            None,
            exact=True,
            name="relax.dist.random_normal",
        )


def like() -> Iterator[Case]:
    for shape in UNARY_SHAPES:
        for function, numpy in (
            (R.zeros_like, np.zeros_like),
            (R.ones_like, np.ones_like),
        ):
            yield pointwise(function, [shape], ["float32"], ["normal"], numpy, exact=True)
        yield pointwise(
            lambda x: R.full_like(x, relax.const(2.5, "float32")),
            [shape],
            ["float32"],
            ["normal"],
            lambda x: np.full_like(x, 2.5),
            exact=True,
            name="relax.full_like",
        )
    for source, target in (
        ((8, 1), (8, 12)),
        ((12,), (8, 12)),
        ((4, 1, 1), (4, 6, 8)),
        ((1, 6), (2, 8, 6)),
        ((), (8,)),
        ((8, 12), (8, 12)),
    ):
        names = "abcdefgh"[: len(target)]
        yield Case(
            "relax.broadcast_to",
            f"{source} to {target}",
            (Operand(source, broadcast_letters([source], target)[0]),),
            (names,),
            lambda x, target=target: R.broadcast_to(x, target),
            sizes=dict(zip(names, target, strict=True)),
            exact=True,
            numpy=lambda x, target=target: np.broadcast_to(x, target),
        )


def cases() -> Iterator[Case]:
    yield from unary()
    yield from passed_on()
    yield from binary()
    yield from ternary()
    yield from random()
    yield from like()
