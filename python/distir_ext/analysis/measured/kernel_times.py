"""Times the kernels of a program on this host's CPU, for use in simulations.

``time_kernels`` takes a module and returns ``KernelTimes``: seconds by kernel, which ``simulate``
takes in place of the roofline's estimates. No session is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm

from distir_ext.analysis.measured.kernel_timing import KernelNames, time_calls
from distir_ext.analysis.programs.planned import PlannedPrograms, planned_programs
from distir_ext.analysis.programs.steps import Step
from distir_ext.analysis.roofline import Roofline
from distir_ext.mesh.cluster import Cluster
from distir_ext.native.machine.cores import allowed_cores
from distir_ext.text.errors.tracebacks import short_tracebacks


@dataclass(frozen=True)
class KernelTimes:
    """Measured times of kernels. ``|`` joins those of several programs."""

    seconds: Mapping[str, float]
    """Of a call, by what a kernel computes and on which shapes."""

    callees: Mapping[str, str]
    """Names of kernels in programs, by the same keys."""

    skipped: Mapping[str, str]
    """Kernels that were not timed, with the reason, by their name in programs. Estimates take the
    roofline's time for them."""

    workers_per_core: float = 1.0
    """Workers per core, at least 1. Times are those of a worker that has its core alone."""

    def __or__(self, other: KernelTimes) -> KernelTimes:
        if self.workers_per_core != other.workers_per_core:
            raise ValueError(
                "these kernels were timed for different numbers of workers: "
                f"{self.workers_per_core:g} and {other.workers_per_core:g} per core"
            )
        return KernelTimes(
            {**self.seconds, **other.seconds},
            {**self.callees, **other.callees},
            {**self.skipped, **other.skipped},
            self.workers_per_core,
        )


@short_tracebacks
def time_kernels(
    mod: tvm.IRModule,
    cluster: Cluster,
    num_workers: int = 2,
    *,
    sizes: Mapping[str, int] | None = None,
) -> KernelTimes:
    """Times the kernels of a program on this host: no worker is started.

    Where a roofline says what a kernel takes at least, this says what it takes here. Kernels are
    compiled as ``dx.build`` would, and run in the order of the program, on as many cores at the
    same time as there are workers, with operands that lie where they lie in the program. Of more
    workers than cores, :func:`simulate` makes those share cores that compute at the same time.

    Args:
        mod: A module in any phase before LowerCCL.
        cluster: Cluster of the simulation; its devices are CPUs, as those of
            :meth:`distir_ext.Cluster.measure`.
        num_workers: Workers that share this host.
        sizes: Values for symbolic sizes, by name.

    Returns:
        What :func:`simulate` takes as ``kernels=``.

    Raises:
        ValueError: As :func:`simulate`; the cluster's devices are no CPUs; the number of workers is
            not positive.
        TypeError: It is no module, or no cluster.

    Example:
        >>> from tvm import relax
        >>> from distir_ext import Device, Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> mod = annotate(builder.get(), Mesh(tp=2), {"w": (None, "tp")})
        >>> cpu = Device("CPU", {"float32": 1e11}, 1e10, 1e10, 1e-6, target="llvm")
        >>> times = time_kernels(mod, Cluster.uniform(device=cpu))
        >>> list(times.callees.values())
        ['matmul']
    """
    if num_workers < 1:
        raise ValueError(f"kernels are timed for at least 1 worker, not {num_workers}")
    known = planned_programs(mod, cluster, sizes)
    if known.device.target != "llvm":
        raise ValueError(
            f"kernels are timed on this host's CPU; the cluster's devices are {known.device.name!r}"
        )
    steps = [step for each in known.kernels.values() for step in each.body.flat()]
    timed = time_calls(known.steps.program, steps, num_workers)
    shared = max(1.0, num_workers / len(allowed_cores()))
    return KernelTimes(timed.seconds, timed.callees, timed.skipped, shared)


def rooflines_of(
    known: PlannedPrograms, kernels: KernelTimes | None
) -> Callable[[float], Roofline]:
    """Times of the steps of a program: those of kernels that were timed, and the roofline's.

    Args:
        known: The program.
        kernels: The timed kernels.

    Returns:
        These times, by how many workers of a core compute at the same time.
    """
    if kernels is None:
        return lambda _: Roofline(known.device)
    names, seconds_of = KernelNames(known.steps.program), kernels.seconds

    def roofline(crowd: float) -> Roofline:
        def timed(step: Step) -> float | None:
            seconds = seconds_of.get(names.of_step(step))
            return None if seconds is None else known.device.launch + crowd * seconds

        return Roofline(known.device, timed)

    return roofline
