"""Rows of tables of communication: a program, how it is sharded, and what a textbook counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

import distir_ext as dx

FLOAT, INT = "float32", "int64"

Shapes = Mapping[str, tuple[Sequence[Any], str]]
"""Shape and dtype of each parameter."""


def program(build: Callable[..., Any], shapes: Shapes) -> Any:
    """A function ``main`` of tensors; ``build`` gets the parameters."""
    builder = relax.BlockBuilder()
    params = [relax.Var(name, relax.TensorType(*stated)) for name, stated in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(result)
    return builder.finalize()


@dataclass(frozen=True)
class Row:
    """A program and the bytes that a device has to send."""

    what: str
    build: Callable[..., Any]
    shapes: Shapes
    mesh: dx.Mesh
    plan: Mapping[str, Any]
    right: int
    """A textbook's count, of what is padded where shards do not divide an extent."""

    sent: int | None = None
    """Bytes that are sent, where they are not what a textbook counts."""

    def measured(self) -> int:
        """Bytes that a device sends."""
        annotated = dx.annotate(program(self.build, self.shapes), self.mesh, self.plan)
        found = dx.analysis.collectives(dx.lower(annotated))
        return sum(each.bytes_per_device * each.count for each in found)
