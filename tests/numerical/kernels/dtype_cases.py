"""Calls of operators in a dtype: those that make a tensor, those whose results have data's size."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import vision

from ..case import Case, Operand
from .test_values import numpy_dtype


def _bounds(*numbers: int) -> relax.Expr:
    return relax.const(np.asarray(numbers, "int64"), "int64")


DATA_DEPENDENT = (
    Case(
        "relax.nonzero",
        "",
        (Operand((4, 6), "ab", values="few"),),
        ("..",),
        R.nonzero,
        numpy=lambda x: np.stack(np.nonzero(x)).astype("int64"),
    ),
    Case(
        "relax.unique",
        "",
        (Operand((4, 6), "ab", values="few"),),
        (".",),
        lambda x: R.unique(x, True, True, True, True),
        numpy=lambda x: np.unique(x.reshape(-1), True, True, True),
    ),
    Case(
        "relax.dynamic_strided_slice",
        "",
        (Operand((4, 6), "ab"),),
        ("..",),
        lambda x: R.dynamic_strided_slice(x, _bounds(1, 0), _bounds(4, 6), _bounds(2, 3)),
        numpy=lambda x: x[1:4:2, 0:6:3],
    ),
    Case(
        "relax.vision.all_class_non_max_suppression",
        "",
        (Operand((1, 6, 4), "ab.", values="positive"), Operand((1, 2, 6), "acb", values="unit")),
        ("..", "."),
        lambda boxes, scores: vision.all_class_non_max_suppression(
            boxes,
            scores,
            relax.const(4, "int64"),
            relax.const(0.5, "float32"),
            relax.const(0.1, "float32"),
            "onnx",
        ),
    ),
)
"""Operators that are replicated, and have no cases among those that are sharded."""


CREATED: dict[str, tuple[Any, Any]] = {
    "relax.full": (
        lambda dtype: R.full((2, 3), relax.const(np.asarray(3, numpy_dtype(dtype))), dtype),
        lambda dtype: np.full((2, 3), 3),
    ),
    "relax.ones": (lambda dtype: R.ones((2, 3), dtype), lambda dtype: np.ones((2, 3))),
    "relax.zeros": (lambda dtype: R.zeros((2, 3), dtype), lambda dtype: np.zeros((2, 3))),
    "relax.arange": (lambda dtype: R.arange(1, 9, 2, dtype), lambda dtype: np.arange(1, 9, 2)),
    "relax.eye": (lambda dtype: R.eye(3, 4, 1, dtype), lambda dtype: np.eye(3, 4, 1)),
    "relax.hamming_window": (
        lambda dtype: R.hamming_window(8, True, 0.54, 0.46, dtype),
        lambda dtype: np.hamming(9)[:8],
    ),
}
"""Operators without operands, and NumPy's result, by dtype."""

LEFT_OUT = {
    r"relax\.(dist|ccl)\..*": "collectives, and what passes write: tests/runtime has their dtypes",
    r"relax\.(memory|vm|builtin)\..*": "storage and the virtual machine",
    r"relax\.inspect\..*": "read a tensor's description, not its elements",
    r"relax\.(call_.*|invoke_.*|make_closure|print|assert_op|null_value|wrap_param)": (
        "call what others compute, or have no kernel"
    ),
    r"relax\.(shape_to_tensor|tensor_to_shape|shape_of|size)": "sizes, which are int64",
}
"""Operators that no dtype changes, by pattern, and why."""
