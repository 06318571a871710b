"""Result classes of ``estimate``: kernels, operators, collectives and memory of each device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.device import Device
from distir_ext.text.display import Printed, figure

_Row = TypeVar("_Row", bound="KernelCost | OperatorCost")


@dataclass(frozen=True)
class Cost:
    """Work of kernels on one device."""

    flops: float = 0.0
    """Floating-point operations, which are additions, multiplications, divisions, minima, maxima
    and roundings. A product of (m, k) and (k, n) is 2 m n k."""

    transcendentals: float = 0.0
    """Calls of exp, log, sqrt, tanh and their like, which :attr:`flops` leaves out."""

    bytes_read: float = 0.0
    """Bytes that come from memory at least once."""

    bytes_written: float = 0.0
    """Bytes that go to memory at least once."""

    seconds: float = 0.0
    """The roofline's bound, which is the longest of computing, memory and the launch."""

    @property
    def bytes_accessed(self) -> float:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.seconds + other.seconds,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            self.flops * times,
            self.transcendentals * times,
            self.bytes_read * times,
            self.bytes_written * times,
            self.seconds * times,
        )


@dataclass(frozen=True)
class OperatorCost:
    """Cost of one call of an operator, without the savings of fusion."""

    function: str
    """The function of the lowered module."""

    name: str
    """The variable that it gives."""

    operator: str
    """As ``relax.matmul``; of a kernel of the module, or a packed function, its name."""

    shapes: tuple[str, ...]
    """Types and local shapes of the tensors that it reads, then of those that it gives."""

    cost: Cost
    """Of one call."""

    bound: str
    """``"compute"``, ``"memory"`` or ``"launch"``."""

    count: int
    """Number of runs in one call of the entry function."""

    layer: str
    """The layer of the model, or empty."""

    unknown: str = ""
    """Why the cost is not exact; empty where it is."""


@dataclass(frozen=True)
class KernelCost:
    """One call of a kernel of the program that runs: operators are fused."""

    function: str
    """The function of the lowered module."""

    name: str
    """The variable that it gives."""

    kernel: str
    """Its name, or that of a packed function."""

    shapes: tuple[str, ...]
    """Types and local shapes of the tensors that it reads, then of those that it writes."""

    cost: Cost
    """Of one call."""

    bound: str
    """``"compute"``, ``"memory"`` or ``"launch"``."""

    count: int
    """Number of runs in one call of the entry function."""

    layer: str
    """The layer of the model, or empty."""

    live_bytes: float
    """Bytes of activations that the device holds meanwhile."""

    unknown: str = ""
    """Why the cost is not exact; empty where it is."""


@dataclass(frozen=True)
class CollectiveCost:
    """One collective of a program."""

    function: str
    """The function of the lowered module."""

    kind: str
    """The operator's name under ``R.ccl``, such as ``all_reduce``."""

    axes: tuple[str, ...]
    """The mesh axes that it communicates over; none for transfers between meshes."""

    tensors: tuple[str, ...]
    """The variables that are sent; of a receive, those that it gives."""

    operators: tuple[str, ...]
    """The operators because of which it is there (:attr:`Collective.operators`)."""

    group_size: int
    """Devices per group."""

    bytes_per_device: float
    """Bytes that a device sends by the ring algorithms; for plans, the one that sends most."""

    seconds: float
    """By the model that redistributions are planned with. A send takes none, since the side that
    receives says how long the transfer takes."""

    count: int
    """Number of runs in one call of the entry function."""

    layer: str
    """The layer of the model, or empty."""

    name: str
    """The variable that it gives."""


@dataclass(frozen=True)
class Memory:
    """Memory of a device while a program runs, in bytes."""

    weights: float
    """Parameters from ``num_input`` on; none where the function does not say, as for a session."""

    inputs: float
    """The other parameters."""

    constants: float
    """Tensors that are part of the program."""

    activations: float
    """Bytes in use at the peak of what TVM's memory plan has allocated, results included."""

    alive: tuple[tuple[str, float], ...]
    """Tensors at the peak by their variables, with their bytes, largest first; and what of the
    storages that they lie in is unused, since these were made for larger ones."""

    at: str
    """The variable that is computed at the peak."""

    held: tuple[tuple[float, float], ...] = ()
    """Of each kernel and collective, in program order, its seconds, and the bytes of activations
    that the device holds meanwhile."""

    @property
    def peak_memory(self) -> float:
        """Bytes in use at the peak."""
        return self.weights + self.inputs + self.constants + self.activations


@dataclass(frozen=True)
class ProgramEstimate:
    """The program that a group of devices runs for one function."""

    name: str
    """The entry function of the lowered module."""

    function: str
    """The function that users call."""

    device_ids: tuple[int, ...]
    """Who runs it."""

    operators: tuple[OperatorCost, ...]
    """Before fusion. Both sides of branches are listed; the cheaper one has a count of 0."""

    kernels: tuple[KernelCost, ...]
    """Kernels that run. Both sides of branches are listed; the cheaper one has a count of 0."""

    collectives: tuple[CollectiveCost, ...]
    """Collectives that run. Both sides of branches are listed, as for kernels."""

    memory: Memory
    """On each of the devices."""

    @property
    def cost(self) -> Cost:
        """Work of all kernels in one call on one device."""
        return _total(self.kernels)

    @property
    def collective_seconds(self) -> float:
        """Seconds of all collectives, one after the other."""
        return sum(each.seconds * each.count for each in self.collectives)

    @property
    def seconds(self) -> float:
        """Kernels and collectives one after the other, where nothing overlaps."""
        return self.cost.seconds + self.collective_seconds

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends."""
        return sum(each.bytes_per_device * each.count for each in self.collectives)

    def by_function(self) -> dict[str, Cost]:
        """Kernels by function of the lowered module, with all calls of it, without its callees."""
        return _totals(self.kernels, lambda each: each.function)

    def by_layer(self) -> dict[str, Cost]:
        """Kernels by layer."""
        return _totals(self.kernels, lambda each: each.layer)

    def by_operator(self) -> dict[str, Cost]:
        """Operators by name, before fusion."""
        return _totals(self.operators, lambda each: each.operator)

    def by_axis(self) -> dict[str, AxisTotal]:
        """Collectives by the mesh axes that they run over, as ``"tp"`` or ``"dp, tp"``."""
        found: dict[str, AxisTotal] = {}
        for each in self.collectives:
            axes = ", ".join(each.axes) or "between meshes"
            old = found.get(axes, AxisTotal())
            found[axes] = AxisTotal(
                old.count + each.count,
                old.bytes_per_device + each.count * each.bytes_per_device,
                old.seconds + each.count * each.seconds,
            )
        return found


@dataclass(frozen=True)
class AxisTotal:
    """All collectives over the same mesh axes."""

    count: int = 0
    """Number of collectives that run."""

    bytes_per_device: float = 0.0
    """Bytes that a device sends."""

    seconds: float = 0.0
    """One after the other."""


@dataclass(frozen=True, repr=False)
class Estimate(Printed):
    """Estimated cost of a distributed program on a cluster, per device and call.

    ``print`` shows tables, notebooks show them as HTML. :meth:`rows` is for pandas,
    :meth:`to_json` for machines.
    """

    cluster: Cluster
    """The cluster that the estimate is for."""

    programs: tuple[ProgramEstimate, ...]
    """One for each function and group of devices that runs a program of its own."""

    notes: tuple[str, ...] = field(default=())
    """Costs that the figures leave out."""

    def __getitem__(self, name: str) -> ProgramEstimate:
        """The program of a name.

        Args:
            name: The name of one of ``programs``, as ``"main"``.

        Raises:
            KeyError: There is none; names those there are.
        """
        for program in self.programs:
            if program.name == name:
                return program
        raise KeyError(
            f"there is no program {name!r}, only {[each.name for each in self.programs]}"
        )

    @property
    def device(self) -> Device:
        """The device that the estimate assumes."""
        assert self.cluster.device is not None
        return self.cluster.device

    @property
    def flops(self) -> float:
        """Floating-point operations of the device that has most."""
        return self._most(lambda program: program.cost.flops)

    @property
    def bytes_accessed(self) -> float:
        """Bytes that the kernels of a device read and write, where that is most."""
        return self._most(lambda program: program.cost.bytes_accessed)

    @property
    def bytes_sent(self) -> float:
        """Bytes that a device sends, where that is most."""
        return self._most(lambda program: program.bytes_sent)

    @property
    def seconds(self) -> float:
        """Seconds of the slowest program, without overlap."""
        return max((program.seconds for program in self.programs), default=0.0)

    @property
    def peak_memory(self) -> float:
        """Bytes, of the device that needs most.

        One that runs several programs of a function (stages of a pipeline) holds the weights of
        all of them.
        """
        return max(self.memory_by_device().values(), default=0.0)

    @property
    def fits(self) -> bool:
        """True if the peak memory is within the memory of a device."""
        return self.peak_memory <= self.device.memory

    @property
    def exact(self) -> bool:
        """True if the work of every kernel could be counted."""
        return not any(each.unknown for program in self.programs for each in program.kernels)

    def memory_by_device(self) -> dict[int, float]:
        """Peak bytes of each device, by id."""
        held: dict[int, dict[str, float]] = {}
        used: dict[int, dict[str, float]] = {}
        for program in self.programs:
            memory = program.memory
            others = memory.peak_memory - memory.weights
            for device in program.device_ids:
                weights = held.setdefault(device, {})
                weights[program.function] = weights.get(program.function, 0.0) + memory.weights
                most = used.setdefault(device, {})
                most[program.function] = max(most.get(program.function, 0.0), others)
        return {
            device: max(weights[name] + used[device][name] for name in weights)
            for device, weights in sorted(held.items())
        }

    def rows(self) -> list[dict[str, Any]]:
        """Kernels and collectives in program order, a dict each, for ``pandas.DataFrame``."""
        return [row for program in self.programs for row in _rows(program)]

    def to_json(self) -> str:
        """Returns the estimate as JSON."""
        data = {
            "device": {**asdict(self.device), "flops": dict(self.device.flops)},
            "links": self.cluster.as_data(),
            "flops": self.flops,
            "bytes_accessed": self.bytes_accessed,
            "bytes_sent": self.bytes_sent,
            "seconds": self.seconds,
            "peak_memory": self.peak_memory,
            "fits": self.fits,
            "notes": list(self.notes),
            "programs": [asdict(program) for program in self.programs],
        }
        return json.dumps(data)

    def plot(self, kind: str = "roofline", program: str | None = None) -> Any:
        """Draws one program with matplotlib (``pip install 'distir-ext[plot]'``).

        Args:
            kind: ``"roofline"``: kernels by operations per byte, and what bounds them.
                ``"memory"``: what a device holds while its kernels run, and what is alive at the
                peak. ``"collectives"``: bytes and times by mesh axes.
            program: The name of a program; by default the one that takes longest.

        Returns:
            A ``matplotlib.figure.Figure``, which notebooks show.

        Raises:
            ImportError: matplotlib is not installed.
            KeyError: There is no such program.
            ValueError: There is no such kind, or no program at all.
        """
        return figure(self, kind=kind, program=program)

    def _most(self, of: Callable[[ProgramEstimate], float]) -> float:
        """The most that a device has of something, over all its programs of a function."""
        totals: dict[tuple[int, str], float] = {}
        for program in self.programs:
            for device in program.device_ids:
                key = (device, program.function)
                totals[key] = totals.get(key, 0.0) + of(program)
        return max(totals.values(), default=0.0)


def _rows(program: ProgramEstimate) -> Iterator[dict[str, Any]]:
    for kernel in program.kernels:
        cost = kernel.cost
        yield {
            "program": program.name,
            "function": kernel.function,
            "kind": "kernel",
            "name": kernel.name,
            "callee": kernel.kernel,
            "layer": kernel.layer,
            "count": kernel.count,
            "flops": cost.flops,
            "bytes_accessed": cost.bytes_accessed,
            "bytes_sent": 0.0,
            "axes": "",
            "seconds": cost.seconds,
            "bound": kernel.bound,
            "live_bytes": kernel.live_bytes,
        }
    for each in program.collectives:
        yield {
            "program": program.name,
            "function": each.function,
            "kind": "collective",
            "name": each.name,
            "callee": each.kind,
            "layer": each.layer,
            "count": each.count,
            "flops": 0.0,
            "bytes_accessed": 0.0,
            "bytes_sent": each.bytes_per_device,
            "axes": ", ".join(each.axes),
            "seconds": each.seconds,
            "bound": "network",
            "live_bytes": None,
        }


def _total(rows: Iterable[KernelCost | OperatorCost]) -> Cost:
    total = Cost()
    for row in rows:
        total += row.cost * row.count
    return total


def _totals(rows: Sequence[_Row], key: Callable[[_Row], str]) -> dict[str, Cost]:
    found: dict[str, Cost] = {}
    for row in rows:
        found[key(row)] = found.get(key(row), Cost()) + row.cost * row.count
    return found
