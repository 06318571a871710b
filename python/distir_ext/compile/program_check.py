"""Checks that the programs of a lowered module still match its signature.

LowerDistIR records the parameters and results of each program; sessions shard arrays by them.
Passes after LowerDistIR may change programs: for example, ``relax.transform.LiftTransformParams``
changes parameters and their order, and the session would pass the old ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import tvm
from tvm import relax

from distir_ext.signature.signature import FunctionSpec, ParamSpec, Program, Signature
from distir_ext.signature.specs import NumberSpec, ShapeSpec, Spec, TensorSpec, TupleSpec
from distir_ext.text.errors.spelling import counted
from distir_ext.text.size_text import size_text

_ADVICE = (
    ". A pass behind LowerDistIR has changed it, and a session would go by what it was. Run passes "
    "that change parameters or results, such as relax.transform.LiftTransformParams, before the "
    "module is annotated"
)


def check_programs(mod: tvm.IRModule, signature: Signature) -> None:
    """Compares the programs of a module with its signature.

    Args:
        mod: A module behind LowerDistIR.
        signature: The signature that LowerDistIR wrote.

    Raises:
        ValueError: A program is missing, has other parameters (in number, order, name
            or type), or returns something else; names the program and the parameter.
    """
    found = {gv.name_hint: function for gv, function in mod.functions_items()}
    for spec in signature.functions.values():
        for program in spec.programs:
            function = found.get(program.name)
            if not isinstance(function, relax.Function):
                raise ValueError(f"the module has no function `{program.name}`{_ADVICE}")
            _check_params(function, spec, program)
            _check_results(function, spec, program)


def _check_params(function: relax.Function, spec: FunctionSpec, program: Program) -> None:
    wanted = [spec.params[index] for index in program.params]
    is_first = all(
        spec.programs_of[device][0].virtual_stage == program.virtual_stage
        for device in program.device_ids
    )
    count = len(wanted) + bool(program.sizes)
    # A later virtual stage also takes what the one before it leaves.
    if len(function.params) < count or (is_first and len(function.params) != count):
        found = ", ".join(f"`{param.name}`" for param in function.params)
        has = counted(len(function.params), "parameter")
        raise ValueError(f"`{program.name}` has {has} ({found}), LowerDistIR left {count}{_ADVICE}")
    names = {param.name for param in spec.params}
    for index, (param, of) in enumerate(zip(function.params, wanted, strict=False)):
        here = _present(of.spec, set(program.device_ids))
        if _is_renamed(of, param.name, names) or not _fits(param.ty, here):
            raise ValueError(
                f"parameter {index} of `{program.name}` is `{param.name}`, {_shown(param.ty)}; "
                f"LowerDistIR left `{of.name}`, {_local(here)}{_ADVICE}"
            )


def _check_results(function: relax.Function, spec: FunctionSpec, program: Program) -> None:
    if any(
        spec.programs_of[device][-1].virtual_stage != program.virtual_stage
        for device in program.device_ids
    ):
        return  # what it returns goes to its next virtual stage
    returned = list(_leaves(function.ret_ty))
    wanted = [spec.result_leaves[index] for index in program.results]
    if len(returned) != len(wanted):
        raise ValueError(
            f"`{program.name}` returns {counted(len(returned), 'value')}, LowerDistIR left "
            f"{len(wanted)}{_ADVICE}"
        )
    for index, (ty, of) in enumerate(zip(returned, wanted, strict=True)):
        if not _fits(ty, of):
            raise ValueError(
                f"result {index} of `{program.name}` is {_shown(ty)}, LowerDistIR left "
                f"{_local(of)}{_ADVICE}"
            )


def _is_renamed(param: ParamSpec, name: str, names: set[str]) -> bool:
    """Returns whether a parameter was renamed other than by printing and parsing.

    Printed, ``fc1.weight`` is ``fc1_weight``, and a name that is taken gets a number.
    """
    wanted = _as_identifier(param.name)
    if _as_identifier(name) == wanted:
        return False
    numbered = re.fullmatch(re.escape(wanted) + r"_\d+", _as_identifier(name))
    return numbered is None or name in names


def _as_identifier(name: str) -> str:
    return re.sub(r"\W", "_", name).lstrip("_")


def _present(spec: Spec, devices: set[int]) -> Spec:
    """Returns the part of a parameter on some devices: of a tuple, the fields that lie on them."""
    if not isinstance(spec, TupleSpec):
        return spec
    return TupleSpec(
        tuple(_present(each, devices) for each in spec.fields if _lies_on(each, devices))
    )


def _lies_on(spec: Spec, devices: set[int]) -> bool:
    if isinstance(spec, TupleSpec):
        return not spec.fields or any(_lies_on(each, devices) for each in spec.fields)
    return not isinstance(spec, TensorSpec) or not devices.isdisjoint(spec.device_ids)


def _fits(ty: tvm.ir.Type, spec: Spec) -> bool:
    """Returns whether a local type may be that of a shard; an unknown part of a type fits."""
    if isinstance(spec, TupleSpec):
        return (
            isinstance(ty, relax.TupleType)
            and len(ty.fields) == len(spec.fields)
            and all(_fits(field, of) for field, of in zip(ty.fields, spec.fields, strict=True))
        )
    if isinstance(spec, ShapeSpec):
        return isinstance(ty, relax.ShapeType) and (
            ty.ndim < 0 or spec.dims is None or ty.ndim == len(spec.dims)
        )
    if isinstance(spec, NumberSpec):
        return isinstance(ty, tvm.ir.PrimType) and str(ty.dtype) == spec.dtype
    if not isinstance(spec, TensorSpec):
        return True
    if not isinstance(ty, relax.TensorType):
        return isinstance(ty, relax.AnyType)
    if ty.dtype is not None and spec.dtype and str(ty.dtype.dtype) != spec.dtype:
        return False
    if not isinstance(ty.shape, relax.ShapeExpr):
        # The signature states a shape that depends on the data as ().
        return ty.ndim < 0 or not spec.shape or ty.ndim == len(spec.shape)
    if ty.ndim != len(spec.shape):
        return False
    return all(
        dim.value == size if isinstance(dim, tvm.tirx.IntImm) else isinstance(size, str)
        for dim, size in zip(ty.shape.values, _local_shape(spec), strict=True)
    )


def _local_shape(spec: TensorSpec) -> Sequence[int | str]:
    known = spec.local_shape([size if isinstance(size, int) else 0 for size in spec.shape])
    both = zip(spec.shape, known, strict=True)
    return [local if isinstance(size, int) else size for size, local in both]


def _leaves(ty: tvm.ir.Type) -> Iterator[tvm.ir.Type]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _leaves(field)
    else:
        yield ty


def _local(spec: Spec) -> str:
    if not isinstance(spec, TensorSpec):
        return str(spec)
    return f"{spec.dtype}[{', '.join(str(size) for size in _local_shape(spec))}]"


def _shown(ty: tvm.ir.Type) -> str:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return str(ty)
    sizes = (size_text(size) for size in ty.shape.values)
    return f"{ty.dtype}[{', '.join(sizes)}]"
