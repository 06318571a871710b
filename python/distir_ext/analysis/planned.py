"""From a module of any phase to what the devices of a cluster run: checked, lowered, planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from distir_ext import transform
from distir_ext._analysis.planned_program import PlannedProgram, plan, resolve_target
from distir_ext._analysis.sizes import with_sizes
from distir_ext._modules import check_module
from distir_ext._signature_attr import has_signature, read_signature
from distir_ext.cluster import Cluster, Device
from distir_ext.lowering import lower_for


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
    mod, _ = with_sizes(mod, sizes or {})
    target = resolve_target(device.target)
    lowered = lower_for(mod, None if has_signature(mod) else cluster, target)
    planned = plan(transform.LowerCCL()(lowered), target)
    return PlannedPrograms(device, lowered, planned, read_signature(lowered))
