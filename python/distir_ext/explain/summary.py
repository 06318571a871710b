"""Summary of a module: its meshes, and the shardings of values of its functions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import Mark
from distir_ext.mesh.dims import dims_text
from distir_ext.mesh.mesh import Mesh
from distir_ext.mesh.notation import Notation, meshes
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase
from distir_ext.signature.dtensor_shardings import sharding_of_dtensor, size_of
from distir_ext.signature.sharding import Sharding
from distir_ext.signature.signature import parse_signature
from distir_ext.signature.signature_attr import has_signature, signature_for_executable
from distir_ext.signature.specs import Spec, TensorSpec, TupleSpec
from distir_ext.structure.annotated_function import (
    PARAMETER,
    RESULT,
    Site,
    annotated_already,
    parameter_sites,
    result_sites,
    variable_sites,
)
from distir_ext.text.display import Printed
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.folding import folded

INPUT, WEIGHT = "input", "weight"


@dataclass(frozen=True)
class SummaryRow:
    """One value of a function."""

    function: str
    """The function."""

    name: str
    """Name of the value in plans, as ``"w"``, ``"weights.0"`` or ``"return"``."""

    kind: str
    """``"input"``, ``"weight"``, ``"result"``, or ``"variable"``: one that is annotated. Parameters
    from ``num_input`` on are weights; without it, all are inputs."""

    type: str
    """The global type, as ``"float32[8, 64]"``."""

    sharding: Sharding | None
    """Its sharding; None where that is not known, or not yet."""

    count: int = 1
    """Number of values in the row. More than one if names differ in numbers alone."""

    stated: str | None = None
    """Dims of its annotation, as ``"(('dp', ...), None)"``; None where there is none."""

    @property
    def bytes_per_device(self) -> int | None:
        """Bytes of one shard of one value; None where the sharding or a size is not known."""
        if self.sharding is None:
            return None
        dtype = self.sharding.spec.dtype
        sizes = [size for size in self.sharding.shard_shape if isinstance(size, int)]
        if not dtype or len(sizes) != len(self.sharding.shape):
            return None
        return math.prod(sizes) * max(tvm_ffi.dtype(dtype).bits, 8) // 8


@dataclass(frozen=True, repr=False)
class Summary(Printed):
    """Summary of a module. ``print`` shows tables, notebooks show them as HTML."""

    phase: str | None
    """Phase of the module, see :func:`distir_ext.phase`; None if nothing in it is sharded."""

    meshes: tuple[Mesh, ...]
    """The meshes of the module."""

    rows: tuple[SummaryRow, ...]
    """Parameters, results, and variables that are annotated."""

    def folded(self) -> tuple[SummaryRow, ...]:
        """The rows, those of layers as one: ``layers.*.up``."""
        return tuple(replace(row, count=count) for row, count in folded(self.rows))


@short_tracebacks
def summary(mod: tvm.IRModule) -> Summary:
    """Lists the parameters and results of a module's functions, with their shardings.

    The module is summarised as it is, and not changed: an annotated module has the shardings of
    its annotations, a propagated one those that were decided, and a lowered one the global types
    that its programs were made of. :func:`distir_ext.analysis.shardings` lowers a module first, and
    returns data for JSON.

    Args:
        mod: The module, in any phase.

    Raises:
        TypeError: It is no module.
        ValueError: It is lowered, and its signature is damaged.

    Example:
        >>> x = relax.Var("x", relax.TensorType((8, 64), "float32"))
        >>> builder = relax.BlockBuilder()
        >>> with builder.function("main", [x]):
        ...     _ = builder.emit_func_output(builder.emit(relax.op.add(x, x)))
        >>> from distir_ext import annotate
        >>> print(summary(annotate(builder.get(), Mesh(dp=2, tp=2), {"x": ("dp", None)})))
        main (annotated)
        <BLANKLINE>
         value   kind    type            sharding      shard   count  on a device
         ────────────────────────────────────────────────────────────────────────
         x       input   float32[8, 64]  ('dp', None)  4 x 64      1      1.02 kB
         return  result  float32[8, 64]  -             -           1            -
        <BLANKLINE>
        parameters on a device: 1.02 kB
        <BLANKLINE>
    """
    check_module(mod)
    rows = _lowered_rows(mod) if has_signature(mod) else _rows(mod)
    return Summary(phase(mod), meshes(mod), tuple(rows))


def _rows(mod: tvm.IRModule) -> Iterator[SummaryRow]:
    notation = Notation(mod)
    for variable, function in sorted(mod.functions.items(), key=lambda each: each[0].name_hint):
        if not isinstance(function, relax.Function):
            continue
        stated = annotated_already(function)
        sites = {**parameter_sites(function), **result_sites(function)}
        attrs = function.attrs or {}
        num_input = int(attrs.get("num_input", len(function.params)))
        weights = {str(param.name) for param in function.params[num_input:]}
        known = {site.label for site in sites}
        for label, found in variable_sites(function).items():
            if label not in known:  # an annotated parameter is a variable of the same name
                sites.update(each for each in found if each[0] in stated)
        for site, type_ in sites.items():
            kind = site.kind
            if kind == PARAMETER:
                kind = WEIGHT if site.name in weights else INPUT
            yield _row(notation, variable.name_hint, kind, site, type_, stated)


def _row(
    notation: Notation,
    function: str,
    kind: str,
    site: Site,
    type_: Any,
    stated: dict[Site, relax.Call],
) -> SummaryRow:
    words = None
    if site in stated and isinstance(type_, relax.TensorType):
        mark = Mark.of(stated[site])
        words = dims_text(mark.dims(notation, type_)) if type_.ndim >= 0 else None
        type_ = mark.type_of(type_)
    sharding = None
    text = str(type_)
    if isinstance(type_, relax.TensorType):
        text = _tensor(type_)
    elif isinstance(type_, DTensorType) and type_.tensor_ty.ndim >= 0:
        sharding = sharding_of_dtensor(notation, type_)
        text = _tensor(type_.tensor_ty)
    return SummaryRow(function, site.label, kind, text, sharding, stated=words)


def _tensor(type_: relax.TensorType) -> str:
    dtype = str(type_.dtype or "")
    if isinstance(type_.shape, relax.ShapeExpr):
        return f"{dtype}[{', '.join(str(size_of(size)) for size in type_.shape.values)}]"
    return f"{dtype} of {type_.ndim} dimensions" if type_.ndim >= 0 else dtype


def _lowered_rows(mod: tvm.IRModule) -> Iterator[SummaryRow]:
    signature = parse_signature(json.dumps(signature_for_executable(mod)))
    for function in signature.functions.values():
        for index, param in enumerate(function.params):
            kind = INPUT if index < function.num_input else WEIGHT
            for name, spec in _leaves(param.name, param.spec):
                yield _lowered_row(function.name, name, kind, spec)
        for name, spec in _leaves("return", function.result):
            yield _lowered_row(function.name, name, RESULT, spec)


def _lowered_row(function: str, name: str, kind: str, spec: Spec) -> SummaryRow:
    if not isinstance(spec, TensorSpec):
        return SummaryRow(function, name, kind, str(spec), None)
    text = f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
    return SummaryRow(function, name, kind, text, Sharding(spec, spec.device_ids))


def _leaves(name: str, spec: Spec) -> Iterator[tuple[str, Spec]]:
    if isinstance(spec, TupleSpec):
        for index, field in enumerate(spec.fields):
            yield from _leaves(f"{name}.{index}", field)
    else:
        yield name, spec
