"""R.dist.random_bits: its type, what it refuses, and its text."""

import pytest
import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.native.random_bits import random_bits, random_normal


@I.ir_module
class Module:
    @R.function
    def main(
        key: R.Tensor((), "int64"),
        rows: R.Tensor((4, 1), "int64"),
        columns: R.Tensor((6,), "int64"),
    ):
        bits = R.dist.random_bits(key, rows, columns, dtype="uint32")
        return bits


def called(*types, dtype="uint32"):
    builder = tvm.relax.BlockBuilder()
    params = [tvm.relax.Var(f"a{at}", each) for at, each in enumerate(types)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(random_bits(*params, dtype)))


def test_shapes_broadcast_and_text_is_parsed_back():
    assert str(Module["main"].ret_ty.shape) == "R.shape([4, 6])"
    assert Module["main"].ret_ty.dtype == "uint32"
    again = tvm.script.from_source(Module.script())
    tvm.ir.assert_structural_equal(again, Module)


def test_elements_are_sharded_as_the_counters():
    mod = dx.annotate(Module, dx.Mesh(d=2), {"rows": ("d", None)})
    lowered = dx.lower(mod)
    assert "R.Tensor((2, 6)" in lowered.script()
    assert dx.analysis.collectives(lowered) == []


def test_what_is_no_key_no_counter_or_no_dtype_is_refused():
    scalar, row = (tvm.relax.TensorType(shape, "int64") for shape in ((), (3,)))
    narrow = tvm.relax.TensorType((3,), "int32")
    for args, dtype, error, message in (
        ((scalar, narrow, row), "uint32", TypeError, "takes tensors of 64-bit integers.*int32"),
        ((row, row, row), "uint32", ValueError, "takes a scalar as key"),
        ((scalar, row, row), "float32", ValueError, 'makes dtype="uint32"'),
    ):
        with pytest.raises(error, match=f"R.dist.random_bits {message}"):
            called(*args, dtype=dtype)
    builder, zero = tvm.relax.BlockBuilder(), tvm.relax.const(0, "int64")
    call = random_normal(zero, zero, zero, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"random_normal takes bounds, low=\.\. below high="):
        builder.normalize(call)
