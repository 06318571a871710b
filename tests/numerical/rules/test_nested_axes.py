"""Dimensions over the same axes, in other orders."""

import numpy as np
import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.testing.phases import verify


def test_dimensions_that_nest_the_same_axes_in_opposite_orders():
    # Element k of y is element (k % 2) * 2 + k // 2 of x: the two halves of the index change
    # places, and no mesh names x sharded ab and y sharded ba.
    x = tvm.te.placeholder((4,), name="x")
    y = tvm.te.compute((4,), lambda k: x[(k % 2) * 2 + k // 2], name="y")
    kernel = tvm.te.create_prim_func([x, y]).with_attr("global_symbol", "turn")
    builder = relax.BlockBuilder()
    value = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [value]):
        call = relax.call_tir(builder.add_func(kernel, "turn"), [value], value.ty)
        builder.emit_func_output(builder.emit(call))
    mod = dx.annotate(builder.get(), dx.Mesh((2, 2), ("a", "b")), {"x": (("a", "b"),)})
    result = dx.transform.PropagateSharding()(mod)
    verify(result, "propagated")
    assert repr(result["main"].params[0].ty.placement) == '"S[0], S[0]"'
    with dx.Session(4) as session:
        turned = session.load(dx.build(mod))["main"](np.arange(4, dtype="float32")).numpy()
    np.testing.assert_array_equal(turned, [0, 2, 1, 3])
