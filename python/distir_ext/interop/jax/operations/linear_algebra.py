"""Translates matrix decompositions to calls of LAPACK; stacks of matrices may be sharded.

    %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {mhlo.backend_config = {uplo = 76 : ui8}}
        : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i32>)

is ``R.call_dps_packed("distir.lapack.potrf", (a, R.str("L")), ..)``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.operations.shapes import reshaped
from distir_ext.interop.jax.sizes import shape_of_type
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    enumerator,
    open_tensor_of,
    stated_by,
)
from distir_ext.interop.jax.table import enter_all, translates
from distir_ext.interop.jax.writer import Writer, fields_of

_OPERANDS = {"orgqr": 2, "trsm": 2}  # of routines that take more than one
# By routine the attributes that are its options, in this order, each the code of a letter.
_ROUTINES: dict[str, tuple[str, ...]] = {
    "geqrf": (),
    "gesdd": ("mode",),
    "getrf": (),
    "orgqr": (),
    "potrf": ("uplo",),
    "syevd": ("mode", "uplo"),
    "trsm": ("side", "uplo", "trans_x", "diag"),
}


def _called(
    writer: Writer,
    routine: str,
    operands: Sequence[relax.Expr],
    options: str,
    results: Sequence[relax.TensorType],
) -> list[relax.Expr]:
    """The results of a routine of LAPACK, which takes matrices along one dimension."""
    for each in operands:
        if str(each.ty.dtype) not in ("float32", "float64"):
            raise UnsupportedError(f"is LAPACK's {routine} of {each.ty.dtype}, not of float32")
    batch = list(sizes_of(operands[0])[:-2])
    count = [functools.reduce(operator.mul, batch, 1)]
    shapes = [shape_of_type(each) for each in results]
    kinds = [
        relax.TensorType([*count, *shape[len(batch) :]], each.dtype)
        for shape, each in zip(shapes, results, strict=True)
    ]
    given: list[relax.Expr] = [
        reshaped(writer, each, [*count, *sizes_of(each)[len(batch) :]]) for each in operands
    ]
    given += [tvm.ir.StringImm(options)] if options else []
    call = relax_op.call_dps_packed(
        f"distir.lapack.{routine}",
        relax.Tuple(given),
        kinds if len(kinds) > 1 else kinds[0],
    )
    made = fields_of(writer, writer.emit(call))
    return [reshaped(writer, each, shape) for each, shape in zip(made, shapes, strict=True)]


def _lapack(writer: Writer, op: Operation) -> list[Known]:
    stated = stated_by(op)
    target = op.attributes["call_target_name"].value
    routine = target.removesuffix("_ffi")[len("lapack_") + 1 :]
    options = "".join(chr(int(stated[name].value)) for name in _ROUTINES[routine])
    # Behind them are the shapes of results, where these are not static.
    operands = [writer.full(each) for each in list(op.operands)[: _OPERANDS.get(routine, 1)]]
    results = [_type_of(each, operands[0]) for each in op.results]
    return list(_called(writer, routine, operands, options, results))


def _type_of(value: Value, first: relax.Expr) -> relax.TensorType:
    """The type of a result; sizes that are not static are those of the stack, as of the operand."""
    shape, dtype = open_tensor_of(value.type)
    stack = sizes_of(first)[:-2]
    if None in shape[len(stack) :]:
        raise UnsupportedError(f"has the type {value.type}: matrices of a size that is not static")
    return relax.TensorType([*stack, *shape[len(stack) :]], dtype)


for _routine in _ROUTINES:
    enter_all((f"@lapack_{kind}{_routine}_ffi" for kind in "sd"), _lapack)


@translates("stablehlo.cholesky")
def _cholesky(writer: Writer, op: Operation) -> Known:
    """The triangle that is asked for; the other one is not said to be anything."""
    a = writer.full(op.operands[0])
    kind = _type_of(op.results[0], a)
    is_lower = "lower" in op.attributes and bool(op.attributes["lower"].value)
    info = relax.TensorType(list(kind.shape.values)[:-2], "int32")
    made = _called(writer, "potrf", [a], "L" if is_lower else "U", [kind, info])[0]
    return writer.emit((relax_op.tril if is_lower else relax_op.triu)(made, 0))


@translates("stablehlo.triangular_solve")
def _triangular_solve(writer: Writer, op: Operation) -> Known:
    side = "L" if op.attributes["left_side"].value else "R"
    uplo = "L" if op.attributes["lower"].value else "U"
    form = {"NO_TRANSPOSE": "N", "TRANSPOSE": "T", "ADJOINT": "T"}[enumerator(op, "transpose_a")]
    diagonal = "U" if op.attributes["unit_diagonal"].value else "N"
    operands = [writer.full(each) for each in op.operands]
    kind = _type_of(op.results[0], operands[1])
    return _called(writer, "trsm", operands, side + uplo + form + diagonal, [kind])[0]
