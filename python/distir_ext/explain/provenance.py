"""Explains why a tensor has its sharding."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.native.modules import check_module
from distir_ext.structure.weights.fused_parameters import FusedParameters, fused_parameters
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import printable_line

_NAMES_IN_A_MESSAGE = 20
STATED_ATTR = "distir.stated"
"""Of a propagated function: the names of variables whose shardings were annotated, folded."""
_SHARDINGS = "distir.shardings"


def stated_names(function: relax.Function) -> set[str]:
    """The names of a propagated function's variables whose shardings were annotated."""
    attrs = function.attrs
    if attrs is None or STATED_ATTR not in attrs:
        return set()
    unfold = tvm_ffi.get_global_func("distir.ir.UnfoldNames")
    return {str(name) for name in unfold(attrs[STATED_ATTR])}


@dataclass(frozen=True)
class Explanation:
    """Explanation of the sharding of one variable; prints as text."""

    variable: str
    """The variable's name."""

    lines: tuple[str, ...]
    """The pass that made the variable, if one did; for each sharded dimension the chain of
    operators back to an annotation; the axes it is partial over; and its redistributions, with the
    two sides that disagreed, the cost of each, and the annotation that avoids it."""

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return str(self)


@overload
def explain(
    mod: tvm.IRModule, variable: str | relax.Var, func: str | None = None
) -> Explanation: ...


@overload
def explain(
    mod: tvm.IRModule, variable: Sequence[str | relax.Var], func: str | None = None
) -> list[Explanation]: ...


@short_tracebacks
def explain(
    mod: tvm.IRModule,
    variable: str | relax.Var | Sequence[str | relax.Var],
    func: str | None = None,
) -> Explanation | list[Explanation]:
    """Explains the sharding of variables of a module.

    Args:
        mod: A module after any of this package's passes: annotated, propagated, legalised,
            optimised or lowered, also printed and parsed again. One that is only annotated is
            propagated first.
        variable: A parameter or bound variable: its name as the module prints it, or the
            ``relax.Var``; or a weight that ``annotate`` has cut into blocks; or several of them.
        func: The function to look in; all functions by default.

    Returns:
        The explanation, or a list of them. Costs are those of the module's cluster
        (``transform.SetCluster``). Mesh axes that were stated without names are called x, y, z, w.

    Raises:
        ValueError: There is no such function or variable, or nothing in the module is sharded.
        TypeError: ``variable`` is none of these, or ``mod`` no module.
    """
    several = isinstance(variable, Sequence) and not isinstance(variable, str)
    wanted = list(variable) if isinstance(variable, Sequence) and several else [variable]
    for each in wanted:
        if not isinstance(each, str | relax.Var):
            raise TypeError(f"explain takes names and variables, not a {type(each).__name__}")
    mod = propagated(mod)
    names = [
        gv.name_hint
        for gv, function in mod.functions.items()
        if isinstance(function, relax.Function)
    ]
    if func is not None and func not in names:
        listed = ", ".join(sorted(names))
        raise ValueError(f"the module has no Relax function {func!r}; it has: {listed}")
    names = sorted(names) if func is None else [func]
    variables, lines_of = tvm_ffi.get_global_func("distir.explain.Program")(mod)
    fused = {name: fused_parameters(mod[name]) for name in names}
    found = [_explanation(each, fused, variables, lines_of) for each in wanted]
    return found if several else found[0]


def _explanation(
    which: Any, functions: Mapping[str, FusedParameters], variables: Any, lines_of: Any
) -> Explanation:
    name = which if isinstance(which, str) else str(which.name)
    lines: list[str] = []
    for function, fused in functions.items():
        dim, blocks = fused.get(name, (0, ()))
        if blocks:
            listed = ", ".join(f"`{block}`" for block in blocks)
            lines.append(f"`{name}` in `{function}` is {listed}: blocks along dimension {dim}")
        for each in blocks or [which]:
            lines += [str(line) for line in lines_of(function, each)]
        lines += [
            f"  block {blocks.index(name)} of `{weight}` along dimension {dim}, counted from 0"
            for weight, (dim, blocks) in fused.items()
            if name in blocks
        ]
    if not lines and not isinstance(which, str):  # a variable of the module before some pass
        lines = [str(line) for function in functions for line in lines_of(function, name)]
    if not lines:
        known = dict.fromkeys(str(v) for function in functions for v in variables(function))
        near = difflib.get_close_matches(name, known, n=3)
        advice = f" (near: {', '.join(near)})" if near else ""
        raise ValueError(
            f"no variable {name!r} in {', '.join(functions)}{advice}; "
            f"there are: {_shortened(list(known))}"
        )
    return Explanation(name, tuple(map(printable_line, lines)))


def propagated(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, after PropagateSharding if it was only annotated.

    Raises:
        ValueError: Nothing in it is sharded.
        TypeError: It is no module.
    """
    check_module(mod)
    if not _is_sharded(mod):
        mod = tvm_ffi.get_global_func("distir.transform.PropagateSharding")()(mod)
        if not _is_sharded(mod):
            raise ValueError(
                "nothing in the module is sharded; mark some tensors with distir_ext.annotate first"
            )
    return mod


def _is_sharded(mod: tvm.IRModule) -> bool:
    """Returns whether PropagateSharding or a user's types have sharded the tensors of a module."""
    for function in mod.functions.values():
        if not isinstance(function, relax.Function):
            continue
        attrs = function.attrs
        if attrs is not None and (STATED_ATTR in attrs or _SHARDINGS in attrs):
            return True
        if any(_has_dtensor(param.ty) for param in function.params):
            return True
    return False


def _has_dtensor(type_: Any) -> bool:
    if isinstance(type_, relax.TupleType):
        return any(_has_dtensor(field) for field in type_.fields)
    return isinstance(type_, relax.distributed.DTensorType)


def _shortened(names: list[str]) -> str:
    rest = len(names) - _NAMES_IN_A_MESSAGE
    shown = ", ".join(names[:_NAMES_IN_A_MESSAGE])
    return f"{shown} and {rest} more" if rest > 0 else shown
