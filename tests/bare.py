"""Modules without what passes note in them for people."""

import tvm
from tvm import relax

NOTES = ("distir.made", "distir.open", "distir.shardings", "distir.stated")


def bare(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without the attributes that only ``dx.explain`` reads, to compare programs."""
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for name, function in mod.functions_items():
        if isinstance(function, relax.Function):
            for note in NOTES:
                function = function.without_attr(note)
            result.update_func(name, function)
    return result
