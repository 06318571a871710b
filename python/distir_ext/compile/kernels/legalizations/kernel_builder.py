"""Block builder that changes a legalisation's kernels: other operands, edited functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax.utils import gen_call_tir_inputs

__all__ = ["KernelBuilder"]


class KernelBuilder:
    """A block builder whose kernels are made of other operands, and edited.

    Args:
        builder: Builder that does everything else.
        operand: Maps an operand of a kernel, a tensor of ``te`` or a list of them.
        edit: Maps a kernel to the one that replaces it.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        *,
        operand: Callable[[Any], Any] = lambda value: value,
        edit: Callable[[Any], Any] = lambda function: function,
    ) -> None:
        self._builder = builder
        self._operand = operand
        self._edit = edit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def call_te(self, make: Callable[..., Any], *args: Any, **options: Any) -> relax.Call:
        """As that of a block builder."""
        name = options.pop("primfunc_name_hint", None) or make.__name__

        @functools.wraps(make)
        def make_kernel(*args: Any, **options: Any) -> Any:
            options = {key: self._operand(value) for key, value in options.items()}
            return make(*(self._operand(value) for value in args), **options)

        function, operands, types = gen_call_tir_inputs(make_kernel, *args, **options)
        variable = self._builder.add_func(self._edit(function), name)
        return relax.call_tir(variable, operands, types)
