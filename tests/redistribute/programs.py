"""Modules whose functions redistribute one tensor each."""

import math

import numpy as np
import tvm
from tests.native.library import call
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement, PlacementSpec

import distir_ext  # noqa: F401  loads the native library

from .model import all_shardings


class Meshes:
    """The DeviceMesh objects of a module; each mesh is there once."""

    def __init__(self):
        self.objects = {}

    def get(self, shape, ids):
        key = (tuple(shape), tuple(ids))
        if key not in self.objects:
            first = key[1][0]
            is_range = key[1] == tuple(range(first, first + len(key[1])))
            devices = tvm.ir.Range(first, first + len(key[1])) if is_range else list(key[1])
            self.objects[key] = DeviceMesh(key[0], devices)
        return self.objects[key]

    def dtensor(self, tensor_ty, shape, ids, dims):
        """The type that states a sharding of a mesh, on a view of it where it must be."""
        placed = call("ToPlacement", shape, ids, [dims, [], "none"])
        mesh = self.get(*placed[:2])
        specs = [
            PlacementSpec.sharding(dim) if dim >= 0 else PlacementSpec.replica()
            for dim in placed[2]
        ]
        return DTensorType(tensor_ty, mesh, Placement(specs))


def redistributions(pairs, tensor_shape, dtype="int32"):
    """A module with a function `f<i>` for each pair.

    Args:
        pairs: Of sides (mesh shape, device ids, dims).
        tensor_shape: Global shape of the tensor.
        dtype: Of the tensor.
    """
    meshes = Meshes()
    for source, target in pairs:
        for shape, ids, _ in (source, target):
            meshes.get(shape, ids)
    tensor_ty = relax.TensorType(tensor_shape, dtype)
    builder = relax.BlockBuilder()
    for index, (source, target) in enumerate(pairs):
        x = relax.Var("x", meshes.dtensor(tensor_ty, *source))
        to = meshes.dtensor(tensor_ty, *target)
        with builder.function(f"f{index}", [x]):
            moved = relax.op.distributed.redistribute(x, to.device_mesh, to.placement)
            builder.emit_func_output(builder.emit(moved))
    mod = builder.get()
    mod.update_global_info("mesh", list(meshes.objects.values()))
    return mod


def sampled_pairs(shape, rank, most, seed=0):
    """Pairs of shardings on one mesh over devices 0, 1, ...: all, or a fixed sample."""
    ids = tuple(range(math.prod(shape)))
    shardings = [dims for dims, _ in all_shardings(shape, rank)]
    rng = np.random.default_rng(seed)
    number = min(most, len(shardings) ** 2)
    chosen = rng.choice(len(shardings) ** 2, number, replace=False)
    return [
        ((shape, ids, shardings[i // len(shardings)]), (shape, ids, shardings[i % len(shardings)]))
        for i in chosen
    ]
