"""Finds functions that are equal but for names and the devices that communicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi


@dataclass(frozen=True)
class FunctionOnDevices:
    """A function of a module."""

    name: str
    like: str
    """The function that it is equal to but for the devices that communicate."""

    communications: Sequence[str]
    """Groups and plans, by the places that the other one has instead, as ``"[0]"``."""

    notes: Sequence[Any]
    """Notes of collectives, by the places that the other one has instead."""

    callees: Mapping[str, str]
    """The functions that it calls, by the names that the other one has for them."""

    variables: Sequence[str]
    """Its parameters and variables, in program order. Equal functions have as many."""


class FunctionComparer:
    """Compares functions of modules that come one after the other.

    ``src/analysis/equal_functions.h`` says which are equal.
    """

    def __init__(self) -> None:
        self._compare = tvm_ffi.get_global_func("distir.analysis.EqualFunctions")()

    def __call__(self, mod: tvm.IRModule) -> tuple[list[FunctionOnDevices], tvm.IRModule] | None:
        """The functions of a module after LowerCCL, and a module of those that none is equal to.

        Returns:
            Functions, callees first; None where what TVM does with one of them depends on others.
        """
        found = self._compare(mod)
        if found is None:
            return None
        functions, others = found
        return [
            FunctionOnDevices(
                str(name),
                str(like),
                tuple(map(str, communications)),
                notes,
                {str(key): str(value) for key, value in callees.items()},
                variables,
            )
            for name, like, communications, notes, callees, variables in functions
        ], others
