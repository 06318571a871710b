"""Builds functions of one block on a mesh with axes a, b, c, ..., and reads the shardings that
propagation gives their values.

Shardings are one text per tensor: "ab?|-" is a dimension sharded by a, then b, which is open, and
one that is not sharded and closed; "?" is open and empty, and "b?p1" has a priority. What comes out
has no "?": "a:(1)2" is a part of an axis.
"""

from __future__ import annotations

import re

from tvm import relax
from tvm.relax.distributed import DTensorType

import distir_ext as dx

from .checks import propagated


def dims_of(text: str, replicated: str = "") -> dx.TensorDims:
    """Parses dims from a text."""
    entries = []
    for entry in text.split("|"):
        axes, is_open, priority = re.fullmatch(r"([a-f]*|-)(\??)(?:p(\d+))?", entry).groups()
        names = axes.strip("-")
        entries.append(dx.Dim(*names, open=bool(is_open), priority=int(priority or 0)))
    return dx.TensorDims(*entries, replicated=tuple(replicated))


def text_of(mod, var) -> str:
    """Dims of a variable as text."""
    entries = (entry or "-" for entry in dx.dims(mod, var))
    return "|".join(each if isinstance(each, str) else "".join(each) for each in entries)


class Controlled:
    """A function that is being written.

    Args:
        *sizes: Those of the axes a, b, c, ...
    """

    def __init__(self, *sizes: int) -> None:
        self.mesh = dx.Mesh(sizes, tuple("abcdef"[: len(sizes)]))
        self.builder = relax.BlockBuilder()
        self._params: list[relax.Var] = []
        self._steps: list = []

    def param(self, name, *shape):
        self._params.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return self._params[-1]

    def build(self, write):
        """The module of a function; `write` gets `emit(name, value)` and returns the result."""
        with self.builder.function("main", self._params):
            result = write(lambda name, value: self.builder.emit(value, name))
            self.builder.emit_func_output(result)
        return self.builder.finalize()

    def state(self, value, text, replicated=""):
        return dx.constrain(value, self.mesh, dims_of(text, replicated))

    def shardings(self, write):
        """Propagates; from name to text."""
        return shardings_of(propagated(self.build(write)))


def shardings_of(mod, function="main"):
    """From the name of each DTensor of a function to its sharding, and that of the result.

    What is redistributed keeps the sharding that its operator gives.
    """
    found: dict[str, str] = {}
    bound = [each.var for block in mod[function].body.blocks for each in block.bindings]
    for var in [*mod[function].params, *bound]:
        if isinstance(var.ty, DTensorType):
            found.setdefault(re.sub(r"_\d+$", "", var.name), text_of(mod, var))
    if isinstance(mod[function].ret_ty, DTensorType):
        found["return"] = text_of(mod, mod[function].ret_ty)
    return found
