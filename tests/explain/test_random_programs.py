"""Every variable of random programs is explained after every pass, and the same after parsing."""

import pytest
import tvm
from hypothesis import HealthCheck, assume, given, note, seed, settings
from tests.numerical.random_programs import elements, programs, to_module
from tvm import relax

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
VALUES = (relax.TensorType, relax.TupleType, relax.distributed.DTensorType)
UNKNOWN = ("another pass", "other passes", "several variables")


def variables(function):
    """All variables with a value, those of branches included."""
    found = {str(param.name): param for param in function.params}

    def visit(expr):
        if isinstance(expr, relax.Var) and isinstance(expr.ty, VALUES):
            found[str(expr.name)] = expr

    relax.analysis.post_order_visit(function.body, visit)
    return [var for var in found.values() if var.ty != relax.TupleType([])]


@pytest.mark.parametrize("number", range(2))
def test_every_variable_of_random_programs_is_explained(number, sample):
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
        for transform in PASSES:
            mod = transform(mod)
            note(mod.script())
            parsed = tvm.script.from_source(mod.script())
            for gv, function in mod.functions_items():
                if not isinstance(function, relax.Function):
                    continue
                names = [str(var.name) for var in variables(function)]
                texts = [str(each) for each in dx.explain(mod, names, gv.name_hint)]
                assert texts == [str(each) for each in dx.explain(parsed, names, gv.name_hint)]
                for name, of_var in zip(names, dx.explain(mod, variables(function)), strict=True):
                    assert str(of_var).startswith(f"`{name}` ")
                    assert not any(each in str(of_var) for each in UNKNOWN)

    check()
