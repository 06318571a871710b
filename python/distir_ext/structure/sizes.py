"""Lists the symbolic sizes of a module, and replaces them by numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tvm
from tvm import relax

from distir_ext.text.errors.spelling import did_you_mean


def symbolic_sizes(mod: tvm.IRModule) -> list[str]:
    """The names of the symbolic sizes that parameters have, in their order."""
    found: dict[str, None] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for param in function.params:
                found.update(dict.fromkeys(_symbolic(param.ty)))
    return list(found)


def bind_sizes(mod: tvm.IRModule, sizes: Mapping[str, int]) -> tvm.IRModule:
    """The module with numbers for some of its symbolic sizes, in all functions that have them.

    Raises:
        ValueError: There is no such size, or a number is none of a size.
    """
    if not sizes:
        return mod
    found = symbolic_sizes(mod)
    for name, value in sizes.items():
        if name not in found:
            known = f"they are {', '.join(found)}" if found else "it has none"
            raise ValueError(
                f"the module has no symbolic size {name!r}{did_you_mean(name, found)}; {known}"
            )
        if not (isinstance(value, int) and value > 0):
            raise ValueError(f"size {name!r} is a positive integer, not {value!r}")
    bind = tvm.transform.Sequential(
        [
            relax.transform.BindSymbolicVars(_of_function(function, sizes), name.name_hint)
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function) and _of_function(function, sizes)
        ]
    )
    return bind(mod)


def with_sizes(
    mod: tvm.IRModule, sizes: Mapping[str, int], default: int | None = None
) -> tuple[tvm.IRModule, tuple[str, ...]]:
    """The module with numbers for all of its symbolic sizes, and the sizes that got the default.

    Raises:
        ValueError: As :func:`bind_sizes`; or a size has no value, and there is no default.
    """
    lacking = tuple(name for name in symbolic_sizes(mod) if name not in sizes)
    mod = bind_sizes(mod, sizes)
    if not lacking:
        return mod, ()
    if default is None:
        stated = ", ".join(f"{name!r}: ..." for name in lacking)
        raise ValueError(f"symbolic sizes need values: sizes={{{stated}}}")
    return bind_sizes(mod, dict.fromkeys(lacking, default)), lacking


def _of_function(function: relax.Function, sizes: Mapping[str, int]) -> dict[str, int]:
    names = {name for param in function.params for name in _symbolic(param.ty)}
    return {name: value for name, value in sizes.items() if name in names}


def _symbolic(type_: Any) -> Iterator[str]:
    """The names of symbolic sizes in a type."""
    if isinstance(type_, relax.TupleType):
        for field in type_.fields:
            yield from _symbolic(field)
        return
    tensor = getattr(type_, "tensor_ty", type_)
    shape = getattr(tensor, "shape", None)
    values = getattr(shape if shape is not None else type_, "values", None) or ()
    for size in values:
        if not isinstance(size, tvm.tirx.IntImm):
            yield from (str(var.name) for var in tvm.tirx.analysis.undefined_vars(size))
