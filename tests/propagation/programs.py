"""Writes a function operator by operator, and reads the shardings that it gets.

Placements are written with one entry per tensor dimension, "ab|-" for a dimension sharded by the
mesh axes a, then b, and one that is whole.
"""

import math

from tvm import relax
from tvm.relax.distributed import DeviceMesh, Placement, PlacementSpec

from .checks import propagated

AXES = "abcdef"


class Program:
    """Writes a function operator by operator, on one mesh."""

    def __init__(self, *mesh_shape):
        self.mesh = DeviceMesh(mesh_shape, list(range(math.prod(mesh_shape))))
        self.bindings = []
        self.params = []
        self.builder = relax.BlockBuilder()

    def param(self, name, *shape):
        self.params.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return self.params[-1]

    def emit(self, name, value):
        self.bindings.append((name, value))
        return _Later(len(self.bindings) - 1)

    def place(self, name, value, text):
        return self.emit(name, ("place", value, text))

    def placement(self, text):
        specs = [PlacementSpec.replica() for _ in self.mesh.shape]
        for dim, axes in enumerate(text.split("|")):
            for axis in axes.strip("-"):
                specs[AXES.index(axis)] = PlacementSpec.sharding(dim)
        return Placement(specs)

    def shardings(self, *results):
        """Propagates; from name to sharding, views of the mesh included (their axes as numbers)."""
        emitted = []

        def value_of(value):
            return emitted[value.index] if isinstance(value, _Later) else value

        with self.builder.function("main", self.params):
            for name, value in self.bindings:
                if value[0] == "place":
                    made = relax.op.distributed.annotate_sharding(
                        value_of(value[1]), self.mesh, self.placement(value[2])
                    )
                else:
                    made = value[0](*[value_of(arg) for arg in value[1:]])
                emitted.append(self.builder.emit(made, name))
            fields = [value_of(result) for result in results]
            self.builder.emit_func_output(fields[0] if len(fields) == 1 else relax.Tuple(fields))
        mod = self.builder.get()
        mod.update_global_info("mesh", [self.mesh])
        result = propagated(mod)
        found = {}
        values = [binding.var for block in result["main"].body.blocks for binding in block.bindings]
        for var in [*result["main"].params, *values]:
            if isinstance(var.ty, relax.distributed.DTensorType):
                # Of what is redistributed, what its operator gives, which stands first.
                found.setdefault(var.name.removesuffix("_1"), self.text(var.ty))
        return found

    def text(self, ty):
        dims = ["" for _ in range(ty.tensor_ty.ndim)]
        is_root = tuple(ty.device_mesh.shape) == tuple(self.mesh.shape)
        for axis, spec in enumerate(ty.placement.dim_specs):
            if spec.axis >= 0:
                dims[spec.axis] += AXES[axis] if is_root else str(axis)
        return "|".join(dim or "-" for dim in dims)


class _Later:
    def __init__(self, index):
        self.index = index
