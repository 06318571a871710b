"""A brute-force NumPy model of meshes and shardings, and hypothesis strategies over them.

A mesh is (shape, device ids), an axis reference (axis, pre_size, size), an axis list a tuple of
them, a sharding (dims, partial, reduction), all as nested tuples, as ``tests.native.library.call``
takes and returns them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

Ref = tuple[int, int, int]
Axes = tuple[Ref, ...]
Mesh = tuple[tuple[int, ...], tuple[int, ...]]
Sharding = tuple[tuple[Axes, ...], Axes, str]

SHAPES = [(4,), (8,), (12,), (2, 4), (3, 2), (4, 6), (2, 1, 3), (2, 3, 5), (2, 2, 2, 2), (1,)]


def mesh_of(*shape: int) -> Mesh:
    return shape, tuple(range(math.prod(shape)))


def sharding_of(*dims: Axes) -> Sharding:
    return dims, (), "none"


# What references mean, by looking at every device.


def digits(mesh: Mesh, ref: Ref) -> np.ndarray:
    """The coordinate of every device, by position, along one reference."""
    axis, pre_size, size = ref
    shape = mesh[0]
    coordinate = np.indices(shape).reshape(len(shape), -1)[axis]
    return np.unravel_index(coordinate, (pre_size, size, shape[axis] // (pre_size * size)))[1]


def shard_indices(mesh: Mesh, axes: Axes) -> tuple[int, ...]:
    """The shard that every device, by position, holds."""
    sizes = tuple(size for _, _, size in axes)
    if not axes:
        return (0,) * len(mesh[1])
    index = np.ravel_multi_index(tuple(digits(mesh, ref) for ref in axes), sizes)
    return tuple(int(i) for i in index)


@functools.cache
def splits(extent: int, pre_size: int = 1) -> list[list[tuple[int, int]]]:
    """Every way to cut an axis, from `pre_size` on, into consecutive parts (pre_size, size)."""
    if pre_size == extent:
        return [[]]
    return [
        [(pre_size, size), *rest]
        for size in divisors(extent // pre_size)[1:]
        for rest in splits(extent, pre_size * size)
    ]


def disjoint(mesh: Mesh, a: Ref, b: Ref) -> bool:
    """True if two references are different parts of one split of the mesh's axes."""
    return a[0] != b[0] or (
        a != b and any(a[1:] in split and b[1:] in split for split in splits(mesh[0][a[0]]))
    )


def equally_often(mesh: Mesh, a: Ref, b: Ref) -> bool:
    """True if devices take all pairs of coordinates along two references equally often."""
    pairs = digits(mesh, a) * b[2] + digits(mesh, b)
    counts = np.bincount(pairs, minlength=a[2] * b[2])
    return bool((counts == counts[0]).all())


def shards(mesh: Mesh, dims: tuple[Axes, ...], tensor: np.ndarray) -> dict[int, np.ndarray]:
    """The part of a tensor on every device id, by splitting it once for each reference."""
    result = {}
    for position, device_id in enumerate(mesh[1]):
        part = tensor
        for dim, axes in enumerate(dims):
            for ref in axes:
                part = np.split(part, ref[2], axis=dim)[digits(mesh, ref)[position]]
        result[device_id] = part
    return result


def blocks(mesh: Mesh, dims: tuple[Axes, ...]) -> dict[int, tuple[tuple[int, int], ...]]:
    """For every device id, index and number of its shard along each tensor dimension."""
    indices = [shard_indices(mesh, axes) for axes in dims]
    return {
        device_id: tuple(
            (index[i], num_shards(axes)) for index, axes in zip(indices, dims, strict=True)
        )
        for i, device_id in enumerate(mesh[1])
    }


def same_shards(a: dict[int, np.ndarray], b: dict[int, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[i], b[i]) for i in a)


def cells(shape: tuple[int, ...]) -> np.ndarray:
    """A tensor whose elements are all different."""
    return np.arange(math.prod(shape)).reshape(shape)


def num_shards(axes: Axes) -> int:
    return math.prod(size for _, _, size in axes)


# Enumerations.


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def all_refs(shape: tuple[int, ...]) -> list[Ref]:
    """Every reference on a mesh of this shape."""
    return [
        (axis, pre_size, size)
        for axis, extent in enumerate(shape)
        for pre_size in divisors(extent)
        for size in divisors(extent // pre_size)
        if size > 1
    ]


def all_axis_lists(shape: tuple[int, ...]) -> Iterator[Axes]:
    """Every list of references that do not overlap, canonical or not."""
    mesh = mesh_of(*shape)
    refs = all_refs(shape)

    def extend(axes: Axes) -> Iterator[Axes]:
        yield axes
        for ref in refs:
            if all(disjoint(mesh, ref, other) for other in axes):
                yield from extend((*axes, ref))

    return extend(())


def prefixes(axes: Axes) -> Iterator[Axes]:
    """Every major part of a canonical list, cutting the last reference at each divisor."""
    yield ()
    for count, (axis, pre_size, size) in enumerate(axes):
        for part in divisors(size)[1:]:
            yield (*axes[:count], (axis, pre_size, part))


def merged(axes: Axes) -> Axes:
    """The canonical form, by merging neighbours until nothing changes."""
    result = [ref for ref in axes if ref[2] > 1]
    for i in range(len(result) - 1):
        (axis, pre_size, size), (next_axis, next_pre_size, next_size) = result[i : i + 2]
        if axis == next_axis and pre_size * size == next_pre_size:
            return merged((*result[:i], (axis, pre_size, size * next_size), *result[i + 2 :]))
    return tuple(result)


# Strategies.


@st.composite
def meshes(draw: st.DrawFn, shapes: list[tuple[int, ...]] | None = None) -> Mesh:
    """Meshes with ids in order, shifted, or in any order with gaps."""
    shape = draw(st.sampled_from(shapes or SHAPES))
    size = math.prod(shape)
    ids = draw(
        st.one_of(
            st.just(list(range(size))),
            st.integers(1, 9).map(lambda first: list(range(first, first + size))),
            st.permutations([3 * i + 1 for i in range(size)]),
        )
    )
    return shape, tuple(ids)


@st.composite
def axis_parts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Ref]:
    """Cuts the axes into references that do not overlap and cover the mesh, in any order."""
    parts: list[Ref] = []
    for axis, extent in enumerate(shape):
        pre_size = 1
        while pre_size < extent:
            size = draw(st.sampled_from(divisors(extent // pre_size)[1:]))
            parts.append((axis, pre_size, size))
            pre_size *= size
    return draw(st.permutations(parts))


@st.composite
def axis_lists(draw: st.DrawFn, shape: tuple[int, ...]) -> Axes:
    """A list of references that do not overlap, canonical or not."""
    parts = draw(axis_parts(shape))
    return tuple(parts[: draw(st.integers(0, len(parts)))])


@st.composite
def shardings(
    draw: st.DrawFn, shape: tuple[int, ...], ndim: int | None = None, partial: bool = False
) -> Sharding:
    """Shardings of tensors of up to 3 dimensions, with sub-axes in any order."""
    if ndim is None:
        ndim = draw(st.integers(0, 3))
    places: list[list[Ref]] = [[] for _ in range(ndim + 2)]  # the dims, unused, partial
    for ref in draw(axis_parts(shape)):
        places[draw(st.integers(0, ndim + 1 if partial else ndim))].append(ref)
    dims = tuple(tuple(axes) for axes in places[:ndim])
    kind = draw(st.sampled_from(["sum", "max", "min", "prod", "mean"])) if places[-1] else "none"
    return dims, tuple(places[-1]), kind


@st.composite
def views(draw: st.DrawFn, root: Mesh) -> tuple[Mesh, tuple[Axes, ...]]:
    """A view of a mesh, and what each of its axes is made of."""
    parts = draw(axis_parts(root[0]))
    cuts = draw(st.lists(st.integers(0, len(parts)), max_size=3).map(sorted))
    bounds = [0, *cuts, len(parts)]
    axes = tuple(tuple(parts[i:j]) for i, j in itertools.pairwise(bounds))
    order = np.lexsort([digits(root, ref) for ref in reversed(parts)]) if parts else [0]
    ids = tuple(root[1][i] for i in order)
    return (tuple(num_shards(part) for part in axes), ids), axes
