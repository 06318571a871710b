"""Partitions a model, runs it on CPU workers, and reports its communication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import distir_ext as dx
from distir_ext.analysis import Collective
from models.case import Model

LIMIT = 1e-5
"""Reductions in another order change float32 sums by some 1e-7; a wrong shard changes them by 1."""


@dataclass(frozen=True)
class Outcome:
    """Result of running a model under a plan."""

    error: float
    """Relative root mean square error of the result."""

    collectives: tuple[Collective, ...]
    """Collectives of the program in one step."""

    @property
    def correct(self) -> bool:
        """True if the error is below :data:`LIMIT`; NaN is not."""
        return self.error < LIMIT

    @property
    def count(self) -> int:
        """Number of collectives in one step."""
        return sum(each.count for each in self.collectives)

    @property
    def bytes_per_device(self) -> int:
        """Bytes that a device sends in one step."""
        return sum(each.count * (each.bytes_per_device or 0) for each in self.collectives)


def run(
    model: Model, plan: str, step: Callable[[str], None] = lambda _: None, workers: int = 4
) -> Outcome:
    """Runs a model under one of its plans.

    Args:
        model: The model.
        plan: A key of ``model.partitions``.
        step: Called with the name of each step as it begins.
        workers: Number of CPU workers.

    Raises:
        ValueError: The result has another shape than the framework's.
    """
    partition = model.partitions[plan]
    mesh = partition.mesh(workers)
    step("partition")
    lowered = dx.lower(dx.annotate(model.module, mesh, partition.patterns))
    step("compile")
    executable = dx.build(lowered)
    step("run")
    with dx.Session(mesh) as session:
        loaded = session.load(executable, params=model.weights)
        actual = np.asarray(loaded["main"](*model.inputs.values()).numpy())
    if actual.shape != model.expected.shape:
        raise ValueError(f"{model.name}: result {actual.shape}, expected {model.expected.shape}")
    difference = np.sqrt(np.mean((actual.astype(np.float64) - model.expected) ** 2))
    error = difference / np.sqrt(np.mean(model.expected.astype(np.float64) ** 2))
    return Outcome(float(error), tuple(dx.analysis.collectives(lowered)))
