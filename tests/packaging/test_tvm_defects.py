"""Defects of TVM listed in docs/tvm.md; where a test fails, the workaround can be removed."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, s_tir
from tvm.relax.op import _op_gradient
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext  # noqa: F401 - passes below meet DTensors

TENSOR = ((4, 4), "float32")


def function(make, *types):
    """A module whose function is one expression of its parameters."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(*type_)) for i, type_ in enumerate(types)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(make(*params))
        builder.emit_func_output(result)
    return builder.get()


def in_a_process(program, tmp_path):
    """The exit status of a program that imports TVM alone."""
    file = tmp_path / "program.py"  # a file, because TVMScript reads its own source
    file.write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(file)], check=False, capture_output=True, timeout=120
    ).returncode


def test_disco_is_not_imported(tmp_path):
    assert in_a_process("import tvm\nassert tvm.runtime.disco is not None", tmp_path) == 1


BRANCHES = """
import numpy as np, tvm
from tvm import relax, s_tir
from tvm.script.parser import ir as I, relax as R
@I.ir_module
class Branches:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 4), "float32")):
        if c:
            y = R.exp(R.negative(R.exp(x)))
        else:
            y = R.negative(R.exp(R.negative(x)))
        return y
machine = relax.VirtualMachine(tvm.compile(Branches, "llvm"), tvm.cpu())
for c in (True, False):
    machine["main"](tvm.runtime.tensor(np.array(c)), tvm.runtime.tensor(np.ones((4, 4), "float32")))
"""


def test_memory_plan_of_branches_crashes(tmp_path):
    assert in_a_process(BRANCHES, tmp_path) < 0


@I.ir_module
class Tuples:
    @R.function
    def main(x: R.Tensor((4, 4), "float32")):
        with R.dataflow():
            pair = (x, x)
            nested = (pair, x)
            first = nested[0]
            second = first[1]
            R.output(nested, second)
        return (nested, second)


def test_functions_of_tuples_are_not_fused():
    prepare = tvm.transform.Sequential(
        [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    )
    with pytest.raises(tvm.error.InternalError, match="fused"):
        relax.transform.FuseTIR()(prepare(Tuples))


def test_operators_have_no_gradient():
    """Its registrations are read: those of distir_ext are there, too."""
    registered = Path(inspect.getsourcefile(_op_gradient)).read_text(encoding="utf-8")
    for name in ("layer_norm", "rms_norm", "gelu", "gelu_tanh", "attention", "conv1d"):
        assert f'register_gradient("relax.nn.{name}")' not in registered


def test_gradient_of_take_is_for_indices_in_one_dimension():
    gradients = relax.op.grad.take_backward
    types = [((2, 2, 4), "float32"), TENSOR, ((2, 2), "int64")]
    mod = function(lambda *args: gradients(*args, axis=0), *types)
    with pytest.raises(AssertionError):
        relax.transform.LegalizeOps()(mod)


def test_bfloat16_layer_norm_is_not_legalised():
    types = [(shape, "bfloat16") for shape in ((4, 4), (4,), (4,))]
    mod = function(lambda *args: relax.op.nn.layer_norm(*args, axes=[-1]), *types)
    with pytest.raises(tvm.error.InternalError, match="only support float32 and float16"):
        relax.transform.LegalizeOps()(mod)


def test_tensor_cores_are_not_for_bfloat16():
    """Its module is read, not imported, which takes 25 s."""
    module = Path(tvm.__file__).parent / "s_tir" / "tensor_intrin" / "cuda.py"
    assert 'assert in_dtype in ["float16", "int8"]' in module.read_text(encoding="utf-8")


def test_adam_does_not_take_its_dtype():
    with pytest.raises(ValueError, match="Could not convert"):
        relax.training.optimizer.Adam(0.1).init([relax.Var("p", relax.TensorType(*TENSOR))])


def test_attention_of_grouped_queries_is_wrong():
    shapes = [(1, 2, 4, 8), (1, 2, 2, 8), (1, 2, 2, 8)]
    mod = function(relax.op.nn.attention, *((shape, "float32") for shape in shapes))
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    query, key = np.zeros(shapes[0], "float32"), np.zeros(shapes[1], "float32")
    value = np.broadcast_to(np.arange(2, dtype="float32")[:, None], shapes[2]).copy()
    result = machine["main"](*map(tvm.runtime.tensor, (query, key, value))).numpy()
    assert not np.allclose(result[0, :, :, 0], [0, 0, 1, 1])


@I.ir_module
class TupleBeforeBranch:
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), c: R.Tensor((), "bool")):
        y = R.exp(x)
        pair = (x, y)
        if c:
            a = pair[1]
            z = R.exp(a)
        else:
            z = R.negative(x)
        return z


def test_convert_to_dataflow_lets_variables_out_of_their_block():
    convert = relax.transform.ConvertToDataflow(min_size=1)
    broken = convert(TupleBeforeBranch)
    assert not relax.analysis.check_well_formed(broken)
    canonical = relax.transform.CanonicalizeBindings()(TupleBeforeBranch)
    assert relax.analysis.check_well_formed(convert(canonical))


def test_fast_math_fails_where_functions_call_each_other():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(*TENSOR))
    with builder.function("inner", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    y = relax.Var("y", relax.TensorType(*TENSOR))
    with builder.function("main", [y]):
        inner = builder.get().get_global_var("inner")
        builder.emit_func_output(builder.emit(relax.Call(inner, [y])))
    with pytest.raises(AttributeError, match="GlobalVar"):
        relax.transform.FastMathTransform()(builder.get())


def computed(make, *arrays):
    """The result of TVM alone for one expression."""
    mod = function(make, *((x.shape, str(x.dtype)) for x in arrays))
    target = tvm.target.Target("llvm")
    exe = tvm.compile(mod, target, relax_pipeline=relax.get_default_pipeline(target))
    return relax.VirtualMachine(exe, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


VALUES = np.array([[np.nan, 1, -2, np.inf], [-np.inf] * 4], "float32")
HALVES = np.array([[1, -2, 3, 0, -5, 2]], ml_dtypes.bfloat16)

FOURS = relax.const(np.full(2, 4, "float32"))

WRONG = {
    "sort of bfloat16": (lambda x: relax.op.sort(x, 1), np.sort, HALVES),
    "sort of NaN": (lambda x: relax.op.sort(x, 1), np.sort, VALUES),
    "max": (lambda x: relax.op.max(x, 1), lambda x: x.max(1), VALUES),
    "argmax": (lambda x: relax.op.argmax(x, 1), lambda x: x.argmax(1), VALUES),
    "relu": (relax.op.nn.relu, lambda x: np.maximum(x, 0), VALUES),
    "sign": (relax.op.sign, np.sign, VALUES),
    "not_equal": (lambda x: relax.op.not_equal(x, x), lambda x: x != x, VALUES),
    "less itself": (
        lambda x: relax.op.add(x, relax.op.subtract(x, x)),
        lambda x: x + (x - x),
        VALUES,
    ),
    "plus 0": (
        lambda x: relax.op.divide(relax.const(1.0), relax.op.add(x, relax.const(0.0))),
        lambda x: 1 / (x + 0),
        np.array([[-0.0]], "float32"),
    ),
    "bits of NaN": (
        lambda x: relax.op.astype(x, "bfloat16"),
        lambda x: x.astype(ml_dtypes.bfloat16),
        np.array([[0x7FFFFFFF]], "uint32").view("float32"),
    ),
    **{
        f"{name} of {dtype}": (make, numpy, np.arange(256, dtype="uint8").view(dtype))
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
        for name, make, numpy in (
            ("value", lambda x: relax.op.astype(x, "float32"), lambda x: x.astype("float32")),
            ("sign", relax.op.sign, lambda x: np.sign(x.astype("float32"))),
        )
    },
    "times 0": (lambda x: relax.op.multiply(x, relax.const(0.0)), lambda x: x * 0, VALUES),
    "floor_divide": (
        lambda x: relax.op.floor_divide(x, relax.const(0.1)),
        lambda x: x // np.float32(0.1),
        np.ones((1, 1), "float32"),
    ),
    "norm without scale": (
        lambda x: relax.op.nn.layer_norm(x, FOURS, FOURS, [-1], 0.0, False, False),
        lambda x: np.array([[-1.0, 1.0]]),
        np.array([[1.0, 3.0]], "float32"),
    ),
    "rms_norm of float64": (
        lambda x: relax.op.nn.rms_norm(x, relax.const(np.full(1, 0.1), "float64"), [-1], 0.0),
        lambda x: np.full((1, 1), 0.1),
        np.ones((1, 1)),
    ),
    "avg_pool of int8": (
        lambda x: relax.op.nn.avg_pool1d(x, 2),
        lambda x: np.array([[[127]]]),
        np.array([[[127, 127]]], "int8"),
    ),
    "dequantize of float8": (
        lambda x: relax.op.dequantize(x, relax.const(1.0), relax.const(0, "int8"), -1),
        lambda x: np.array([[0.5]]),
        np.array([[0.5]], ml_dtypes.float8_e5m2),
    ),
    "median of all": (
        lambda x: relax.op.median(x, keepdims=True),
        lambda x: np.ones((1, 1)),
        np.ones((1, 4), "float32"),
    ),
}


def test_values_are_wrong():
    right = []
    for name, (make, numpy, x) in WRONG.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            wanted = numpy(x)
        got = computed(make, x)
        if got.shape == wanted.shape and np.array_equal(
            got.astype("float64"), wanted.astype("float64"), equal_nan=True
        ):
            right.append(name)
    assert right == []


NO_KERNEL = {
    "sort of int8": (lambda x: relax.op.sort(x, 1), np.ones((2, 3), "int8")),
    "argmax of bfloat16": (lambda x: relax.op.argmax(x, 1), HALVES),
    "max of bool": (lambda x: relax.op.max(x, 1), np.ones((2, 3), "bool")),
    "equal of bool": (lambda x: relax.op.equal(x, x), np.ones((2, 3), "bool")),
    "acos of float16": (relax.op.acos, np.ones((2, 3), "float16")),
    "abs of float8": (relax.op.abs, HALVES.astype(ml_dtypes.float8_e5m2)),
    "isnan of bfloat16": (relax.op.isnan, HALVES),
    "mod of bfloat16": (lambda x: relax.op.mod(x, x), HALVES),
    "negative of uint8": (relax.op.negative, np.ones((2, 3), "uint8")),
    "instance_norm of float64": (
        lambda x: relax.op.nn.instance_norm(
            x, relax.const(np.ones(3), "float64"), relax.const(np.ones(3), "float64"), 1, [2]
        ),
        np.ones((2, 3, 4)),
    ),
    "layout_transform of bool": (
        lambda x: relax.op.layout_transform(x, lambda i, j: (j, i)),
        np.ones((2, 3), "bool"),
    ),
    "power of int32": (lambda x: relax.op.power(x, x), np.ones((2, 3), "int32")),
}


def test_dtypes_have_no_kernel():
    for make, x in NO_KERNEL.values():
        with pytest.raises((tvm.error.InternalError, TypeError, s_tir.schedule.ScheduleError)):
            computed(make, x)


def test_page_of_defects_names_existing_tests():
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "tvm.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/.]+)`", page)
    assert len(named) >= 3
    assert all((root / name).is_file() for name in named)
