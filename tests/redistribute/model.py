"""Shardings, and collectives on them, executed on NumPy arrays, one per device.

Independent of the C++ algebra: a device's block is worked out from its coordinates, and a
collective moves arrays between devices as its definition says. A mesh is its shape; an axis
reference is (axis, pre_size, size), an axis list a tuple of them, a sharding (dims, partial).
"""

import itertools
import math

import numpy as np
import tvm_ffi

import distir_ext  # noqa: F401  registers the planner


def plan(shape, source, target):
    """The planner's steps from one sharding to another: (kind, sharding, axes reduced over)."""
    ids = list(range(math.prod(shape)))
    steps = tvm_ffi.get_global_func("distir.redistribute.Plan")(
        shape, ids, _data(source), _data(target)
    )
    return [(str(kind), _sharding(result), _axes(reduced)) for kind, result, reduced in steps]


def _data(sharding):
    dims, partial = sharding
    return [dims, partial, "sum" if partial else "none"]


def _axes(data):
    return tuple(tuple(int(value) for value in ref) for ref in data)


def _sharding(data):
    return tuple(_axes(axes) for axes in data[0]), _axes(data[1])


# ---- axis lists


def cuts_of(shardings):
    """Where the references of some shardings begin and end, by axis."""
    cuts = {}
    for dims, partial in shardings:
        for axis, pre_size, size in itertools.chain(*dims, partial):
            cuts.setdefault(axis, set()).update((pre_size, pre_size * size))
    return cuts


def atoms_of(axes, cuts):
    """A list with its references cut at all of `cuts`, so that lists compare part by part."""
    atoms = []
    for axis, pre_size, size in axes:
        begin, end = pre_size, pre_size * size
        for cut in sorted(cuts[axis]):
            if begin < cut <= end:
                atoms.append((axis, begin, cut // begin))
                begin = cut
    return tuple(atoms)


def digit(shape, device, ref):
    """The coordinate of a device along a reference."""
    axis, pre_size, size = ref
    coordinate = np.unravel_index(device, shape)[axis]
    return int(coordinate) // (shape[axis] // (pre_size * size)) % size


def shard_index(shape, device, axes):
    index = 0
    for ref in axes:
        index = index * ref[2] + digit(shape, device, ref)
    return index


def count(axes):
    return math.prod(ref[2] for ref in axes)


def groups(shape, axes):
    """Devices that differ along `axes` only, each group in the order of their shards."""
    found = {}
    for device in range(math.prod(shape)):
        coordinates = list(np.unravel_index(device, shape))
        for ref in axes:
            axis, pre_size, size = ref
            stride = shape[axis] // (pre_size * size)
            coordinates[axis] -= digit(shape, device, ref) * stride
        found.setdefault(tuple(coordinates), []).append(device)
    return [
        sorted(group, key=lambda device: shard_index(shape, device, axes))
        for group in found.values()
    ]


# ---- tensors


def block(array, shape, device, dims):
    """A device's block of a whole array."""
    for dim, axes in enumerate(dims):
        parts = np.split(array, count(axes), axis=dim)
        array = parts[shard_index(shape, device, axes)]
    return array


def distribute(array, shape, sharding, rng):
    """Each device's array: its block, or a part of the sum where the tensor is partial."""
    dims, partial = sharding
    parts = [rng.integers(-9, 9, array.shape) for _ in range(count(partial) - 1)]
    parts.append(array - sum(parts))
    return [
        block(parts[shard_index(shape, device, partial)], shape, device, dims)
        for device in range(math.prod(shape))
    ]


def run(kind, shape, arrays, now, result, reduced):
    """Each device's array after one collective that leads from sharding `now` to `result`."""
    cuts = cuts_of([now, result, ((), reduced)])
    before = [atoms_of(axes, cuts) for axes in now[0]]
    after = [atoms_of(axes, cuts) for axes in result[0]]
    changed = [d for d in range(len(before)) if before[d] != after[d]]
    after_arrays = list(arrays)
    if kind == "all_gather":
        (dim,) = changed
        axes = behind(before[dim], after[dim])
        for group in groups(shape, axes):
            whole = np.concatenate([arrays[device] for device in group], axis=dim)
            for device in group:
                after_arrays[device] = whole
    elif kind == "slice":
        (dim,) = changed
        axes = behind(after[dim], before[dim])
        for device, array in enumerate(arrays):
            parts = np.split(array, count(axes), axis=dim)
            after_arrays[device] = parts[shard_index(shape, device, axes)]
    elif kind == "all_to_all":
        source, target = sorted(changed, key=lambda d: len(after[d]) - len(before[d]))
        axes = behind(before[source], after[source])
        assert axes == behind(after[target], before[target])
        for group in groups(shape, axes):
            parts = [np.split(arrays[device], len(group), axis=target) for device in group]
            for rank, device in enumerate(group):
                received = [parts[sender][rank] for sender in range(len(group))]
                after_arrays[device] = np.concatenate(received, axis=source)
    elif kind in ("all_reduce", "reduce_scatter"):
        axes = atoms_of(reduced, cuts)
        if kind == "reduce_scatter":
            (dim,) = changed
            axes = behind(after[dim], before[dim])
            assert sorted(axes) == sorted(atoms_of(reduced, cuts))
        else:
            assert not changed
        for group in groups(shape, axes):
            total = sum(arrays[device] for device in group)
            for rank, device in enumerate(group):
                after_arrays[device] = (
                    np.split(total, len(group), axis=dim)[rank]
                    if kind == "reduce_scatter"
                    else total
                )
    elif kind == "permute":
        holders = {}
        for device in range(math.prod(shape)):
            place = tuple(shard_index(shape, device, axes) for axes in before)
            holders.setdefault(place, device)
        for device in range(math.prod(shape)):
            place = tuple(shard_index(shape, device, axes) for axes in after)
            after_arrays[device] = arrays[holders[place]]
    else:
        raise AssertionError(f"the model knows no {kind}")
    return after_arrays


def behind(axes, prefix):
    """What follows a major prefix."""
    assert axes[: len(prefix)] == prefix
    return axes[len(prefix) :]


def check_plan(shape, size, source, target, steps, rng):
    """Runs a plan on a tensor whose dimensions all have this size; asserts that it arrives."""
    whole = rng.integers(-99, 99, [size] * len(source[0]))
    arrays = distribute(whole, shape, source, rng)
    now = source
    for kind, result, reduced in steps:
        arrays = run(kind, shape, arrays, now, result, reduced)
        now = result
    for device, array in enumerate(arrays):
        np.testing.assert_array_equal(array, block(whole, shape, device, target[0]))


# ---- all shardings


def parts_of_axes(shape):
    """The prime parts of every axis, major to minor: an axis of 4 is two of 2."""
    parts = []
    for axis, extent in enumerate(shape):
        pre_size = 1
        for prime in (2, 3, 5):
            while extent // pre_size % prime == 0:
                parts.append((axis, pre_size, prime))
                pre_size *= prime
    return parts


def all_shardings(shape, rank, with_partial=False):
    """Every way to put parts of axes, in any order, on the dimensions of a tensor."""
    parts = parts_of_axes(shape)
    for used in range(len(parts) + 1):
        for chosen in itertools.permutations(parts, used):
            for ends in itertools.combinations_with_replacement(range(used + 1), rank - 1):
                bounds = (0, *ends, used)
                dims = tuple(chosen[a:b] for a, b in itertools.pairwise(bounds))
                free = [part for part in parts if part not in chosen]
                for size in range(len(free) + 1) if with_partial else (0,):
                    for partial in itertools.combinations(free, size):
                        yield dims, partial
