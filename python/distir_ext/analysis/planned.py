"""From a module of any phase to what the devices of a cluster run: checked, lowered, planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from distir_ext import transform
from distir_ext._analysis.planned_program import PlannedProgram, plan, resolve_target
from distir_ext._modules import check_module
from distir_ext._signature_attr import has_signature, read_signature
from distir_ext._spelling import did_you_mean
from distir_ext.cluster import Cluster, Device
from distir_ext.compile import lower_for


@dataclass(frozen=True)
class PlannedPrograms:
    """What devices run, before kernels are scheduled."""

    device: Device
    lowered: tvm.IRModule
    """After LowerDistIR."""

    planned: PlannedProgram
    signature: Mapping[str, Any]
    """As :func:`distir_ext._signature_attr.read_signature` gives it."""


def planned_programs(
    mod: Any, cluster: Any, sizes: Mapping[str, int] | None = None
) -> PlannedPrograms:
    """Lowers a copy of a module for a cluster, as ``dx.build`` would, up to TVM's memory plan.

    Args:
        mod: A module in any phase.
        cluster: The devices, with a :class:`distir_ext.Device`.
        sizes: Values for symbolic sizes, by name.

    Raises:
        ValueError: The module has nothing distributed in it, or cannot be lowered; the cluster says
            nothing of its devices; a symbolic size has no value, or there is no such size.
        TypeError: It is no module, or no cluster.
    """
    check_module(mod)
    if not isinstance(cluster, Cluster):
        raise TypeError(f"a cluster is a distir_ext.Cluster, not a {type(cluster).__name__}")
    device = cluster.device
    if device is None:
        raise ValueError(
            "the cluster says nothing of its devices; state device=, as in "
            "Cluster.uniform(device='H100'), or take Cluster.preset('H100')"
        )
    mod = _with_sizes(mod, sizes or {})
    target = resolve_target(device.target)
    lowered = lower_for(mod, None if has_signature(mod) else cluster, target)
    planned = plan(transform.LowerCCL()(lowered), target)
    return PlannedPrograms(device, lowered, planned, read_signature(lowered))


def _with_sizes(mod: tvm.IRModule, sizes: Mapping[str, int]) -> tvm.IRModule:
    """The module with numbers for its symbolic sizes."""
    found: dict[str, None] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for param in function.params:
                found.update(dict.fromkeys(_symbolic(param.ty)))
    for name, value in sizes.items():
        if name not in found:
            known = f"they are {', '.join(found)}" if found else "it has none"
            raise ValueError(
                f"the module has no symbolic size {name!r}{did_you_mean(name, found)}; {known}"
            )
        if not (isinstance(value, int) and value > 0):
            raise ValueError(f"size {name!r} is a positive integer, not {value!r}")
    lacking = [name for name in found if name not in sizes]
    if lacking:
        stated = ", ".join(f"{name!r}: ..." for name in lacking)
        raise ValueError(f"symbolic sizes need values: sizes={{{stated}}}")
    if not sizes:
        return mod
    bind = tvm.transform.Sequential(
        [
            relax.transform.BindSymbolicVars(_of_function(function, sizes), name.name_hint)
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function) and _of_function(function, sizes)
        ]
    )
    return bind(mod)


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
        for var in tvm.tirx.analysis.undefined_vars(size):
            yield str(var.name)
