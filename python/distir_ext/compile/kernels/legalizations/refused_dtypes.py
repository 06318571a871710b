"""Raises errors in ``dx.build`` for operators in dtypes that have no kernel.

TVM fails on these in words of its own, most of which name no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

from distir_ext.compile.kernels.legalizations.dtypes import is_float

__all__ = ["legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def _is_integer(dtype: str) -> bool:
    return "int" in dtype or dtype == "bool"


def _is_bool(dtype: str) -> bool:
    return dtype == "bool"


def _is_unsigned(dtype: str) -> bool:
    return dtype.startswith("uint") or dtype == "bool"


# Operators, the dtypes that are refused, and a dtype to cast to.
_REFUSED: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    ("log_add_exp atan2 variance std", _is_integer, "float32"),
    ("bitwise_and bitwise_or bitwise_xor bitwise_not left_shift right_shift", is_float, "int32"),
    (
        "nn.cross_entropy_with_logits nn.nll_loss grad.nll_loss_backward vision.get_valid_counts",
        _is_unsigned,
        "float32",
    ),
    ("nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d", lambda dtype: dtype == "uint64", "int64"),
    (
        "nn.instance_norm nn.attention nn.attention_bias nn.attention_var_len image.affine_grid "
        "image.grid_sample vision.roi_align vision.roi_pool vision.multibox_transform_loc "
        "vision.non_max_suppression vision.all_class_non_max_suppression",
        _is_integer,
        "float32",
    ),
    (
        "vision.non_max_suppression vision.all_class_non_max_suppression",
        lambda dtype: dtype == "float64",
        "float32",
    ),
    (
        "abs square negative sign clip nn.relu subtract divide mod floor_divide floor_mod mean "
        "matmul einsum outer left_shift right_shift bucketize isnan isinf isfinite "
        "nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d "
        "nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d "
        "nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose "
        "nn.conv3d_transpose grad.max_pool2d_backward grad.avg_pool2d_backward "
        "grad.take_backward collapse_sum_like collapse_sum_to",
        _is_bool,
        "int32",
    ),
)


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: an error for what has no kernel.

    Args:
        others: Legalisations by operator, of the dtypes that have one.
    """
    made = dict(others)
    for names, is_refused, wider in _REFUSED:
        for name in (f"relax.{each}" for each in names.split()):
            other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
            made[name] = _refusing(other, is_refused, wider)
    return made


def _refusing(other: Legalization, is_refused: Callable[[str], bool], wider: str) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        type_ = call.args[0].ty
        if isinstance(type_, relax.TupleType) and len(type_.fields):
            type_ = type_.fields[0]
        dtype = str(getattr(type_, "dtype", ""))
        if dtype and is_refused(dtype):
            name = call.op.name.removeprefix("relax.")
            raise TypeError(f"R.{name} of {dtype} has no kernel; cast its operands to {wider}")
        return other(builder, call)

    return legalize
