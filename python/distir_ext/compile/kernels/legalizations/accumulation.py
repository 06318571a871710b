"""Legalises sums and products of float16, bfloat16 and float8 with accumulation in float32.

TVM's kernels add half floats to half floats. In bfloat16 (8 bits) a sum of 8192 numbers stops
growing once it is 256 times as large as what is added to it: products have errors of 10 %, sums of
positive numbers are wrong altogether. Here operands become float32 inside the kernel, what is added
stays float32, and the result is rounded once. Memory is read and written in the small type as
before, and the schedules for tensor cores take these kernels: half floats in, float32 accumulators.

Which operators add, and how their kernels are told what type to add in, stands in their records.
Kernels that a user has written in TIR (``call_tir``) stay as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, te, topi

from distir_ext.compile.kernels.legalizations.dtypes import is_small_float
from distir_ext.compile.kernels.legalizations.kernel_builder import KernelBuilder
from distir_ext.compile.kernels.legalizations.rewrite_calls import rewrite_calls

__all__ = ["legalizations", "widen_scans"]

Legalization = Callable[[Any, relax.Call], Any]

_WIDE = "float32"

_WIDENED_BLOCK = "widened"


def legalizations(others: Mapping[str, Legalization] | None = None) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: operators that add small floats add them in float32.

    Args:
        others: Legalisations by operator, of calls that add nothing in a small float.
    """
    made = dict(others or {})
    for operator in _operators("products"):
        original = tvm.ir.Op.get(operator).get_attr("FLegalize")
        made[operator] = _legalize(original, made.get(operator, original), _wide_product)
    for operator in _operators("sums"):
        other = made.get(operator, tvm.ir.Op.get(operator).get_attr("FLegalize"))
        made[operator] = _legalize(other, other, _wide_sum)
    return made


def widen_scans() -> tvm.transform.Pass:
    """Cumulative sums and products of small floats become such of float32 and a cast.

    To be run before ``relax.backend.DispatchSortScan``.
    """

    def widen(call: relax.Call) -> relax.Expr:
        if not is_small_float(_dtype(call)):
            return call
        wide = relax.Call(call.op, call.args, _with_dtype(call.attrs, "dtype"))
        return relax.op.astype(wide, _dtype(call))

    return rewrite_calls(dict.fromkeys(_operators("scans"), 1), widen, "WidenScans")


def _legalize(
    original: Legalization,
    other: Legalization,
    make: Callable[[relax.BlockBuilder, relax.Call, Legalization], Any],
) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not any(map(is_small_float, _dtypes(call.ty))) or not _adds(call):
            return other(builder, call)
        wide = make(builder, call, original)
        if isinstance(wide, relax.Call) and wide.op == call.op:
            return other(builder, call)  # TVM has no kernel for it
        return _narrow(builder, wide, call.ty)

    return legalize


def _operators(kind: str) -> list[str]:
    """The operators whose records say that they accumulate so (``src/rules/operator.h``)."""
    names = tvm_ffi.get_global_func("distir.rules.AccumulatingOperators")(kind)
    return [str(name) for name in names]


def _adds(call: relax.Call) -> bool:
    """Returns whether a call of one of these operators adds up elements."""
    return bool(tvm_ffi.get_global_func("distir.rules.Accumulates")(call))


def _wide_product(builder: relax.BlockBuilder, call: relax.Call, original: Legalization) -> Any:
    wide = relax.Call(call.op, call.args, _with_dtype(call.attrs, "out_dtype"))
    return original(builder, builder.normalize(wide))


def _wide_sum(builder: relax.BlockBuilder, call: relax.Call, original: Legalization) -> Any:
    return original(KernelBuilder(builder, operand=_widened, edit=_inline_casts), call)


def _widened(value: Any) -> Any:
    """The tensors of a value in float32."""
    if isinstance(value, list | tuple):
        return type(value)(map(_widened, value))
    if isinstance(value, te.Tensor) and is_small_float(value.dtype):
        return te.compute(value.shape, lambda *i: value(*i).astype(_WIDE), name=_WIDENED_BLOCK)
    return value


def _inline_casts(function: Any) -> Any:
    """Casts of operands move into what reads them: FuseOps then sees a sum as it was."""
    schedule = s_tir.Schedule(function)
    root = schedule.get_sblock("root")
    for block in schedule.get_child_blocks(root):
        if schedule.get(block).name_hint.startswith(_WIDENED_BLOCK):
            try:
                schedule.compute_inline(block)
            except s_tir.ScheduleError:
                continue  # it is read by loops that are written out
    return schedule.mod["main"]


def _narrow(builder: relax.BlockBuilder, value: Any, wanted: Any) -> Any:
    """A value of the type that is wanted: a kernel of its own, for FuseOps to join."""
    value = builder.normalize(value)
    if isinstance(wanted, relax.TupleType):
        whole = builder.emit(value)
        fields = [
            _narrow(builder, relax.TupleGetItem(whole, index), field)
            for index, field in enumerate(wanted.fields)
        ]
        return relax.Tuple(fields)
    dtype = _type_name(wanted)
    if _type_name(value.ty) == dtype:
        return value
    # The result is the call and no variable: FuseOps does not see through a variable's other name.
    return builder.call_te(topi.cast, builder.emit(value), dtype, primfunc_name_hint="cast")


def _with_dtype(attrs: Any, field: str) -> Any:
    """A copy of an operator's attributes that asks for a float32 result."""
    info = type(attrs).__tvm_ffi_type_info__
    values = {each.name: getattr(attrs, each.name) for each in info.fields}
    return tvm.ir.make_node(info.type_key, **{**values, field: _WIDE})


def _dtypes(type_: Any) -> list[str]:
    if isinstance(type_, relax.TupleType):
        return [dtype for field in type_.fields for dtype in _dtypes(field)]
    return [_type_name(type_)]


def _dtype(call: relax.Call) -> str:
    return _type_name(call.ty)


def _type_name(type_: Any) -> str:
    return str(getattr(type_, "dtype", ""))
