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

UNIFORM = {"launch": 8.4e-6, "latency": [3.4e-6], "gap": [5e-7], "bandwidth": [450e9]}
NO_LATENCY = {"launch": 0.0, "latency": [0.0], "gap": [0.0], "bandwidth": [450e9]}


class Planner:
    """Plans on one mesh, for tensors of one size.

    Args:
        shape: Of the mesh; its devices are 0, 1, ...
        dims: Extents of the tensor, 0 for a symbolic one.
        size: Bytes of the tensor.
        cluster: Links of the devices, as a module states them.
    """

    def __init__(self, shape, dims, size=2.0**20, cluster=None):
        self._mesh = (shape, list(range(math.prod(shape))))
        self._tensor = (dims, size)
        self._find = tvm_ffi.get_global_func("distir.test.Planner")(cluster)

    def __call__(self, source, target):
        """Steps (kind, sharding, axes reduced over), seconds, bytes received."""
        steps, seconds, received = self._find(
            *self._mesh, _data(source), _data(target), *self._tensor
        )
        return (
            [(str(kind), _sharding(result), _axes(reduced)) for kind, result, reduced in steps],
            float(seconds),
            float(received),
        )


def plan(shape, source, target, **tensor):
    """The steps from one sharding to another of a tensor whose extents any sharding divides."""
    tensor.setdefault("dims", [math.prod(shape)] * len(source[0]))
    return Planner(shape, **tensor)(source, target)[0]


def _data(sharding):
    dims, partial = sharding
    return [dims, partial, "sum" if partial else "none"]


def _axes(data):
    return tuple(tuple(int(value) for value in ref) for ref in data)


def _sharding(data):
    return tuple(_axes(axes) for axes in data[0]), _axes(data[1])


# ---- axis lists


def cuts_of(shardings):
    """Begins and ends of the references of some shardings, by axis."""
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
    elif kind in ("permute", "exchange"):
        # A partial value has no holder that could stand for the others.
        assert not now[1]
        shards = [count(axes) for axes in now[0]]
        assert kind == "exchange" or shards == [count(axes) for axes in result[0]]
        whole = np.zeros([n * k for n, k in zip(arrays[0].shape, shards, strict=True)], int)
        for device, array in enumerate(arrays):
            block(whole, shape, device, now[0])[...] = array
        after_arrays = [block(whole, shape, device, result[0]) for device in range(len(arrays))]
    else:
        raise AssertionError(f"the model knows no {kind}")
    return after_arrays


def behind(axes, prefix):
    """Axes after a major prefix."""
    assert axes[: len(prefix)] == prefix
    return axes[len(prefix) :]


class StepChecker:
    """Executes steps on one mesh, each different one once.

    A step is right if it takes any arrays that hold a tensor under one sharding to arrays that hold
    it under the next; so a plan is right if its steps are and they lead from end to end.
    """

    def __init__(self, shape, rank, seed=0):
        self._shape = shape
        self._rng = np.random.default_rng(seed)
        self._whole = self._rng.integers(-99, 99, [math.prod(shape)] * rank)
        self._right = set()

    def check(self, source, target, steps):
        """Asserts that the steps lead from source to target."""
        now = source
        for kind, result, reduced in steps:
            step = (kind, now, result, reduced)
            if step not in self._right:
                self._execute(*step)
                self._right.add(step)
            now = result
        if now != target:
            self._holds(distribute(self._whole, self._shape, now, self._rng), target)

    def _execute(self, kind, now, result, reduced):
        arrays = distribute(self._whole, self._shape, now, self._rng)
        self._holds(run(kind, self._shape, arrays, now, result, reduced), result)

    def _holds(self, arrays, sharding):
        """Asserts that the arrays are the tensor under a sharding."""
        dims, partial = sharding
        for group in groups(self._shape, partial):
            expected = block(self._whole, self._shape, group[0], dims)
            np.testing.assert_array_equal(sum(arrays[device] for device in group), expected)


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
