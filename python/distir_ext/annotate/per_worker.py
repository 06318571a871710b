"""Converts functions of one worker with ``R.ccl`` (MLC-LLM's form) to manual regions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.annotate.annotations import MeshTable, function_to_annotate
from distir_ext.annotate.open_regions import check_axis
from distir_ext.annotate.patterns import values_named
from distir_ext.annotate.regions import collective_call, crossing_call, cuts
from distir_ext.mesh.frameworks import read_dims
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.collective_records import names
from distir_ext.structure.annotated_function import (
    PARAMETER,
    RESULT,
    VARIABLE,
    Site,
    annotated_already,
)
from distir_ext.text.errors.tracebacks import short_tracebacks

_CCL = "relax.ccl."
_REDUCTIONS = {"avg": "mean"}  # where the name differs from that of R.ccl.allreduce


@short_tracebacks
def per_worker(
    mod: tvm.IRModule,
    mesh: Mesh | Any,
    plan: Mapping[str, Any] | None = None,
    func: str = "main",
    *,
    group: str | Sequence[str] | None = None,
) -> tvm.IRModule:
    """Takes a function as the program of one worker: its shapes are those of what a worker has.

    Such are the modules of MLC-LLM and of ``relax.frontend.nn`` with ``tensor_parallel_shards``: a
    weight has the shape of its shard, and ``R.ccl.allreduce`` stands where workers add up::

        x: R.Tensor((4, 8)), up: R.Tensor((8, 16)), down: R.Tensor((16, 8))
        y = R.ccl.allreduce(R.matmul(R.nn.silu(R.matmul(x, up)), down), "sum")

        mod = dx.per_worker(mod, dx.Mesh(tp=2), {"up": (None, "tp"), "down": ("tp", None)})

    Here ``up`` becomes a parameter of (8, 32), of which each worker has its 16 columns. The body
    stays as it is, in a manual region (:func:`distir_ext.manual`) over all axes; the result is what
    ``dx.annotate`` gives, for :func:`distir_ext.build` and the analyses.

    Args:
        mod: The module; it is not changed. Private functions that call or are called are inlined.
        mesh: The workers: a :class:`Mesh`, or what it can be made of.
        plan: From names or patterns, as for :func:`distir_ext.annotate`, to dims: a tuple with one
            entry per dimension, the axes along which workers have different parts of it, or None.
            What it does not name is the same on all workers, results (``return``) as well.
        func: The name of the function.
        group: The axes along which a group of workers lies: collectives with ``in_group`` are those
            of one group, others those of all workers. By default the last axis of the mesh.

    Returns:
        The module, whose function takes and gives whole tensors.

    Raises:
        ValueError: The function does not exist, or has annotations; the plan names nothing, or has
            dims that do not fit; a collective counts other workers than there are in a group; a
            size that is cut is not known; ``R.ccl`` stands in a function that it calls.
        TypeError: The mesh, the plan or dims have a wrong type.
    """
    function_to_annotate(mod, func)
    named = as_mesh(mesh, "the mesh of workers")
    mod = relax.transform.InlinePrivateFunctions()(mod)
    function = mod[func]
    if annotated_already(function):
        raise ValueError(
            f"function {func} has sharding annotations, so it is written for whole tensors; "
            "a program of one worker has none"
        )
    dims = _dims(function, func, plan or {})
    meshes = MeshTable(mod)
    collectives = _Collectives(mod, func, meshes, named, _group(named, group))
    collectives.check(function)
    body = collectives.visit_expr(function.body)
    written = _Border(meshes, named, dims).around(function, body)
    mod = meshes.store(mod.clone())
    mod.update_func(mod.get_global_var(func), written)
    normalized: tvm.IRModule = relax.transform.Normalize()(mod)
    return normalized


def workers_alike(mod: tvm.IRModule, workers: int | None) -> tvm.IRModule:
    """:func:`per_worker` of every function that can be called, with the same arguments everywhere.

    Args:
        mod: The module.
        workers: How many there are.

    Raises:
        ValueError: There is no number of workers; or as :func:`per_worker`.
    """
    if workers is None:
        raise ValueError(
            "per_worker=True needs devices=, the number of workers; dx.per_worker says in place of "
            "it which parts of its arguments each of them has"
        )
    mesh = Mesh((workers,), ("worker",))
    for name, function in mod.functions_items():
        if isinstance(function, relax.Function) and "global_symbol" in (function.attrs or {}):
            mod = per_worker(mod, mesh, func=str(name.name_hint))
    return mod


def _group(mesh: Mesh, group: str | Sequence[str] | None) -> tuple[str, ...]:
    if group is None:
        return mesh.axis_names[-1:]
    axes = (group,) if isinstance(group, str) else tuple(group)
    for axis in axes:
        check_axis("a group of workers", axis, mesh)
    return tuple(name for name in mesh.axis_names if name in axes)


def _dims(function: relax.Function, func: str, plan: Mapping[str, Any]) -> dict[Site, Any]:
    """The dims of parameters and results that a plan names."""
    found = {}
    for site, text in values_named(function, func, plan).items():
        if site.kind == VARIABLE:
            raise ValueError(
                f"pattern {text!r} names a variable of function {func}; a plan per worker says "
                "which parts of parameters and results workers have"
            )
        found[site] = plan[text]
    return found


class _Border:
    """Writes where whole tensors become a worker's parts, and parts become whole results."""

    def __init__(self, meshes: MeshTable, mesh: Mesh, dims: Mapping[Site, Any]) -> None:
        self._meshes = meshes
        self._mesh = mesh
        self._dims = dims
        self._bindings: list[relax.Binding] = []
        self._builder = relax.BlockBuilder()  # types what is bound

    def around(self, function: relax.Function, body: relax.SeqExpr) -> relax.Function:
        """The function on whole tensors, with a body on parts."""
        params = [self._enter(param) for param in function.params]
        entering, self._bindings = self._bindings, []
        result = self._leave(Site(RESULT, "return", ()), body.body)
        blocks = [relax.BindingBlock(entering), *body.blocks, relax.BindingBlock(self._bindings)]
        seq = relax.SeqExpr(blocks, result)
        return relax.Function(params, seq, result.ty, function.is_pure, function.attrs)

    def _enter(self, param: relax.Var) -> relax.Var:
        """The parameter of whole tensors; the old one is bound to what a worker has of it."""
        site = Site(PARAMETER, param.name, ())
        whole = relax.Var(param.name, self._whole_type(site, param.ty))
        part = self._part(site, whole, param.ty)
        if tvm_ffi.structural_equal(part.ty, param.ty):
            self._bindings.append(relax.VarBinding(param, part))
        else:  # the symbol of a size is that of a part
            self._bindings.append(relax.MatchCast(param, part, param.ty))
        return whole

    def _part(self, site: Site, whole: relax.Expr, type_: Any) -> relax.Expr:
        if isinstance(type_, relax.TupleType):
            parts = []
            for field, (inner, field_type) in enumerate(_fields(site, type_)):
                item = self._bound("field", relax.TupleGetItem(whole, field))
                parts.append(self._part(inner, item, field_type))
            return self._bound("parts", relax.Tuple(parts))
        if not isinstance(type_, relax.TensorType):
            return whole
        return self._crossing("enter_manual", site, whole)

    def _leave(self, site: Site, part: relax.Expr) -> relax.Expr:
        type_ = part.ty
        if isinstance(type_, relax.TupleType):
            wholes = []
            for field, (inner, _) in enumerate(_fields(site, type_)):
                item = self._bound("field", relax.TupleGetItem(part, field))
                wholes.append(self._leave(inner, item))
            return self._bound("wholes", relax.Tuple(wholes))
        if not isinstance(type_, relax.TensorType):
            return part
        return self._crossing("leave_manual", site, part)

    def _crossing(self, operator: str, site: Site, value: relax.Expr) -> relax.Var:
        call = crossing_call(
            self._meshes,
            operator,
            value,
            self._mesh,
            self._dims.get(site),
            self._mesh.axis_names,
            str(site),
        )
        return self._bound("part", call)

    def _bound(self, name: str, value: relax.Expr) -> relax.Var:
        value = self._builder.normalize(value)
        var = relax.Var(name, value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def _whole_type(self, site: Site, type_: Any) -> Any:
        if isinstance(type_, relax.TupleType):
            return relax.TupleType([self._whole_type(*each) for each in _fields(site, type_)])
        dims = self._dims.get(site)
        if dims is None or not isinstance(type_, relax.TensorType):
            return type_
        if not isinstance(type_.shape, relax.ShapeExpr):
            return type_  # crossing_call says what is wrong
        sizes = list(type_.shape.values)
        read = read_dims(dims, self._mesh.axis_names, type_.ndim)
        for number, parts in cuts(self._mesh, read[: len(sizes)]):
            size = sizes[number]
            if isinstance(size, tvm.tirx.IntImm):
                sizes[number] = int(size) * parts
            else:
                sizes[number] = tvm.tirx.Var(f"{getattr(size, 'name', 'size')}_of_all", "int64")
        return relax.TensorType(sizes, type_.dtype)


def _fields(site: Site, type_: relax.TupleType) -> Iterator[tuple[Site, Any]]:
    for index, field in enumerate(type_.fields):
        yield Site(site.kind, site.name, (*site.path, index)), field


@relax.expr_functor.mutator
class _Collectives(relax.PyExprMutator):
    """Writes collectives of ``R.ccl`` as those of a manual region."""

    def __init__(
        self, mod: tvm.IRModule, func: str, meshes: MeshTable, mesh: Mesh, group: tuple[str, ...]
    ) -> None:
        super().__init__(mod)
        self._mod = mod
        self._func = func
        self._meshes = meshes
        self._mesh = mesh
        self._group = group

    def check(self, function: relax.Function) -> None:
        """Refuses collectives that cannot be written so, and those in functions that are called."""
        for call in _calls(function):
            if isinstance(call.op, tvm.ir.GlobalVar):
                self._check_callee(str(call.op.name_hint))
            elif name := _collective(call):
                if not hasattr(self, f"_{name}"):
                    raise ValueError(
                        f"function {self._func} has R.ccl.{name}, which a program of one worker "
                        "cannot have; it can have allreduce, allgather, broadcast_from_worker0 and "
                        "scatter_from_worker0"
                    )
                if hasattr(call.attrs, "num_workers"):
                    self._check_workers(name, call.attrs)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replaces a collective."""
        call = self.visit_expr_post_order(call)
        name = _collective(call)
        if not name:
            return call
        written: relax.Expr = getattr(self, f"_{name}")(call.args[0], call.attrs)
        return written

    def _allreduce(self, x: relax.Expr, attrs: Any) -> relax.Expr:
        reduction = str(attrs.op_type)
        reduction = _REDUCTIONS.get(reduction, reduction)
        return self._collective(names.all_reduce, x, self._axes(attrs), reduction=reduction)

    def _allgather(self, x: relax.Expr, attrs: Any) -> relax.Expr:
        return self._collective(names.all_gather, x, self._axes(attrs), dim=0)

    def _scatter_from_worker0(self, x: relax.Expr, attrs: Any) -> relax.Expr:
        # Every worker sends a part to each, of which that of the first worker counts.
        split_dim = int(attrs.axis) + 1
        return self._of_first(x, names.all_to_all, split_dim=split_dim, concat_dim=0)

    def _broadcast_from_worker0(self, x: relax.Expr, _: Any) -> relax.Expr:
        return self._of_first(x, names.all_gather, dim=0)

    def _of_first(self, x: relax.Expr, kind: str, **attrs: int) -> relax.Expr:
        """Emits the first worker's `x` on all workers, by a collective along a new dimension."""
        row = self._emit(relax.op.expand_dims(x, 0))
        rows = self._emit(self._collective(kind, row, self._mesh.axis_names, **attrs))
        first = self._emit(relax.op.strided_slice(rows, [0], [0], [1]))
        return relax.op.squeeze(first, 0)

    def _emit(self, value: relax.Expr) -> relax.Var:
        var: relax.Var = self.builder_.emit(value)
        return var

    def _collective(
        self, kind: str, x: relax.Expr, axes: Sequence[str], **attrs: Any
    ) -> relax.Expr:
        return collective_call(self._meshes, kind, x, self._mesh, axes, **attrs)

    def _axes(self, attrs: Any) -> tuple[str, ...]:
        in_group = getattr(attrs, "in_group", False)  # a scatter is among all workers
        return self._group if in_group else self._mesh.axis_names

    def _check_workers(self, name: str, attrs: Any) -> None:
        axes, stated = self._axes(attrs), int(attrs.num_workers)
        sizes = dict(zip(self._mesh.axis_names, self._mesh.shape, strict=True))
        there = math.prod(int(sizes[axis]) for axis in axes)
        if stated != there:
            raise ValueError(
                f"function {self._func}: R.ccl.{name} counts {stated} workers, and along "
                f"{', '.join(map(repr, axes))} there are {there}"
            )

    def _check_callee(self, name: str) -> None:
        callee = self._mod[name]
        if not isinstance(callee, relax.Function):
            return
        for collective in filter(None, map(_collective, _calls(callee))):
            raise ValueError(
                f"function {self._func} calls {name}, which has R.ccl.{collective} and is a "
                "function of its own; make it private, so that it is inlined"
            )


def _collective(call: relax.Call) -> str:
    """The name of a collective of ``R.ccl``, such as "allreduce"; empty for other calls."""
    name = str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""
    return name.removeprefix(_CCL) if name.startswith(_CCL) else ""


def _calls(function: relax.Function) -> list[relax.Call]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.Call):
            found.append(expr)

    relax.analysis.post_order_visit(function, visit)
    return found
