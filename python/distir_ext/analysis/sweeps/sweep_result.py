"""Result of a sweep: a row for each configuration, the best of them, a table, a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh
from distir_ext.text.display import Printed, figure
from distir_ext.text.printable import shown


@dataclass(frozen=True)
class SweepRow:
    """A mesh, a plan and a number of microbatches, and what they cost.

    Figures are None where there is an error.
    """

    mesh: Mesh
    """The devices."""

    plan: str
    """The name of the plan."""

    microbatches: int
    """Into how many the batch is divided."""

    seconds: float | None = None
    """Of the batch, all microbatches, as :func:`simulate` says."""

    throughput: float | None = None
    """The batch size by these seconds; None where no batch was named."""

    peak_memory: float | None = None
    """Bytes, of the device that needs most, as :attr:`Estimate.peak_memory`."""

    fits: bool = False
    """True if the peak memory is within the limit."""

    bytes_sent: float | None = None
    """Bytes that a device sends for the batch, where that is most."""

    bubble: float | None = None
    """The part of the devices' time in which they are idle, 0 to 1."""

    exposed_communication: float | None = None
    """Seconds in which a device communicates and computes nothing, on average."""

    error: str | None = None
    """Why it cannot be partitioned; None where it can."""

    unused_axes: tuple[str, ...] = ()
    """Axes of more than one device along which the plan shards nothing, so that these compute the
    same."""

    def __str__(self) -> str:
        sizes = zip(self.mesh.axis_names, self.mesh.shape, strict=True)
        label = ", ".join(f"{shown(name)}={size}" for name, size in sizes) + f", {shown(self.plan)}"
        return label + (f", {self.microbatches} microbatches" if self.microbatches > 1 else "")

    def as_data(self) -> dict[str, Any]:
        """The row as a dict; the mesh as a dict from axis to size."""
        sizes = dict(zip(self.mesh.axis_names, self.mesh.shape, strict=True))
        return {**vars(self), "mesh": sizes}


@dataclass(frozen=True, repr=False)
class Sweep(Printed):
    """Costs of the configurations of a model on a cluster.

    ``print`` shows a table, the best first, notebooks show it as HTML.
    """

    cluster: Cluster
    """The cluster that the sweep is simulated for."""

    memory_limit: float
    """Bytes that a device may hold."""

    configurations: tuple[SweepRow, ...]
    """In the order in which they were stated, meshes, then plans, then microbatches."""

    def rows(self) -> list[dict[str, Any]]:
        """The configurations as dicts, for ``pandas.DataFrame``."""
        return [row.as_data() for row in self.configurations]

    @property
    def ranked(self) -> tuple[SweepRow, ...]:
        """Rows that fit, then rows that do not, then rows with errors.

        Each by time; of equally fast ones the one with less memory comes first, then the one that
        sends less.
        """

        def rank(row: SweepRow) -> tuple[bool, bool, float, float, float]:
            figures = (row.seconds, row.peak_memory, row.bytes_sent)
            seconds, memory, sent = (each or 0.0 for each in figures)
            return row.error is not None, not row.fits, seconds, memory, sent

        return tuple(sorted(self.configurations, key=rank))

    @property
    def best(self) -> SweepRow | None:
        """The first of :attr:`ranked`, which is the fastest that fits. None where nothing fits."""
        return next((row for row in self.ranked if row.fits), None)

    def pareto(self) -> tuple[SweepRow, ...]:
        """Rows that fit, and that no other row beats.

        One beats another if it is not worse in time, memory and bytes sent, and better in one of
        them. Of equal ones all are there.

        Returns:
            By time, ascending.
        """
        fitting = [row for row in self.ranked if row.fits]
        figures = [(row.seconds, row.peak_memory, row.bytes_sent) for row in fitting]
        points = np.array(figures, float).reshape(-1, 3)
        return tuple(
            row
            for row, point in zip(fitting, points, strict=True)
            if not np.any(np.all(points <= point, axis=1) & np.any(points < point, axis=1))
        )

    def to_json(self) -> str:
        """Returns the sweep as JSON."""
        data = {
            "links": self.cluster.as_data(),
            "memory_limit": self.memory_limit,
            "configurations": self.rows(),
        }
        return json.dumps(data)

    def plot(self) -> Any:
        """Draws time and memory with matplotlib (``pip install 'distir-ext[plot]'``).

        Those that no other one beats in both have a label, whether they fit or not; of equal ones
        the first. The limit is drawn where a configuration holds more than half of it.

        Returns:
            A ``matplotlib.figure.Figure``, which notebooks show.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: There is no configuration without an error.
        """
        return figure(self)

    def __len__(self) -> int:
        return len(self.configurations)
