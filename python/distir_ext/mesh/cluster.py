"""Describes devices and links: compute rates, memory, latency and bandwidth, for cost models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import tvm
import tvm_ffi

from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.collective_records import records
from distir_ext.native.cpu_target import is_cpu
from distir_ext.text.display import Shown
from distir_ext.text.printable import shown
from distir_ext.text.spelling import did_you_mean
from distir_ext.text.tracebacks import short_tracebacks

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


@dataclass(frozen=True)
class Device(Shown):
    """Compute rates and memory of one device.

    Raises:
        ValueError: A rate or size is not positive and finite.
        TypeError: ``flops`` or ``caches`` is no mapping.

    Example:
        >>> Device("mine", {"float32": 1e12}, memory=16 * 10**9, bandwidth=100e9, launch=5e-6).name
        'mine'
    """

    name: str
    """Name in reports."""

    flops: Mapping[str, float]
    """Floating-point operations per second, by element type. A type that is not listed is computed
    as the next wider one that is."""

    memory: float
    """Bytes."""

    bandwidth: float
    """Bytes per second between memory and the device."""

    launch: float
    """Seconds that a kernel takes at least, however little it does."""

    target: str = "cuda"
    """A target of ``dx.build`` as text, which decides the kernels of a program and their fusion,
    such as ``"llvm"``, ``"cuda"`` or ``"nvidia/nvidia-a100"``."""

    caches: Mapping[float, float] = field(default_factory=dict)
    """Bytes per second of kernels that access at most so many bytes, by these. Where caches still
    hold what was accessed before, it is faster than :attr:`bandwidth`. May be empty."""

    loops: float | None = None
    """Operations per second on float32 of kernels that TVM generates from loops, where products
    are computed by a library at the rates of :attr:`flops`, as on CPUs; None if these hold for all.
    Other types are as much faster or slower as they are by :attr:`flops`."""

    transcendentals: float | None = None
    """Per second, what an estimate counts as ``transcendentals``: logarithms, tanh and the like.
    None if they take no time beside operations and bytes."""

    step: float = 0.0
    """Seconds that a call of a program takes on each device besides its kernels and collectives:
    workers are woken one after the other, and leave their cores to each other."""

    queued_step: float | None = None
    """Seconds, as :attr:`step`, of each later microbatch of a call, which workers find in their
    queues; None if it is equal to :attr:`step`."""

    @short_tracebacks
    def __post_init__(self) -> None:
        for what, rates_of in (("flops", self.flops), ("caches", self.caches)):
            if not isinstance(rates_of, Mapping):
                raise TypeError(f"{what} of device {self.name!r} are a mapping, not {rates_of!r}")
        rates = {f"{dtype} operations per second": rate for dtype, rate in self.flops.items()}
        rates |= {f"bytes per second of {size:g} bytes": rate for size, rate in self.caches.items()}
        rates |= {"bytes of memory": self.memory, "memory bandwidth": self.bandwidth}
        others = {
            "operations per second of loops": self.loops,
            "transcendentals per second": self.transcendentals,
        }
        rates |= {what: rate for what, rate in others.items() if rate is not None}
        for what, value in rates.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the {what} of device {self.name!r} are positive, not {value}")
        if not self.flops:
            raise ValueError(f"device {self.name!r} states no operations per second")
        of_steps = (("step", self.step), ("queued step", self.queued_step or 0.0))
        for what, seconds in (("kernel", self.launch), *of_steps):
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(
                    f"a {what} of device {self.name!r} takes at least 0 seconds, not {seconds}"
                )
        if self.target not in ("cuda", "llvm"):  # of these, TVM looks for the device
            try:
                tvm.target.Target(self.target)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"the target of device {self.name!r} is {self.target!r}, which TVM does not "
                    "know; name one of dx.build, as 'llvm', 'cuda' or 'nvidia/nvidia-h100'"
                ) from error

    @property
    def is_cpu(self) -> bool:
        """True if LLVM compiles its kernels for tensors in a host's memory."""
        return is_cpu(self.target)

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.flops.items())), self.memory, self.bandwidth))

    def bandwidth_of(self, num_bytes: float) -> float:
        """Bytes per second of a kernel that accesses so many bytes.

        Args:
            num_bytes: Bytes that the kernel reads and writes.

        Returns:
            The rate of the smallest of ``caches`` that takes so many bytes, else ``bandwidth``.

        Example:
            >>> caches = {1e6: 4e11, 1e5: 8e11}
            >>> device = Device("mine", {"float32": 1e12}, 16e9, 100e9, 5e-6, caches=caches)
            >>> [device.bandwidth_of(size) for size in (1e5, 2e5, 2e6)]
            [800000000000.0, 400000000000.0, 100000000000.0]
        """
        sizes = [size for size in self.caches if num_bytes <= size]
        return self.caches[min(sizes)] if sizes else self.bandwidth

    def seconds_of_step(self, microbatches: int) -> float:
        """Returns the overhead of one call, on average over a number of microbatches.

        Args:
            microbatches: Microbatches that are queued one behind the other, at least 1.

        Returns:
            The mean in seconds, where the first takes ``step`` and each later one ``queued_step``.

        Raises:
            ValueError: There is no microbatch.

        Example:
            >>> device = Device("mine", {"float32": 1e12}, 16e9, 100e9, 0, step=5e-5, queued_step=0)
            >>> [device.seconds_of_step(count) for count in (1, 10)]
            [5e-05, 5e-06]
        """
        if microbatches < 1:
            raise ValueError(f"microbatches is {microbatches}; it must be at least 1")
        later = self.step if self.queued_step is None else self.queued_step
        return (self.step + (microbatches - 1) * later) / microbatches

    def seconds_of(
        self, operations: Mapping[str, float], transcendentals: float, is_loop: bool
    ) -> float:
        """Returns the seconds that a kernel computes, without its memory traffic.

        Args:
            operations: By element type.
            transcendentals: As well.
            is_loop: Whether TVM generates the kernel.

        Raises:
            ValueError: There is no rate for an element type.

        Example:
            >>> device = Device("mine", {"float32": 1e12}, 16e9, 100e9, 5e-6, loops=1e10)
            >>> [device.seconds_of({"float32": 1e10}, 0, is_loop) for is_loop in (False, True)]
            [0.01, 1.0]
        """
        seconds = sum(count / self.rate(dtype) for dtype, count in operations.items())
        if is_loop and self.loops is not None:
            seconds *= self.rate("float32") / self.loops
        if self.transcendentals is not None:
            seconds += transcendentals / self.transcendentals
        return seconds

    def rate(self, dtype: str) -> float:
        """Operations per second on numbers of an element type.

        Args:
            dtype: An element type, as ``"float16"``. Any other than float16, bfloat16, float32 and
                float64 counts as narrower than these.

        Returns:
            What ``flops`` states for the type, or for the nearest wider one that it lists.

        Raises:
            ValueError: Neither it nor a wider one is listed, or it is no element type.

        Example:
            >>> device = Device("mine", {"float8": 2e12, "float32": 1e12}, 16e9, 100e9, 0)
            >>> [device.rate(dtype) for dtype in ("float8_e4m3fn", "float16")]
            [2000000000000.0, 1000000000000.0]
        """
        if dtype not in self.flops:
            try:
                tvm_ffi.dtype(dtype)
            except ValueError as error:
                raise ValueError(f"{dtype!r} is no element type") from error
        family = ("float8",) if dtype.startswith("float8") else ()
        for known in (dtype, *family, *_WIDER.get(dtype, _WIDER["float8"])):
            if known in self.flops:
                return self.flops[known]
        raise ValueError(
            f"device {self.name!r} states no operations per second for {dtype}; it states "
            f"{', '.join(self.flops)}"
        )


_WIDER = {
    "float64": (),
    "float32": ("float64",),
    "float16": ("bfloat16", "float32", "float64"),
    "bfloat16": ("float16", "float32", "float64"),
    "float8": ("float16", "bfloat16", "float32", "float64"),
}

_GPU_LAUNCH = 4e-6
"""An assumption: what a small kernel takes from its launch to the next one on a stream."""

_HOPPER = {"float64": 34e12, "float32": 67e12, "float16": 989e12, "bfloat16": 989e12}

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        # NVIDIA A100 data sheet, 80GB SXM: float16 by tensor cores without sparsity, others without
        # tensor cores.
        Device(
            "A100",
            {"float64": 9.7e12, "float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12},
            memory=80e9,
            bandwidth=2039e9,
            launch=_GPU_LAUNCH,
            target="nvidia/nvidia-a100",
        ),
        # NVIDIA H100 data sheet, SXM5; its tensor figures are with sparsity, halved here.
        Device("H100", _HOPPER, 80e9, 3.35e12, _GPU_LAUNCH, target="nvidia/nvidia-h100"),
        # NVIDIA H200 data sheet, SXM: the same chip with other memory.
        Device("H200", _HOPPER, 141e9, 4.8e12, _GPU_LAUNCH, target="nvidia/nvidia-h100"),
        # NVIDIA DGX B200 data sheet, an eighth of the system, sparsity halved; FP32 and FP64: HGX
        # B200.
        Device(
            "B200",
            {"float64": 37e12, "float32": 75e12, "float16": 2.25e15, "bfloat16": 2.25e15},
            memory=180e9,
            bandwidth=8e12,
            launch=_GPU_LAUNCH,
            target='{"kind": "cuda", "arch": "sm_100a"}',
        ),
        # AMD Instinct MI300X data sheet: matrix rates without sparsity, vector FP32 and FP64.
        Device(
            "MI300X",
            {"float64": 81.7e12, "float32": 163.4e12, "float16": 1307.4e12, "bfloat16": 1307.4e12},
            memory=192e9,
            bandwidth=5.3e12,
            launch=_GPU_LAUNCH,
        ),
        # Google Cloud documentation, TPU v5p, per chip. TVM has no code for it: its programs are
        # taken to be those of a GPU. The float32 rate is an assumption: three bfloat16 passes.
        Device(
            "TPU v5p",
            {"float32": 153e12, "bfloat16": 459e12},
            memory=95 * 2**30,
            bandwidth=2765e9,
            launch=_GPU_LAUNCH,
        ),
    )
}
"""Devices by name: peak rates of their makers' data sheets, which no program reaches."""

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
        device = _device_named(name)
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


def as_device(device: Device | str | Mapping[str, Any] | None) -> Device | None:
    """A device from what users state.

    Raises:
        ValueError: There is no device of this name, or no such field, or a field lacks.
        TypeError: It is something else.
    """
    if device is None or isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _device_named(device)
    if not isinstance(device, Mapping):
        raise TypeError(f"a device is a distir_ext.Device, not a {type(device).__name__}")
    known = {each.name: each for each in fields(Device)}
    for name in device:
        if name not in known:
            raise ValueError(
                f"a device has no field {name!r}{did_you_mean(str(name), known)}; its fields are "
                f"{', '.join(known)}"
            )
    for name, each in known.items():
        if name not in device and each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"a device needs the field {name!r}")
    return Device(**device)


def _device_named(name: str) -> Device:
    by_name = {each.lower(): device for each, device in DEVICES.items()}
    if name.lower() not in by_name:
        raise ValueError(
            f"there is no device {name!r}{did_you_mean(name, DEVICES)}; there are "
            f"{', '.join(DEVICES)}"
        )
    return by_name[name.lower()]


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
