"""Lists the shardings of a distributed program's parameters and results."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from distir_ext.compile.entry import lower
from distir_ext.explain.summary import SummaryRow, summary
from distir_ext.mesh.device_text import device_text
from distir_ext.native.modules import check_module
from distir_ext.signature.sharding import Sharding
from distir_ext.signature.signature_attr import has_signature
from distir_ext.text.errors.tracebacks import short_tracebacks


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
    """Lists the sharding of every parameter and result of a distributed program, as plain data.

    The rows have texts and numbers only, for JSON and data frames, and those of modules in all
    phases are alike, since a module that is not lowered yet is lowered for them. They are the rows
    of :func:`distir_ext.summary`, which says what is known of a module as it is.

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
    rows = summary(mod if has_signature(mod) else lower(mod)).rows
    return [_of_row(row, row.sharding) for row in rows if row.sharding is not None]


class TensorShardings(tuple[TensorSharding, ...]):
    """The rows of a program, of which there is a table."""


def _of_row(row: SummaryRow, sharding: Sharding) -> TensorSharding:
    mesh = sharding.mesh
    return TensorSharding(
        row.function,
        row.kind,
        row.name,
        sharding.shape,
        sharding.spec.dtype,
        f"{'x'.join(map(str, mesh.shape))}: {device_text(mesh.device_ids)}",
        str(sharding.dims),
        sharding.shard_shape,
        row.bytes_per_device,
    )
