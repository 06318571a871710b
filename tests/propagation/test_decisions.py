"""Decisions of propagation, read back from the types of a call's operands."""

import pytest
from tests.every_pass import for_random_programs

import distir_ext as dx


def read_otherwise(mod):
    """Counts calls whose decision, read back from types, differs from the one that was made."""
    with dx.pass_reports() as reports:
        dx.transform.PropagateSharding()(mod)
    (report,) = (each for each in reports if each.name == "PropagateSharding")
    return report.skipped.get("decision", {})


@pytest.mark.parametrize("number", range(2))
def test_calls_of_random_programs_read_back_as_decided(number, sample):
    def check(annotated):
        assert read_otherwise(annotated) == {}

    for_random_programs(number, sample(15, 100, 2000), check)
