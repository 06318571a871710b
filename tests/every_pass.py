"""Random programs after every pass, for tests of what holds of all of them."""

from hypothesis import HealthCheck, assume, given, note, seed, settings
from tests.numerical.random_programs import elements, programs, to_module

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


def for_random_programs(number, examples, check):
    """Calls ``check(annotated)`` for annotated random programs.

    Args:
        number: The seed.
        examples: How many.
        check: Gets the module.
    """

    @seed(number)
    @settings(
        max_examples=examples,
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(programs(branches=True))
    def run(program):
        assume(elements(program) <= LARGEST)
        check(to_module(program, annotated=True))

    run()


def check_after_every_pass(number, sample, check):
    """Calls ``check(annotated, after)`` for random programs.

    Args:
        number: The seed.
        sample: The fixture that chooses a number of examples.
        check: Gets the annotated module, and what it is after each pass in order.
    """

    def run(annotated):
        mod = annotated
        after = []
        for transform in PASSES:
            mod = transform(mod)
            note(mod.script())
            after.append(mod)
        check(annotated, after)

    for_random_programs(number, sample(*EXAMPLES), run)
