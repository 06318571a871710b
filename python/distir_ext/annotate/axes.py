"""Finds the mesh axis that a plan shards over: the axis for tensors, for experts, for the batch.

An axis has a role because the user gives it one, or by its name: ``tp``, ``ep``, ``dp``, ``fsdp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distir_ext.mesh.mesh import Mesh
from distir_ext.text.errors.spelling import did_you_mean

ROLES = {
    "tp": ("tp",),
    "ep": ("ep",),
    "fsdp": ("fsdp", "dp", "data"),
    "batch": ("dp", "data", "batch", "fsdp"),
}
"""Roles of axes, and the names of axes that have each role by default."""

_WORDS = {
    "tp": "tensor parallel",
    "ep": "expert parallel",
    "fsdp": "fully sharded",
    "batch": "sharding the batch",
}


@dataclass(frozen=True)
class Axes:
    """A mesh, and the axes that users have given roles.

    Attributes:
        mesh: The mesh.
        given: From roles to axes.
        can_be_given: Whether users can give roles, for messages.
    """

    mesh: Mesh
    given: Mapping[str, str]
    can_be_given: bool = True

    def __post_init__(self) -> None:
        names = self.mesh.axis_names
        for role, axis in self.given.items():
            if role not in ROLES:
                raise ValueError(
                    f"axes= has the role {role!r}; roles are {', '.join(map(repr, ROLES))}"
                    f"{did_you_mean(role, ROLES)}"
                )
            if axis not in names:
                raise ValueError(
                    f"axes= has {role!r} on axis {axis!r}, which the mesh lacks; its axes are "
                    f"{', '.join(names)}{did_you_mean(str(axis), names)}"
                )

    def size(self, axis: str) -> int:
        """Number of devices along an axis."""
        return int(self.mesh.shape[self.mesh.axis_names.index(axis)])

    def find(self, role: str) -> str | None:
        """The axis of a role, by what was given or by its name; None if there is none."""
        if role in self.given:
            return self.given[role]
        named = [name for name in ROLES[role] if name in self.mesh.axis_names]
        free = [name for name in named if name not in self.given.values()]
        return free[0] if free else None

    def need(self, role: str) -> str:
        """The axis of a role; of a mesh with one axis, that one.

        Raises:
            ValueError: It cannot be told which.
        """
        found = self.find(role)
        if found is not None:
            return found
        if len(self.mesh.axis_names) == 1:
            return str(self.mesh.axis_names[0])
        says = f"axes={{{role!r}: ...}}" if self.can_be_given else f"the name {ROLES[role][0]!r}"
        raise ValueError(
            f"the mesh has the axes {', '.join(self.mesh.axis_names)}; {says} says which of them "
            f"is {_WORDS[role]}"
        )
