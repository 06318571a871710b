"""Laws of communication: bytes grow with tensors, and no other way of a program sends fewer.

Nothing runs here: bytes are those of the collectives of lowered programs.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import distir_ext as dx
from distir_ext.explain.rules import operators

from .case import Case
from .operators import CASES

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]
"""Mesh axes of each tensor dimension."""

# ---- of two ways, the cheaper

NAMES = "abcdefghijkl"
"""Names of operands."""

SIZES = {"i": 12 * 1024, "k": 36 * 1024, "j": 24 * 1024, "b": 24}
"""Large enough that bytes take longer than starting a collective, for some letters of a case."""

MESHES = (dx.Mesh(x=4, y=2), dx.Mesh(x=3, y=2), dx.Mesh(x=2, y=2, z=2))

Call = tuple[str, tuple[str, ...], str, Any]
"""Operator, letters of its operands and of its result, the call."""


def calls() -> Iterator[Call]:
    for row in operators():
        name = row.operator.removeprefix("relax.")
        if row.family == "elementwise binary" and hasattr(relax.op, name):
            yield name, ("ij", "ij"), "ij", getattr(relax.op, name)
        elif row.family == "reduction" and "reduction" in row.exploited:
            yield name, ("ij",), "j", functools.partial(getattr(relax.op, name), axis=0)
            yield name, ("ij",), "i", functools.partial(getattr(relax.op, name), axis=1)
    for _ in range(8):
        yield "matmul", ("ik", "kj"), "ij", relax.op.matmul
    yield "matmul", ("bik", "bkj"), "bij", relax.op.matmul
    yield "matmul", ("bik", "kj"), "bij", relax.op.matmul
    yield "outer", ("i", "j"), "ij", relax.op.outer
    yield "einsum", ("ik", "jk"), "ji", lambda a, b: relax.op.einsum([a, b], "ik,jk->ji")


def program(
    shapes: Sequence[Sequence[int]], call: Any, dtypes: Sequence[str] = ("float32",) * 4
) -> Any:
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in zip(NAMES, shapes, dtypes, strict=False)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(call(*params)))
        builder.emit_func_output(result)
    return builder.finalize()


def placements(mesh: dx.Mesh, rank: int) -> list[Dims]:
    """Every way to put mesh axes, in any order, on dimensions."""
    found = set()
    for order in itertools.permutations(mesh.axis_names):
        for at in itertools.product(range(-1, rank), repeat=len(order)):
            pairs = list(zip(order, at, strict=True))
            found.add(tuple(tuple(axis for axis, d in pairs if d == dim) for dim in range(rank)))
    return sorted(found)


class Planner:
    """Bytes that a plan moves at most on a device."""

    def __init__(self, mesh: dx.Mesh) -> None:
        self.mesh = mesh
        find = tvm_ffi.get_global_func("distir.test.Planner")
        self._find = find(dx.Cluster.uniform().as_data())

    def __call__(self, source: Dims, partial: Axes, target: Dims, shape: Sequence[int]) -> float:
        plan = self._find(
            list(self.mesh.shape),
            list(range(math.prod(self.mesh.shape))),
            [self._refs(source), self._ref(partial), "sum" if partial else "none"],
            [self._refs(target), [], "none"],
            list(shape),
            4.0 * math.prod(shape),
        )
        return float(plan[2])

    def _refs(self, dims: Dims) -> list[Any]:
        return [self._ref(axes) for axes in dims]

    def _ref(self, axes: Axes) -> list[list[int]]:
        names = list(self.mesh.axis_names)
        return [[names.index(axis), 1, self.mesh.shape[names.index(axis)]] for axis in axes]


def ways(letters: Sequence[str], stated: Sequence[Dims]) -> Iterator[dict[str, Axes]]:
    """Axes of each letter: all operands stay and the result moves; one tensor alone stays.

    Letters for which those have no axes take the free axes of the others, so that no device is
    idle that another way of the call would use.
    """
    tensors = list(range(len(letters)))
    orders = [tensors, [tensors[-1], *tensors[:-1]]]
    orders += [[first, *(t for t in tensors if t != first)] for first in tensors]
    for order in orders:
        found: dict[str, Axes] = {}
        for tensor in order:
            for letter, axes in zip(letters[tensor], stated[tensor], strict=True):
                taken = {axis for others in found.values() for axis in others}
                if axes and letter not in found and not taken & set(axes):
                    found[letter] = axes
        yield found


def price(planner: Planner, way: dict[str, Axes], letters: Sequence[str], stated: Sequence[Dims]):
    """Bytes that a device sends at most."""
    *operands, result = letters
    total = 0.0
    for names, dims in zip(operands, stated, strict=False):
        wanted = tuple(way.get(letter, ()) for letter in names)
        total += planner(dims, (), wanted, [SIZES[letter] for letter in names])
    contracted = {letter for names in operands for letter in names} - set(result)
    partial = tuple(axis for letter in sorted(contracted) for axis in way.get(letter, ()))
    computed = tuple(way.get(letter, ()) for letter in result)
    return total + planner(computed, partial, stated[-1], [SIZES[letter] for letter in result])


def sent(mod: Any, mesh: dx.Mesh, plan: dict[str, Any]) -> int:
    lowered = dx.lower(dx.annotate(mod, mesh, plan))
    return sum(each.bytes_per_device * each.count for each in dx.analysis.collectives(lowered))


def test_no_other_way_of_a_call_sends_less():
    """Checks binary operators, products and reductions whose tensors are stated otherwise."""
    dearer = {}
    for mesh in MESHES:
        planner, counts = Planner(mesh), Counter[str]()
        for name, operands, result, call in calls():
            letters = [*operands, result]
            mod = program([[SIZES[letter] for letter in names] for names in operands], call)
            for _ in range(3):
                counts[name] += 1
                key = f"{mesh.shape} {name} {counts[name]}"
                rng = random.Random(key)
                stated = [rng.choice(placements(mesh, len(names))) for names in letters]
                plan = dict(zip(NAMES, stated[:-1], strict=False))
                bytes_sent = sent(mod, mesh, {**plan, "return": stated[-1]})
                least = min(price(planner, way, letters, stated) for way in ways(letters, stated))
                if bytes_sent > least * 1.001:
                    dearer[key] = f"{letters} {stated}: {bytes_sent} bytes, {least}"
    assert not dearer, "\n".join(f"{key}: {what}" for key, what in dearer.items())


NUMBERS = re.compile(r"\((\S+)\).*: ([\d,]+) bytes per device, ([\d.e+]+) us")


def test_no_way_that_explain_lists_takes_less_time():
    """Checks the ways that are listed for what moves, of products and sums."""
    num_ways = 0
    for mesh in MESHES:
        for name, operands, result, call in calls():
            if name not in ("matmul", "add", "sum", "outer"):
                continue
            letters = [*operands, result]
            mod = program([[SIZES[letter] for letter in names] for names in operands], call)
            rng = random.Random(f"{mesh.shape} {name} explained")
            stated = [rng.choice(placements(mesh, len(names))) for names in letters]
            plan = {**dict(zip(NAMES, stated[:-1], strict=False)), "return": stated[-1]}
            placed = dx.transform.PropagateSharding()(dx.annotate(mod, mesh, plan))
            names = [each.name for each in placed["main"].params]
            for block in placed["main"].body.blocks:
                names += [each.var.name for each in block.bindings]
            lines = "\n".join(str(dx.explain(placed, each)) for each in names).split("\n")
            for chosen, other in itertools.pairwise(lines):
                ways = [NUMBERS.search(line) for line in (chosen, other)]
                if "as it is computed" in chosen and None not in ways:
                    num_ways += 1
                    seconds = [float(way[3]) for way in ways if way]
                    assert seconds[0] <= seconds[1] * 1.001, (chosen, other, stated)
    assert num_ways > 10


# ---- one element more costs about one element more

SHARDS = 4
LONG = (64, 2048)
"""Multiples of the shards."""

# Reasons, as the table of operators states them.
SHORT = "fewer windows than shards"
COPRIME = "spatial dimensions of coprime extents"
KNOWN: dict[tuple[str, str], str] = {
    (op, letter): why
    for op, letters, why in (
        ("relax.nn.conv3d_transpose", "pqr", SHORT),
        ("relax.nn.max_pool1d", "p", SHORT),
        ("relax.nn.avg_pool1d", "p", SHORT),
        ("relax.nn.adaptive_avg_pool1d", "x", SHORT),
        ("relax.nn.max_pool2d", "pq", SHORT),
        ("relax.nn.avg_pool2d", "pq", SHORT),
        ("relax.nn.adaptive_avg_pool2d", "xy", SHORT),
        ("relax.nn.max_pool3d", "pqr", SHORT),
        ("relax.nn.avg_pool3d", "pqr", SHORT),
        ("relax.nn.adaptive_avg_pool3d", "xyz", SHORT),
        ("relax.image.resize2d", "p", COPRIME),
        ("relax.image.resize3d", "q", COPRIME),
    )
    for letter in letters
}
"""Operators that do not obey, and letters of the case that is looked at: why."""


def extents_of(case: Case, letter: str, size: int, factor: int) -> list[tuple[int, ...]]:
    """Shapes with another extent of one letter, and the others longer by a factor."""

    def extent(names: str, now: int) -> int:
        if names == letter:
            return size
        return now * factor if len(names) == 1 and now > 1 else now

    return [
        tuple(extent(names, now) for names, now in zip(each.dims, each.shape, strict=True))
        for each in case.operands
    ]


def bytes_at(case: Case, letter: str, size: int) -> int | None:
    """Bytes that a device sends; None where the case's attributes state its extents."""
    for factor in (8, 1):
        shapes = extents_of(case, letter, size, factor)
        try:
            mod = program(shapes, case.apply, [each.dtype for each in case.operands])
        except (ValueError, RuntimeError, tvm.error.InternalError, tvm.error.DiagnosticError):
            continue
        plan = {
            name: tuple("x" if names == letter else None for names in each.dims)
            for name, each in zip(NAMES, case.operands, strict=False)
            if letter in each.dims and size >= SHARDS
        }
        return sent(mod, dx.Mesh(x=SHARDS), plan) if plan else 0
    return None


def cliff(case: Case, letter: str) -> str:
    """The first extent at which the law does not hold, or nothing."""
    limits: dict[int, int | None] = {}
    long = [size for begin in LONG for size in range(begin, begin + SHARDS)]
    for size in (*range(1, 2 * SHARDS + 1), *long):
        even = -(-size // SHARDS) * SHARDS
        if even not in limits:
            limits[even] = bytes_at(case, letter, even)
        limit, found = limits[even], bytes_at(case, letter, size)
        if limit is None or found is None:
            return ""
        if found > 1.1 * limit + 64 * SHARDS:
            return f"{size}: {found} bytes, {even}: {limit}"
    return ""


def cases_by_letter(cases: Sequence[Case]) -> dict[str, Case]:
    """The case with most dimensions that has a letter, for each letter of some case."""
    found: dict[str, Case] = {}
    for case in sorted(cases, key=lambda each: -sum(len(o.dims) for o in each.operands)):
        for each in case.operands:
            for names in each.dims:
                if len(names) == 1 and names.isalpha():
                    found.setdefault(names, case)
    return found


@pytest.mark.large
def test_one_element_more_costs_about_one_element_more():
    """Checks every dimension along which an operator of the registry may be sharded."""
    found = {}
    for op, cases in CASES.items():
        for letter, case in sorted(cases_by_letter(cases).items()):
            if what := cliff(case, letter):
                found[op, letter] = what
    new = {where: what for where, what in found.items() if where not in KNOWN}
    assert not new, "\n".join(f"{op} along {letter}: {what}" for (op, letter), what in new.items())
    assert not KNOWN.keys() - found.keys(), "these obey: take them out of KNOWN"


def test_the_table_of_operators_says_what_does_not_obey():
    reasons = {row.operator: row.rest for row in operators()}
    for (op, _), why in KNOWN.items():
        assert why in reasons[op], op


# ---- exchanges are balanced

EXCHANGED = (
    dx.Mesh(x=2, y=2, z=3),
    dx.Mesh(x=2, y=3, z=2),
    dx.Mesh(x=3, y=2, z=2),
    dx.Mesh(x=4, y=6),
    dx.Mesh(x=6, y=4),
    dx.Mesh(x=5, y=2),
    dx.Mesh(x=3, y=2),
    dx.Mesh(x=2, y=2, z=2),
    dx.Mesh(w=2, x=2, y=2, z=2),
)


def shard(mesh: dx.Mesh, dims: Dims, device: int, extent: int) -> list[tuple[int, int]]:
    """Ranges of the elements that a device has."""
    at = dict(zip(mesh.axis_names, np.unravel_index(device, mesh.shape), strict=True))
    size = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    ranges = []
    for axes in dims:
        begin, end = 0, extent
        for axis in axes:
            part = (end - begin) // size[axis]
            begin += part * int(at[axis])
            end = begin + part
        ranges.append((begin, end))
    return ranges


def lacking(mesh: dx.Mesh, source: Dims, target: Dims, extent: int) -> int:
    """Bytes of float32 that the device which lacks most of its block has to receive."""
    most = 0
    for device in range(math.prod(mesh.shape)):
        have, want = (shard(mesh, dims, device, extent) for dims in (source, target))
        ranges = list(zip(have, want, strict=True))
        whole = math.prod(end - begin for _, (begin, end) in ranges)
        kept = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in ranges)
        most = max(most, 4 * (whole - kept))
    return most


def test_no_device_sends_more_than_one_has_to_receive(sample):
    """Checks random ordered pairs of shardings of a matrix."""
    for mesh in EXCHANGED:
        extent = 1024 * math.prod(mesh.shape)
        mod = program([(extent, extent)], relax.op.nn.relu)
        rng, placed = random.Random(str(mesh.shape)), placements(mesh, 2)
        for _ in range(sample(10, 60, 200)):
            source, target = rng.sample(placed, 2)
            least = lacking(mesh, source, target, extent)
            found = sent(mod, mesh, {"a": source, "return": target})
            assert found <= least, (mesh.shape, source, target)


def test_exchanges_send_no_more_than_a_slice_a_permute_and_a_gather():
    """Moves of rows from 4 shards, or half of the 6 beside them, to 6: a device gets a block."""
    halves = dx.Mesh(x=4, v=2, y=3)
    for rows, columns in ((12, 120), (1200, 1200), (12288, 15360)):
        block = rows * columns * 4 // 6
        for mesh, source, target in (
            (halves, ("x", "v"), (("v", "y"), None)),
            (dx.Mesh(x=4, y=6), ("x", None), ("y", None)),
            (dx.Mesh(x=4, y=6, z=2), ("x", "z"), ("y", None)),
            (dx.Mesh(x=4, y=6, z=5), ("x", "z"), ("y", None)),
        ):
            plan = dx.analysis.redistribution(mesh, source, target, (rows, columns))
            assert plan.bytes_per_device <= block, (mesh.shape, source, plan.steps)


def test_one_reduction_over_all_axes_where_three_send_more():
    """Partial sums over three axes, of every number of elements, divided by the devices or not."""
    for mesh in (dx.Mesh(x=2, y=2, z=2), dx.Mesh(x=2, y=3, z=2)):
        devices = math.prod(mesh.shape)
        axes = tuple(mesh.axis_names)
        for columns in (1, 2, 7, 8, 31, 62, 64, 71, 4096, 4099):
            mod = program([(1, 24), (24, columns)], relax.op.matmul)
            found = sent(mod, mesh, {"a": (None, axes), "b": (axes, None)})
            one = 2 * (devices - 1) * 4 * columns / devices
            assert found <= one + 1, (mesh.shape, columns)


# ---- textbook counts


def test_bytes_are_those_of_the_smaller_tensor():
    """Compares programs with textbook counts."""
    op, mesh = relax.op, dx.Mesh(x=4, y=2)

    def piece(a):
        return op.strided_slice(a, [0, 1], [0, 0], [4, 8])

    for shapes, call, plan, right in (
        ([(4096, 1024)], lambda a: op.sum(a, 0), {"a": (None, "x"), "return": ("y",)}, 1536),
        (
            [(32, 64, 128)],
            piece,
            {"a": (None, None, "x"), "return": (None, None, "y")},
            6144,
        ),
        (
            [(2048, 8192), (8192, 2048)],
            op.matmul,
            {"a": ("x", None), "b": (None, "y"), "return": ("y", "x")},
            2097152,
        ),
        (
            [(2048, 8192), (8192, 2048)],
            op.matmul,
            {"a": ("x", "y"), "b": ("y", None), "return": (("y", "x"), None)},
            4194304,
        ),
        (
            [(1024, 1024)],
            lambda a: relax.Tuple((op.nn.relu(a), op.exp(a))),
            {"a": ("x", "y"), "return.0": ("y", "x"), "return.1": ("y", "x")},
            524288,
        ),
        (
            [(12288,), (24576,)],
            op.outer,
            {"a": ("x",), "b": ("y",), "return": ("y", "x")},
            2 * 24576,
        ),
    ):
        assert sent(program(shapes, call), mesh, plan) <= right, plan
