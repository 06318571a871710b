"""Makes labels of ONNX nodes for error messages."""

from __future__ import annotations

from typing import Any

from distir_ext.text.printable import printable_line


def node_label(node: Any, index: int) -> str:
    """Returns the label of a node for messages; it need not have a name.

    Args:
        node: Of a proto, or of an ``onnx_ir.Graph``.
        index: Its number in the graph or function.
    """
    if node.name:
        return f"node {node.name!r}"
    return f"node {index} ({printable_line(node.op_type)})"
