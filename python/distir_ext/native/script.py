"""Lets TVMScript parse the operators that this package adds.

TVM prints an operator ``relax.dist.all_gather`` as ``R.dist.all_gather(...)`` by itself; parsing
needs a function of that name under ``R.dist`` (on DTensors) or ``R.ccl`` (on local tensors) that
returns the call. Branches whose values are DTensors, and ``R.call_dps_packed`` or
``R.call_tir_inplace`` with such results, print too, but TVM's own parser refuses them; it is
extended here. So are constants, of which infinity and NaN print as strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any

import tvm
from tvm import relax
from tvm.relax import script as _printed_as
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement
from tvm.relax.script import builder as _builder
from tvm.relax.script.builder.distributed.ir import _lookup_device_mesh
from tvm.relax.script.parser import dist as _dist
from tvm.script.ir_builder.base import IRBuilder
from tvm.script.parser import relax as _parser
from tvm.script.parser._core import dispatch

from distir_ext.native.collective_records import (
    CollectiveRecord,
    on_dtensors,
    on_tensors,
    records,
)
from distir_ext.native.random_bits import random_bits, random_normal

_CONTROLS = ("propagation_barrier", "sharding_group")


def _call(
    name: str, args: Sequence[relax.Expr], attrs: dict[str, Any], ty_args: Sequence[Any] = ()
) -> tvm.ir.Call:
    attributes = tvm.ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Call(tvm.ir.Op.get(name), list(args), attributes, list(ty_args))


def _as_placement(placement: str | Placement) -> Placement:
    return Placement.from_text(placement) if isinstance(placement, str) else placement


def _named(function: Any, name: str) -> Any:
    """The function with the name by which Python's errors call it."""
    function.__name__ = function.__qualname__ = name
    return function


def _dtensor_function(record: CollectiveRecord) -> Any:
    """``R.dist`` of a collective: its arguments, then its target if it states one."""
    name = f"R.dist.{record.name}"
    signature = Signature(
        [
            *(Parameter(each, Parameter.POSITIONAL_OR_KEYWORD) for each in record.parameters),
            Parameter("attrs", Parameter.VAR_KEYWORD),
        ]
    )

    def collective(*args: Any, **attrs: Any) -> tvm.ir.Call:
        try:
            given = signature.bind(*args, **attrs).arguments
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        attrs = given.get("attrs", {})
        values = [given[each] for each in record.arguments]
        values = [relax.Tuple(each) if isinstance(each, tuple) else each for each in values]
        if record.states_target:
            mesh, placement = given["device_mesh"], given["placement"]
            target = {
                "device_mesh": _lookup_device_mesh(mesh) if isinstance(mesh, str) else mesh,
                "placement": [_as_placement(each) for each in placement]
                if isinstance(placement, list | tuple)
                else _as_placement(placement),
            }
            attrs = {**target, **attrs}
        return _call(on_dtensors(record.name), values, attrs)

    collective.__doc__ = record.text
    collective.__signature__ = signature  # type: ignore[attr-defined]
    return _named(collective, name)


def _annotate_sharding(usual: Any) -> Any:
    """``R.dist.annotate_sharding``, with open dimensions, priorities and replicated axes."""

    def annotate_sharding(
        x: relax.Expr,
        device_mesh: str | DeviceMesh,
        placement: str | Placement,
        **terms: Sequence[int],
    ) -> tvm.ir.Call:
        call = usual(x, device_mesh, placement)
        if not terms:
            return call
        stated = {"device_mesh": call.attrs.device_mesh, "placement": call.attrs.placement}
        return _call("relax.dist.annotate_sharding", [x], {**stated, **terms})

    return _named(annotate_sharding, "R.dist.annotate_sharding")


def _control_function(name: str) -> Any:
    def control(x: relax.Expr | tuple[relax.Expr, ...], **attrs: Any) -> tvm.ir.Call:
        value = relax.Tuple(x) if isinstance(x, tuple) else x
        return _call(f"relax.dist.{name}", [value], attrs)

    return _named(control, f"R.dist.{name}")


def _crossing_function(name: str) -> Any:
    """``R.dist.enter_manual`` or ``R.dist.leave_manual``, with the type of the result if stated."""

    def crossing(
        x: relax.Expr,
        device_mesh: str | DeviceMesh,
        placement: str | Placement,
        manual_axes: Sequence[int],
        ty_args: Any = (),
    ) -> tvm.ir.Call:
        mesh = _lookup_device_mesh(device_mesh) if isinstance(device_mesh, str) else device_mesh
        target = {"device_mesh": mesh, "placement": _as_placement(placement)}
        types = ty_args if isinstance(ty_args, tuple | list) else [ty_args]
        attrs = {**target, "manual_axes": list(manual_axes)}
        return _call(f"relax.dist.{name}", [x], attrs, [_as_type(ty) for ty in types])

    return _named(crossing, f"R.dist.{name}")


def _manual_function(name: str) -> Any:
    """A collective of a manual region, over axes of a mesh."""

    def collective(
        x: relax.Expr, device_mesh: str | DeviceMesh, axes: Sequence[int], **attrs: Any
    ) -> tvm.ir.Call:
        mesh = _lookup_device_mesh(device_mesh) if isinstance(device_mesh, str) else device_mesh
        return _call(
            f"relax.dist.manual_{name}", [x], {"device_mesh": mesh, "axes": list(axes), **attrs}
        )

    return _named(collective, f"R.dist.manual_{name}")


def _local_function(name: str) -> Any:
    """``R.ccl`` of a collective, with the type of the result if it cannot be inferred."""

    def collective(*args: relax.Expr, ty_args: Sequence[Any] = (), **attrs: Any) -> tvm.ir.Call:
        types = ty_args if isinstance(ty_args, (tuple, list)) else [ty_args]
        return _call(on_tensors(name), args, attrs, [_as_type(t) for t in types])

    return _named(collective, f"R.ccl.{name}")


def _as_type(annotation: Any) -> Any:
    return annotation.as_ty() if hasattr(annotation, "as_ty") else annotation


def _has_dtensor(ty: Any) -> bool:
    if isinstance(ty, tvm.ir.TupleType):
        return any(_has_dtensor(field) for field in ty.fields)
    return isinstance(ty, DTensorType)


def _call_dps_packed(usual: Any) -> Any:
    """``R.call_dps_packed``, whose results TVM's own wants to be Tensors."""

    def call_dps_packed(func: Any, args: Any, out_ty: Any) -> relax.Expr:
        types = [_as_type(ty) for ty in (out_ty if isinstance(out_ty, list | tuple) else [out_ty])]
        if not any(_has_dtensor(ty) for ty in types):
            return usual(func, args, out_ty)
        callee = relax.ExternFunc(func) if isinstance(func, str) else func
        fields = args if isinstance(args, relax.Expr) else relax.Tuple(args)
        if not isinstance(fields.ty, tvm.ir.TupleType):
            fields = relax.Tuple([fields])
        return _call("relax.call_dps_packed", [callee, fields], {}, types)

    return call_dps_packed


def _call_tir(usual: Any) -> Any:
    """``R.dist.call_tir``, which TVM also prints for kernels that are called in place."""

    def call_tir(func: Any, args: Any, out_ty: Any, **options: Any) -> relax.Expr:
        indices = options.pop("inplace_indices", None)
        if indices is None:
            return usual(func, args, out_ty, **options)
        is_tuple = isinstance(out_ty, list | tuple)
        ty = tvm.ir.TupleType([_as_type(ty) for ty in out_ty]) if is_tuple else _as_type(out_ty)
        fields = args if isinstance(args, relax.Expr) else relax.Tuple(args)
        attrs = tvm.ir.make_node(
            "relax.attrs.CallTIRInplaceAttrs", inplace_indices=[int(index) for index in indices]
        )
        return relax.Call(tvm.ir.Op.get("relax.call_tir_inplace"), [func, fields], attrs, [ty])

    return call_tir


def _call_tir_local_view(usual: Any) -> Any:
    """``R.dist.call_tir_local_view``, which TVM also prints for kernels that have a gradient."""

    def call_tir_local_view(func: Any, args: Any, out_ty: Any, **gradient: Any) -> relax.Expr:
        types = [_as_type(ty) for ty in out_ty] if isinstance(out_ty, list | tuple) else out_ty
        call = usual(func, args, types if isinstance(types, list) else _as_type(types))
        if not gradient:
            return call
        attrs = tvm.ir.make_node(
            "relax.attrs.CallTIRWithGradAttrs",
            te_grad_name=gradient["te_grad_name"],
            te_grad_kwargs=gradient.get("te_grad_kwargs", {}),
        )
        return relax.Call(call.op, call.args, attrs, call.ty_args)

    return call_tir_local_view


def _call_tir_inplace_local_view(
    func: Any, args: Any, inplace_indices: Sequence[int], ty_args: Any
) -> relax.Expr:
    types = ty_args if isinstance(ty_args, list | tuple) else [ty_args]
    fields = args if isinstance(args, relax.Expr) else relax.Tuple(args)
    attrs = tvm.ir.make_node(
        "relax.attrs.CallTIRInplaceAttrs", inplace_indices=[int(index) for index in inplace_indices]
    )
    op = tvm.ir.Op.get("relax.dist.call_tir_inplace_local_view")
    return relax.Call(op, [func, fields], attrs, [_as_type(ty) for ty in types])


def _const(usual: Any) -> Any:
    """``R.const`` or ``R.dist.const``, with the strings that TVM prints for "inf" and "nan"."""

    def const(value: Any, *args: Any, **options: Any) -> relax.Expr:
        return usual(float(value) if isinstance(value, str) else value, *args, **options)

    return const


def _without_empty_blocks(branch: relax.SeqExpr) -> relax.SeqExpr:
    """A branch as the normaliser leaves it, which would make the ``If`` anew, without its type.

    A branch that is only a variable (``r = x``) has an empty block.
    """
    blocks = [block for block in branch.blocks if block.bindings]
    if len(blocks) == len(branch.blocks):
        return branch
    result = relax.SeqExpr(blocks, branch.body)
    relax.expr._update_type(result, branch.body.ty)
    return result


def _visit_if(parser: Any, node: Any) -> None:
    """Parses ``if``: as TVM does, except that branches may have DTensors."""
    if node.orelse is None:
        raise ValueError("Else statements are required for relax dialect.")
    frame = _builder.If(parser.eval_expr(node.test))
    frame.__enter__()
    for branch, body in ((_builder.Then, node.body), (_builder.Else, node.orelse)):
        with parser.var_table.with_frame(), branch():
            parser.visit_body(body)
    branches = (frame.then_expr, frame.else_expr)
    try:
        frame.__exit__(None, None, None)
        var = frame.var
    except Exception:
        # By now the frame has ended. What failed is the common type of the branches, which TVM
        # does not know for DTensors: here they have to be the same.
        ty = branches[0].body.ty
        if not _has_dtensor(ty):
            raise
        tvm.ir.assert_structural_equal(ty, branches[1].body.ty)
        value = relax.If(frame.condition, *map(_without_empty_blocks, branches))
        relax.expr._update_type(value, ty)
        var = _builder.emit(value)
        IRBuilder.name(frame.var_name, var)
    parser.var_table.add(frame.var_name, var, allow_shadowing=True)


def install() -> None:
    """Adds the functions to the parser's namespaces ``R``, ``R.dist`` and ``R.ccl``."""
    dispatch.register(token="relax", type_name="If")(_visit_if)
    _parser.call_dps_packed = _call_dps_packed(_parser.call_dps_packed)
    _parser.const = _const(_parser.const)
    _dist.const = _const(_dist.const)
    _dist.annotate_sharding = _annotate_sharding(_dist.annotate_sharding)
    _dist.call_tir = _call_tir(_dist.call_tir)
    _dist.call_tir_local_view = _call_tir_local_view(_dist.call_tir_local_view)
    _dist.call_tir_inplace_local_view = _call_tir_inplace_local_view
    _dist.random_bits = random_bits
    _dist.random_normal = random_normal
    for name in _CONTROLS:
        setattr(_dist, name, _control_function(name))
    for name in ("enter_manual", "leave_manual"):
        setattr(_dist, name, _crossing_function(name))
    for record in records().values():
        if record.is_on_dtensors:
            setattr(_dist, record.name, _dtensor_function(record))
        if record.manual_text:
            setattr(_dist, f"manual_{record.name}", _manual_function(record.name))
        if record.is_on_tensors:
            setattr(_parser.ccl, record.name, _local_function(record.name))
    # What a printed module imports as R; TVM leaves out what only DistIR needs.
    for name in ("DTensor", "device_mesh", "call_dps_packed", "const"):
        setattr(_printed_as, name, getattr(_parser, name))
