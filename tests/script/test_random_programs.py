"""Random programs print and parse after every pass, for the parser and as files that run."""

import pytest
import tvm
from hypothesis import HealthCheck, assume, given, note, seed, settings
from tests.numerical.random_programs import elements, programs, to_module
from tests.script.printed import run_file

import distir_ext as dx

PASSES = [
    dx.transform.PropagateSharding(),
    dx.transform.PadShards(),
    dx.transform.LegalizeRedistribute(),
    dx.transform.OptimizeCollectives(),
    dx.transform.LowerDistIR(),
    dx.transform.LowerCCL(),
]
LARGEST = 50_000  # elements: chains of concat grow
EXAMPLES = (3, 12, 200)  # for each seed, of the small, large and whole sample


@pytest.mark.parametrize("number", range(2))
def test_every_pass_of_random_programs_prints_and_parses(number, sample, tmp_path):
    @seed(number)
    @settings(
        max_examples=sample(*EXAMPLES),
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(programs(branches=True))
    def check(program):
        assume(elements(program) <= LARGEST)
        mod = to_module(program, annotated=True)
        for transform in [None, *PASSES]:
            mod = mod if transform is None else transform(mod)
            note(mod.script())
            tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
            tvm.ir.assert_structural_equal(run_file(dx.script(mod), tmp_path / "printed.py"), mod)

    check()
