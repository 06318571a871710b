"""Describes one device: compute rates and memory, for cost models; and those known by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import tvm
import tvm_ffi

from distir_ext.native.machine.cpu_target import is_cpu
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks


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


def as_device(device: Device | str | Mapping[str, Any] | None) -> Device | None:
    """A device from what users state.

    Raises:
        ValueError: There is no device of this name, or no such field, or a field lacks.
        TypeError: It is something else.
    """
    if device is None or isinstance(device, Device):
        return device
    if isinstance(device, str):
        return device_named(device)
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


def device_named(name: str) -> Device:
    """One of :data:`DEVICES`, in letters of any case.

    Raises:
        ValueError: There is none of this name.
    """
    by_name = {each.lower(): device for each, device in DEVICES.items()}
    if name.lower() not in by_name:
        raise ValueError(
            f"there is no device {name!r}{did_you_mean(name, DEVICES)}; there are "
            f"{', '.join(DEVICES)}"
        )
    return by_name[name.lower()]
