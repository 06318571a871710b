"""Options, report and place of OptimizeCollectives."""

import logging

import pytest
import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import NAMES


@I.ir_module
class TwoProducts:
    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        a: R.Tensor((8, 8), "float32"),
        b: R.Tensor((8, 8), "float32"),
    ):
        with R.dataflow():
            p = R.matmul(x, a)
            q = R.matmul(x, b)
            r = R.add(p, q)
            R.output(r)
        return r


PLAN = {"x": (None, "x"), "a": ("x", None), "b": ("x", None)}


def propagated():
    mod = dx.annotate(TwoProducts, dx.Mesh((4,), ("x",)), PLAN)
    return dx.transform.PropagateSharding()(mod)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="no optimisation `defer` of collectives") as error:
        dx.transform.OptimizeCollectives(disable=("defer",))
    assert all(name in str(error.value) for name in NAMES)
    for enable in (["hurry"], "hurry"):
        with pytest.raises(ValueError, match="no optimisation `hurry`"):
            dx.transform.OptimizeCollectives(enable=enable)


def test_what_is_disabled_is_not_run():
    legal = dx.transform.LegalizeRedistribute()(propagated())
    for disable, matched in (((), [1]), (("defer_reductions",), []), ("defer_reductions", [])):
        result = dx.transform.OptimizeCollectives(disable=disable)(legal)
        report = dx.analysis.optimizations(result)
        found = [each.matched for each in report if each.name == "defer_reductions"]
        assert found == matched


def test_lowering_optimises_and_keeps_the_report():
    lowered = dx.lower(propagated())
    (collective,) = dx.analysis.collectives(lowered)
    assert (collective.kind, collective.count) == ("all_reduce", 1)
    assert [each.name for each in dx.analysis.optimizations(lowered)]


def test_a_module_that_was_not_legalised_is_legalised_first():
    mod = propagated()
    legal = dx.transform.LegalizeRedistribute()(mod)
    run = dx.transform.OptimizeCollectives()
    tvm.ir.assert_structural_equal(run(mod), run(legal))


def test_a_module_without_report_says_so():
    with pytest.raises(ValueError, match="OptimizeCollectives first"):
        dx.analysis.optimizations(propagated())


def test_a_module_that_takes_no_part_stays_as_it_is():
    tvm.ir.assert_structural_equal(dx.transform.OptimizeCollectives()(TwoProducts), TwoProducts)


def test_the_counts_are_logged(caplog):
    with caplog.at_level(logging.INFO, logger="distir_ext"):
        dx.transform.OptimizeCollectives()(propagated())
    (line,) = [text for text in caplog.messages if "OptimizeCollectives" in text]
    assert line.startswith("[SUMMARY] pass=OptimizeCollectives matches=1 ")
    assert ": 1 defer_reductions" in line
