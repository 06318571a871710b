"""Calls of every operator on distributed tensors, and on workers, print and parse back."""

from __future__ import annotations

import pytest
import tvm

import distir_ext as dx

from ..numerical.operators import CASES
from ..numerical.partitioned import Partitioned, call_of, module_of
from ..numerical.sampling import programs_of

MESH = (2, 2)

# What TVM prints of these it does not read itself, also without distribution.
UNREADABLE = {
    "relax.grad.take_backward",  # an attribute that the function lacks
    "relax.nn.attention_var_len",  # a constant that is left out
    "relax.to_vdevice",  # a device that the module does not list
}
# Parsing reads the type of the argument as that of a Tensor.
UNREADABLE_DISTRIBUTED = {"relax.layout_transform"}


def program_of(op: str) -> Partitioned:
    """The first sampled program of the operator's first case that runs sharded, if one does."""
    programs = list(programs_of(CASES[op][:1], MESH))
    return next((p for p in programs if p.expectation.runs_sharded), programs[0])


def parses_back(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


@pytest.mark.parametrize("op", sorted(set(CASES) - UNREADABLE))
def test_text_parses_back(op):
    program = program_of(op)
    function = call_of(program.case, MESH, (program.operands, program.results))
    mod = dx.transform.PropagateSharding()(module_of({"main": function}, MESH))
    if op not in UNREADABLE_DISTRIBUTED:
        parses_back(mod)
    parses_back(dx.transform.LowerDistIR()(dx.transform.LegalizeRedistribute()(mod)))
