"""What the devices are joined by: the numbers that redistribution is planned with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from distir_ext.mesh import Mesh, as_mesh

CLUSTER_ATTR = "distir.cluster"


@dataclass(frozen=True)
class Link:
    """A device's way to others.

    Messages that a device sends and receives at the same time take
    ``latency + gap * messages + bytes / bandwidth`` seconds (LogGP: Alexandrov and others, "LogGP:
    incorporating long messages into the LogP model", 1995).
    """

    latency: float
    """Seconds until a message arrives."""

    bandwidth: float
    """Bytes per second, in each of both directions at the same time."""

    gap: float = 0.0
    """Seconds between messages that a device sends at the same time."""

    def __post_init__(self) -> None:
        for name, value in (("latency", self.latency), ("gap", self.gap)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"the {name} of a link is at least 0 seconds, not {value}")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"the bandwidth of a link is positive, not {self.bandwidth}")


NVLINK = Link(latency=3.4e-6, bandwidth=450e9, gap=0.5e-6)
"""NVLink 4: 18 links of 25 GB/s (NVIDIA H100 data sheet), latency of a ring step in NCCL's model
(NCCL 2, src/graph/tuning.cc, protocol Simple); the gap is an assumption."""

INFINIBAND = Link(latency=14e-6, bandwidth=50e9, gap=1e-6)
"""InfiniBand NDR, one 400 Gb/s port per device, latency of a network step in NCCL's model;
the gap is an assumption."""

LAUNCH = 8.4e-6
"""Seconds that starting a collective takes, whatever its size: the base latency of NCCL's model."""


class Cluster:
    """Devices and the links between them. Immutable.

    Two devices of the mesh that differ along several axes are joined by the slowest of the axes'
    links; devices outside of the mesh by the slowest of all. The axes need not be those of a
    program's meshes: what counts is which devices they join.

    Args:
        mesh: The devices.
        links: A link for each axis of the mesh, by name.
        launch: Seconds that starting a collective takes.

    Raises:
        ValueError: An axis has no link, or a name is no axis of the mesh.

    Example:
        >>> mesh = Mesh((2, 8), ("host", "device"))
        >>> Cluster(mesh, {"host": INFINIBAND, "device": NVLINK})
        Cluster(Mesh((2, 8), ('host', 'device')), host=14 us + 50 GB/s, device=3.4 us + 450 GB/s)
    """

    def __init__(self, mesh: Mesh | Any, links: Mapping[str, Link], launch: float = LAUNCH) -> None:
        mesh = as_mesh(mesh, "the cluster's mesh")
        for name in links:
            if name not in mesh.axis_names:
                raise ValueError(f"there is no mesh axis {name!r}; the axes are {mesh.axis_names}")
        for name in mesh.axis_names:
            if name not in links:
                raise ValueError(f"mesh axis {name!r} has no link")
        self._mesh: Mesh | None = mesh
        self._links = tuple(links[name] for name in mesh.axis_names)
        self._launch = _checked_launch(launch)

    @classmethod
    def uniform(cls, link: Link = NVLINK, launch: float = LAUNCH) -> Cluster:
        """All devices joined alike; what is assumed where nothing is stated."""
        cluster = cls.__new__(cls)
        cluster._mesh = None
        cluster._links = (link,)
        cluster._launch = _checked_launch(launch)
        return cluster

    @classmethod
    def of_hosts(
        cls,
        hosts: int,
        devices_per_host: int,
        within: Link = NVLINK,
        between: Link = INFINIBAND,
        launch: float = LAUNCH,
    ) -> Cluster:
        """Hosts with devices 0, 1, ... in a row.

        Args:
            hosts: Their number.
            devices_per_host: Devices of each.
            within: The link between devices of a host.
            between: The link between devices of different hosts.
            launch: Seconds that starting a collective takes.
        """
        mesh = Mesh((hosts, devices_per_host), ("host", "device"))
        return cls(mesh, {"host": between, "device": within}, launch)

    def as_data(self) -> dict[str, Any]:
        """The form in which a module carries it, as the attribute ``distir.cluster``."""
        data: dict[str, Any] = {
            "launch": float(self._launch),
            "latency": [float(link.latency) for link in self._links],
            "gap": [float(link.gap) for link in self._links],
            "bandwidth": [float(link.bandwidth) for link in self._links],
        }
        if self._mesh is not None:
            data["shape"] = list(self._mesh.shape)
            data["device_ids"] = list(self._mesh.device_ids)
        return data

    def __eq__(self, other: object) -> bool:
        return self.as_data() == other.as_data() if isinstance(other, Cluster) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._mesh, self._links, self._launch))

    def __repr__(self) -> str:
        if self._mesh is None:
            return f"Cluster.uniform({_described(self._links[0])})"
        links = ", ".join(
            f"{name}={_described(link)}"
            for name, link in zip(self._mesh.axis_names, self._links, strict=True)
        )
        return f"Cluster({self._mesh!r}, {links})"


def _checked_launch(launch: float) -> float:
    if not (math.isfinite(launch) and launch >= 0):
        raise ValueError(f"launching a collective takes at least 0 seconds, not {launch}")
    return launch


def _described(link: Link) -> str:
    return f"{link.latency * 1e6:g} us + {link.bandwidth / 1e9:g} GB/s"


def SetCluster(cluster: Cluster) -> tvm.transform.Pass:  # noqa: N802 - passes are named as TVM's
    """States the cluster that a module runs on, for the passes that come after.

    Redistributions are planned, and senders chosen, by the module's cluster; without one, all
    devices are taken to be joined by NVLink.
    """
    if not isinstance(cluster, Cluster):
        raise TypeError(f"a cluster is a distir_ext.Cluster, not a {type(cluster).__name__}")

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return mod.with_attr(CLUSTER_ATTR, cluster.as_data())

    return tvm.transform.module_pass(run, opt_level=0, name="SetCluster")
