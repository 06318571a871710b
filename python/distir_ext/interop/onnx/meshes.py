"""Makes the meshes of an ONNX device configuration: one for each set of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distir_ext.interop._arrangements import CommonMesh
from distir_ext.interop.onnx.labels import node_label
from distir_ext.interop.onnx.targets import Plan, Target
from distir_ext.mesh.mesh import Mesh


class PlanMeshes:
    """The meshes, in the order of the plan's sets of devices.

    Args:
        plan: Target of each tensor.
        protos: The nodes of the graph, whose names messages have.
    """

    def __init__(self, plan: Plan, protos: Sequence[Any]) -> None:
        self.problems: list[str] = []
        """Shardings that no mesh can express."""
        self._common = {devices: CommonMesh(devices) for devices in plan.device_sets}
        for index, targets in plan.nodes.items():
            for tensor, target in (*targets.inputs.items(), *targets.outputs.items()):
                if target.arrangement is None:
                    continue
                try:
                    self._common[target.devices].add(target.arrangement)
                except ValueError as error:
                    label = node_label(protos[index], index)
                    self.problems.append(f"{label}, tensor {tensor!r}: {error}")
        self._meshes = {devices: common.mesh() for devices, common in self._common.items()}
        self._axes: dict[Target, list[tuple[str, ...]]] = {}

    @property
    def all(self) -> list[Mesh]:
        """The meshes."""
        return list(self._meshes.values())

    def of(self, target: Target) -> Mesh:
        """The mesh of a target."""
        return self._meshes[target.devices]

    def axes_of(self, target: Target) -> list[tuple[str, ...]]:
        """The mesh axes that each axis of a target is sharded over."""
        if target.arrangement is None:
            return []
        if target not in self._axes:
            self._axes[target] = self._common[target.devices].axes_of(target.arrangement)
        return self._axes[target]
