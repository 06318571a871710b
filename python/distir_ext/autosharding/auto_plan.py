"""Result of automatic sharding: a plan, its cost and its reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tvm

from distir_ext.analysis.costs import Estimate
from distir_ext.autosharding.reasons import WeightChoice
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh
from distir_ext.text.display import Printed

Dims = tuple[str | tuple[str, ...] | None, ...]


@dataclass(frozen=True)
class AutoStage:
    """A stage of a pipeline whose cuts were searched."""

    mesh: Mesh
    """Its devices."""

    begins: str
    """The variable with which it begins, empty for the first stage."""

    seconds: float
    """Seconds of a microbatch as the search adds them up."""

    bound: float
    """Seconds than which no plan of this stage takes less, by the costs of the search."""


@dataclass(frozen=True, repr=False)
class AutoPlan(Printed):
    """A plan that was searched, with a bound of how good any plan can be.

    ``print`` shows tables, and notebooks show them as HTML. :attr:`mod` goes to ``dx.lower``,
    ``dx.build`` and all else that takes annotated modules.
    """

    mod: tvm.IRModule
    """The module with annotations."""

    mesh: Mesh
    """The mesh."""

    cluster: Cluster
    """The devices that it was searched for."""

    plan: Mapping[str, Dims]
    """What is annotated in the main function, as a plan of :func:`distir_ext.annotate`: from
    names of parameters and variables to dims."""

    weights: tuple[WeightChoice, ...]
    """Parameters, with the reason why each is sharded so."""

    searched_seconds: float
    """Seconds of one call as the search adds them up."""

    bound: float
    """Seconds than which no plan takes less, by the costs of the search."""

    estimate: Estimate
    """Work, bytes sent and memory of each device, of the annotated module once it is lowered."""

    memory_limit: float
    """Bytes that a device may hold."""

    least_memory: float
    """Bytes than which no plan needs less, by the figures of the search."""

    seconds: float
    """Seconds of one call by :func:`distir_ext.analysis.estimate`; of several microbatches or
    stages, of all microbatches by :func:`distir_ext.analysis.simulate`."""

    microbatches: int = 1
    """Number of microbatches. If there are several, :attr:`estimate` is for one of them."""

    stages: tuple[AutoStage, ...] = ()
    """Stages of a pipeline; none if all devices do the same. :attr:`mod` is cut into them."""

    others: tuple[AutoPlan, ...] = ()
    """The best plans of other meshes, the fastest first, if the mesh was chosen, too."""

    @property
    def memory(self) -> float:
        """Bytes that a device holds at the peak, by the estimate."""
        return self.estimate.peak_memory

    def to_json(self) -> str:
        """Returns the plan as JSON, with those of other meshes."""
        return json.dumps({**self._data(), "others": [each._data() for each in self.others]})

    def _data(self) -> dict[str, Any]:
        return {
            "mesh": _sizes(self.mesh),
            "seconds": self.seconds,
            "bound": self.bound,
            "gap": self.gap,
            "memory": self.memory,
            "memory_limit": self.memory_limit,
            "least_memory": self.least_memory,
            "microbatches": self.microbatches,
            "stages": [
                {
                    "mesh": _sizes(each.mesh),
                    "device_ids": list(each.mesh.device_ids),
                    "begins": each.begins,
                    "seconds": each.seconds,
                    "bound": each.bound,
                }
                for each in self.stages
            ],
            "plan": dict(self.plan),
            "weights": [asdict(each) for each in self.weights],
        }

    @property
    def gap(self) -> float:
        """Part of its time by which the plan may exceed the best one."""
        if self.searched_seconds <= 0:
            return 0.0
        return max(0.0, 1 - self.bound / self.searched_seconds)


def _sizes(mesh: Mesh) -> dict[str, int]:
    return dict(zip(mesh.axis_names, mesh.shape, strict=True))
