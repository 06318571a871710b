"""Device configurations of ONNX models (IR version 11): read, checked, imported and written.

``docs/interop/onnx.md`` is the guide. Needs ``pip install 'distir-ext[onnx]'``.
"""

from distir_ext.interop.onnx.check import check
from distir_ext.interop.onnx.configuration import (
    AxisPart,
    Configuration,
    NodePlacement,
    ShardedAxis,
    TensorSharding,
    Violation,
)
from distir_ext.interop.onnx.load import Imported, from_onnx
from distir_ext.interop.onnx.read import read
from distir_ext.interop.onnx.weight_names import WeightNames, weight_names
from distir_ext.interop.onnx.write import write

__all__ = [
    "AxisPart",
    "Configuration",
    "Imported",
    "NodePlacement",
    "ShardedAxis",
    "TensorSharding",
    "Violation",
    "WeightNames",
    "check",
    "from_onnx",
    "read",
    "weight_names",
    "write",
]
