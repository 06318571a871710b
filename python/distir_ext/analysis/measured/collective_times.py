"""Times collectives among the workers of a session on this host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.annotate import collectives
from distir_ext.annotate.manual import manual
from distir_ext.compile.building import build_executable
from distir_ext.mesh.mesh import Mesh
from distir_ext.native.collective_records import names
from distir_ext.session.profile import Profile
from distir_ext.session.session import Session

# Bytes of the larger one of what a member gives and gets. Up to the first one all take the same
# time; between the others caches are left and the runtime takes other ways.
_SIZES = tuple(1 << bits for bits in (10, 14, 16, 18, 20, 22, 24))
_REPEATS = 11
_GROUP = "group"


@dataclass(frozen=True)
class _Kind:
    name: str
    call: Callable[[relax.Expr, int], relax.Expr]
    """Of a value and the number of members."""

    gathers: bool = False
    """True if each member contributes a part of its result."""


def _exchange(x: relax.Expr, members: int) -> relax.Expr:
    (count,) = (int(dim) for dim in x.ty.shape.values)
    rows = op.reshape(x, (members, count // members))
    return op.reshape(collectives.all_to_all(rows, _GROUP, 0, 1), (count,))


def _pass_on(x: relax.Expr, members: int) -> relax.Expr:
    pairs = [(member, (member + 1) % members) for member in range(members)]
    return collectives.ppermute(x, _GROUP, pairs)


_KINDS = (
    _Kind(names.all_reduce, lambda x, _: collectives.psum(x, _GROUP)),
    _Kind(names.reduce_scatter, lambda x, _: collectives.psum_scatter(x, _GROUP)),
    _Kind(names.all_gather, lambda x, _: collectives.all_gather(x, _GROUP), gathers=True),
    _Kind(names.all_to_all, _exchange),
    _Kind(names.permute, _pass_on),
)


@dataclass(frozen=True)
class _Timed:
    """One collective of a program."""

    kind: _Kind
    elements: int
    """Of float32, that a member gives."""

    @property
    def bytes(self) -> int:
        return 4 * self.elements


Times = dict[str, dict[int, dict[float, float]]]
"""Seconds by kind, number of members and bytes that each gives."""


def measure_collectives(
    session: Session, num_workers: int, advance: Callable[[], None] = lambda: None
) -> Times:
    """Times every kind of collective among all workers, and in equal groups of them at once.

    What is reduced or exchanged was computed just before, what is gathered are weights: so it
    mostly is in programs. Each collective stands between kernels, and the time from its last
    member's begin to its last member's end counts, the first quartile of several calls.

    Args:
        session: Of as many workers, that share a clock.
        num_workers: At least 2.
        advance: Called for each size of groups.
    """
    found: Times = {}
    for members in group_sizes(num_workers):
        timed = [_Timed(kind, _elements(kind, size, members)) for size in _SIZES for kind in _KINDS]
        mesh = Mesh((num_workers // members, members), ("others", _GROUP))
        executable = build_executable(_program(timed, mesh))
        values = [np.zeros(num_workers * each.elements, "float32") for each in timed]
        model = session.load(executable, params=values)
        start = np.zeros(num_workers, "float32")
        profile = model["main"].profile(start, repeat=_REPEATS, warmup=2)
        for each, seconds in zip(timed, _seconds(profile), strict=True):
            by_members = found.setdefault(each.kind.name, {})
            by_members.setdefault(members, {})[each.bytes] = seconds
        advance()
    return found


def group_sizes(num_workers: int) -> list[int]:
    """Returns the sizes of groups that so many workers divide into, the largest first."""
    return [size for size in range(num_workers, 1, -1) if num_workers % size == 0]


def _elements(kind: _Kind, size: int, members: int) -> int:
    """Such that members can be given equal parts of them."""
    part = size // 4 // members
    return part if kind.gathers else part * members


def _program(timed: Sequence[_Timed], mesh: Mesh) -> tvm.IRModule:
    """Returns a program that calls each collective on a weight, or on its sum with earlier results.

    A small sum over the group comes first, so that its members begin at the same time.
    """
    size = len(mesh.device_ids)
    builder = relax.BlockBuilder()
    x, *weights = (
        relax.Var(name, relax.TensorType((size * elements,), "float32"))
        for name, elements in (
            ("x", 1),
            *((f"w{i}", each.elements) for i, each in enumerate(timed)),
        )
    )
    members = mesh.shape[-1]

    def body(value: relax.Expr, *given: relax.Expr) -> relax.Expr:
        for each, weight in zip(timed, given, strict=True):
            value = collectives.psum(value, _GROUP)
            argument = weight if each.kind.gathers else builder.emit(op.add(weight, value))
            result = builder.emit(each.kind.call(argument, members))
            value = builder.emit(op.add(value, op.max(result, axis=[0], keepdims=True)))
        return value

    with builder.function("main", [x, *weights], {"num_input": 1}):
        dims = (mesh.axis_names,)
        region = manual(body, mesh, [dims] * (1 + len(timed)), dims)
        builder.emit_func_output(region(x, *weights))
    return builder.get()


def _seconds(profile: Profile) -> Iterator[float]:
    """Yields the seconds of every second collective; a small sum precedes each."""
    by_device: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in profile.events:
        if event.kind == "collective":
            span = event.start, event.start + event.duration
            by_device.setdefault((event.repetition, event.device), []).append(span)
    taken: list[list[float]] = []
    for repetition in range(profile.repetitions):
        devices = [spans for (each, _), spans in by_device.items() if each == repetition]
        taken.append(
            [
                max(end for _, end in spans) - max(begin for begin, _ in spans)
                for spans in zip(*devices, strict=True)
            ]
        )
    for seconds in list(zip(*taken, strict=True))[1::2]:
        # Other work on the host slows some calls.
        yield statistics.quantiles(seconds)[0]
