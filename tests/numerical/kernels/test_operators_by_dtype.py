"""Every operator that NumPy has, in every dtype: NumPy's result, or an error that names both."""

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
from .test_values import DTYPES, wide

# Its order of equal elements is another one than NumPy's; test_values has a stable reference.
WITHOUT_REFERENCE = {"relax.argsort"}

# Their cases have a number that is no bool, and a reference that adds bools up as logic does.
NOT_OF_BOOL = {"relax.full_like", "relax.cumsum"}

MOST_LABELS = 2

TOLERANCE = {"float16": 2e-2, "bfloat16": 8e-2, "float8_e4m3fn": 0.3, "float8_e5m2": 0.6}

# Not data of the operator, but places in it.
PLACES = ("index", "around", "shift", "starts")


def cases():
    for op, of_operator in CASES.items():
        labels = set()
        for case in of_operator:
            is_new = case.label not in labels and len(labels) < MOST_LABELS
            if case.numpy is not None and case.operands and is_new and op not in WITHOUT_REFERENCE:
                labels.add(case.label)
                yield case


def in_dtype(case, dtype):
    """Data of another dtype for the case."""
    first = case.operands[0].dtype
    operands = [
        replace(each, dtype=dtype)
        if each.dtype == first and not each.values.startswith(PLACES)
        else each
        for each in case.operands
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


def reference(case, arrays):
    """NumPy's results on wider numbers; None where it takes none of this dtype."""
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


def failure(case, dtype):
    arrays = in_dtype(case, dtype)
    wanted, mod = reference(case, arrays), module_of(case, arrays)
    if wanted is None or mod is None:
        return None
    try:
        compiled = tvm.compile(legalized(mod), QUICK, tir_pipeline=tir_pipeline(for_cpu=True))
    except Exception as error:
        name = case.op.removeprefix("relax.")
        is_named = re.search(rf"R\.{name} of {dtype}\b", str(error))
        return None if is_named else f"{type(error).__name__} {str(error)[-200:]}"
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    results = to_arrays(machine["main"](*map(tvm.runtime.tensor, arrays)))
    limit = TOLERANCE.get(dtype, 1e-4)
    for got, right in zip(results, wanted, strict=True):
        with np.errstate(all="ignore"):
            right = np.asarray(right).astype(got.dtype)
        if got.shape != right.shape:
            return f"{got.shape}, and not {right.shape}"
        if not np.allclose(wide(got), wide(right), limit, limit, equal_nan=True):
            return f"{got.ravel()[:4]}, and not {right.ravel()[:4]}"
    return None


def test_operators_are_numpys_in_every_dtype(sample):
    small = ("bfloat16", "int8")
    float8 = ("float8_e4m3fn", "float8_e5m2")
    failures = []
    for dtype in sample(small, (*small, "bool", "uint64"), (*DTYPES, *float8)):
        left_out = NOT_OF_BOOL if dtype == "bool" else set()
        found = {str(case): failure(case, dtype) for case in cases() if case.op not in left_out}
        failures += [f"{dtype} {case}: {text}" for case, text in found.items() if text]
    assert not failures, f"{len(failures)} failed:\n" + "\n".join(failures)
