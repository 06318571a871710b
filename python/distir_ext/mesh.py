"""Device meshes whose axes have names, by their public name."""

from distir_ext._meshes.mesh import DimSharding, Mesh, as_mesh, has_names, is_mesh

__all__ = ["DimSharding", "Mesh", "as_mesh", "has_names", "is_mesh"]
