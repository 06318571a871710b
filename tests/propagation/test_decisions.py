"""The types of a propagated program say how each call was decided to be computed."""

import pytest
from hypothesis import HealthCheck, assume, given, seed, settings
from tests.every_pass import LARGEST
from tests.numerical.random_programs import elements, programs, to_module

import distir_ext as dx


def read_otherwise(mod):
    """How many calls of a module read back otherwise than they were decided."""
    with dx.pass_reports() as reports:
        dx.transform.PropagateSharding()(mod)
    (report,) = (each for each in reports if each.name == "PropagateSharding")
    return report.skipped.get("decision", {})


@pytest.mark.parametrize("number", range(2))
def test_calls_of_random_programs_read_back_as_decided(number, sample):
    @seed(number)
    @settings(
        max_examples=sample(15, 100, 2000),
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(programs(branches=True))
    def run(program):
        assume(elements(program) <= LARGEST)
        assert read_otherwise(to_module(program, annotated=True)) == {}

    run()
