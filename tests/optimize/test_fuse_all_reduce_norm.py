"""Fuses an all-reduce, a residual sum and an RMS norm into one operator."""

import pytest
import tvm
from tests.meshes import meshes
from tests.optimize.programs import NormOfReduced
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_optimizes, optimized, tally

NAME = "fuse_all_reduce_norm"


def test_one_operator_gives_the_sum_and_its_norm():
    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 16), "float32", "mesh[0]", "R"),
            g: R.DTensor((16,), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                t = R.dist.all_reduce_add_rms_norm(
                    a,
                    r,
                    g,
                    "mesh[0]",
                    "R",
                    reduce_axes=[0],
                    reduction="sum",
                    epsilon=0.0078125,
                )
                c = t[0]
                d = t[1]
                R.output(c, d)
            return (c, d)

    result = assert_optimizes(NormOfReduced, Expected, NAME)
    assert tally(result, NAME).matched == 1
    (collective,) = dx.analysis.collectives(dx.lower(result))
    (unfused,) = dx.analysis.collectives(dx.lower(NormOfReduced))
    assert collective.kind == "all_reduce_add_rms_norm"
    assert collective.bytes_per_device == unfused.bytes_per_device


def test_every_stage_prints_and_parses():
    mod = dx.transform.LowerDistIR()(optimized(NormOfReduced, NAME))
    for stage in (mod, dx.transform.LowerCCL()(mod)):
        tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)


def test_it_is_off_unless_enabled():
    (collective,) = dx.analysis.collectives(dx.lower(NormOfReduced))
    assert collective.kind == "all_reduce"


def test_a_runtime_without_the_operator_gets_none():
    result = assert_optimizes(NormOfReduced, NormOfReduced, NAME, ccl="nccl")
    assert tally(result, NAME).skipped == {"the runtime has no such operator": 1}


def program(body, dtype="float32"):
    builder = tvm.relax.BlockBuilder()
    shapes = {"r": (8, 16), "g": (16,), "x": (8, 32), "w": (32, 16)}
    variables = [
        tvm.relax.Var(name, tvm.relax.TensorType(shape, dtype)) for name, shape in shapes.items()
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *variables))
        builder.emit_func_output(result)
    plan = {"x": (None, "tp"), "w": ("tp", None), "r": (None, None), "g": (None,)}
    mod = dx.annotate(builder.get(), dx.Mesh((4,), ("tp",)), plan)
    return dx.transform.LegalizeRedistribute()(dx.transform.PropagateSharding()(mod))


op = tvm.relax.op


def no_sum(emit, r, g, x, w):
    return emit(op.nn.rms_norm(emit(op.matmul(x, w)), g, [-1]))


def no_norm(emit, r, g, x, w):
    return emit(op.nn.relu(emit(op.add(r, emit(op.matmul(x, w))))))


def norm_of_rows(emit, r, g, x, w):
    s = emit(op.add(r, emit(op.matmul(x, w))))
    column = emit(op.strided_slice(g, [0], [0], [8]))
    return emit(op.nn.rms_norm(s, column, [0]))


def used_twice(emit, r, g, x, w):
    product = emit(op.matmul(x, w))
    s = emit(op.add(r, product))
    return emit(op.multiply(emit(op.nn.rms_norm(s, g, [-1])), product))


def late_weight(emit, r, g, x, w):
    s = emit(op.add(r, emit(op.matmul(x, w))))
    return emit(op.nn.rms_norm(s, emit(op.exp(g)), [-1]))


def full(emit, r, g, x, w):
    s = emit(op.add(emit(op.matmul(x, w)), r))
    return emit(op.nn.rms_norm(s, g, [-1]))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (no_sum, "no sum follows"),
        (no_norm, "no norm follows the sum"),
        (used_twice, "used more than once"),
        (late_weight, "the weight is computed later"),
    ],
)
def test_what_does_not_fit_is_skipped_with_the_reason(body, why):
    mod = program(body)
    result = assert_optimizes(mod, mod, NAME)
    assert tally(result, NAME).skipped == {why: 1}


def test_doubles_are_not_fused():
    result = optimized(program(full, "float64"), NAME)
    assert tally(result, NAME).skipped == {"not float32, float16 or bfloat16": 1}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_residual_may_come_second(dtype):
    assert tally(optimized(program(full, dtype), NAME), NAME).matched == 1
