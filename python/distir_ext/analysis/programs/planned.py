"""Lowers a module for a cluster, then runs TVM's fusion and memory planning on its programs.

``estimate``, ``simulate`` and automatic sharding read kernels, collectives and memory from the
result. Kernels are neither scheduled nor compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm

from distir_ext.analysis.programs.planned_program import resolve_target
from distir_ext.analysis.programs.planned_steps import PlannedSteps, planned_steps
from distir_ext.analysis.programs.steps import FunctionSteps, check_size
from distir_ext.communication.collectives import with_notes
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.device import Device
from distir_ext.native.modules import check_module
from distir_ext.passes import transform
from distir_ext.pipelines.lowering import lower_for
from distir_ext.signature.signature_attr import has_signature, read_signature
from distir_ext.structure.sizes import with_sizes


@dataclass(frozen=True)
class PlannedPrograms:
    """Programs of devices before kernels are scheduled."""

    cluster: Cluster
    """Says what its devices are."""

    lowered: tvm.IRModule
    """After LowerDistIR."""

    steps: PlannedSteps
    signature: Mapping[str, Any]
    """As :func:`distir_ext.signature.signature_attr.read_signature` gives it."""

    @property
    def device(self) -> Device:
        """Device that each member of the cluster is taken to be."""
        assert self.cluster.device is not None
        return self.cluster.device

    @cached_property
    def kernels(self) -> Mapping[str, FunctionSteps]:
        """The steps that run, by function; a ValueError if a function has too many."""
        check_size(self.steps.kernels)
        return self.steps.kernels

    @cached_property
    def operators(self) -> Mapping[str, FunctionSteps]:
        """The steps before fusion, by function; a ValueError if a function has too many."""
        check_size(self.steps.operators)
        return self.steps.operators


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
    lowered = lowered_programs(mod, cluster, sizes)
    return PlannedPrograms(
        cluster,
        lowered.module,
        planned_steps(lowered.with_runtime_calls, lowered.target, cluster.as_data()),
        lowered.signature,
    )


@dataclass(frozen=True)
class LoweredPrograms:
    """Programs of devices before TVM's passes."""

    target: tvm.target.Target
    module: tvm.IRModule
    """After LowerDistIR."""

    @cached_property
    def with_runtime_calls(self) -> tvm.IRModule:
        """After LowerCCL; collectives carry what the module says of them."""
        return transform.LowerCCL()(with_notes(self.module))

    @cached_property
    def signature(self) -> Mapping[str, Any]:
        """As :func:`distir_ext.signature.signature_attr.read_signature` gives it."""
        return read_signature(self.module)


def lowered_programs(
    mod: Any, cluster: Any, sizes: Mapping[str, int] | None = None
) -> LoweredPrograms:
    """Lowers a copy of a module for a cluster; arguments and errors as :func:`planned_programs`."""
    check_module(mod)
    check_cluster(cluster)
    mod, _ = with_sizes(mod, sizes or {})
    target = resolve_target(cluster.device.target)
    lowered = lower_for(mod, None if has_signature(mod) else cluster, target)
    return LoweredPrograms(target, lowered)


def check_cluster(cluster: Any) -> None:
    """Raises an error unless the cluster states its devices.

    Raises:
        ValueError: The cluster has no device.
        TypeError: It is no cluster.
    """
    if not isinstance(cluster, Cluster):
        advice = ", as Cluster.preset('H100')" if cluster is None else ""
        raise TypeError(
            f"a cluster is a distir_ext.Cluster{advice}, not a {type(cluster).__name__}"
        )
    if cluster.device is None:
        raise ValueError(
            "the cluster says nothing of its devices; state device=, as in "
            "Cluster.uniform(device='H100'), or take Cluster.preset('H100')"
        )
