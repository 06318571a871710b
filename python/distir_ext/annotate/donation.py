"""Donates inputs of functions: results may take their memory."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from distir_ext.annotate.annotations import function_to_annotate
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown

DONATED_ATTRIBUTE = "distir.donated"
"""Attribute of a function: names of the parameters that are donated."""


@short_tracebacks
def donate(mod: tvm.IRModule, names: Sequence[str], *, func: str = "main") -> tvm.IRModule:
    """Donates inputs of a function, as ``donate_argnames`` of ``jax.jit``.

    A call uses up an array on the workers that is passed for such an input: results of its shape,
    dtype and sharding take its memory where they can, and the array cannot be used again. Arrays of
    the host stay as they are; the workers' copies of them are used up.

    Example::

        mod = dx.donate(mod, ["cache"])
        ...
        logits, cache = model["main"](token, cache)

    Args:
        mod: The module, annotated or not; it is not changed.
        names: Names of inputs, in place of those that were donated before.
        func: Name of the function.

    Returns:
        The module with an attribute at the function.

    Raises:
        ValueError: There is no such function or parameter, several have the name, or it is named
            twice. ``lower`` and ``build`` refuse a parameter that is a weight.
    """
    function = function_to_annotate(mod, func)
    if isinstance(names, str):
        raise ValueError(f"names is {names!r}, not a list of names")
    known = [str(each.name) for each in function.params]
    for at, name in enumerate(names):
        if name not in known:
            raise ValueError(
                f"{func} has no parameter {shown(str(name))} to donate"
                f"{did_you_mean(str(name), known)}"
            )
        if known.count(name) > 1:
            raise ValueError(f"several parameters of {func} have the name {shown(name)}")
        if name in names[:at]:
            raise ValueError(f"names has {shown(name)} twice")
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    donating = function.with_attr(DONATED_ATTRIBUTE, list(names))
    result.update_func(result.get_global_var(func), donating)
    return result
