"""Finds extents that the number of shards does not divide, and the nearest ones that it does."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping

import tvm
from tvm import relax

from distir_ext.structure.annotated_function import bindings_of
from distir_ext.text.printable import shown


def shapes_of(function: relax.Function) -> dict[str, tuple[int, ...]]:
    """Static extents of all tensors of a function by the names of variables; -1 of others."""
    found = {}
    variables = [*function.params, *(binding.var for binding in bindings_of(function.body))]
    for variable in variables:
        tensor = getattr(variable.ty, "tensor_ty", variable.ty)
        shape = getattr(tensor, "shape", None)
        if isinstance(shape, relax.ShapeExpr):
            found[str(variable.name)] = tuple(
                int(each) if isinstance(each, tvm.tirx.IntImm) else -1 for each in shape.values
            )
    return found


def uneven_lines(
    tensor: str, shape: tuple[int, ...], sharding: str, axis_sizes: Mapping[str, int]
) -> Iterator[str]:
    """Says of each dimension that its shards do not divide, what its extent is and could be.

    Args:
        tensor: Name of the tensor.
        shape: Its extents; -1 where one is not known.
        sharding: As ``"('dp', None), partial sum over 'tp'"``.
        axis_sizes: Sizes of the mesh axes.

    Example:
        >>> (line,) = uneven_lines("x", (4099, 8), "('dp', None)", {"dp": 4})
        >>> print(line[-50:])
        shards over 'dp' do not divide; 4096 or 4100 would
    """
    text = sharding[: sharding.rfind(")") + 1] if sharding.startswith("(") else ""
    try:
        dims = ast.literal_eval(text) if text else ()
    except (SyntaxError, ValueError):  # parts of axes
        return
    if len(dims) != len(shape):
        return
    for dim, (size, stated) in enumerate(zip(shape, dims, strict=True)):
        axes = () if stated is None else (stated,) if isinstance(stated, str) else tuple(stated)
        if not axes or not all(axis in axis_sizes for axis in axes):
            continue
        shards = math.prod(axis_sizes[axis] for axis in axes)
        if size < 0 or size % shards == 0:
            continue
        least = size // shards * shards
        near = f"{least} or {least + shards}" if least else str(shards)
        yield (
            f"dimension {dim} of `{shown(tensor)}` has {size} elements, which the {shards} shards "
            f"over {', '.join(map(repr, axes))} do not divide; {near} would"
        )
