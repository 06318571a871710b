"""LegalizeRedistribute: running it twice changes nothing, and each stage prints and parses."""

import tvm
from tests.redistribute.module_stages import ACROSS, stages

import distir_ext as dx

from .programs import redistributions, sampled_pairs


def test_legalized_twice_is_legalized_once():
    mod = redistributions(sampled_pairs((2, 2), 2, 20), (4, 8))
    once = dx.transform.LegalizeRedistribute()(mod)
    tvm.ir.assert_structural_equal(dx.transform.LegalizeRedistribute()(once), once)


def test_every_stage_prints_and_parses():
    for pairs in (sampled_pairs((2, 2, 2), 2, 12, seed=2), sampled_pairs((4,), 2, 12), ACROSS):
        mod, legal, lowered = stages(redistributions(pairs, (24, 24)))
        for stage in (mod, legal, lowered, dx.transform.LowerCCL()(lowered)):
            tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)
