"""Shardy's meshes and shardings, from MLIR's text and into it.

Nothing of JAX or MLIR is needed.

Example:
    >>> from distir_ext.interop import shardy
    >>> mesh = shardy.parse_mesh('#sdy.mesh<["dp"=2, "tp"=4]>')
    >>> shardy.to_mesh_dims(shardy.parse('#sdy.sharding<@mesh, [{"dp"}, {"tp"}]>'), mesh)
    (Mesh((2, 4), ('dp', 'tp')), ('dp', 'tp'))
"""

from distir_ext.interop._text import FormatError
from distir_ext.interop.shardy.mesh_dims import from_mesh_dims, to_mesh_dims
from distir_ext.interop.shardy.model import AxisRef, DimSharding, LogicalMesh, Sharding
from distir_ext.interop.shardy.program import annotate, shardings
from distir_ext.interop.shardy.text import parse, parse_mesh, parse_per_value, per_value_text

__all__ = [
    "AxisRef",
    "DimSharding",
    "FormatError",
    "LogicalMesh",
    "Sharding",
    "annotate",
    "from_mesh_dims",
    "parse",
    "parse_mesh",
    "parse_per_value",
    "per_value_text",
    "shardings",
    "to_mesh_dims",
]
