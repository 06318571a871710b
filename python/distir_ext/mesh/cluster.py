"""Describes clusters: devices and the links between them, with latency and bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distir_ext.mesh.device import Device, as_device, device_named
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.collective_records import records
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown

TIMED_COLLECTIVES = tuple(sorted(each.name for each in records().values() if each.is_timed))
"""Whose times clusters may state."""

Times = tuple[tuple[str, int, float, float], ...]
"""Kind, members, bytes and seconds of collectives."""


@dataclass(frozen=True)
class Link:
    """A device's way to others.

    Messages that a device sends and receives at the same time take
    ``latency + gap * messages + bytes / bandwidth`` seconds (LogGP: Alexandrov and others, "LogGP:
    incorporating long messages into the LogP model", 1995).

    Raises:
        ValueError: A time is negative, the bandwidth is not positive, or a figure is not finite.
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


_NEAR_LINKS: Mapping[str, Link] = {
    # Per direction: NVLink 3 and 5 (the same data sheets), 7 Infinity Fabric links of 64 GB/s, ICI
    # of 1,200 GB/s in both directions. Latencies and gaps as of NVLink 4.
    "A100": Link(latency=3.4e-6, bandwidth=300e9, gap=0.5e-6),
    "H100": NVLINK,
    "H200": NVLINK,
    "B200": Link(latency=3.4e-6, bandwidth=900e9, gap=0.5e-6),
    "MI300X": Link(latency=3.4e-6, bandwidth=448e9, gap=0.5e-6),
    "TPU v5p": Link(latency=3.4e-6, bandwidth=600e9, gap=0.5e-6),
}


class Cluster(Shown):
    """Devices and the links between them. Immutable.

    Two devices of the mesh that differ along several axes are joined by the slowest of the axes'
    links; devices outside of the mesh by the slowest of all. The axes need not be those of a
    program's meshes: what counts is which devices they join.

    Args:
        mesh: The devices.
        links: A link for each axis of the mesh, by name.
        launch: Seconds that starting a collective takes.
        device: Kind of the devices: a :class:`Device`, the name of one in
            :data:`DEVICES`, or its fields as a dict. Only analysis asks for it.

    Raises:
        ValueError: An axis has no link, or a name is no axis of the mesh; there is no such device,
            or no such field of one.
        TypeError: A link is no :class:`Link`, or an argument has another type.

    Example:
        >>> mesh = Mesh((2, 8), ("host", "device"))
        >>> Cluster(mesh, {"host": INFINIBAND, "device": NVLINK})
        Cluster(Mesh((2, 8), ('host', 'device')), host=14 us + 50 GB/s, device=3.4 us + 450 GB/s)
    """

    measure: ClassVar[Callable[..., Cluster]]
    """:func:`distir_ext.analysis.measure_cluster`, which attaches itself."""

    @short_tracebacks
    def __init__(
        self,
        mesh: Mesh | Any,
        links: Mapping[str, Link],
        launch: float = LAUNCH,
        *,
        device: Device | str | Mapping[str, Any] | None = None,
    ) -> None:
        mesh = as_mesh(mesh, "the cluster's mesh")
        if not isinstance(links, Mapping):
            raise TypeError(f"links are a mapping by mesh axis, not a {type(links).__name__}")
        for name in links:
            if name not in mesh.axis_names:
                near = did_you_mean(name, mesh.axis_names)
                raise ValueError(
                    f"there is no mesh axis {name!r}; the axes are {mesh.axis_names}{near}"
                )
        for name in mesh.axis_names:
            if name not in links:
                raise ValueError(f"mesh axis {name!r} has no link")
        self._mesh: Mesh | None = mesh
        self._times: Times = ()
        self._links = tuple(_checked_link(links[name], name) for name in mesh.axis_names)
        self._launch = _checked_launch(launch)
        self._device = as_device(device)

    @classmethod
    @short_tracebacks
    def uniform(
        cls,
        link: Link = NVLINK,
        launch: float = LAUNCH,
        *,
        device: Device | str | Mapping[str, Any] | None = None,
        times: Mapping[str, Mapping[int, Mapping[float, float]]] | None = None,
    ) -> Cluster:
        """Returns a cluster whose devices are all joined alike, as in the default cluster.

        Args:
            link: Link between any two of them.
            launch: Seconds that starting a collective takes.
            device: Kind of the devices.
            times: Seconds of collectives, as measured: by kind (``"all_reduce"``, ``"all_gather"``,
                ``"reduce_scatter"``, ``"all_to_all"``, ``"permute"`` or ``"transfer"``), number of
                members, and bytes of what each of them gives; of the last two, which move pieces
                within a mesh and from one to another, of what a device receives. Estimates and
                simulations take them, interpolated; redistributions are planned by the link.

        Raises:
            ValueError: There is no such device; ``times`` has another form.
        """
        cluster = cls.__new__(cls)
        cluster._mesh = None
        cluster._times = _checked_times(times or {})
        cluster._links = (_checked_link(link, "all"),)
        cluster._launch = _checked_launch(launch)
        cluster._device = as_device(device)
        return cluster

    @classmethod
    @short_tracebacks
    def preset(cls, name: str, hosts: int = 1, devices_per_host: int = 8) -> Cluster:
        """Hosts of a known device, its own links within a host, and InfiniBand between hosts.

        Args:
            name: ``"A100"``, ``"H100"``, ``"H200"``, ``"B200"``, ``"MI300X"`` or ``"TPU v5p"``.
            hosts: Their number.
            devices_per_host: Devices of each.

        Raises:
            ValueError: There is no such device.

        Example:
            >>> Cluster.preset("H100").device.memory
            80000000000.0
        """
        if not isinstance(name, str):
            raise TypeError(f"a preset is the name of a device, not a {type(name).__name__}")
        device = device_named(name)
        link = _NEAR_LINKS[device.name]
        if hosts == 1:
            return cls.uniform(link, device=device)
        return cls.of_hosts(hosts, devices_per_host, within=link, device=device)

    @classmethod
    @short_tracebacks
    def of_hosts(
        cls,
        hosts: int,
        devices_per_host: int,
        within: Link = NVLINK,
        between: Link = INFINIBAND,
        launch: float = LAUNCH,
        *,
        device: Device | str | Mapping[str, Any] | None = None,
    ) -> Cluster:
        """Hosts with devices 0, 1, ... in a row.

        Args:
            hosts: Their number.
            devices_per_host: Devices of each.
            within: The link between devices of a host.
            between: The link between devices of different hosts.
            launch: Seconds that starting a collective takes.
            device: Kind of the devices.
        """
        mesh = Mesh((hosts, devices_per_host), ("host", "device"))
        return cls(mesh, {"host": between, "device": within}, launch, device=device)

    @property
    def links(self) -> dict[str, Link]:
        """The link along each mesh axis; ``"all"`` where all devices are alike."""
        axes = ("all",) if self._mesh is None else self._mesh.axis_names
        return dict(zip(axes, self._links, strict=True))

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Number of devices that each link joins; None for any number."""
        return (None,) if self._mesh is None else self._mesh.shape

    @property
    def launch(self) -> float:
        """Seconds that starting a collective takes."""
        return self._launch

    @property
    def device(self) -> Device | None:
        """The device that the cluster consists of; None where it is not stated."""
        return self._device

    def as_data(self) -> dict[str, Any]:
        """The form in which a module carries it, as the attribute ``distir.cluster``."""
        data: dict[str, Any] = {
            "launch": float(self._launch),
            "latency": [float(link.latency) for link in self._links],
            "gap": [float(link.gap) for link in self._links],
            "bandwidth": [float(link.bandwidth) for link in self._links],
        }
        if self._times:
            data["times"] = [list(row) for row in self._times]
        if self._mesh is not None:
            data["shape"] = list(self._mesh.shape)
            data["device_ids"] = list(self._mesh.device_ids)
        return data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cluster):
            return NotImplemented
        return self.as_data() == other.as_data() and self._device == other._device

    def __hash__(self) -> int:
        return hash((self._mesh, self._links, self._launch))

    def __repr__(self) -> str:
        if self._mesh is None:
            return f"Cluster.uniform({_described(self._links[0])}{self._device_text})"
        links = ", ".join(
            f"{shown(name)}={_described(link)}"
            for name, link in zip(self._mesh.axis_names, self._links, strict=True)
        )
        return f"Cluster({self._mesh!r}, {links}{self._device_text})"

    @property
    def _device_text(self) -> str:
        return "" if self._device is None else f", device={shown(self._device.name)!r}"


def _checked_link(link: Link, name: str) -> Link:
    if not isinstance(link, Link):
        raise TypeError(f"the link of {name!r} is a distir_ext.Link, not a {type(link).__name__}")
    return link


def _checked_launch(launch: float) -> float:
    if not (math.isfinite(launch) and launch >= 0):
        raise ValueError(f"launching a collective takes at least 0 seconds, not {launch}")
    return launch


def _checked_times(times: Mapping[str, Mapping[int, Mapping[float, float]]]) -> Times:
    rows = []
    if not isinstance(times, Mapping):
        raise TypeError(f"times are a mapping by kind of collective, not a {type(times).__name__}")
    for kind, by_members in times.items():
        if kind not in TIMED_COLLECTIVES:
            near = did_you_mean(kind, TIMED_COLLECTIVES)
            raise ValueError(
                f"there are no times of {kind!r}, but of {', '.join(TIMED_COLLECTIVES)}{near}"
            )
        for members, by_bytes in by_members.items():
            if members < 2:
                raise ValueError(f"{kind} has at least 2 members, not {members}")
            for size, seconds in by_bytes.items():
                if not all(math.isfinite(each) and each > 0 for each in (size, seconds)):
                    raise ValueError(
                        f"bytes and seconds of {kind} are positive; {size} bytes have {seconds} s"
                    )
                rows.append((kind, members, float(size), float(seconds)))
    return tuple(sorted(rows))


def _described(link: Link) -> str:
    return f"{link.latency * 1e6:g} us + {link.bandwidth / 1e9:g} GB/s"
