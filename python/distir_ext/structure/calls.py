"""Computes factor rules of calls, and rewrites calls for tensors of other sizes.

``docs/rules.md`` explains factor rules. For ``matmul`` of (8, 16) and (16, 32)::

    operands ((0,), (2,)) and ((2,), (1,)), results ((0,), (1,)), sizes 8, 32 and 16
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax

Dim: TypeAlias = tuple[int, ...]
"""The factors of a dimension, major to minor."""

PARALLEL, REDUCTION = "parallel", "reduction"


@dataclass(frozen=True)
class CallRule:
    """The factor rule of a call.

    Attributes:
        operands: For each tensor operand, tuples flattened, the factors of its dimensions.
        results: The same for each tensor of the result.
        sizes: Of the factors; -1 where symbolic.
        kinds: ``"parallel"``, ``"reduction"``, ``"decomposed"`` or ``"replicated"``.
    """

    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]

    @property
    def is_product(self) -> bool:
        """True if the call sums products of elements of two operands, as matmul does."""
        if len(self.operands) != 2:
            return False
        left, right = ({factor for dim in dims for factor in dim} for dims in self.operands)
        return any(self.kinds[factor] == REDUCTION for factor in left & right)

    def minor(self, dim: Dim) -> int:
        """The elements of a dimension that lie within one of its first factor; 0 if unknown."""
        found = prod(self.sizes[factor] for factor in dim[1:])
        return max(found, 0) if all(self.sizes[factor] > 0 for factor in dim[1:]) else 0

    def places(self, dim: Dim) -> Iterator[tuple[int, int]]:
        """The results, and dimensions of them, that have exactly the factors of a dimension."""
        for result, dims in enumerate(self.results):
            for place, other in enumerate(dims):
                if dim and other == dim:
                    yield result, place


class Calls:
    """Factor rules of a module's calls.

    Args:
        mod: The module with the TIR kernels that are called; without one, nothing is known of
            calls of kernels.

    Attributes:
        kernels: By name those that :meth:`resized_kernel` has made.
    """

    def __init__(self, mod: tvm.IRModule | None = None) -> None:
        self._mod = mod
        self.kernels: dict[tvm.ir.GlobalVar, tvm.tirx.PrimFunc] = {}

    def rule(self, call: relax.Call) -> CallRule:
        """The factor rule of a call."""
        operands, results, sizes, kinds = json.loads(str(self._written_rule(call)))
        return CallRule(_dims(operands), _dims(results), tuple(sizes), tuple(kinds))

    def resized_kernel(self, call: relax.Call, factor: int, size: int) -> tvm.ir.GlobalVar | None:
        """The kernel to call in place of that of ``R.call_tir``, for another size of a factor.

        Returns:
            None where no such kernel can be made: its rule is stated by a user, say.
        """
        found = self._resized(call, factor, size)
        if not found:
            return None
        name, kernel = found
        self.kernels[name] = kernel
        return name

    @cached_property
    def _written_rule(self) -> Any:
        return tvm_ffi.get_global_func("distir.rules.OfCallsIn")(self._mod or tvm.IRModule())

    @cached_property
    def _resized(self) -> Any:
        return tvm_ffi.get_global_func("distir.rules.ResizedKernels")(self._mod or tvm.IRModule())


def is_kernel_call(call: relax.Call) -> bool:
    """Returns whether a call is of a TIR kernel."""
    is_operator = isinstance(call.op, tvm.ir.Op)
    return is_operator and len(call.args) > 0 and isinstance(call.args[0], tvm.ir.GlobalVar)


def _dims(tensors: Sequence[Sequence[Sequence[int]]]) -> tuple[tuple[Dim, ...], ...]:
    return tuple(tuple(tuple(dim) for dim in tensor) for tensor in tensors)
