"""Tuples of twice the same tuple, whose values double at every level."""

import pytest
from tvm import relax

import distir_ext as dx


def doubled(levels):
    x = relax.Var("x", relax.TensorType((8, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        value = x
        for _ in range(levels):
            value = builder.emit(relax.Tuple([value, value]))
        for _ in range(levels):
            value = builder.emit(value[1])
        builder.emit_func_output(value)
    return builder.get()


def test_a_tuple_of_too_many_values_is_refused():
    message = r"`\w+` in `main` is a tuple of more than a million values"
    with pytest.raises(ValueError, match=message):
        dx.annotate(doubled(40), dx.Mesh(a=2), {"x": ("a", None)})
    with pytest.raises(ValueError, match=message):
        dx.transform.PropagateSharding()(doubled(40))
    assert dx.lower(dx.annotate(doubled(6), dx.Mesh(a=2), {"x": ("a", None)}))
