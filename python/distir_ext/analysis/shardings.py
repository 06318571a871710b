"""Where the tensors are that a distributed program takes and gives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import tvm

from distir_ext._device_text import device_text
from distir_ext._modules import check_module
from distir_ext._signature import Dim, FunctionSpec, Spec, TensorSpec, TupleSpec, parse_signature
from distir_ext._signature_attr import has_signature, signature_for_executable
from distir_ext._tracebacks import short_tracebacks
from distir_ext.compile import lower


@dataclass(frozen=True)
class TensorSharding:
    """A tensor that a function takes or gives, and the part of it that each device has."""

    function: str
    """The function that users call."""

    role: str
    """``"input"``, ``"weight"`` or ``"result"``. Without ``num_input``, parameters are inputs."""

    name: str
    """The parameter, or ``return``; fields of tuples are ``name.0``, ``name.1``."""

    shape: tuple[int | str, ...]
    """The global shape; symbolic sizes are names."""

    dtype: str
    """The element type."""

    devices: str
    """The mesh that it is on, and its devices, as ``"2x4: 0..7"``."""

    sharding: str
    """The mesh axes of each dimension, as ``"('dp', None)"``."""

    local_shape: tuple[int | str, ...]
    """The shape on each device, rounded up where the axes do not divide a size; a symbolic size
    that is cut in two is ``"n/2"``."""

    bytes_per_device: int | None
    """Of the part that a device has, padding included; None where a size is symbolic."""


@short_tracebacks
def shardings(mod: tvm.IRModule) -> list[TensorSharding]:
    """How every parameter and result of a distributed program is sharded.

    Args:
        mod: A module in any phase; one that is not lowered yet is lowered first.

    Returns:
        Function by function, parameters in their order, then results. Values that are no tensors,
        such as caches, are left out.

    Raises:
        ValueError: The module has nothing distributed in it, or cannot be lowered.
        TypeError: It is no module.

    Example:
        >>> from tvm import relax
        >>> from distir_ext import Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x = relax.Var("x", relax.TensorType((8, 6), "float32"))
        >>> with builder.function("main", [x]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
        >>> mod = annotate(builder.get(), Mesh(dp=2, tp=2), {"x": ("tp", None)})
        >>> [(each.name, each.sharding, each.local_shape) for each in shardings(mod)]
        [('x', "('tp', None)", (4, 6)), ('return', "('tp', None)", (4, 6))]
    """
    check_module(mod)
    if not has_signature(mod):
        mod = lower(mod)
    signature = parse_signature(json.dumps(signature_for_executable(mod)))
    return [row for function in signature.functions.values() for row in _of_function(function)]


def _of_function(function: FunctionSpec) -> Iterator[TensorSharding]:
    for index, param in enumerate(function.params):
        role = "input" if index < function.num_input else "weight"
        for name, spec in _tensors(param.name, param.spec):
            yield _row(function.name, role, name, spec)
    for name, spec in _tensors("return", function.result):
        yield _row(function.name, "result", name, spec)


def _tensors(name: str, spec: Spec) -> Iterator[tuple[str, TensorSpec]]:
    if isinstance(spec, TensorSpec):
        yield name, spec
    elif isinstance(spec, TupleSpec):
        for index, field in enumerate(spec.fields):
            yield from _tensors(f"{name}.{index}", field)


def _row(function: str, role: str, name: str, spec: TensorSpec) -> TensorSharding:
    local = _local_shape(spec)
    sizes = [size for size in local if isinstance(size, int)]
    held = None
    if len(sizes) == len(local):
        bits = max(int(tvm.DataType(spec.dtype).bits), 8)
        held = math.prod(sizes) * bits // 8
    sharding = spec.sharding.partition(" on ")[0]  # where there are several meshes, which one
    return TensorSharding(
        function, role, name, spec.shape, spec.dtype, _devices(spec), sharding, local, held
    )


def _local_shape(spec: TensorSpec) -> tuple[Dim, ...]:
    known = spec.local_shape([size if isinstance(size, int) else 1 for size in spec.shape])
    return tuple(
        local if isinstance(size, int) else f"{size}/{parts}" if parts > 1 else size
        for size, local, parts in zip(spec.shape, known, spec.parts, strict=True)
    )


def _devices(spec: TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.mesh_shape))}: {device_text(spec.device_ids)}"
