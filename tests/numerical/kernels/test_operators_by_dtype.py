"""Every operator in every dtype: what NumPy or its widest type gives, or one error."""

import functools
import re
import zlib
from dataclasses import replace

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax

from distir_ext.compile.kernel_values import tir_pipeline

from ..case import draw
from ..operators import CASES
from ..partitioned import legalized, to_arrays
from .dtype_cases import CREATED, DATA_DEPENDENT, LEFT_OUT
from .test_values import DTYPES, numpy_dtype, wide

# Its order of equal elements is another one than NumPy's; test_values has a stable reference.
WITHOUT_REFERENCE = {"relax.argsort"}

# Their cases have a number that is no bool, and a reference that adds bools up as logic does.
NOT_OF_BOOL = {"relax.full_like", "relax.cumsum"}

MOST_LABELS = 2

TOLERANCE = {
    "float64": 1e-5,
    "float16": 2e-2,
    "bfloat16": 8e-2,
    "float8_e4m3fn": 0.3,
    "float8_e5m2": 0.6,
}

WIDEST = {"f": ("float64", "float32"), "b": ("float64", "float32"), "u": ("uint64",)}
"""The types in which an operator is its own reference, by kind: the first that has a kernel."""

# Not data of the operator, but places in it.
PLACES = ("index", "around", "shift", "starts")


# Whose numbers of places are of the dtype of the data.
SHIFTS = ("relax.left_shift", "relax.right_shift")

# Whose first operand is a condition.
CHOICES = ("relax.where",)


def is_left_out(op):
    return any(re.fullmatch(pattern, op) for pattern in LEFT_OUT)


def cases(most_labels=MOST_LABELS):
    for of_operator in (*CASES.values(), *([each] for each in DATA_DEPENDENT)):
        has_numpy = any(case.numpy is not None for case in of_operator)
        labels = set()
        for case in of_operator:
            is_new = case.label not in labels and len(labels) < most_labels
            is_new = is_new and not is_left_out(case.op)
            if case.operands and is_new and (case.numpy is not None or not has_numpy):
                labels.add(case.label)
                yield case


def is_data(case, operand):
    if case.op in SHIFTS:
        return True
    first = next(each for each in case.operands if each.dtype != "bool" or case.op not in CHOICES)
    return operand.dtype == first.dtype and not operand.values.startswith(PLACES)


def in_dtype(case, dtype):
    """Data of another dtype for the case."""
    operands = [
        replace(each, dtype=dtype) if is_data(case, each) else each for each in case.operands
    ]
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    return [draw(rng, each) for each in operands]


def module_of(case, arrays):
    """None where Relax refuses the dtype as the call is written."""
    params = [
        relax.Var(f"x{i}", relax.TensorType(array.shape, str(array.dtype)))
        for i, array in enumerate(arrays)
    ]
    builder = relax.BlockBuilder()
    try:
        value = builder.normalize(case.apply(*params))
    except Exception:
        return None
    body = relax.SeqExpr([], value)
    function = relax.Function(params, body, value.ty).with_attr("global_symbol", "main")
    return relax.transform.Normalize()(tvm.IRModule({"main": function}))


@functools.cache
def compiled(case, dtypes):
    """A case's program for operands of these dtypes; None where Relax refuses them."""
    pairs = zip(case.operands, dtypes, strict=True)
    mod = module_of(case, [np.zeros(each.shape, numpy_dtype(dtype)) for each, dtype in pairs])
    if mod is None:
        return None
    return tvm.compile(legalized(mod), QUICK, tir_pipeline=tir_pipeline(for_cpu=True))


def results_of(case, arrays):
    program = compiled(case, tuple(str(array.dtype) for array in arrays))
    if program is None:
        return None
    machine = relax.VirtualMachine(program, tvm.cpu())
    return to_arrays(machine["main"](*map(tvm.runtime.tensor, arrays)))


def reference(case, arrays):
    """NumPy's results on wider numbers, or the operator's; None where there are none."""
    if case.numpy is None or case.op in WITHOUT_REFERENCE:
        return of_the_widest(case, arrays)
    operands = [
        array.astype("int64") if array.dtype.kind in "iu" and array.dtype.itemsize < 8 else array
        for array in map(wide, arrays)
    ]
    with np.errstate(all="ignore"):
        try:
            found = case.numpy(*operands)
        except (OverflowError, TypeError, ValueError):
            return None
    return found if isinstance(found, tuple | list) else (found,)


def of_the_widest(case, arrays):
    """The operator's results in the widest type of the kind."""
    kind = arrays[0].dtype.kind
    for dtype in WIDEST.get("f" if kind not in "iub" else kind, ("int64",)):
        operands = [
            array.astype(dtype) if is_data(case, each) else array
            for each, array in zip(case.operands, arrays, strict=True)
        ]
        try:
            return results_of(case, operands)
        except Exception:
            continue
    return None


def failure(case, dtype, compared):
    arrays = in_dtype(case, dtype)
    try:
        got = results_of(case, arrays)
    except Exception as error:
        name = case.op.removeprefix("relax.")
        is_named = re.search(rf"R\.{name} of {dtype}\b", str(error))
        return None if is_named else f"{type(error).__name__} {str(error)[-200:]}"
    wanted = None if got is None else reference(case, arrays)
    if wanted is None:
        return None
    dtypes = [str(each.dtype) for each in got]
    if dtypes != stated_dtypes(case, arrays):
        return f"results of {dtypes}, and not {stated_dtypes(case, arrays)}"
    compared.add(case.op)
    return difference(got, wanted, TOLERANCE.get(dtype, 1e-4))


def stated_dtypes(case, arrays):
    """Those that Relax says a call has."""
    type_ = module_of(case, arrays)["main"].ret_ty
    fields = type_.fields if isinstance(type_, relax.TupleType) else [type_]
    return [str(each.dtype) for each in fields]


def difference(results, wanted, limit):
    for got, right in zip(results, wanted, strict=True):
        with np.errstate(all="ignore"):
            right = np.asarray(right).astype(got.dtype)
        if got.shape != right.shape:
            return f"{got.shape}, and not {right.shape}"
        if not np.allclose(wide(got), wide(right), limit, limit, equal_nan=True):
            return f"{got.ravel()[:4]}, and not {right.ravel()[:4]}"
    return None


def test_operators_are_right_in_every_dtype(sample):
    small = ("bfloat16", "int8")
    large = (*small, "float32", "bool", "uint64")
    float8 = ("float8_e4m3fn", "float8_e5m2")
    failures = []
    most_labels, step = sample((1, 2), (1, 1), (MOST_LABELS, 1))
    dtypes = sample(small, large, (*DTYPES, *float8))
    compared = set()
    for first, dtype in enumerate(dtypes):
        left_out = NOT_OF_BOOL if dtype == "bool" else set()
        chosen = [case for case in cases(most_labels) if case.op not in left_out]
        chosen = chosen[first % step :: step]
        found = {str(case): failure(case, dtype, compared) for case in chosen}
        failures += [f"{dtype} {case}: {text}" for case, text in found.items() if text]
    assert not failures, f"{len(failures)} failed:\n" + "\n".join(failures)
    if len(dtypes) > len(small):
        never = {case.op for case in cases()} - compared
        assert not never, f"{sorted(never)} are refused, or without a reference, in every dtype"


def test_operators_without_operands_are_numpys_in_every_dtype(sample):
    failures = []
    for dtype in sample(("bfloat16", "int8"), DTYPES):
        for name, (apply, numpy) in CREATED.items():
            if (name, dtype) == ("relax.arange", "bool"):
                continue  # NumPy has none, either
            try:
                value = relax.BlockBuilder().normalize(apply(dtype))
            except Exception:
                continue
            body = relax.Function([], relax.SeqExpr([], value), value.ty)
            mod = tvm.IRModule({"main": body.with_attr("global_symbol", "main")})
            mod = legalized(relax.transform.Normalize()(mod))
            program = tvm.compile(mod, QUICK, tir_pipeline=tir_pipeline(for_cpu=True))
            got = relax.VirtualMachine(program, tvm.cpu())["main"]()
            text = difference(to_arrays(got), (numpy(dtype),), TOLERANCE.get(dtype, 1e-6))
            failures += [f"{name} of {dtype}: {text}"] if text else []
    assert not failures, "\n".join(failures)


def test_every_operator_is_compared_or_left_out_for_a_reason():
    names = {str(name) for name in tvm.ir.Op.list_op_names() if str(name).startswith("relax.")}
    compared = {case.op for case in cases()} | set(CREATED)
    rest = names - compared
    missing = [name for name in rest if not is_left_out(name)]
    assert not missing, f"in neither list: {sorted(missing)}"
    idle = [each for each in LEFT_OUT if not any(re.fullmatch(each, name) for name in rest)]
    assert not idle, f"patterns that no operator matches: {idle}"
