"""Verification of hints: right hints pass, and wrong ones fail."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import tvm
from tests.hints.programs import (
    Adapted,
    Builder,
    Sharing,
    arrays,
    block_in_sequence,
    fused_attention,
    gated_mlp,
    mixture,
    normed_mlp,
    parallel_block,
    plain_mlp,
)
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx
from distir_ext.cli import main
from distir_ext.hints.verification import check
from distir_ext.hints.verification.check import CONFIGS, outcome_table
from distir_ext.hints.verification.models import Program

verify = functools.partial(check.verify, target=QUICK)


def program(*layers, builder=Builder):
    mod = builder().module(*layers)
    given = arrays(mod)
    x = given.pop("x")
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=1), {"x": None}), QUICK)
    with dx.Session(1) as session:
        expected = session.load(exe, params=given)(x).numpy()
    return Program(mod, {"x": x}, given, expected)


@pytest.fixture(scope="module")
def model():
    return program(fused_attention, mixture)


@pytest.fixture(scope="module")
def dense():
    return program(fused_attention, plain_mlp)


@pytest.mark.parametrize("config", CONFIGS)
def test_what_is_detected_is_right(model, config):
    outcome = verify("small", model, config)
    assert (outcome.status, outcome.why) == ("pass", "")
    assert outcome.rel_rmse < outcome.tolerance
    assert "nodes processed" in outcome.line
    assert "same" in map(str, outcome_table([outcome]).columns[6]._cells)


def test_what_a_model_cannot_be_is_skipped_with_the_reason(dense):
    outcome = verify("small", dense, "ep-only")
    assert (outcome.status, outcome.why) == ("skip", "the model has no experts")


@pytest.mark.parametrize("devices", [2, 3])
def test_shared_layers_in_sequence_reduce_once_each(devices):
    """The block is called twice: two reductions for each call."""
    made = program(block_in_sequence, block_in_sequence, builder=Sharing)
    outcome = verify("shared", made, "tp-only", devices=devices)
    assert (outcome.status, outcome.why) == ("pass", "")
    assert outcome.communicated.startswith("4 all_reduce")


def test_adapters_give_the_right_numbers():
    made = program(fused_attention, gated_mlp, builder=Adapted)
    outcome = verify("adapted", made, "tp-only", devices=4)
    assert outcome.rel_rmse < outcome.tolerance
    assert "gather" not in outcome.communicated


@pytest.mark.large
def test_parallel_blocks_reduce_once_and_norms_of_all_columns_their_statistics():
    """Blocks that are taken from heads are weights of their own; nothing is exchanged."""
    made = program(parallel_block, normed_mlp)
    hints = dx.hints.detect(made.mod)
    (fused,) = (w for layer in hints.layers.values() for n, w in layer.weights.items() if n == "a1")
    assert (fused.output_sizes, fused.units()) == ((32, 8, 8), (8, 8, 8))
    outcome = verify("small", made, "tp-only")
    assert (outcome.status, outcome.why) == ("pass", "")
    assert (
        outcome.communicated
        == outcome.textbook
        == ("2 all_reduce of 4096 B, 1 all_reduce of 128 B")
    )


def test_wrong_output_sizes_fail(dense):
    hints = dx.hints.detect(dense.mod).with_weight("mha", "a1", output_sizes=(16, 16, 32))
    outcome = verify("small", dense, "tp-only", hints)
    assert outcome.status == "FAIL"
    assert "segment_exchange" in outcome.communicated or "all_" in outcome.communicated
    assert outcome.communicated != outcome.textbook


def test_a_hint_that_leaves_the_reduction_out_fails(dense):
    hints = dx.hints.detect(dense.mod).with_weight("mha", "a3", tp_mode="none")
    outcome = verify("small", dense, "tp-only", hints)
    assert (outcome.status, outcome.why) == ("FAIL", "the communication is not the textbook's")


@relax.expr_functor.mutator
class _WithoutReductions(relax.PyExprMutator):
    def visit_call_(self, call):
        call = super().visit_call_(call)
        is_reduction = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.ccl.all_reduce"
        return call.args[0] if is_reduction else call


def without_reductions(lowered):
    mutator = _WithoutReductions(lowered)
    for name, function in lowered.functions.items():
        if isinstance(function, relax.Function):
            mutator.builder_.update_func(name, mutator.visit_expr(function))
    return mutator.builder_.get().with_attrs(lowered.attrs)


def test_a_program_without_its_reductions_fails(dense):
    outcome = verify("small", dense, "tp-only", change=without_reductions)
    assert outcome.status == "FAIL"
    assert outcome.rel_rmse > 0.05
    assert "rel_rmse" in outcome.why
    assert "the communication is not the textbook's" in outcome.why


def test_a_wrong_result_fails(dense):
    wrong = Program(dense.mod, dense.inputs, dense.weights, dense.expected * 1.001)
    assert verify("small", wrong, "tp-only").status == "FAIL"
    other = Program(dense.mod, dense.inputs, dense.weights, np.zeros((2, 2)))
    assert verify("small", other, "tp-only").rel_rmse == float("inf")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama"], "there is no model 'lama', only llama, .*did you mean 'llama'"),
        (["llama", "--config", "tp"], "there is no config 'tp', only tp-only, .*'tp-only'"),
    ],
)
def test_the_command_refuses_what_there_is_not(arguments, message, capsys):
    assert main(["verify-hints", *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)
