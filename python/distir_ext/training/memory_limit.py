"""Chooses which activations of a training step are computed again, by a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from distir_ext.analysis.estimate import estimate
from distir_ext.annotate.patterns import annotate
from distir_ext.mesh.cluster import Cluster

_MOST_REGIONS = 256


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that a device may hold in a training step, under a plan.

    Attributes:
        most_bytes: Highest peak of a device, as :func:`distir_ext.analysis.estimate` states it:
            state, inputs, results and activations.
        mesh: The mesh, as in :func:`distir_ext.annotate`.
        plan: Shardings of the step, as there.
        cluster: The devices, as in ``estimate``.
    """

    most_bytes: int
    mesh: Any
    plan: Mapping[str, Any]
    cluster: Cluster

    def fitting_step(self, make: Callable[[int | None], tvm.IRModule]) -> tvm.IRModule:
        """The step that computes least, of those that fit.

        Args:
            make: Makes the step with a number of regions, or None for none.

        Raises:
            ValueError: None fits.
        """
        fitting: list[tuple[float, tvm.IRModule]] = []
        least: tuple[float, int] | None = None
        regions = 1
        while regions <= _MOST_REGIONS:
            step = make(None if regions == 1 else regions)
            found = estimate(annotate(step, self.mesh, dict(self.plan)), self.cluster)
            if found.peak_memory <= self.most_bytes:
                if regions == 1:
                    return step
                fitting.append((found.flops, step))
            if least is None or found.peak_memory < least[0]:
                least = found.peak_memory, regions
            elif regions >= 4 * least[1]:
                break  # the values at borders take more than regions save
            regions *= 2
        if fitting:
            return min(fitting, key=lambda each: each[0])[1]
        assert least is not None
        raise ValueError(
            f"the training step needs {least[0]:.0f} bytes on a device of this plan, with "
            f"{least[1]} regions whose activations are computed again, and the limit is "
            f"{self.most_bytes}; shard the state or the batch by more devices"
        )
