"""Converters of operators whose dtypes or values TVM's frontend gets wrong.

TVM's products and convolutions are float32 whatever their operands are, so that no model of shorter
or longer floats is imported. Its ``elu`` drops two of three numbers, ``grid_sample`` reads the grid
as (N, 2, H, W), and no operator promotes dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax import op as relax_op

__all__ = ["CONVERTERS", "as_in_torch", "promoted"]

Emit = Callable[[relax.Expr], relax.Var]
Convert = Callable[[list[Any], dict[str, Any], Emit], relax.Expr]

# Operators that Relax types for float32, float16 and float64 only.
_NOT_OF_BFLOAT16 = ("group_norm.default", "native_group_norm.default", "prelu.default")

_ARITHMETIC = ("add", "sub", "mul", "div")

_CONVOLUTIONS = {
    3: (relax_op.nn.conv1d, relax_op.nn.conv1d_transpose, "W"),
    4: (relax_op.nn.conv2d, relax_op.nn.conv2d_transpose, "HW"),
    5: (relax_op.nn.conv3d, relax_op.nn.conv3d_transpose, "DHW"),
}
"""By rank: the operator, the transposed one, the letters of its dimensions."""


def promoted(node: fx.Node, env: dict[fx.Node, Any]) -> dict[fx.Node, str]:
    """The operands of a call that are converted first, with the dtype that they get.

    Args:
        node: The call.
        env: The values that have been imported.
    """
    values = {source: source.meta.get("val") for source in node.all_input_nodes}
    tensors = {x: value for x, value in values.items() if isinstance(value, torch.Tensor)}
    dtypes = {source: _dtype_of(env, source) for source in tensors}
    if _name(node) in _NOT_OF_BFLOAT16:
        return {source: "float32" for source, dtype in dtypes.items() if dtype == "bfloat16"}
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) or len(tensors) < 2:
        return {}
    if _name(node).split(".")[0] not in _ARITHMETIC:  # bool is a condition or logic
        tensors = {x: value for x, value in tensors.items() if value.dtype != torch.bool}
    common = _name_of(_common_dtype(list(tensors.values())))
    return {source: common for source in tensors if dtypes[source] not in ("", common)}


def _common_dtype(tensors: list[torch.Tensor]) -> torch.dtype:
    """The dtype in which torch computes; a tensor without dimensions widens none that has some."""
    common = torch.empty((), dtype=torch.bool, device="meta")
    for each in tensors:
        shape = () if common.ndim == each.ndim == 0 else (1,)
        dtype = torch.result_type(common, each)
        common = torch.empty(shape, dtype=dtype, device="meta")
    return common.dtype


def as_in_torch(value: Any, meta: Any, emit: Emit) -> Any:
    """A result, or its fields, in the floats that torch has."""
    if isinstance(meta, tuple | list) and isinstance(getattr(value, "ty", None), relax.TupleType):
        fields = [emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]
        cast = [as_in_torch(*pair, emit) for pair in zip(fields, meta, strict=False)]
        is_same = all(a is b for a, b in zip(fields, cast, strict=False))
        return value if is_same else emit(relax.Tuple([*cast, *fields[len(cast) :]]))
    if not isinstance(meta, torch.Tensor) or not isinstance(value, relax.Expr):
        return value
    got, wanted = str(getattr(value.ty, "dtype", "")), _name_of(meta.dtype)
    if _is_float(got) and _is_float(wanted) and got != wanted:
        return emit(relax_op.astype(value, wanted))
    return value


def _dtype_of(env: dict[fx.Node, Any], node: fx.Node) -> str:
    return str(getattr(getattr(env.get(node), "ty", None), "dtype", ""))


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


# ---- converters, of arguments that are imported


def _linear(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    x, weight, bias = _filled(args, 3, options, "bias")
    return relax_op.linear(x, weight, bias)


def _matmul(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    return relax_op.matmul(args[0], args[1])


def _addmm(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    added, left, right = args
    dtype = str(left.ty.dtype)
    alpha, beta = options.get("alpha", 1), options.get("beta", 1)
    result = emit(relax_op.matmul(left, right))
    if alpha != 1:
        result = emit(relax_op.multiply(result, relax.const(alpha, dtype)))
    if beta == 0:
        return result
    if beta != 1:
        added = emit(relax_op.multiply(added, relax.const(beta, dtype)))
    return relax_op.add(added, result)


def _convolution(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    x, weight, bias, strides, padding, dilation, is_transposed, output_padding, groups = args
    rank = len(x.ty.shape)
    if rank not in _CONVOLUTIONS:
        raise ValueError(f"a convolution of {rank} dimensions")
    convolution, transposed, letters = _CONVOLUTIONS[rank]
    more: dict[str, Any] = {"data_layout": f"NC{letters}", "kernel_layout": f"OI{letters}"}
    if is_transposed:
        convolution, more["kernel_layout"] = transposed, f"IO{letters}"
        more["output_padding"] = _of_each(output_padding, rank)
    result = emit(
        convolution(
            x,
            weight,
            strides=_of_each(strides, rank),
            padding=_of_each(padding, rank),
            dilation=_of_each(dilation, rank),
            groups=groups,
            **more,
        )
    )
    if bias is None:
        return result
    return relax_op.add(result, relax_op.reshape(bias, (1, -1, *[1] * (rank - 2))))


def _of_each(numbers: Sequence[int], rank: int) -> list[int]:
    """One number for each dimension in space, of which torch takes one for all."""
    return [*numbers] * (rank - 2) if len(numbers) == 1 else [*numbers]


def _elu(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    x, alpha, scale, input_scale = [*args, 1.0, 1.0, 1.0][:4]
    dtype = str(x.ty.dtype)

    def number(value: float) -> relax.Expr:
        return relax.const(value, dtype)

    powers = emit(relax_op.exp(emit(relax_op.multiply(x, number(input_scale)))))
    below = emit(
        relax_op.multiply(emit(relax_op.subtract(powers, number(1))), number(alpha * scale))
    )
    above = x if scale == 1 else emit(relax_op.multiply(x, number(scale)))
    return relax_op.where(emit(relax_op.greater(x, number(0))), above, below)


def _divide(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    left, right = args
    mode = options.get("rounding_mode")
    if isinstance(right, int | float):
        right = relax.const(right, str(left.ty.dtype))
    if mode == "floor":
        return relax_op.floor_divide(left, right)
    quotient = relax_op.divide(left, right)
    return relax_op.trunc(emit(quotient)) if mode == "trunc" else quotient


def _grid_sample(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
    data, grid, method, padding, align_corners = args
    return relax_op.image.grid_sample(
        data,
        emit(relax_op.permute_dims(grid, [0, 3, 1, 2])),
        ("bilinear", "nearest", "bicubic")[method],
        "NCHW",
        ("zeros", "border", "reflection")[padding],
        align_corners,
    )


def _extreme(reduce: Callable[..., relax.Expr]) -> Convert:
    def convert(args: list[Any], options: dict[str, Any], emit: Emit) -> relax.Expr:
        rest: list[Any] = [[], False]
        x, dims, keepdims = args + rest[len(args) - 1 :]
        return reduce(x, list(dims) or None, keepdims)

    return convert


def _filled(args: list[Any], count: int, options: dict[str, Any], *names: str) -> list[Any]:
    """Arguments in order, those left out as keywords say, or None."""
    return [*args, *(options.get(name) for name in names[len(names) - count + len(args) :])]


CONVERTERS: dict[str, Convert] = {
    "linear.default": _linear,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "addmm.default": _addmm,
    "convolution.default": _convolution,
    "elu.default": _elu,
    "div.Tensor_mode": _divide,
    "grid_sampler_2d.default": _grid_sample,
    "amax.default": _extreme(relax_op.max),
    "amin.default": _extreme(relax_op.min),
}
"""By the operator's name."""
