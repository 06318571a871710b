"""Meshes, placements, and the letters by which a case states a call's sharding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.relax.distributed import DeviceMesh, Placement

from .case import Case, DimFactors, parse_letters

MeshShape = tuple[int, ...]
Dims = tuple[int, ...]
"""Per mesh axis the tensor dimension that it shards, -1 for copies."""

MESHES: tuple[MeshShape, ...] = ((2,), (4,), (2, 2), (2, 2, 2), (3, 2))

_DEVICE_MESHES = {
    shape: DeviceMesh(shape, list(range(math.prod(shape)))) for shape in (*MESHES, (3,))
}


def device_mesh(mesh: MeshShape) -> DeviceMesh:
    """The mesh over devices 0, 1, ..; always the same object, as TVMScript wants it."""
    return _DEVICE_MESHES[mesh]


def to_placement(dims: Dims) -> Placement:
    return Placement.from_text(", ".join("R" if d < 0 else f"S[{d}]" for d in dims))


def num_shards(mesh: MeshShape, dims: Dims, rank: int) -> tuple[int, ...]:
    """Shards of each tensor dimension."""
    return tuple(
        math.prod(size for size, dim in zip(mesh, dims, strict=True) if dim == d)
        for d in range(rank)
    )


def all_placements(mesh: MeshShape, shape: Sequence[int]) -> Iterator[Dims]:
    """Every placement of a tensor whose dimensions divide."""
    for dims in itertools.product(range(-1, len(shape)), repeat=len(mesh)):
        shards = num_shards(mesh, dims, len(shape))
        if all(size % n == 0 for size, n in zip(shape, shards, strict=True)):
            yield dims


def padded_placements(mesh: MeshShape, shape: Sequence[int]) -> Iterator[Dims]:
    """Every placement of a tensor that has an element for each shard, divided or padded."""
    for dims in itertools.product(range(-1, len(shape)), repeat=len(mesh)):
        shards = num_shards(mesh, dims, len(shape))
        if all(n <= max(size, 1) for size, n in zip(shape, shards, strict=True)):
            yield dims


@dataclass(frozen=True)
class Expectation:
    """Expected results for any order in which rules resolve disagreeing operands."""

    runs_sharded: bool
    """The call itself must have a sharded operand or result."""
    result_shards: tuple[tuple[int, ...], ...] | None = None
    """Shards per dimension of every result; None where operands disagree."""
    collectives: frozenset[str] | None = None
    """Kinds of communication that may be there; None where operands disagree."""
    has_unused: bool = False
    """Some axes of operands shard nothing that the call keeps; other dimensions may take them."""


GRAINED = {"relax.reshape", "relax.flatten", "relax.nn.batch_flatten", "relax.repeat"}
"""Operators that may be padded along the major parts of dimensions."""


class _Claims:
    """The mesh axes that placed tensors put on each letter."""

    def __init__(self, case: Case, mesh: MeshShape) -> None:
        self.case = case
        self.mesh = mesh
        self.sizes = case.factor_sizes()
        self.axes: dict[str, set[tuple[int, ...]]] = {}
        self.unused = False  # some axes shard nothing that the call can keep sharded
        self.uncertain = False  # an axis would have to be cut

    def add(self, letters: DimFactors, dims: Dims) -> None:
        for d, names in enumerate(letters):
            axes = [axis for axis, dim in enumerate(dims) if dim == d and self.mesh[axis] > 1]
            for name in names:
                size, taken = self.sizes[name], []
                if name in self.case.decomposed and self.case.moves:
                    while axes and self._count((*taken, axes[0])) <= size:
                        taken.append(axes.pop(0))
                    size = 1
                while axes and size % self.mesh[axes[0]] == 0:
                    size //= self.mesh[axes[0]]
                    taken.append(axes.pop(0))
                if taken and self._can_shard(name):
                    self.axes.setdefault(name, set()).add(tuple(taken))
                elif taken:
                    self.unused = True
                if axes and math.gcd(size, self.mesh[axes[0]]) > 1:
                    self.uncertain = True
                # Whole grains; tests/padding/test_grains.py says which.
                is_major = len(names) > 1 and name == names[0] and self.case.op in GRAINED
                if axes and is_major and self._count((*taken, *axes)) <= self.sizes[name]:
                    self.uncertain = True
                if size > 1:
                    break
            self.unused = self.unused or bool(axes)

    def _can_shard(self, name: str) -> bool:
        if name in self.case.decomposed:
            return not self.case.stays
        if name in self.case.combined:
            return True
        return any(name in names for text in self.case.results for names in parse_letters(text))

    def shards(self, name: str) -> int:
        return max((self._count(axes) for axes in self.axes.get(name, ())), default=1)

    def _count(self, axes: tuple[int, ...]) -> int:
        return math.prod(self.mesh[axis] for axis in axes)

    def disagree(self) -> bool:
        """True if a letter is sharded in two ways, or if two letters want one axis."""
        if any(len(wishes) > 1 for wishes in self.axes.values()):
            return True
        used = [axis for wishes in self.axes.values() for axes in wishes for axis in axes]
        return len(used) != len(set(used))

    def nests(self) -> bool:
        """True if every tensor's shards would be contiguous."""
        texts = [operand.letters for operand in self.case.operands] + list(self.case.results)
        for text in texts:
            for names in parse_letters(text):
                filled = True
                for name in names:
                    if not filled and self.shards(name) > 1:
                        return False
                    filled = filled and self.shards(name) == self.sizes[name]
        return True


def expect_from_operands(case: Case, mesh: MeshShape, placed: Sequence[Dims]) -> Expectation:
    """For operands that are all placed and results that are not."""
    claims = _Claims(case, mesh)
    for operand, dims in zip(case.operands, placed, strict=True):
        claims.add(operand.dims, dims)
    certain = claims.nests() and not claims.uncertain
    runs_sharded = certain and bool(claims.axes)
    if not certain or claims.disagree():
        return Expectation(runs_sharded)
    results = tuple(
        tuple(math.prod(claims.shards(name) for name in names) for names in parse_letters(text))
        for text in case.results
    )
    if claims.unused:
        return Expectation(runs_sharded, results, has_unused=True)
    kinds: set[str] = set()
    if any(claims.shards(name) > 1 for name in case.combined):
        kinds.add("all_reduce")
    if any(claims.shards(name) > 1 for name in case.decomposed):
        kinds |= case.communicates
    return Expectation(runs_sharded, results, frozenset(kinds))


def expect_from_result(case: Case, mesh: MeshShape, dims: Dims) -> Expectation:
    """For a first result that is placed and operands that are not: only the call communicates."""
    claims = _Claims(case, mesh)
    letters = parse_letters(case.results[0])
    claims.add(letters, dims)
    in_operands = {name for o in case.operands for names in o.dims for name in names}
    runs_sharded = claims.nests() and not claims.uncertain and bool(in_operands & set(claims.axes))
    results = (num_shards(mesh, dims, len(letters)),)
    if claims.uncertain and case.decomposed:
        return Expectation(runs_sharded, results)
    kinds = any(claims.shards(name) > 1 for name in case.decomposed)
    return Expectation(
        runs_sharded,
        results,
        case.communicates if kinds else frozenset(),
    )
