"""Translates StableHLO products and convolutions, with any dimension numbers."""

from __future__ import annotations

import string
from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, dims_of
from distir_ext.interop.jax.operations.shapes import padded, permuted, reshaped
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integer,
    integers,
    pairs,
    rank_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


@translates("stablehlo.dot_general")
def _dot_general(writer: Writer, op: Operation) -> Known:
    """A matmul where it is one, up to the order of dimensions; otherwise an einsum."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right, dtype = _factors(writer, op)
    left_batch, right_batch = (
        list(numbers.lhs_batching_dimensions),
        list(numbers.rhs_batching_dimensions),
    )
    left_sum, right_sum = (
        list(numbers.lhs_contracting_dimensions),
        list(numbers.rhs_contracting_dimensions),
    )
    left_free = _others(rank_of(op.operands[0]), left_batch + left_sum)
    right_free = _others(rank_of(op.operands[1]), right_batch + right_sum)
    is_matmul = (
        len(left_sum) == len(right_free) == 1
        and len(left_free) >= 1
        and (not left_batch or len(left_free) == 1)
    )
    if is_matmul:
        left = permuted(writer, left, left_batch + left_free + left_sum)
        right = permuted(writer, right, right_batch + right_sum + right_free)
        return _product(writer, op, left, right, dtype)
    left, right = (
        each if str(each.ty.dtype) == dtype else writer.emit(relax_op.astype(each, dtype))
        for each in (left, right)
    )
    letters = iter(string.ascii_letters)
    names = {("left", dim): next(letters) for dim in left_batch + left_free + left_sum}
    names |= {("right", dim): next(letters) for dim in right_free}
    pairs_ = zip(left_batch + left_sum, right_batch + right_sum, strict=True)
    names |= {("right", theirs): names["left", ours] for ours, theirs in pairs_}
    left_names = "".join(names["left", dim] for dim in range(int(left.ty.ndim)))
    right_names = "".join(names["right", dim] for dim in range(int(right.ty.ndim)))
    result = "".join(names["left", dim] for dim in left_batch + left_free)
    result += "".join(names["right", dim] for dim in right_free)
    made = writer.emit(relax_op.einsum((left, right), f"{left_names},{right_names}->{result}"))
    return _of_result_type(writer, op, made)


def _factors(writer: Writer, op: Operation) -> tuple[relax.Expr, relax.Expr, str]:
    """Both operands, and the dtype of their product; booleans are numbers, which are added up."""
    left, right = (writer.full(each) for each in op.operands)
    dtype = dtype_of(op.results[0])
    if dtype != "bool":
        return left, right, dtype
    left, right = (writer.emit(relax_op.astype(each, "int32")) for each in (left, right))
    return left, right, "int32"


def _product(
    writer: Writer, op: Operation, left: relax.Expr, right: relax.Expr, dtype: str
) -> relax.Expr:
    same = {str(left.ty.dtype), str(right.ty.dtype)} == {dtype}
    made = writer.emit(relax_op.matmul(left, right, out_dtype=None if same else dtype))
    return _of_result_type(writer, op, made)


def _of_result_type(writer: Writer, op: Operation, made: relax.Expr) -> relax.Expr:
    dtype = dtype_of(op.results[0])
    return made if str(made.ty.dtype) == dtype else writer.emit(relax_op.astype(made, dtype))


def _others(count: int, dims: list[int]) -> list[int]:
    return [dim for dim in range(count) if dim not in dims]


@translates("stablehlo.dot")
def _dot(writer: Writer, op: Operation) -> Known:
    """A product of matrices or vectors."""
    left, right, dtype = _factors(writer, op)
    return _product(writer, op, left, right, dtype)


_CONVOLUTIONS = {
    1: (relax_op.nn.conv1d, "NCW", "OIW"),
    2: (relax_op.nn.conv2d, "NCHW", "OIHW"),
    3: (relax_op.nn.conv3d, "NCDHW", "OIDHW"),
}

_TRANSPOSED = {
    1: (relax_op.nn.conv1d_transpose, "NCW", "IOW"),
    2: (relax_op.nn.conv2d_transpose, "NCHW", "IOHW"),
    3: (relax_op.nn.conv3d_transpose, "NCDHW", "IODHW"),
}


@translates("stablehlo.convolution")
def _convolution(writer: Writer, op: Operation) -> Known:
    """A convolution in Relax's own order of dimensions, with permutations around it."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = len(numbers.input_spatial_dimensions)
    if spatial not in _CONVOLUTIONS:
        raise UnsupportedError(f"of {spatial} spatial dimensions; Relax has 1 to 3")
    groups, batch_groups = integer(op, "feature_group_count"), integer(op, "batch_group_count")
    ones = [1] * spatial
    x = permuted(
        writer,
        writer.full(op.operands[0]),
        [
            numbers.input_batch_dimension,
            numbers.input_feature_dimension,
            *numbers.input_spatial_dimensions,
        ],
    )
    if batch_groups != 1:
        # Each part of the batch has its own filters, as groups of features have.
        x, groups = _batches_as_features(writer, x, batch_groups), batch_groups
    kernel = permuted(
        writer,
        writer.full(op.operands[1]),
        [
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ],
    )
    if "window_reversal" in op.attributes:
        for dim, is_reversed in enumerate(op.attributes["window_reversal"]):
            kernel = writer.emit(relax_op.flip(kernel, dim + 2)) if is_reversed else kernel
    edges = pairs(op, "padding", spatial)
    spread = integers(op, "lhs_dilation", ones)
    places = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    order = [places.index(dim) for dim in range(len(places))]
    transposed = _transposed(writer, op, x, kernel, spread, edges, groups)
    if transposed is not None:
        return permuted(writer, transposed, order)
    interior = [factor - 1 for factor in spread]
    if any(interior) or any(min(edge) < 0 for edge in edges):
        cut = [(min(low, 0), min(high, 0)) for low, high in edges]
        x = padded(writer, x, [(0, 0)] * 2 + cut, [0, 0, *interior], 0)
    build, layout, kernel_layout = _CONVOLUTIONS[spatial]
    made = writer.emit(
        build(
            x,
            kernel,
            strides=integers(op, "window_strides", ones),
            padding=[max(0, low) for low, _ in edges] + [max(0, high) for _, high in edges],
            dilation=integers(op, "rhs_dilation", ones),
            groups=groups,
            data_layout=layout,
            kernel_layout=kernel_layout,
            out_dtype=dtype_of(op.results[0]),
        )
    )
    return permuted(writer, made, order)


def _transposed(
    writer: Writer,
    op: Operation,
    x: relax.Expr,
    kernel: relax.Expr,
    spread: Sequence[int],
    edges: Sequence[tuple[int, int]],
    groups: int,
) -> relax.Expr | None:
    """A convolution of data with zeros in between, as the transposed one that it is.

    Returns:
        None if it is something else.
    """
    outputs, inputs, *window = dims_of(kernel)
    ones = [1] * len(window)
    is_float = dtype_of(op.results[0]).startswith(("float", "bfloat"))
    is_plain = ones == integers(op, "window_strides", ones) == integers(op, "rhs_dilation", ones)
    if spread == ones or not is_float or not is_plain:
        return None
    more = [max(0, high - size + 1) for size, (_, high) in zip(window, edges, strict=True)]
    before = [size - 1 - low for size, (low, _) in zip(window, edges, strict=True)]
    after = [
        size - 1 - high + extra for size, (_, high), extra in zip(window, edges, more, strict=True)
    ]
    fits = all(extra < factor for extra, factor in zip(more, spread, strict=True))
    if min(before) < 0 or not fits:
        return None
    for dim, size in enumerate(window):
        kernel = writer.emit(relax_op.flip(kernel, dim + 2)) if size > 1 else kernel
    if groups > 1:
        parts = [groups, outputs // groups, inputs]
        order = [0, 2, 1, *range(3, len(window) + 3)]
        kernel = permuted(writer, reshaped(writer, kernel, [*parts, *window]), order)
        kernel = reshaped(writer, kernel, [groups * inputs, outputs // groups, *window])
    else:
        kernel = permuted(writer, kernel, [1, 0, *range(2, len(window) + 2)])
    build, layout, kernel_layout = _TRANSPOSED[len(window)]
    return writer.emit(
        build(
            x,
            kernel,
            strides=spread,
            padding=before + after,
            output_padding=more,
            groups=groups,
            data_layout=layout,
            kernel_layout=kernel_layout,
            out_dtype=dtype_of(op.results[0]),
        )
    )


def _batches_as_features(writer: Writer, x: relax.Expr, count: int) -> relax.Expr:
    """The parts of a batch, which comes first, as groups of features, which come second."""
    batch, features, *rest = dims_of(x)
    parts = reshaped(writer, x, [count, batch // count, features, *rest])
    order = [1, 0, *range(2, len(rest) + 3)]
    return reshaped(
        writer, permuted(writer, parts, order), [batch // count, count * features, *rest]
    )
