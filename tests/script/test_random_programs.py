"""Random programs print and parse after every pass, for the parser and as files that run."""

import pytest
import tvm
from tests.every_pass import check_after_every_pass
from tests.script.printed import run_file

import distir_ext as dx


@pytest.mark.large
@pytest.mark.parametrize("number", range(2))
def test_every_pass_of_random_programs_prints_and_parses(number, sample, tmp_path):
    def check(annotated, after):
        for mod in [annotated, *after]:
            tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
            tvm.ir.assert_structural_equal(run_file(dx.script(mod), tmp_path / "printed.py"), mod)

    check_after_every_pass(number, sample, check)
