"""States the plan FSDP (ZeRO 3): the largest dimension of each parameter, and the batch."""

from __future__ import annotations

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import fully_sharded
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Statements


def state_fully_sharded(names: ModelNames, axes: Axes, min_elements: int, to: Statements) -> None:
    """Shards the largest dimension of each parameter that the devices divide.

    Args:
        names: Of the model.
        axes: The mesh.
        min_elements: Parameters with fewer elements are left to propagation.
        to: Gets it.
    """
    axis = axes.need("fsdp")
    shards = axes.size(axis)
    for name, parameter in names.parameters.items():
        dim, reason = fully_sharded(tuple(parameter.shape), shards, axis, min_elements)
        if dim is None:
            to.notes.append(f"{name}: left to propagation, {reason}")
        else:
            to.shard(axes, name, parameter, dim, axis, reason)
