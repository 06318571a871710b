"""Builds TIR kernels for StableHLO operations that Relax has no operator for.

The passes derive their sharding rules from the kernels. Example:

    %0 = stablehlo.popcnt %x : tensor<8xi32>

is ``R.call_tir(popcnt, (x,), out_ty=R.Tensor((8,), "int32"))``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te
from tvm.relax.utils import gen_call_tir_inputs

from distir_ext.interop.jax.sizes import Size
from distir_ext.interop.jax.writer import Writer, fields_of

Make = Callable[..., te.Tensor | Sequence[te.Tensor]]
"""From the tensors of TE that operands are to what the kernel computes."""


def kernel_call(
    writer: Writer, name: str, make: Make, operands: Sequence[relax.Expr]
) -> relax.Call:
    """A call of a kernel.

    Args:
        writer: Writes it.
        name: Name of the kernel, up to a number.
        make: Computes its result.
        operands: Variables or constants.
    """
    function, given, types, *sizes = gen_call_tir_inputs(make, *operands)
    return relax.call_tir(writer.program.kernel(name, function), given, types, *sizes)


def computed(
    writer: Writer, name: str, make: Make, operands: Sequence[relax.Expr]
) -> list[relax.Expr]:
    """The results of a kernel; see :func:`kernel_call`."""
    return fields_of(writer, writer.emit(kernel_call(writer, name, make, operands)))


def elements(
    shape: Sequence[Size], element: Callable[..., Any], name: str
) -> te.Tensor | Sequence[te.Tensor]:
    """The tensor of this shape whose elements a function of their indices says.

    Without dimensions, the one element.
    """
    if shape:
        return te.compute(tuple(shape), element, name=name)
    return te.compute((), lambda *_: element(), name=name)
