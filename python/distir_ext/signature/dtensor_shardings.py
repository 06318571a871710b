"""Converts DTensor types to shardings with the axis names of a module's meshes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.mesh.notation import Notation
from distir_ext.signature.sharding import Sharding, sharding_of_type
from distir_ext.text.size_text import size_text


def sharding_of_dtensor(notation: Notation, type_: DTensorType) -> Sharding:
    """The sharding of a DTensor of known rank; sizes that are not known are ``d0``, ``d1``, ..."""
    tensor = type_.tensor_ty
    shape: list[int | str] = [f"d{dim}" for dim in range(tensor.ndim)]
    if isinstance(tensor.shape, relax.ShapeExpr):
        shape = [size_of(size) for size in tensor.shape.values]
    return sharding_of_type(type_, shape, notation.mesh(type_), notation.dims(type_))


def size_of(size: Any) -> int | str:
    """A size of a shape: a number, or the text of an expression, ``"n + 1"``."""
    if isinstance(size, tvm.tirx.IntImm):
        return int(size)
    return size_text(size)
