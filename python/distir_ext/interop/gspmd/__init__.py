"""GSPMD's shardings, from HLO's text and into it, in all its versions.

Nothing of JAX or XLA is needed.

Example:
    >>> from distir_ext.interop import gspmd
    >>> gspmd.parse("{devices=[2,4]<=[8]}").to_mesh_dims()
    (Mesh((2, 4), ('x', 'y')), ('x', 'y'))
"""

from distir_ext.interop._text import FormatError
from distir_ext.interop.gspmd.common_mesh import common_mesh
from distir_ext.interop.gspmd.iota import Iota, find_iota
from distir_ext.interop.gspmd.program import annotate, shardings
from distir_ext.interop.gspmd.sharding import HloSharding, ShardGroup
from distir_ext.interop.gspmd.text import parse

__all__ = [
    "FormatError",
    "HloSharding",
    "Iota",
    "ShardGroup",
    "annotate",
    "common_mesh",
    "find_iota",
    "parse",
    "shardings",
]
