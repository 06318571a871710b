"""Every variable of random programs is explained after every pass, and the same after parsing."""

import pytest
import tvm
from tests.every_pass import check_after_every_pass
from tvm import relax

import distir_ext as dx

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
    def check(_, after):
        for mod in after:
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

    check_after_every_pass(number, sample, check)
