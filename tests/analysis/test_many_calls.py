"""Functions that call another one twice, level by level."""

import pytest
from tvm import relax

import distir_ext as dx


def called_twice(levels):
    """A function of 2 ** levels calls of the innermost one."""
    builder = relax.BlockBuilder()
    kind = relax.TensorType((8, 4), "float32")
    callee = None
    for level in range(levels + 1):
        x = relax.Var("x", kind)
        name = "main" if level == levels else f"level_{level}"
        private = level < levels
        with builder.function(name, [x], private=private):
            value = x
            for _ in range(2):
                made = relax.op.nn.relu(value) if callee is None else callee(value)
                value = builder.emit(made)
            builder.emit_func_output(value)
        callee = next(each for each in builder.get().get_global_vars() if each.name_hint == name)
    return dx.annotate(builder.get(), dx.Mesh(a=2), {"x": ("a", None)})


@pytest.mark.parametrize("analysis", ["estimate", "simulate"])
def test_more_steps_than_can_be_listed_are_one_error(analysis):
    analyse, cluster = getattr(dx.analysis, analysis), dx.Cluster.preset("H100")
    with pytest.raises(ValueError, match=r"`\w+` has [\d,]{16,} kernels, .* at most 4,000,000"):
        analyse(called_twice(40), cluster)
    assert analyse(called_twice(4), cluster)
